//! Which blocks of the simulated KV cache hold what was computed before: found again by the next prompts that begin
//! alike, and forgotten when their room is needed, those longest unused first. Pure.
//!
//! Counts blocks with a key only. A request's other blocks (not full, or twice the same) are its own, and are counted
//! where it is scheduled.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use inflight_blocks::Seed;

use crate::executor::Origin;

/// What watchers of the cache are to learn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CacheChange {
    /// A key, and the one before it; 0: it is a prompt's first.
    Stored(u64, u64, Holds),
    Removed(u64),
}

/// What a block holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// Nobody wants its tokens.
    Seed(Seed),
    Tokens(Arc<Origin>, Box<[i32]>),
}

#[derive(Debug, Default)]
pub(super) struct BlockCache {
    held: HashMap<u64, Held>,
    /// Blocks without users, by when the last one left.
    unused: BTreeMap<u64, u64>,
    time: u64,
    /// Kept where somebody takes them.
    changes: Option<Vec<CacheChange>>,
}

#[derive(Debug)]
struct Held {
    users: u32,
    /// Its place in `unused`, where it has no users.
    since: u64,
}

impl BlockCache {
    /// Keeps changes from now on.
    pub(super) fn report(&mut self) {
        self.changes.get_or_insert_default();
    }

    pub(super) fn take_changes(&mut self) -> Vec<CacheChange> {
        self.changes
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// How many of the first of these blocks are held.
    pub(super) fn find(&self, keys: &[u64]) -> usize {
        keys.iter()
            .take_while(|key| self.held.contains_key(key))
            .count()
    }

    /// How many of these have no user.
    pub(super) fn unused_of(&self, keys: &[u64]) -> u32 {
        let held = keys.iter().filter_map(|key| self.held.get(key));
        held.filter(|held| held.users == 0).count() as u32
    }

    /// One more user of each of these, all of which are held.
    pub(super) fn hold(&mut self, keys: &[u64]) {
        for key in keys {
            if let Some(held) = self.held.get_mut(key) {
                if held.users == 0 {
                    self.unused.remove(&held.since);
                }
                held.users += 1;
            }
        }
    }

    /// A block was computed and has one user. False where another holds the same.
    pub(super) fn store(&mut self, key: u64, after: u64, holds: impl FnOnce() -> Holds) -> bool {
        if self.held.contains_key(&key) {
            return false;
        }
        self.held.insert(key, Held { users: 1, since: 0 });
        if let Some(changes) = &mut self.changes {
            changes.push(CacheChange::Stored(key, after, holds()));
        }
        true
    }

    /// One user less of each of these, in the order of their sequence. Returns how many have none now.
    pub(super) fn release(&mut self, keys: &[u64]) -> u32 {
        let mut unused = 0;
        // The last go first, so that what is forgotten first is a sequence's end.
        for key in keys.iter().rev() {
            let Some(held) = self.held.get_mut(key) else {
                continue;
            };
            held.users -= 1;
            if held.users == 0 {
                self.time += 1;
                held.since = self.time;
                self.unused.insert(held.since, *key);
                unused += 1;
            }
        }
        unused
    }

    /// Forgets what was unused longest, until at most so many blocks have no user.
    pub(super) fn shrink(&mut self, most: u32) {
        while self.unused.len() > most as usize
            && let Some((_, key)) = self.unused.pop_first()
        {
            self.held.remove(&key);
            if let Some(changes) = &mut self.changes {
                changes.push(CacheChange::Removed(key));
            }
        }
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> std::collections::BTreeSet<u64> {
        self.held.keys().copied().collect()
    }
}
