//! The blocks of one worker: those that requests have, and those that are kept until their room is needed, of which the
//! longest unused goes first. Owns the count and the order; knows nothing of time.

use std::collections::HashMap;
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
    users: u32,
    /// Where it has no users: the blocks that were unused before it and after it.
    older: u32,
    newer: u32,
}

/// What a request has.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Blocks that others may use as well.
    shared: Vec<u32>,
    /// Blocks that only it has: those of its answer, and those that are not computed yet.
    own: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Cache {
    capacity: usize,
    /// Blocks that no request has. Below 0 where blocks came that had no room.
    free: i64,
    places: ByBlock<u32>,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    unused: usize,
    oldest: u32,
    newest: u32,
}

impl Cache {
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, i64::MAX as usize);
        Self {
            capacity,
            free: capacity as i64,
            places: ByBlock::default(),
            slots: Vec::new(),
            vacant: Vec::new(),
            unused: 0,
            oldest: NONE,
            newest: NONE,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn contains(&self, block: u32) -> bool {
        self.places.contains_key(&block)
    }

    /// Whether new blocks push others out, as gateways judge it.
    pub(crate) fn is_full(&self) -> bool {
        self.places.len() >= self.capacity - self.capacity / 20
    }

    /// How many leading blocks it has.
    pub(crate) fn leading(&self, blocks: &[u32]) -> usize {
        blocks.iter().take_while(|one| self.contains(**one)).count()
    }

    /// Whether there is room for a request that finds these blocks and needs so many more.
    pub(crate) fn has_room(&self, found: &[u32], more: usize) -> bool {
        self.cost(found, more) <= self.free
    }

    /// Gives a request the blocks that it finds and so many more. Adds those that had to go for it to `gone`.
    pub(crate) fn take(&mut self, found: &[u32], more: usize, gone: &mut Vec<u32>) -> Taken {
        self.free -= self.cost(found, more);
        for block in found {
            let place = self.places[block];
            if self.slots[place as usize].users == 0 {
                self.take_out(place);
            }
            self.slots[place as usize].users += 1;
        }
        while self.unused as i64 > self.free.max(0) {
            let place = self.oldest;
            self.take_out(place);
            let block = self.slots[place as usize].block;
            self.places.remove(&block);
            self.vacant.push(place);
            gone.push(block);
        }
        Taken {
            shared: found.to_vec(),
            own: more,
        }
    }

    /// A request has computed these blocks, and shares them from now on.
    pub(crate) fn store(&mut self, taken: &mut Taken, blocks: &[u32]) {
        for block in blocks {
            // Another request may have computed the same meanwhile.
            if taken.own == 0 || self.contains(*block) {
                continue;
            }
            let slot = Slot {
                block: *block,
                users: 1,
                older: NONE,
                newer: NONE,
            };
            let place = match self.vacant.pop() {
                Some(place) => {
                    self.slots[place as usize] = slot;
                    place
                }
                None => {
                    self.slots.push(slot);
                    (self.slots.len() - 1) as u32
                }
            };
            self.places.insert(*block, place);
            taken.own -= 1;
            taken.shared.push(*block);
        }
    }

    /// A request has ended. Its last block is the first that goes.
    pub(crate) fn release(&mut self, taken: &Taken) {
        self.free += taken.own as i64;
        for block in taken.shared.iter().rev() {
            let place = self.places[block];
            let slot = &mut self.slots[place as usize];
            slot.users -= 1;
            if slot.users == 0 {
                self.free += 1;
                self.put_in(place);
            }
        }
    }

    fn cost(&self, found: &[u32], more: usize) -> i64 {
        let places = found.iter().map(|block| self.places[block]);
        let unused = places.filter(|place| self.slots[*place as usize].users == 0);
        (unused.count() + more) as i64
    }

    fn put_in(&mut self, place: u32) {
        self.unused += 1;
        let before = std::mem::replace(&mut self.newest, place);
        let slot = &mut self.slots[place as usize];
        (slot.older, slot.newer) = (before, NONE);
        match before {
            NONE => self.oldest = place,
            before => self.slots[before as usize].newer = place,
        }
    }

    fn take_out(&mut self, place: u32) {
        self.unused -= 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_requests_have_stays_and_the_longest_unused_end_goes_first() {
        let mut cache = Cache::new(6);
        let mut gone = Vec::new();
        let mut one = cache.take(&[], 4, &mut gone);
        cache.store(&mut one, &[1, 2, 3]);
        assert!(!cache.has_room(&[], 3) && cache.has_room(&[1, 2], 2));
        // Two with the same beginning, of which the second computes a block again.
        let mut other = cache.take(&[1, 2], 1, &mut gone);
        cache.store(&mut other, &[3]);
        assert_eq!((cache.leading(&[1, 2, 3, 4]), cache.free), (3, 1));
        cache.release(&one);
        assert_eq!(cache.free, 3);
        cache.release(&other);
        assert_eq!((cache.free, cache.unused, gone.len()), (6, 3, 0));
        let third = cache.take(&[], 5, &mut gone);
        assert_eq!((gone.as_slice(), cache.leading(&[1, 2])), (&[3, 2][..], 1));
        // What comes from elsewhere is taken in any case.
        let fourth = cache.take(&[1], 2, &mut gone);
        assert_eq!(cache.free, -2);
        cache.release(&third);
        cache.release(&fourth);
        assert_eq!((cache.free, cache.unused), (6, 1));
    }
}
