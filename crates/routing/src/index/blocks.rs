//! The blocks of all prompts as a tree: which block follows which, and which was stored the longest ago. Owns the links;
//! knows holders only as a set's number.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::sets::{EMPTY, SetId};

/// The place of a block in the table.
pub(super) type BlockId = u32;
/// No block.
pub(super) const NONE: BlockId = u32::MAX;

/// What comes before a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    /// Nothing: it is the first of its prompts.
    Start,
    Block(BlockId),
    /// Something that nobody has reported yet.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) key: u64,
    pub(super) parent: Parent,
    pub(super) first_child: BlockId,
    pub(super) next_sibling: BlockId,
    previous_sibling: BlockId,
    older: BlockId,
    newer: BlockId,
    /// Those who hold it and all before it.
    pub(super) set: SetId,
}

/// Keys are hashes already: one multiplication spreads what a careless worker numbers from 0.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let wide = u128::from(self.0 ^ key) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }

    fn write_u32(&mut self, key: u32) {
        self.write_u64(u64::from(key));
    }
}

/// For maps by keys or small numbers.
pub(super) type BuildKeyHasher = BuildHasherDefault<KeyHasher>;

/// See the module.
#[derive(Debug)]
pub(super) struct Blocks {
    table: Vec<Block>,
    free: Vec<BlockId>,
    places: HashMap<u64, BlockId, BuildKeyHasher>,
    oldest: BlockId,
    newest: BlockId,
}

impl Default for Blocks {
    fn default() -> Self {
        Self {
            table: Vec::new(),
            free: Vec::new(),
            places: HashMap::default(),
            oldest: NONE,
            newest: NONE,
        }
    }
}

impl Blocks {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Places that are or were in use; every block's is below.
    pub(super) fn places(&self) -> BlockId {
        self.table.len() as BlockId
    }

    /// Whether a block is at this place.
    pub(super) fn is_used(&self, block: BlockId) -> bool {
        let key = self.table[block as usize].key;
        self.places.get(&key) == Some(&block)
    }

    pub(super) fn find(&self, key: u64) -> Option<BlockId> {
        self.places.get(&key).copied()
    }

    pub(super) fn get(&self, block: BlockId) -> &Block {
        &self.table[block as usize]
    }

    pub(super) fn get_mut(&mut self, block: BlockId) -> &mut Block {
        &mut self.table[block as usize]
    }

    pub(super) fn oldest(&self) -> BlockId {
        self.oldest
    }

    /// Adds a block, the newest.
    pub(super) fn insert(&mut self, key: u64, parent: Parent) -> BlockId {
        let block = Block {
            key,
            parent: Parent::Unknown,
            first_child: NONE,
            next_sibling: NONE,
            previous_sibling: NONE,
            older: NONE,
            newer: NONE,
            set: EMPTY,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.table[place as usize] = block;
                place
            }
            None => {
                self.table.push(block);
                (self.table.len() - 1) as BlockId
            }
        };
        self.places.insert(key, place);
        self.push_newest(place);
        self.link(place, parent);
        place
    }

    /// Puts a block whose parent was unknown below `parent`. A parent that comes after the block, which only an
    /// inconsistent report can claim, is ignored.
    pub(super) fn link(&mut self, block: BlockId, parent: Parent) {
        if let Parent::Block(above) = parent {
            let mut ancestor = above;
            // A block without children is nobody's ancestor.
            let mut may_circle = self.get(block).first_child != NONE || above == block;
            while may_circle {
                if ancestor == block {
                    return;
                }
                match self.get(ancestor).parent {
                    Parent::Block(next) => ancestor = next,
                    Parent::Start | Parent::Unknown => may_circle = false,
                }
            }
            let next = std::mem::replace(&mut self.get_mut(above).first_child, block);
            self.get_mut(block).next_sibling = next;
            if next != NONE {
                self.get_mut(next).previous_sibling = block;
            }
        }
        self.get_mut(block).parent = parent;
    }

    /// Removes a block without children; its place is used again.
    pub(super) fn remove(&mut self, block: BlockId) {
        let Block {
            key,
            parent,
            next_sibling,
            previous_sibling,
            ..
        } = *self.get(block);
        if next_sibling != NONE {
            self.get_mut(next_sibling).previous_sibling = previous_sibling;
        }
        if previous_sibling != NONE {
            self.get_mut(previous_sibling).next_sibling = next_sibling;
        } else if let Parent::Block(above) = parent {
            self.get_mut(above).first_child = next_sibling;
        }
        self.take_out(block);
        self.places.remove(&key);
        self.free.push(block);
    }

    /// Makes a block the newest.
    pub(super) fn touch(&mut self, block: BlockId) {
        if self.newest != block {
            self.take_out(block);
            self.push_newest(block);
        }
    }

    fn push_newest(&mut self, block: BlockId) {
        let before = std::mem::replace(&mut self.newest, block);
        let one = self.get_mut(block);
        one.older = before;
        one.newer = NONE;
        if before == NONE {
            self.oldest = block;
        } else {
            self.get_mut(before).newer = block;
        }
    }

    fn take_out(&mut self, block: BlockId) {
        let Block { older, newer, .. } = *self.get(block);
        if older == NONE {
            self.oldest = newer;
        } else {
            self.get_mut(older).newer = newer;
        }
        if newer == NONE {
            self.newest = older;
        } else {
            self.get_mut(newer).older = older;
        }
    }
}
