//! The blocks of the simulated KV cache: which are free, which a request takes, and what of it is found in them. Owns
//! their count and their figures; which hold what is [`BlockCache`]'s. Pure.

use super::SimulatedOptions;
use super::active::Active;
use super::cache::{BlockCache, CacheChange};
use crate::executor::KvCacheStats;

/// What of a request is in the cache.
pub(super) struct Found {
    pub(super) blocks: usize,
    /// Blocks that it takes of the free ones.
    pub(super) cost: u32,
}

/// See the module.
pub(super) struct Blocks {
    total: u32,
    free: u32,
    tokens_per_block: u32,
    /// `None`: blocks are not reused.
    cache: Option<BlockCache>,
    wants_tokens: bool,
    allocated: u64,
    reused: u64,
    missed: u64,
}

impl Blocks {
    pub(super) fn new(options: &SimulatedOptions) -> Self {
        Self {
            total: options.num_blocks,
            free: options.num_blocks,
            tokens_per_block: options.tokens_per_block.max(1),
            cache: options.enable_kv_cache_reuse.then(BlockCache::default),
            wants_tokens: false,
            allocated: 0,
            reused: 0,
            missed: 0,
        }
    }

    /// How many so many tokens take.
    pub(super) fn of(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.tokens_per_block)
    }

    pub(super) fn free(&self) -> u32 {
        self.free
    }

    pub(super) fn are_reused(&self) -> bool {
        self.cache.is_some()
    }

    #[cfg(test)]
    pub(super) fn cache(&self) -> Option<&BlockCache> {
        self.cache.as_ref()
    }

    pub(super) fn cache_mut(&mut self) -> Option<&mut BlockCache> {
        self.cache.as_mut()
    }

    /// Whether the cache's changes have tokens.
    pub(super) fn wants_tokens(&self) -> bool {
        self.wants_tokens
    }

    /// Keeps the cache's changes from now on; returns how many blocks there are.
    pub(super) fn report(&mut self, wants_tokens: bool) -> u32 {
        self.wants_tokens = wants_tokens;
        if let Some(cache) = &mut self.cache {
            cache.report();
        }
        self.total
    }

    /// What has changed since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<CacheChange> {
        let cache = self.cache.as_mut();
        cache.map(BlockCache::take_changes).unwrap_or_default()
    }

    /// What of a request is in the cache, and how many blocks it takes of those that are free.
    pub(super) fn find(&self, active: &Active) -> Found {
        let (Some(cache), Some(context)) = (&self.cache, &active.context) else {
            return Found {
                blocks: 0,
                cost: active.blocks,
            };
        };
        // The last token is computed in any case: its row is what the first token comes from.
        let most = context.tokens.saturating_sub(1) / self.tokens_per_block;
        let most = (most as usize).min(context.keys.len());
        let keys = context.keys.get(..most).unwrap_or_default();
        let blocks = cache.find(keys);
        let keys = keys.get(..blocks).unwrap_or_default();
        Found {
            blocks,
            cost: active.blocks - blocks as u32 + cache.unused_of(keys),
        }
    }

    /// Gives a request its blocks; returns how many tokens were found in them.
    pub(super) fn take(&mut self, active: &mut Active, found: &Found) -> u32 {
        self.allocated += u64::from(active.blocks);
        self.free -= found.cost;
        let (Some(cache), Some(context)) = (&mut self.cache, &mut active.context) else {
            return 0;
        };
        active.shared = context
            .keys
            .get(..found.blocks)
            .unwrap_or_default()
            .to_vec();
        cache.hold(&active.shared);
        // What has no user is in free blocks.
        cache.shrink(self.free);
        active.blocks -= found.blocks as u32;
        self.reused += found.blocks as u64;
        self.missed += (context.keys.len() - found.blocks) as u64;
        let tokens = found.blocks as u32 * self.tokens_per_block;
        active.cached_tokens = Some(tokens.min(context.prompt));
        tokens
    }

    /// Takes back the blocks of a request that has ended.
    pub(super) fn give_back(&mut self, active: &Active) {
        self.free += active.blocks;
        if let Some(cache) = &mut self.cache {
            self.free += cache.release(&active.shared);
        }
    }

    pub(super) fn stats(&self) -> KvCacheStats {
        KvCacheStats {
            max_num_blocks: u64::from(self.total),
            free_num_blocks: u64::from(self.free),
            used_num_blocks: u64::from(self.total - self.free),
            tokens_per_block: u64::from(self.tokens_per_block),
            alloc_total_blocks: self.allocated,
            alloc_new_blocks: self.allocated - self.reused,
            reused_blocks: self.reused,
            missed_blocks: self.missed,
            cache_hit_rate: hit_rate(self.reused, self.missed),
        }
    }
}

/// Part of the blocks that were looked for and found.
fn hit_rate(reused: u64, missed: u64) -> f64 {
    match reused + missed {
        0 => 0.0,
        all => reused as f64 / all as f64,
    }
}
