//! What events say. Owns no form of it: see `read` and `write`.

use std::fmt;

/// What changed in a cache during one step of an engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Seconds since the epoch, by the server's clock.
    pub timestamp: f64,
    pub events: Vec<Event>,
    /// Which of the server's data-parallel engines it was; `None`: there is one.
    pub rank: Option<u32>,
}

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Stored(Stored),
    Removed(Removed),
    /// All blocks are gone.
    Cleared,
    /// An event of a later release. It is skipped when a batch is read, and never written.
    Unknown,
}

/// Blocks that follow one another and are now held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    pub hashes: Vec<BlockHash>,
    /// The block before the first; `None`: a prompt begins.
    pub parent: Option<BlockHash>,
    /// Of all blocks, one after another; `None`: they are no plain token ids.
    pub tokens: Option<Vec<i32>>,
    pub block_tokens: u32,
    pub adapter: Adapter,
    pub medium: Medium,
    /// What keeps the blocks of its requests apart from others', where it is said apart: by SGLang.
    pub salt: Option<String>,
    /// For each block what it is hashed with besides its tokens; empty: nothing, for all of them.
    pub extras: Vec<Extras>,
    pub group: Group,
}

/// Blocks that are no longer held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Removed {
    pub hashes: Vec<BlockHash>,
    pub medium: Medium,
    /// [`Group::kind_is_main`] is not said of removed blocks.
    pub group: Option<u32>,
}

/// A server's name of a block. Nobody else needs to know what a hash is made of: they are only compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockHash {
    /// A number of 64 bits, whether it was written with a sign or without.
    Number(u64),
    /// Bytes, and how many of them count.
    Bytes([u8; Self::MOST_BYTES], u8),
}

impl BlockHash {
    /// SHA-256, which is the longest in use.
    pub const MOST_BYTES: usize = 32;

    /// `None`: there are too many.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; Self::MOST_BYTES];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self::Bytes(all, u8::try_from(bytes.len()).ok()?))
    }

    /// The bytes that count; `None`: it is a number.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Number(_) => None,
            Self::Bytes(all, length) => all.get(..usize::from(*length)),
        }
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.bytes()) {
            (Self::Number(number), _) => write!(f, "{number}"),
            (_, bytes) => {
                let mut bytes = bytes.unwrap_or_default().iter();
                bytes.try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// The adapter that blocks were computed with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Adapter {
    #[default]
    None,
    Named(String),
    /// By a number of the server's own, without a name: earlier releases.
    Numbered(i64),
}

/// Where blocks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// The memory that attention reads; what is not said is there.
    #[default]
    Device,
    /// The host's memory.
    Host,
    /// Anything slower, or elsewhere than at the server.
    Elsewhere,
}

/// What a block is hashed with besides its tokens: the names of adapters and salts, images, embeddings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Those that are plain text.
    pub texts: Vec<String>,
    /// Whether there is any other: token ids alone do not say what the block holds.
    pub has_others: bool,
}

/// The layers that blocks belong to, in models whose layers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub index: Option<u32>,
    /// Whether its layers attend to all tokens, so that its blocks say what of a prompt is cached. Others keep what a
    /// window has, or a state.
    pub kind_is_main: bool,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            index: None,
            kind_is_main: true,
        }
    }
}
