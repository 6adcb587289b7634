//! A server's blocks by the names that this gateway has for them: what its events say of hashes, as changes of our keys.
//! Pure.
//!
//! Others cannot compute a server's hashes, so that each block is named anew, from its tokens and from the block before
//! it. Where that is not known there is no name, and the block is left out: it was stored before anybody listened, an image
//! is in it, or its adapter has no name that is listed. What follows it is left out as well.

use std::collections::HashMap;

use inflight_blocks::{Chain, Seed};
use inflight_kserve::cache_state::BlockChanges;
use inflight_kv_events::{Adapter, Batch, BlockHash, Event, Extras, Medium, Removed, Stored};

/// Blocks of a server that are named: some 12 MB. A GPU of 80 GB holds fewer of an 8B model's.
const MOST_BLOCKS: usize = 1 << 17;
/// The levels that a block can be at, as bits.
const DEVICE: u8 = 1;
const HOST: u8 = 2;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Names {
    blocks: HashMap<BlockHash, Block>,
    /// Those that the batch at hand changed, in order; some may be gone.
    touched: Vec<BlockHash>,
    /// Tokens of a block; 0: none was stored yet.
    block_tokens: u32,
    /// The layers whose blocks count; `None`: none has said.
    group: Option<u32>,
    /// Blocks that were stored and could not be named.
    unnamed: u64,
}

#[derive(Debug)]
struct Block {
    key: u64,
    /// The key of the block before it; 0: a prompt's first.
    after: u64,
    seed: Seed,
    levels: u8,
    /// Its levels before the batch at hand, if that changed them.
    before: Option<u8>,
}

/// What a batch changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Changes {
    /// Before all else, everything is gone.
    pub(super) cleared: bool,
    pub(super) device: BlockChanges,
    pub(super) host: BlockChanges,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        let none = |changes: &BlockChanges| changes.stored.is_empty() && changes.removed.is_empty();
        !self.cleared && none(&self.device) && none(&self.host)
    }
}

impl Names {
    /// Tokens of the server's blocks; 0: it has stored none.
    pub(super) fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Blocks that are held and named.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that were stored and could not be named, since the beginning.
    pub(super) fn unnamed(&self) -> u64 {
        self.unnamed
    }

