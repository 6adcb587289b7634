//! What a request asks of a worker's cache: its prompt as blocks. Owns that a prompt is hashed once, however often workers
//! are picked for it.

use std::sync::{Arc, OnceLock};

use inflight_blocks::{Seed, keys};

use crate::phases::Phases;
use crate::prompt_request::PromptRequest;

/// Triton's level of requests that go before others.
pub const FIRST_LEVEL: u32 = 1;

/// See the module.
#[derive(Clone, Debug)]
pub struct CacheQuery {
    /// Chain keys of the blocks of the longest prompt: several prompts of one request go to one worker.
    pub keys: Arc<[u64]>,
    /// Tokens of all prompts, and of what was generated before.
    pub tokens: u32,
    /// Whether workers take it before others.
    pub is_urgent: bool,
    prompts: usize,
    /// Whether its cache comes from another worker.
    pub(super) is_transferred: bool,
    /// Whether it is charged for the delay of requests that a worker already has.
    pub(super) spares_streams: bool,
}

/// The keys of a prompt's blocks, once a pick has needed them. As long as its request lives: it may be placed again.
#[derive(Debug, Default)]
pub struct BlockKeys(OnceLock<(u32, Arc<[u64]>)>);

impl BlockKeys {
    /// Those of blocks of so many tokens; 0: none.
    fn keys(&self, block_tokens: u32, make: impl FnOnce() -> Vec<u64>) -> Arc<[u64]> {
        if block_tokens == 0 {
            return Arc::default();
        }
        if let Some((size, keys)) = self.0.get() {
            // Blocks of another size since: few requests see that.
            return match *size == block_tokens {
                true => Arc::clone(keys),
                false => make().into(),
            };
        }
        let made: Arc<[u64]> = make().into();
        // Otherwise somebody else has made the same.
        let _ = self.0.set((block_tokens, Arc::clone(&made)));
        made
    }
}

/// The prompts of a request, for which workers are picked.
#[derive(Clone, Copy, Debug)]
pub struct Prompts<'a> {
    pub prompts: &'a [PromptRequest<'a>],
    block_keys: &'a BlockKeys,
}

impl<'a> Prompts<'a> {
    /// `named` is that of these prompts, for whichever phases.
    pub fn new(prompts: &'a [PromptRequest<'a>], block_keys: &'a BlockKeys) -> Self {
        Self {
            prompts,
            block_keys,
        }
    }

    /// The same prompts for other phases.
    pub(crate) fn of<'b>(&self, prompts: &'b [PromptRequest<'b>]) -> Prompts<'b>
    where
        'a: 'b,
    {
        Prompts {
            prompts,
            block_keys: self.block_keys,
        }
    }

    /// What they ask of caches with blocks of so many tokens; 0: blocks are not known.
    pub fn ask(&self, block_tokens: u32) -> CacheQuery {
        CacheQuery::new(self.prompts, |longest, seed| {
            let make = || keys(longest.tokens, block_tokens as usize, seed);
            self.block_keys.keys(block_tokens, make)
        })
    }

    /// Whether the cache comes from another worker.
    pub(crate) fn is_transferred(&self) -> bool {
        let mut prompts = self.prompts.iter();
        prompts.all(|prompt| matches!(prompt.phases, Phases::Generation(_)))
    }
}

impl CacheQuery {
    fn new(
        prompts: &[PromptRequest<'_>],
        keys: impl FnOnce(&PromptRequest<'_>, Seed) -> Arc<[u64]>,
    ) -> Self {
        let generated = |prompt: &PromptRequest<'_>| {
            let generated = prompt.generated.iter().flatten();
            generated.map(|tokens| tokens.len()).sum::<usize>()
        };
        let lengths = prompts
            .iter()
            .map(|prompt| prompt.tokens.len() + generated(prompt));
        let longest = prompts.iter().max_by_key(|prompt| prompt.tokens.len());
        let extras = longest.and_then(|prompt| prompt.params.extras.as_deref());
        // Where an image is, token ids do not say what a block holds.
        let has_images = extras.is_some_and(|extras| !extras.images.0.is_empty());
        let named = longest.filter(|_| !has_images);
        let seed = Seed::new(
            extras.and_then(|extras| extras.lora_task_id),
            extras
                .and_then(|extras| extras.cache_salt.as_deref())
                .unwrap_or_default()
                .as_bytes(),
        );
        Self {
            keys: named.map_or_else(Arc::default, |prompt| keys(prompt, seed)),
            tokens: u32::try_from(lengths.sum::<usize>()).unwrap_or(u32::MAX),
            is_urgent: extras.is_some_and(|extras| extras.priority == Some(FIRST_LEVEL)),
            prompts: prompts.len(),
            is_transferred: prompts
                .iter()
                .all(|prompt| matches!(prompt.phases, Phases::Generation(_))),
            spares_streams: false,
        }
    }

    /// The request of one prompt whose blocks are named with `seed`; `None`: its token ids do not say what they hold.
    pub fn of_one(tokens: &[i32], seed: Option<Seed>, is_urgent: bool, block_tokens: u32) -> Self {
        let named = seed.map(|seed| keys(tokens, block_tokens as usize, seed));
        Self {
            keys: named.map_or_else(Arc::default, Arc::from),
            tokens: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
            is_urgent,
            prompts: 1,
            is_transferred: false,
            spares_streams: false,
        }
    }

    /// Whether it is charged for the delay of requests that a worker already has: a worker for contexts could have spared
    /// them.
    #[must_use]
    pub fn sparing(self, spares_streams: bool) -> Self {
        Self {
            spares_streams,
            ..self
        }
    }

    /// The request of one prompt, for this LoRA adapter and with this salt.
    pub fn of_prompt(tokens: &[i32], adapter: Option<u64>, salt: &[u8], block_tokens: u32) -> Self {
        Self::of_one(tokens, Some(Seed::new(adapter, salt)), false, block_tokens)
    }

    /// Whether the worker's count of cached tokens can be compared with what was expected.
    pub(super) fn is_checked(&self) -> bool {
        self.prompts == 1 && !self.keys.is_empty() && !self.is_transferred
    }
}
