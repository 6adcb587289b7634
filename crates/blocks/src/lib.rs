//! Chain keys: the names by which gateways and workers speak of a prompt's blocks in a KV cache. Pure; knows nothing of
//! caches, of the wire, or of who asks.
//!
//! The keys and values of a block depend on all tokens before it, so that a block's key is made of its tokens and of
//! the key before. This is the form of Dynamo and SMG, with 64 bits a block:
//!
//! ```text
//! local[i] = XXH3-64(tokens of block i as u32, little-endian, seed)
//! key[0]   = local[0]
//! key[i]   = XXH3-64(key[i − 1] ‖ local[i], little-endian, seed)
//! seed     = 1337 + XXH3-64(adapter, seed 0) + XXH3-64(salt, seed 1), wrapping; an absent one adds nothing
//! ```
//!
//! - The salt is the tensor `inflight_cache_salt` as it reaches the worker, byte for byte. A gateway that gives each
//!   API key a part of the cache hashes what it sends, which has that part's salt in front of the client's.
//! - The adapter is the number in the tensor `lora_task_id`, in decimal digits. It is what a request says of its
//!   adapter, whether a gateway looked it up by name or a KServe client sent it; names reach no executor. An adapter
//!   that is loaded anew under its name keeps its number: until the blocks of its old weights are evicted, their keys
//!   promise more than is found.
//! - A block that an image or a prompt table touches has no key, since its token ids do not say what it holds. The
//!   chain ends before it: no later block of that prompt has a key.
//! - Only full blocks have keys. An executor computes at least a prompt's last token, so that it may use one block less
//!   than it holds.
//!
//! A key is a hint: two prompts may have the same one, and a worker finds by its own hashes what it really holds.
//!
//! ```
//! use inflight_blocks::{Seed, keys};
//!
//! let prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9];
//! assert_eq!(
//!     keys(&prompt, 4, Seed::new(None, b"")),
//!     [14_643_705_804_678_351_452, 4_945_711_292_740_353_085]
//! );
//! ```

use xxhash_rust::xxh3::{Xxh3Builder, xxh3_64_with_seed};

/// Dynamo's and SMG's.
const SEED: u64 = 1337;
/// Tokens that are hashed in one piece; few caches have larger blocks.
const PIECE: usize = 128;

/// Keeps the chains of different adapters and salts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seed(u64);

impl Seed {
    /// What all blocks of a request are named with. `salt`: empty where the request has none.
    pub fn new(lora_task_id: Option<u64>, salt: &[u8]) -> Self {
        let adapter = lora_task_id.map_or(0, |id| {
            let mut digits = Digits::default();
            xxh3_64_with_seed(digits.of(id), 0)
        });
        let salt = match salt {
            [] => 0,
            salt => xxh3_64_with_seed(salt, 1),
        };
        Self(SEED.wrapping_add(adapter).wrapping_add(salt))
    }
}

/// One prompt's blocks, from its first on.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    seed: Seed,
    last: Option<u64>,
}

impl Chain {
    /// Before a prompt's first block.
    pub fn new(seed: Seed) -> Self {
        Self { seed, last: None }
    }

    /// After a block whose key is known.
    pub fn after(seed: Seed, key: u64) -> Self {
        Self {
            seed,
            last: Some(key),
        }
    }

    /// The key of the last block; `None`: there is none.
    pub fn last(&self) -> Option<u64> {
        self.last
    }

    /// The key of the next block, which has these tokens.
    pub fn push(&mut self, block: &[i32]) -> u64 {
        let Seed(seed) = self.seed;
        let local = hash_tokens(block, seed);
        let key = match self.last {
            None => local,
            Some(last) => {
                let pair = (u128::from(local) << 64) | u128::from(last);
                xxh3_64_with_seed(&pair.to_le_bytes(), seed)
            }
        };
        self.last = Some(key);
        key
    }
}

/// The keys of a prompt's full blocks, in order. No block has 0 tokens, and then there are no keys.
pub fn keys(tokens: &[i32], tokens_per_block: usize, seed: Seed) -> Vec<u64> {
    if tokens_per_block == 0 {
        return Vec::new();
    }
    let mut chain = Chain::new(seed);
    tokens
        .chunks_exact(tokens_per_block)
        .map(|block| chain.push(block))
        .collect()
}

fn hash_tokens(tokens: &[i32], seed: u64) -> u64 {
    let mut bytes = [0; 4 * PIECE];
    let mut pack = |tokens: &[i32]| {
        for (place, token) in bytes.chunks_exact_mut(4).zip(tokens) {
            place.copy_from_slice(&token.to_le_bytes());
        }
        bytes
    };
    if tokens.len() <= PIECE {
        let bytes = pack(tokens);
        let used = bytes.get(..4 * tokens.len()).unwrap_or(&bytes);
        return xxh3_64_with_seed(used, seed);
    }
    let mut hasher = Xxh3Builder::new().with_seed(seed).build();
    for piece in tokens.chunks(PIECE) {
        let bytes = pack(piece);
        hasher.update(bytes.get(..4 * piece.len()).unwrap_or(&bytes));
    }
    hasher.digest()
}

/// A number as text, without an allocation.
#[derive(Default)]
struct Digits([u8; 20]);

impl Digits {
    fn of(&mut self, mut number: u64) -> &[u8] {
        let mut start = self.0.len();
        for (place, digit) in self.0.iter_mut().enumerate().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
            start = place;
            if number == 0 {
                break;
            }
        }
        self.0.get(start..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
