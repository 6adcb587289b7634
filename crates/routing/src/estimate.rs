//! What a server that reports no blocks probably holds, from what was sent to it. Owns one server's order of use;
//! whether an estimate is true shows only in its answers.
//!
//! An estimate writes into the same [`Index`] as reports do, so that lookups and choices treat both alike. Ask
//! [`Estimates::is_estimated`] before you show somebody what a server holds.
//!
//! What goes first is what such a server is likely to forget first: the block that was used the longest ago.

use std::collections::{BTreeMap, HashMap};

use crate::index::{Index, Level};

/// Blocks of a server that does not announce how many it has. Little on purpose: 2,048 blocks of 32 tokens are 65,536
/// tokens, which a small GPU next to an 8B model keeps. Too much would send requests to caches that forgot.
pub const ASSUMED_BLOCKS: usize = 2048;

/// The servers that report no blocks.
#[derive(Debug, Default)]
pub struct Estimates {
    servers: HashMap<u32, Estimate>,
}

#[derive(Debug)]
struct Estimate {
    most_blocks: usize,
    /// The number of each block's last use, and the blocks by it.
    uses: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    next_use: u64,
}

impl Estimates {
    /// A server that reports no blocks joins, with the blocks that it announced ([`ASSUMED_BLOCKS`] if none).
    pub fn add(&mut self, server: u32, announced_blocks: Option<usize>) {
        let estimate = Estimate {
            most_blocks: announced_blocks.unwrap_or(ASSUMED_BLOCKS).max(1),
            uses: HashMap::new(),
            order: BTreeMap::new(),
            next_use: 0,
        };
        self.servers.insert(server, estimate);
    }

    /// A server left, or began to report. The caller clears it in the index.
    pub fn remove(&mut self, server: u32) {
        self.servers.remove(&server);
    }

    /// Whether what the index says of this server is an estimate.
    pub fn is_estimated(&self, server: u32) -> bool {
        self.servers.contains_key(&server)
    }

    /// A prompt was sent to a server: it will hold the prompt's blocks, and forget others. Does nothing for a server
    /// that reports.
    pub fn sent(&mut self, server: u32, keys: &[u64], index: &mut Index) {
        let Some(estimate) = self.servers.get_mut(&server) else {
            return;
        };
        // More than it has room for would push the prompt's own beginning out.
        let keys = &keys[..keys.len().min(estimate.most_blocks)];
        let forgotten = estimate.use_blocks(keys);
        index.stored(server, None, keys, Level::Device);
        index.removed(server, &forgotten, Level::Device);
    }
}

impl Estimate {
    /// Uses blocks from the last to the first, so that a prompt is forgotten from its end. Returns what is forgotten.
    fn use_blocks(&mut self, keys: &[u64]) -> Vec<u64> {
        for key in keys.iter().rev() {
            if let Some(before) = self.uses.insert(*key, self.next_use) {
                self.order.remove(&before);
            }
            self.order.insert(self.next_use, *key);
            self.next_use += 1;
        }
        let mut forgotten = Vec::new();
        while self.uses.len() > self.most_blocks {
            let Some((_, key)) = self.order.pop_first() else {
                break;
            };
            self.uses.remove(&key);
            forgotten.push(key);
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Held;

    #[test]
    fn the_least_recently_used_end_is_forgotten() {
        let mut index = Index::new(1000);
        let mut estimates = Estimates::default();
        estimates.add(1, Some(4));
        estimates.sent(1, &[11, 12, 13], &mut index);
        estimates.sent(1, &[21], &mut index);
        estimates.sent(1, &[11], &mut index);
        // One has to go: the end of the oldest prompt.
        estimates.sent(1, &[31], &mut index);
        let mut held = Held::default();
        for (keys, expected) in [(&[11, 12, 13][..], 2), (&[21], 1), (&[31], 1), (&[13], 0)] {
            index.find(keys, &mut held);
            assert_eq!(held.of(1).device, expected, "{keys:?}");
        }
        // A prompt that is longer than the cache.
        estimates.sent(1, &[41, 42, 43, 44, 45], &mut index);
        index.find(&[41, 42, 43, 44, 45], &mut held);
        assert_eq!(held.of(1).device, 4);
        assert_eq!(index.len(), 4);
    }

    #[test]
    fn a_server_that_reports_is_not_estimated() {
        let mut index = Index::new(1000);
        let mut estimates = Estimates::default();
        estimates.sent(2, &[1], &mut index);
        assert!(index.is_empty() && !estimates.is_estimated(2));
        estimates.add(2, None);
        assert!(estimates.is_estimated(2));
        estimates.remove(2);
        assert!(!estimates.is_estimated(2));
    }
}
