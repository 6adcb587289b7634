//! A request from its admission to its last row: what it has of the cache, and what it has generated elsewhere. When it
//! runs is the scheduler's. Pure.

use std::sync::Arc;

use bytes::Bytes;
use inflight_blocks::{Chain, Seed};

use super::cache::{BlockCache, Holds};
use crate::executor::{Origin, Request};

/// A request from admission to its last row.
pub(super) struct Active {
    pub(super) sequences: u32,
    pub(super) sequences_left: u32,
    /// Tokens that each sequence has already, and which have ended; empty: none has any.
    pub(super) resumed: Vec<Option<u32>>,
    /// Blocks that are its own, of all that it may need.
    pub(super) blocks: u32,
    /// And those that it shares, of the beginning of what it computes before it generates.
    pub(super) shared: Vec<u64>,
    pub(super) context: Option<Context>,
    /// Prompt tokens found in the cache, until they are reported.
    pub(super) cached_tokens: Option<u32>,
    pub(super) max_tokens: u32,
    pub(super) streaming: bool,
    pub(super) first_token: u32,
    /// What its last row leaves for the worker that generates.
    pub(super) leaves: Option<Bytes>,
}

impl Active {
    /// The sequences that it still generates, before any of them has ended here.
    pub(super) fn indexes(&self) -> impl Iterator<Item = i32> {
        let goes_on = |index: &u32| self.resumed.get(*index as usize) != Some(&None);
        (0..self.sequences)
            .filter(goes_on)
            .map(|index| index as i32)
    }

    /// Makes its context findable, whose last block was computed now.
    pub(super) fn store_context(&mut self, cache: &mut BlockCache) {
        let Some(context) = &self.context else {
            return;
        };
        for place in self.shared.len()..context.keys.len() {
            let (key, before) = (context.keys[place], place.checked_sub(1));
            let after = before.map_or(0, |before| context.keys[before]);
            // Where another has computed the same meanwhile, its own block stays unknown.
            if cache.store(key, after, || context.holds(context.block(place))) {
                self.blocks = self.blocks.saturating_sub(1);
                self.shared.push(key);
            }
        }
    }

    /// Makes findable what it generated, where it is one sequence.
    pub(super) fn store_answer(
        &mut self,
        cache: &mut BlockCache,
        tokens: impl Iterator<Item = i32>,
    ) {
        let Some(context) = &mut self.context else {
            return;
        };
        if self.sequences != 1 {
            return;
        }
        for token in tokens {
            context.rest.push(token);
            if context.rest.len() < context.size {
                continue;
            }
            let after = context.chain.last().unwrap_or(0);
            let key = context.chain.push(&context.rest);
            if cache.store(key, after, || context.holds(&context.rest)) {
                self.blocks = self.blocks.saturating_sub(1);
                self.shared.push(key);
            }
            context.rest.clear();
        }
    }

    pub(super) fn tokens_before(&self, index: i32) -> u32 {
        let resumed = usize::try_from(index).ok();
        let resumed = resumed.and_then(|index| *self.resumed.get(index)?);
        resumed.unwrap_or(0)
    }
}

/// What a request computes before it generates, as blocks of the cache. Only where they are reused.
pub(super) struct Context {
    pub(super) chain: Chain,
    seed: Seed,
    /// `None`: nobody wants tokens.
    origin: Option<Arc<Origin>>,
    /// Of its full blocks.
    pub(super) keys: Vec<u64>,
    /// Their tokens, where somebody wants them.
    full: Vec<i32>,
    /// The tokens after them.
    pub(super) rest: Vec<i32>,
    /// Tokens of a block.
    pub(super) size: usize,
    /// Tokens of the prompt, without what was generated elsewhere.
    pub(super) prompt: u32,
    /// All of its tokens, of which at least the last is computed.
    pub(super) tokens: u32,
}

impl Context {
    pub(super) fn new(request: &Request, size: usize, wants_tokens: bool) -> Self {
        let size = size.max(1);
        let seed = request.cache_seed();
        let mut chain = Chain::new(seed);
        let mut rest = request.input_token_ids.clone();
        let prompt = rest.len() as u32;
        // Several sequences continue differently.
        if let [Some(generated)] = request.generated.as_slice() {
            rest.extend_from_slice(generated);
        }
        let tokens = rest.len() as u32;
        let blocks = rest.chunks_exact(size);
        let keys: Vec<u64> = blocks.map(|block| chain.push(block)).collect();
        let own = rest.split_off(keys.len() * size);
        let full = std::mem::replace(&mut rest, own);
        let origin = wants_tokens.then(|| {
            let (lora_task_id, salt) = request.cache_origin();
            let salt = salt.to_vec();
            Arc::new(Origin { lora_task_id, salt })
        });
        Self {
            chain,
            seed,
            full: if wants_tokens { full } else { Vec::new() },
            origin,
            keys,
            rest,
            size,
            prompt,
            tokens,
        }
    }

    /// The tokens of its full block number `place`; empty where nobody wants them.
    fn block(&self, place: usize) -> &[i32] {
        let from = place * self.size;
        self.full.get(from..from + self.size).unwrap_or_default()
    }

    fn holds(&self, tokens: &[i32]) -> Holds {
        match &self.origin {
            Some(origin) => Holds::Tokens(Arc::clone(origin), tokens.into()),
            None => Holds::Seed(self.seed),
        }
    }
}