    /// Nothing is held any more, as far as is known.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.touched.clear();
    }

    /// Everything that is held, in parts of `most` blocks of each level.
    pub(super) fn all(&self, most: usize) -> Vec<Changes> {
        let mut parts = vec![Changes::default()];
        for block in self.blocks.values() {
            let mut part = parts.pop().unwrap_or_default();
            if part.device.stored.len() >= most || part.host.stored.len() >= most {
                parts.push(std::mem::take(&mut part));
            }
            part.add(block, 0);
            parts.push(part);
        }
        parts
    }

    /// Takes a batch. `number_of` is that of an adapter by its name.
    pub(super) fn take(
        &mut self,
        batch: &Batch,
        number_of: impl Fn(&str) -> Option<u64>,
    ) -> Changes {
        let mut changes = Changes::default();
        for event in &batch.events {
            match event {
                Event::Stored(stored) => self.stored(stored, &number_of),
                Event::Removed(removed) => self.removed(removed),
                Event::Cleared => {
                    self.clear();
                    changes.cleared = true;
                }
                Event::Unknown => {}
            }
        }
        for hash in std::mem::take(&mut self.touched) {
            let Some(block) = self.blocks.get_mut(&hash) else {
                continue;
            };
            if let Some(before) = block.before.take() {
                changes.add(block, before);
            }
            if block.levels == 0 {
                self.blocks.remove(&hash);
            }
        }
        changes
    }

    fn stored(&mut self, stored: &Stored, number_of: impl Fn(&str) -> Option<u64>) {
        let Some(level) = level(stored.medium) else {
            return;
        };
        if !stored.group.kind_is_main || !self.is_counted(stored.group.index) {
            return;
        }
        if self.blocks.is_empty() && stored.block_tokens > 0 {
            self.block_tokens = stored.block_tokens;
        }
        let named = self.name(stored, number_of, level).unwrap_or(0);
        self.unnamed += (stored.hashes.len() - named) as u64;
    }

    /// Names the blocks as far as that goes. Returns how many.
    fn name(
        &mut self,
        stored: &Stored,
        number_of: impl Fn(&str) -> Option<u64>,
        level: u8,
    ) -> Option<usize> {
        let size = self.block_tokens as usize;
        let tokens = stored.tokens.as_ref()?;
        let is_whole = stored.hashes.len().checked_mul(size) == Some(tokens.len());
        if size == 0 || stored.block_tokens != self.block_tokens || !is_whole {
            return None;
        }
        let (seed, mut chain) = match &stored.parent {
            Some(parent) => {
                let parent = self.blocks.get(parent)?;
                (parent.seed, Chain::after(parent.seed, parent.key))
            }
            None => {
                let seed = first_seed(stored, number_of)?;
                (seed, Chain::new(seed))
            }
        };
        let begins = stored.parent.is_none();
        for (place, (hash, tokens)) in stored.hashes.iter().zip(tokens.chunks(size)).enumerate() {
            let extras = stored.extras.get(place);
            // A prompt's first block also has the salt.
            let is_plain = match place {
                0 if begins => true,
                _ => extras.is_none_or(|extras| {
                    !extras.has_others && own_texts(stored, extras).next().is_none()
                }),
            };
            let is_full = self.blocks.len() >= MOST_BLOCKS && !self.blocks.contains_key(hash);
            if !is_plain || is_full {
                return Some(place);
            }
            let after = chain.last().unwrap_or(0);
            let key = chain.push(tokens);
            let block = self.blocks.entry(*hash).or_insert(Block {
                key,
                after,
                seed,
                levels: 0,
                before: None,
            });
            if block.before.is_none() {
                block.before = Some(block.levels);
                self.touched.push(*hash);
            }
            block.levels |= level;
        }
        Some(stored.hashes.len())
    }

    fn removed(&mut self, removed: &Removed) {
        let Some(level) = level(removed.medium) else {
            return;
        };
        if removed.group.is_some() && self.group.is_some() && removed.group != self.group {
            return;
        }
        for hash in &removed.hashes {
            let Some(block) = self.blocks.get_mut(hash) else {
                continue;
            };
            if block.before.is_none() {
                block.before = Some(block.levels);
                self.touched.push(*hash);
            }
            block.levels &= !level;
        }
    }

    /// Of several groups of layers that attend to all tokens, the first that is heard of counts: a block is at all of them.
    fn is_counted(&mut self, group: Option<u32>) -> bool {
        match (self.group, group) {
            (Some(own), Some(group)) => own == group,
            (None, Some(group)) => {
                self.group = Some(group);
                true
            }
            (_, None) => true,
        }
    }
}

impl Changes {
    fn add(&mut self, block: &Block, before: u8) {
        for (level, changes) in [(DEVICE, &mut self.device), (HOST, &mut self.host)] {
            match (before & level != 0, block.levels & level != 0) {
                (false, true) => {
                    changes.stored.push(block.key);
                    changes.after.push(block.after);
                }
                (true, false) => changes.removed.push(block.key),
                _ => {}
            }
        }
    }
}

fn level(medium: Medium) -> Option<u8> {
    match medium {
        Medium::Device => Some(DEVICE),
        Medium::Host => Some(HOST),
        Medium::Elsewhere => None,
    }
}

/// What a prompt's blocks are named with, as its first block says; `None`: that cannot be known.
fn first_seed(stored: &Stored, number_of: impl Fn(&str) -> Option<u64>) -> Option<Seed> {
    let adapter = match &stored.adapter {
        Adapter::None => None,
        Adapter::Named(name) => Some(number_of(name)?),
        Adapter::Numbered(_) => return None,
    };
    let none = Extras::default();
    let extras = stored.extras.first().unwrap_or(&none);
    // Some servers say the salt twice.
    let salt = stored.salt.as_deref();
    let others = own_texts(stored, extras).filter(|text| Some(*text) != salt);
    let mut texts = salt.into_iter().chain(others);
    let salt = texts.next().unwrap_or_default();
    // An image's name would be another one.
    let is_all = texts.next().is_none() && !extras.has_others;
    is_all.then(|| Seed::new(adapter, salt.as_bytes()))
}

/// A block's texts except the adapter's name.
fn own_texts<'a>(stored: &'a Stored, extras: &'a Extras) -> impl Iterator<Item = &'a str> {
    let adapter = match &stored.adapter {
        Adapter::Named(name) => Some(name.as_str()),
        _ => None,
    };
    let texts = extras.texts.iter().map(String::as_str);
    texts.filter(move |text| Some(*text) != adapter)
}

#[cfg(test)]
mod tests;
