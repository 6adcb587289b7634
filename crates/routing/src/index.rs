//! Which servers hold which blocks of prompts.
//!
//! Owns the answer to one question: how many leading blocks of a prompt does each server hold ([`Index::find`])? It
//! learns from what servers report ([`Index::stored`], [`Index::removed`], [`Index::cleared`]) and knows nothing of
//! tokens, loads or time. A block is named by its chain key, a hash of its tokens and of all before it, with salt and
//! adapter; who makes keys is not its business. A server is a small number that the caller assigns.
//!
//! ## How it stays quick
//!
//! For each block, it keeps the set of servers that hold the block *and all blocks before it*. Along a prompt these
//! sets can only shrink, so the search halves its way to the depths where they change, and looks at some dozens of
//! blocks of a prompt of thousands. A set is kept once and named by a number, so two depths are compared by one
//! comparison of numbers.
//!
//! A server that holds a block without one of those before it (after an eviction in mid-chain, or a report that came
//! late or was lost) is *detached* there. It is remembered apart, and back in the sets once the gap is closed. That
//! makes lookups exact, and leaves the work to the writer, in proportion to the blocks that are cut off.
//!
//! ## Bounds
//!
//! At most as many blocks as [`Index::new`] was given, each about 60 bytes and its share of a set. Beyond that, the
//! block that was stored the longest ago goes first, for all servers, among those that no other block follows: a lost
//! block costs its own tokens and those after it, so prompts are forgotten from their ends.
//!
//! ## Under a lock
//!
//! Lookups take `&self`. Let one writer apply what servers report in batches. Clearing or removing a server takes
//! constant time; its remains are swept out by later writes, some blocks at a time.

mod blocks;
mod held;
mod holders;
mod sets;

use std::collections::{HashMap, HashSet};

use blocks::{BlockId, Blocks, BuildKeyHasher, NONE, Parent};
pub use held::{Depth, Held};
use holders::{Holders, Memory};
use sets::{Change, EMPTY, SetId, Sets};

/// Blocks that a write sweeps for those of cleared servers, in addition to one for each block that it writes.
const SWEPT_AT_ONCE: u32 = 64;

/// Where a server keeps a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Device,
    /// In its host's memory, or anything slower than the device that is still quicker than computing.
    Host,
}

/// See the module.
#[derive(Debug)]
pub struct Index {
    most_blocks: usize,
    blocks: Blocks,
    sets: Sets,
    holders: Holders,
    /// Who holds a block but not all before it.
    detached: HashMap<BlockId, Vec<u32>, BuildKeyHasher>,
    /// Blocks in a host's memory, by the number of [`Memory::Any`].
    on_host: HashSet<(u32, BlockId), BuildKeyHasher>,
    /// Where the sweep is.
    swept: BlockId,
    /// Used again by each write.
    written: Vec<BlockId>,
    pending: Vec<BlockId>,
}

impl Index {
    /// An index of at most `most_blocks` blocks, at least 1.
    pub fn new(most_blocks: usize) -> Self {
        Self {
            most_blocks: most_blocks.clamp(1, NONE as usize - 1),
            blocks: Blocks::default(),
            sets: Sets::default(),
            holders: Holders::default(),
            detached: HashMap::default(),
            on_host: HashSet::default(),
            swept: 0,
            written: Vec::new(),
            pending: Vec::new(),
        }
    }

    /// Blocks in the index.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds how many leading blocks of a prompt each server holds. `keys` are the chain keys of the prompt's blocks,
    /// from the first.
    pub fn find(&self, keys: &[u64], held: &mut Held) {
        held.clear();
        let mut along = std::mem::take(&mut held.along);
        along.clear();
        self.sets_along(keys, &mut along);
        // From the shallowest: who is also in a deeper set is written again.
        for (depth, set) in &along {
            for holder in self.sets.members(*set) {
                let Some((server, memory)) = self.holders.owner(*holder) else {
                    continue;
                };
                let at = held.at(server);
                at.host = *depth;
                if memory == Memory::Device {
                    (at.device, at.coming) = (*depth, *depth);
                }
            }
        }
        held.along = along;
    }

    /// Whether `server` holds this block, with or without those before it.
    pub fn is_held(&self, server: u32, key: u64) -> bool {
        let numbers = self.holders.of(server);
        let holder = numbers.any.or(numbers.device);
        let block = self.blocks.find(key);
        block
            .zip(holder)
            .is_some_and(|(block, holder)| self.holds(holder, block))
    }

