//! The blocks that an executor's cache holds, by the executor's own names and by chain keys. Pure; who watches is not
//! known here.

use std::collections::{HashMap, VecDeque};

use inflight_blocks::{Chain, Seed};

use super::changes::{Change, Changes, Level};
use super::contents::{Content, Contents, Origin};

/// Names of blocks that are gone and are remembered, since another block may still come after one: its tokens were
/// computed with a block that held the same.
const MAX_GONE: usize = 16 * 1024;

/// What comes before a block.
#[derive(Clone, Copy, Debug)]
pub enum Parent<'a> {
    /// Nothing: it is the first of its prompt, which is of this origin.
    First(&'a Origin),
    /// The block of this name.
    Block(u64),
}

/// A cache's blocks. An executor names each by a number, which is unique among those that it holds.
#[derive(Debug)]
pub struct CacheBlocks {
    tokens_per_block: u32,
    /// Blocks that each level can hold.
    capacity: [u64; 2],
    by_name: HashMap<u64, Named>,
    /// Names in `by_name` without a level, the oldest first.
    gone: VecDeque<u64>,
    held: HashMap<u64, Held>,
    changes: Changes,
    is_watched: bool,
    /// `None`: nobody publishes them.
    contents: Option<Contents>,
}

/// The blocks with a key.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// How many of each level have it.
    counts: [u32; 2],
    /// The key before it; 0: it is a prompt's first.
    after: u64,
}

#[derive(Clone, Copy, Debug)]
struct Named {
    key: u64,
    /// The key before it.
    after: u64,
    seed: Seed,
    /// `None`: it is gone.
    level: Option<Level>,
}

impl CacheBlocks {
    /// `is_published`: what blocks hold is kept, and so are changes, whether anybody watches or not.
    pub(super) fn new(tokens_per_block: u32, is_published: bool) -> Self {
        Self {
            tokens_per_block,
            capacity: [0; 2],
            by_name: HashMap::new(),
            gone: VecDeque::new(),
            held: HashMap::new(),
            changes: Changes::default(),
            is_watched: is_published,
            contents: is_published.then(Contents::default),
        }
    }

    /// Whether tokens are of use to anybody: an executor whose names are chain keys then reports blocks with them.
    pub fn wants_tokens(&self) -> bool {
        self.contents.is_some()
    }

    /// How many blocks each level can hold. Said once.
    pub fn set_capacity(&mut self, device: u64, host: u64) {
        self.capacity = [device, host];
    }

    /// A full block can be found from now on. One that is not full, or comes after a block without a key, gets none,
    /// and is not reported.
    pub fn stored(&mut self, name: u64, parent: Parent, tokens: &[i32], level: Level) {
        if tokens.len() != self.tokens_per_block as usize {
            return;
        }
        let (seed, after, mut chain) = match parent {
            Parent::First(origin) => {
                let seed = origin.seed();
                if let Some(contents) = &mut self.contents {
                    contents.begin(seed, origin, self.by_name.values().map(|named| named.seed));
                }
                (seed, 0, Chain::new(seed))
            }
            Parent::Block(name) => match self.by_name.get(&name) {
                Some(before) => {
                    let chain = Chain::after(before.seed, before.key);
                    (before.seed, before.key, chain)
                }
                None => return,
            },
        };
        let key = chain.push(tokens);
        if let Some(contents) = &mut self.contents {
            contents.keep(key, seed, tokens);
        }
        self.put(name, key, after, seed, level);
    }

    /// The same of an executor whose names are chain keys, where nobody wants tokens. `after`: the key before it; 0: it
    /// is a prompt's first.
    pub fn stored_key(&mut self, key: u64, after: u64, seed: Seed, level: Level) {
        self.put(key, key, after, seed, level);
    }

    /// A block's content is on the other level from now on. Unknown names are ignored, here and below.
    pub fn moved(&mut self, name: u64, level: Level) {
        if let Some(Named {
            key,
            after,
            seed,
            level: Some(_),
        }) = self.by_name.get(&name).copied()
        {
            self.put(name, key, after, seed, level);
        }
    }

