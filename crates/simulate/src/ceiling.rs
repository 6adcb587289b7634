//! What no choice among workers can exceed. Owns one cache of all workers' size.

use crate::cache::Cache;
use crate::trace::{BLOCK_TOKENS, Trace};

/// The share of prompt tokens that one cache of `blocks` blocks would serve, by the order of the trace.
pub fn ceiling(trace: &Trace, blocks: usize) -> f64 {
    let mut cache = Cache::new(blocks);
    let (mut input, mut cached) = (0, 0);
    for (place, recorded) in trace.requests.iter().enumerate() {
        let own = trace.blocks(place as u32);
        let (found, more) = own.split_at(cache.leading(own));
        let tokens = found.len() as u64 * u64::from(BLOCK_TOKENS);
        input += u64::from(recorded.input_tokens);
        cached += tokens.min(u64::from(recorded.input_tokens) - 1);
        let mut taken = cache.take(found, more.len(), &mut Vec::new());
        cache.store(&mut taken, more);
        cache.release(&taken);
    }
    cached as f64 / (input as f64).max(1.0)
}
