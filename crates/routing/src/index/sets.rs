//! Sets of holders, each kept once. Owns the counting of their uses and the step from a set to its neighbor with one
//! holder more or less; knows nothing of blocks.
//!
//! Blocks of one prompt nearly always have the same holders, so a block names its set by a number. Two numbers are
//! equal exactly if the sets are, which is what makes the search over a prompt's depth quick.

use std::collections::HashMap;
use std::sync::Arc;

/// The number of a set.
pub(super) type SetId = u32;
/// The set without members; it is always there.
pub(super) const EMPTY: SetId = 0;

/// A set with one holder more or less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Add(u32),
    Remove(u32),
}

#[derive(Debug)]
struct Entry {
    /// Ascending.
    members: Arc<[u32]>,
    uses: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sets {
    entries: Vec<Entry>,
    numbers: HashMap<Arc<[u32]>, SetId>,
    free: Vec<SetId>,
    /// The last step. The next block of a batch nearly always takes the same one.
    last: Option<(SetId, Change, SetId)>,
}

impl Default for Sets {
    fn default() -> Self {
        let nobody: Arc<[u32]> = Arc::new([]);
        let entry = Entry {
            members: Arc::clone(&nobody),
            uses: 1,
        };
        Self {
            entries: vec![entry],
            numbers: HashMap::from([(nobody, EMPTY)]),
            free: Vec::new(),
            last: None,
        }
    }
}

impl Sets {
    pub(super) fn members(&self, set: SetId) -> &[u32] {
        &self.entries[set as usize].members
    }

    pub(super) fn contains(&self, set: SetId, holder: u32) -> bool {
        self.members(set).binary_search(&holder).is_ok()
    }

    /// How many sets there are, the empty one included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Gives one use of `set` up for one use of the set after `change`.
    pub(super) fn step(&mut self, set: SetId, change: Change) -> SetId {
        if let Some((from, same, to)) = self.last
            && (from, same) == (set, change)
        {
            self.entries[to as usize].uses += 1;
            self.release(set);
            return to;
        }
        let members = self.members(set);
        let (place, holder) = match change {
            Change::Add(holder) | Change::Remove(holder) => {
                (members.binary_search(&holder), holder)
            }
        };
        let changed: Vec<u32> = match (change, place) {
            (Change::Add(_), Err(place)) => {
                [&members[..place], &[holder], &members[place..]].concat()
            }
            (Change::Remove(_), Ok(place)) => [&members[..place], &members[place + 1..]].concat(),
            // It is so already.
            (Change::Add(_), Ok(_)) | (Change::Remove(_), Err(_)) => return set,
        };
        let to = self.acquire(changed.into());
        self.last = Some((set, change, to));
        self.release(set);
        to
    }

    /// Gives one use of `set` up.
    pub(super) fn release(&mut self, set: SetId) {
        if set == EMPTY {
            return;
        }
        let entry = &mut self.entries[set as usize];
        entry.uses -= 1;
        if entry.uses > 0 {
            return;
        }
        let members = std::mem::replace(&mut entry.members, Arc::new([]));
        self.numbers.remove(&members);
        self.free.push(set);
        // Its number may become another set's.
        if self
            .last
            .is_some_and(|(from, _, to)| from == set || to == set)
        {
            self.last = None;
        }
    }

    fn acquire(&mut self, members: Arc<[u32]>) -> SetId {
        if let Some(&set) = self.numbers.get(&members) {
            self.entries[set as usize].uses += 1;
            return set;
        }
        let entry = Entry {
            members: Arc::clone(&members),
            uses: 1,
        };
        let set = match self.free.pop() {
            Some(set) => {
                self.entries[set as usize] = entry;
                set
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as SetId
            }
        };
        self.numbers.insert(members, set);
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_have_one_number_and_unused_ones_go() {
        let mut sets = Sets::default();
        let one = sets.step(EMPTY, Change::Add(3));
        let both = sets.step(EMPTY, Change::Add(5));
        let both = sets.step(both, Change::Add(3));
        let again = sets.step(EMPTY, Change::Add(3));
        let again = sets.step(again, Change::Add(5));
        assert_eq!(both, again);
        assert_eq!(sets.members(both), [3, 5]);
        assert_eq!(sets.step(both, Change::Add(3)), both);
        assert_eq!(sets.step(again, Change::Remove(5)), one);
        assert!(sets.contains(both, 5));
        assert_eq!(sets.len(), 3);
        for set in [one, one, both] {
            sets.release(set);
        }
        assert_eq!(sets.len(), 1);
    }

    #[test]
    fn a_step_is_not_remembered_beyond_its_sets() {
        let mut sets = Sets::default();
        let one = sets.step(EMPTY, Change::Add(1));
        let two = sets.step(one, Change::Add(2));
        sets.release(two);
        let one = sets.step(EMPTY, Change::Add(1));
        let two = sets.step(one, Change::Add(2));
        sets.release(two);
        let one = sets.step(EMPTY, Change::Add(1));
        let again = sets.step(one, Change::Add(2));
        assert_eq!(sets.members(again), [1, 2]);
        let other = sets.step(EMPTY, Change::Add(9));
        let other = sets.step(other, Change::Add(2));
        assert_eq!(sets.members(other), [2, 9]);
    }
}