    /// A block can no longer be found.
    pub fn removed(&mut self, name: u64) {
        let Some(named) = self.by_name.get_mut(&name) else {
            return;
        };
        let (key, after, Some(level)) = (named.key, named.after, named.level.take()) else {
            return;
        };
        self.gone.push_back(name);
        if self.gone.len() > MAX_GONE
            && let Some(oldest) = self.gone.pop_front()
            && self
                .by_name
                .get(&oldest)
                .is_some_and(|named| named.level.is_none())
        {
            self.by_name.remove(&oldest);
        }
        self.count(key, after, level, false);
    }

    /// Nothing can be found any more.
    pub fn cleared(&mut self) {
        self.by_name.clear();
        self.gone.clear();
        self.held.clear();
        if let Some(contents) = &mut self.contents {
            contents.clear();
        }
        self.note(Change::Cleared);
    }

    fn put(&mut self, name: u64, key: u64, after: u64, seed: Seed, level: Level) {
        let named = Named {
            key,
            after,
            seed,
            level: Some(level),
        };
        let before = self.by_name.insert(name, named);
        // First, so that what moves is nowhere missing.
        self.count(key, after, level, true);
        if let Some(Named {
            key,
            after,
            level: Some(level),
            ..
        }) = before
        {
            self.count(key, after, level, false);
        }
    }

    /// Counts one block more or less with a key.
    fn count(&mut self, key: u64, after: u64, level: Level, is_more: bool) {
        let held = self.held.entry(key).or_insert(Held {
            counts: [0; 2],
            after,
        });
        let [device, host] = &mut held.counts;
        let count = match level {
            Level::Device => device,
            Level::Host => host,
        };
        let before = *count;
        *count = match is_more {
            true => before.saturating_add(1),
            false => before.saturating_sub(1),
        };
        let changed = (before == 0) != (*count == 0);
        if held.counts == [0; 2] {
            self.held.remove(&key);
            if let Some(contents) = &mut self.contents {
                contents.forget(key);
            }
        }
        if changed {
            self.note(match is_more {
                true => Change::Stored(key, after, level),
                false => Change::Removed(key, level),
            });
        }
    }

    fn note(&mut self, change: Change) {
        if self.is_watched {
            self.changes.push(change);
        }
    }

    /// Whether anybody watches: then changes are kept.
    pub(super) fn watch(&mut self, is_watched: bool) {
        self.is_watched = is_watched || self.contents.is_some();
        if !self.is_watched {
            self.changes.forget();
        }
    }

    #[cfg(test)]
    pub(super) fn holds_name(&self, name: u64) -> bool {
        let named = self.by_name.get(&name);
        named.is_some_and(|named| named.level.is_some())
    }

    /// What the blocks with a key hold. `None`: it is not kept.
    pub(super) fn content(&self, key: u64) -> Option<&Content> {
        self.contents.as_ref()?.get(key)
    }

    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    pub(super) fn tokens_per_block(&self) -> u32 {
        self.tokens_per_block
    }

    /// Of the device and of the host.
    pub(super) fn capacity(&self) -> [u64; 2] {
        self.capacity
    }

    /// Whether a block with this key is on any level.
    pub(super) fn holds(&self, key: u64) -> bool {
        self.held.contains_key(&key)
    }

    /// The keys of the blocks on the device and on the host, each with the key before it.
    pub(super) fn keys(&self) -> [Vec<(u64, u64)>; 2] {
        let mut device = Vec::with_capacity(self.held.len());
        let mut host = Vec::new();
        for (key, held) in &self.held {
            let [on_device, on_host] = held.counts;
            if on_device > 0 {
                device.push((*key, held.after));
            }
            if on_host > 0 {
                host.push((*key, held.after));
            }
        }
        [device, host]
    }
}
