//! Prompts whose blocks the cache will hold: those of requests that have no first token yet. Owns which of them are named to
//! watchers; knows nothing of requests.
//!
//! A router that did not send a prompt learns from these that its blocks are coming. Otherwise it would have them
//! computed elsewhere as well.

use std::collections::BTreeMap;

/// Prompts, and their keys together, that are named at once: half a megabyte for each watcher. In a longer queue, those
/// that came last are left out.
const MOST_PROMPTS: usize = 1024;
const MOST_KEYS: usize = 65_536;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// By number, from the one that came first.
    prompts: BTreeMap<u64, Box<[u64]>>,
    keys: usize,
    /// The number of the last one.
    last: u64,
}

impl Waiting {
    /// A prompt of these keys waits. Returns its number; `None`: it is left out.
    pub(super) fn came(&mut self, keys: &[u64]) -> Option<u64> {
        if self.prompts.len() == MOST_PROMPTS || self.keys + keys.len() > MOST_KEYS {
            return None;
        }
        self.keys += keys.len();
        self.last += 1;
        self.prompts.insert(self.last, keys.into());
        Some(self.last)
    }

    /// It no longer waits.
    pub(super) fn left(&mut self, number: u64) {
        if let Some(keys) = self.prompts.remove(&number) {
            self.keys -= keys.len();
        }
    }

    pub(super) fn waits(&self, number: u64) -> bool {
        self.prompts.contains_key(&number)
    }

    /// Those that came after this one, with their keys.
    pub(super) fn after(&self, number: u64) -> impl Iterator<Item = (u64, &[u64])> {
        let later = self.prompts.range(number + 1..);
        later.map(|(number, keys)| (*number, &**keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_named_and_others_once_there_is_room() {
        let mut waiting = Waiting::default();
        let long = vec![7; MOST_KEYS - 10];
        assert_eq!(waiting.came(&long), Some(1));
        assert_eq!(waiting.came(&[1; 11]), None);
        assert_eq!(waiting.came(&[1; 10]), Some(2));
        waiting.left(1);
        waiting.left(1);
        assert_eq!(waiting.came(&long), Some(3));
        assert_eq!(waiting.came(&[1]), None);
        waiting.left(3);
        for number in 4..MOST_PROMPTS as u64 + 3 {
            assert_eq!(waiting.came(&[number]), Some(number));
        }
        assert_eq!(waiting.came(&[1]), None);
        assert!(waiting.waits(2) && !waiting.waits(1));
        let later: Vec<_> = waiting.after(1025).collect();
        assert_eq!(later, [(1026, &[1026][..])]);
    }
}
