//! What the blocks of a cache hold, for who publishes them: tokens by chain key, and what keeps a request's blocks apart
//! from others'. Kept only where somebody publishes, since keys alone are enough for our own routers. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use inflight_blocks::Seed;

/// Origins that are kept whether blocks have them or not, so that it is seldom looked which do.
const SPARE: usize = 64;

/// What the blocks of a request share with no others: the adapter that they were computed with, and the salt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub lora_task_id: Option<u64>,
    /// Empty: none.
    pub salt: Vec<u8>,
}

impl Origin {
    /// What its blocks are named with.
    pub fn seed(&self) -> Seed {
        Seed::new(self.lora_task_id, &self.salt)
    }
}

/// A block's content. A clone shares it.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) tokens: Arc<[i32]>,
    pub(super) origin: Arc<Origin>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Contents {
    by_key: HashMap<u64, Content>,
    /// Also of blocks that are gone, since others may come after them.
    origins: HashMap<Seed, Arc<Origin>>,
}

impl Contents {
    pub(super) fn get(&self, key: u64) -> Option<&Content> {
        self.by_key.get(&key)
    }

    /// A prompt begins. `in_use`: the seeds of all blocks that have names.
    pub(super) fn begin(
        &mut self,
        seed: Seed,
        origin: &Origin,
        in_use: impl ExactSizeIterator<Item = Seed>,
    ) {
        if self.origins.contains_key(&seed) {
            return;
        }
        if self.origins.len() >= 2 * in_use.len() + SPARE {
            let in_use: HashSet<Seed> = in_use.collect();
            self.origins.retain(|seed, _| in_use.contains(seed));
        }
        self.origins.insert(seed, Arc::new(origin.clone()));
    }

    pub(super) fn keep(&mut self, key: u64, seed: Seed, tokens: &[i32]) {
        // A block before it has the same seed, and began with it.
        if let Some(origin) = self.origins.get(&seed) {
            self.by_key.entry(key).or_insert_with(|| Content {
                tokens: tokens.into(),
                origin: Arc::clone(origin),
            });
        }
    }

    pub(super) fn forget(&mut self, key: u64) {
        self.by_key.remove(&key);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