    /// A server holds the blocks `keys`, which follow one another and the block `after` (`None`: they are a prompt's
    /// first).
    pub fn stored(&mut self, server: u32, after: Option<u64>, keys: &[u64], level: Level) {
        if keys.is_empty() {
            return;
        }
        let device = self.holders.number(server, Memory::Device);
        let any = match level {
            Level::Host => Some(self.number_of_any(server, device)),
            Level::Device => self.holders.of(server).any,
        };
        let mut parent = match after {
            None => Parent::Start,
            Some(key) => Parent::Block(match self.blocks.find(key) {
                Some(block) => block,
                None => self.blocks.insert(key, Parent::Unknown),
            }),
        };
        let mut written = std::mem::take(&mut self.written);
        for key in keys {
            let block = match self.blocks.find(*key) {
                Some(block) => {
                    if self.blocks.get(block).parent == Parent::Unknown {
                        // Nobody holds it yet: only what follows it was reported.
                        self.blocks.link(block, parent);
                    }
                    block
                }
                None => self.blocks.insert(*key, parent),
            };
            if level == Level::Device {
                self.hold(device, block);
            }
            if let Some(any) = any {
                self.hold(any, block);
                if level == Level::Host {
                    self.on_host.insert((any, block));
                }
            }
            written.push(block);
            parent = Parent::Block(block);
        }
        // A prompt's first block becomes the newest, so that its ends go first.
        for block in written.drain(..).rev() {
            self.blocks.touch(block);
        }
        self.written = written;
        self.sweep(keys.len());
        self.keep_bound();
    }

    /// A server holds the blocks `keys` no longer at this level.
    pub fn removed(&mut self, server: u32, keys: &[u64], level: Level) {
        let numbers = self.holders.of(server);
        for key in keys {
            let Some(block) = self.blocks.find(*key) else {
                continue;
            };
            if level == Level::Device
                && let Some(device) = numbers.device
            {
                self.drop(device, block);
            }
            if let Some(any) = numbers.any {
                if level == Level::Host {
                    self.on_host.remove(&(any, block));
                }
                let elsewhere = match level {
                    Level::Device => self.on_host.contains(&(any, block)),
                    Level::Host => numbers
                        .device
                        .is_some_and(|device| self.holds(device, block)),
                };
                if !elsewhere {
                    self.drop(any, block);
                }
            }
            self.remove_if_unused(block);
        }
        self.sweep(keys.len());
    }

    /// A server holds no blocks any more, or is gone. Its number may be used again at once, for any server.
    pub fn cleared(&mut self, server: u32) {
        self.holders.give_up(server);
        self.sweep(0);
    }

