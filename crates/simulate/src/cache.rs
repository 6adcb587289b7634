//! A cache of blocks that forgets the least recently used one. Owns the order; knows nothing of prompts.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::BuildHasherDefault;

const NONE: u32 = u32::MAX;

/// Spreads small numbers.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl std::hash::Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

/// A map by the numbers of blocks.
pub(crate) type ByBlock<T> = HashMap<u32, T, BuildHasherDefault<NumberHasher>>;

#[derive(Clone, Copy, Debug)]
struct Slot {
    block: u32,
    older: u32,
    newer: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Cache {
    capacity: usize,
    places: ByBlock<u32>,
    slots: Vec<Slot>,
    oldest: u32,
    newest: u32,
}

impl Cache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            places: ByBlock::default(),
            slots: Vec::new(),
            oldest: NONE,
            newest: NONE,
        }
    }

    pub(crate) fn contains(&self, block: u32) -> bool {
        self.places.contains_key(&block)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.slots.len() == self.capacity
    }

    /// How many leading blocks it has.
    pub(crate) fn leading(&self, blocks: &[u32]) -> usize {
        blocks.iter().take_while(|one| self.contains(**one)).count()
    }

    /// Uses a block, which is in the cache afterwards. Returns the block that had to leave.
    pub(crate) fn use_block(&mut self, block: u32) -> Option<u32> {
        let mut gone = None;
        let place = match self.places.entry(block) {
            Entry::Occupied(entry) => {
                let place = *entry.get();
                if place == self.newest {
                    return None;
                }
                self.take_out(place);
                place
            }
            Entry::Vacant(entry) if self.slots.len() < self.capacity => {
                let place = self.slots.len() as u32;
                entry.insert(place);
                self.slots.push(Slot {
                    block,
                    older: NONE,
                    newer: NONE,
                });
                place
            }
            Entry::Vacant(entry) => {
                let place = self.oldest;
                entry.insert(place);
                self.take_out(place);
                let before = std::mem::replace(&mut self.slots[place as usize].block, block);
                self.places.remove(&before);
                gone = Some(before);
                place
            }
        };
        let before = std::mem::replace(&mut self.newest, place);
        let slot = &mut self.slots[place as usize];
        slot.older = before;
        slot.newer = NONE;
        if before == NONE {
            self.oldest = place;
        } else {
            self.slots[before as usize].newer = place;
        }
        gone
    }

    fn take_out(&mut self, place: u32) {
        let Slot { older, newer, .. } = self.slots[place as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
    }
}
