//! What a request asks of a worker's cache: its prompt as blocks.

use inflight_blocks::{Seed, keys};

use crate::phases::Phases;
use crate::prompt_request::PromptRequest;

/// Triton's level of requests that go before others.
pub const FIRST_LEVEL: u32 = 1;

/// See the module.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Chain keys of the blocks of the longest prompt: several prompts of one request go to one worker.
    pub keys: Vec<u64>,
    /// Tokens of all prompts, and of what was generated before.
    pub tokens: u32,
    /// Whether workers take it before others.
    pub is_urgent: bool,
    prompts: usize,
    /// Whether its cache comes from another worker.
    pub(super) is_transferred: bool,
}

impl Ask {
    /// The request of these prompts, for caches with blocks of so many tokens; 0: blocks are not known.
    pub fn new(prompts: &[PromptRequest<'_>], block_tokens: u32) -> Self {
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
            keys: named.map_or_else(Vec::new, |prompt| {
                keys(prompt.tokens, block_tokens as usize, seed)
            }),
            tokens: u32::try_from(lengths.sum::<usize>()).unwrap_or(u32::MAX),
            is_urgent: extras.is_some_and(|extras| extras.priority == Some(FIRST_LEVEL)),
            prompts: prompts.len(),
            is_transferred: prompts
                .iter()
                .all(|prompt| matches!(prompt.phases, Phases::Generation(_))),
        }
    }

    /// The request of one prompt whose blocks are named with `seed`; `None`: its token ids do not say what they hold.
    pub fn of_one(tokens: &[i32], seed: Option<Seed>, is_urgent: bool, block_tokens: u32) -> Self {
        let named = seed.map(|seed| keys(tokens, block_tokens as usize, seed));
        Self {
            keys: named.unwrap_or_default(),
            tokens: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
            is_urgent,
            prompts: 1,
            is_transferred: false,
        }
    }

    /// Whether the worker's count of cached tokens can be compared with what was expected.
    pub(super) fn is_checked(&self) -> bool {
        self.prompts == 1 && !self.keys.is_empty() && !self.is_transferred
    }
}
