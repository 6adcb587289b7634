//! The latest changes of a cache, numbered, so that each watcher reads on where it was; and what they come to. Pure.

use std::collections::{HashMap, VecDeque};

use inflight_kserve::cache_state::BlockChanges;

/// Changes that are kept: a watcher that is further behind gets a snapshot. 32 bytes each, and 16 in a message.
pub(super) const MAX_CHANGES: usize = 64 * 1024;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// The memory that attention reads.
    Device,
    /// The host's memory, from which it is brought back.
    Host,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A key that the level lacked, and the one that it comes after.
    Stored(u64, u64, Level),
    /// A key that it had.
    Removed(u64, Level),
    Cleared,
}

#[derive(Debug, Default)]
pub(super) struct Changes {
    kept: VecDeque<Change>,
    /// The number of the first that is kept.
    first: u64,
}

/// What several changes come to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Difference {
    pub(super) cleared: bool,
    pub(super) device: BlockChanges,
    pub(super) host: BlockChanges,
}

impl Changes {
    pub(super) fn push(&mut self, change: Change) {
        if self.kept.len() == MAX_CHANGES {
            self.kept.pop_front();
            self.first += 1;
        }
        self.kept.push_back(change);
    }

    /// The number of the next change.
    pub(super) fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Keeps nothing of what was.
    pub(super) fn forget(&mut self) {
        self.first = self.end();
        self.kept = VecDeque::new();
    }

    /// What the changes from `number` on come to. `None`: some are not kept any more.
    pub(super) fn since(&self, number: u64) -> Option<Difference> {
        let from = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let mut difference = Difference::default();
        // By key and level: whether the first and the last change stored it, and what it comes after.
        let mut seen: HashMap<(u64, Level), (bool, bool, u64)> = HashMap::new();
        let mut order = Vec::new();
        for change in self.kept.range(from.min(self.kept.len())..) {
            let (key, is_stored, after) = match *change {
                Change::Stored(key, after, level) => ((key, level), true, after),
                Change::Removed(key, level) => ((key, level), false, 0),
                Change::Cleared => {
                    difference.cleared = true;
                    seen.clear();
                    order.clear();
                    continue;
                }
            };
            let (_, last, _) = seen.entry(key).or_insert_with(|| {
                order.push(key);
                (is_stored, is_stored, after)
            });
            *last = is_stored;
        }
        for key in order {
            // What ends as it began has not changed.
            match seen.get(&key) {
                Some((true, true, after)) => {
                    let changes = difference.of(key.1);
                    changes.stored.push(key.0);
                    changes.after.push(*after);
                }
                Some((false, false, _)) => difference.of(key.1).removed.push(key.0),
                _ => {}
            }
        }
        Some(difference)
    }
}

impl Difference {
    fn of(&mut self, level: Level) -> &mut BlockChanges {
        match level {
            Level::Device => &mut self.device,
            Level::Host => &mut self.host,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let is_empty =
            |changes: &BlockChanges| changes.stored.is_empty() && changes.removed.is_empty();
        !self.cleared && is_empty(&self.device) && is_empty(&self.host)
    }
}