    /// The sets along a prompt: each with the number of blocks up to which it counts, from the shallowest.
    fn sets_along(&self, keys: &[u64], along: &mut Vec<(u32, SetId)>) {
        let set_at = |place: usize| {
            let block = self.blocks.find(keys[place]);
            block.map_or(EMPTY, |block| self.blocks.get(block).set)
        };
        // The first place that nobody holds, by steps that double: most of a new prompt is unknown.
        let (mut low, mut step) = (0, 1);
        let mut high = keys.len();
        while low < high {
            let probe = (low + step - 1).min(high - 1);
            if set_at(probe) == EMPTY {
                high = probe;
                break;
            }
            low = probe + 1;
            step *= 2;
        }
        while low < high {
            let middle = low.midpoint(high);
            if set_at(middle) == EMPTY {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let Some(last) = low.checked_sub(1) else {
            return;
        };
        let mut ends = vec![(last, set_at(last))];
        let (mut from, mut set) = (0, set_at(0));
        // Each round goes to the nearest change after `from`.
        while let Some(&(end, at_end)) = ends.last() {
            if at_end == set {
                from = end;
                ends.pop();
            } else if end == from + 1 {
                along.push((end as u32, set));
                (from, set) = (end, at_end);
                ends.pop();
            } else {
                let middle = from.midpoint(end);
                ends.push((middle, set_at(middle)));
            }
        }
        along.push((last as u32 + 1, set));
    }

    /// The number under which a server's blocks on either level are known. With its first block on the host it gets
    /// one, which starts with all that is on the device.
    fn number_of_any(&mut self, server: u32, device: u32) -> u32 {
        if let Some(any) = self.holders.of(server).any {
            return any;
        }
        let any = self.holders.number(server, Memory::Any);
        for block in 0..self.blocks.places() {
            if self.blocks.is_used(block) && self.holds(device, block) {
                self.hold(any, block);
            }
        }
        any
    }

    fn holds(&self, holder: u32, block: BlockId) -> bool {
        self.sets.contains(self.blocks.get(block).set, holder) || self.is_detached(holder, block)
    }

    fn is_detached(&self, holder: u32, block: BlockId) -> bool {
        let detached = self.detached.get(&block);
        detached.is_some_and(|holders| holders.contains(&holder))
    }

    /// Whether `holder` holds all before this block.
    fn reaches(&self, holder: u32, block: BlockId) -> bool {
        match self.blocks.get(block).parent {
            Parent::Start => true,
            Parent::Block(parent) => self.sets.contains(self.blocks.get(parent).set, holder),
            Parent::Unknown => false,
        }
    }

    fn hold(&mut self, holder: u32, block: BlockId) {
        if self.reaches(holder, block) {
            self.change(block, Change::Add(holder));
            self.attach_below(holder, block);
        } else if !self.is_detached(holder, block) {
            self.detached.entry(block).or_default().push(holder);
        }
    }

    /// Takes a holder away from a block; the block stays.
    fn drop(&mut self, holder: u32, block: BlockId) {
        if self.sets.contains(self.blocks.get(block).set, holder) {
            self.change(block, Change::Remove(holder));
            self.detach_below(holder, block);
        } else {
            self.forget_detached(holder, block);
        }
    }

    fn change(&mut self, block: BlockId, change: Change) {
        let set = self.blocks.get(block).set;
        self.blocks.get_mut(block).set = self.sets.step(set, change);
    }

    fn forget_detached(&mut self, holder: u32, block: BlockId) -> bool {
        let Some(holders) = self.detached.get_mut(&block) else {
            return false;
        };
        let Some(place) = holders.iter().position(|one| *one == holder) else {
            return false;
        };
        holders.swap_remove(place);
        if holders.is_empty() {
            self.detached.remove(&block);
        }
        true
    }

    /// `holder` now holds `block` and all before it: so it does with what it holds behind it.
    fn attach_below(&mut self, holder: u32, block: BlockId) {
        if self.detached.is_empty() {
            return;
        }
        self.walk_below(block, |index, child| {
            let is_attached = index.forget_detached(holder, child);
            if is_attached {
                index.change(child, Change::Add(holder));
            }
            is_attached
        });
    }

    /// `holder` lost `block`: what it holds behind it is detached.
    fn detach_below(&mut self, holder: u32, block: BlockId) {
        self.walk_below(block, |index, child| {
            let is_held = index.sets.contains(index.blocks.get(child).set, holder);
            if is_held {
                index.change(child, Change::Remove(holder));
                index.detached.entry(child).or_default().push(holder);
            }
            is_held
        });
    }

    /// Visits the blocks behind `block`, and those behind each for which `visit` is true.
    fn walk_below(&mut self, block: BlockId, mut visit: impl FnMut(&mut Self, BlockId) -> bool) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.push(block);
        while let Some(above) = pending.pop() {
            let mut child = self.blocks.get(above).first_child;
            while child != NONE {
                let next = self.blocks.get(child).next_sibling;
                if visit(self, child) {
                    pending.push(child);
                }
                child = next;
            }
        }
        self.pending = pending;
    }

    /// Removes a block that nobody holds and nothing follows, and then those before it of which the same is true.
    fn remove_if_unused(&mut self, block: BlockId) {
        let mut block = block;
        loop {
            let one = self.blocks.get(block);
            let is_used = one.set != EMPTY || one.first_child != NONE;
            if is_used || self.detached.contains_key(&block) {
                return;
            }
            let parent = one.parent;
            self.blocks.remove(block);
            match parent {
                Parent::Block(above) => block = above,
                Parent::Start | Parent::Unknown => return,
            }
        }
    }

    /// Takes cleared servers out of the sets of some blocks.
    fn sweep(&mut self, written: usize) {
        if !self.holders.is_sweeping() {
            return;
        }
        let end = (self.swept + SWEPT_AT_ONCE).saturating_add(written as u32);
        let end = end.min(self.blocks.places());
        for block in self.swept..end {
            if self.blocks.is_used(block) {
                self.sweep_block(block);
            }
        }
        self.swept = end;
        if end == self.blocks.places() {
            self.swept = 0;
            let holders = &self.holders;
            self.on_host
                .retain(|(holder, _)| holders.owner(*holder).is_some());
            self.holders.swept();
        }
    }

    fn sweep_block(&mut self, block: BlockId) {
        let members = self.sets.members(self.blocks.get(block).set);
        let gone = members
            .iter()
            .filter(|one| self.holders.owner(**one).is_none());
        for holder in gone.copied().collect::<Vec<_>>() {
            self.change(block, Change::Remove(holder));
        }
        if let Some(detached) = self.detached.get_mut(&block) {
            detached.retain(|one| self.holders.owner(*one).is_some());
            if detached.is_empty() {
                self.detached.remove(&block);
            }
        }
        self.remove_if_unused(block);
    }

    /// Forgets blocks until there are few enough.
    fn keep_bound(&mut self) {
        while self.blocks.len() > self.most_blocks {
            let block = self.blocks.oldest();
            if self.blocks.get(block).first_child != NONE {
                // Its turn comes after those that follow it.
                self.blocks.touch(block);
                continue;
            }
            let set = std::mem::replace(&mut self.blocks.get_mut(block).set, EMPTY);
            for holder in self.sets.members(set) {
                self.on_host.remove(&(*holder, block));
            }
            self.sets.release(set);
            for holder in self.detached.remove(&block).unwrap_or_default() {
                self.on_host.remove(&(holder, block));
            }
            self.remove_if_unused(block);
        }
    }
}
