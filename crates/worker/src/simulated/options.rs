//! What the simulated executor pretends to be, and what each thing costs.

use crate::executor::{ModelInfo, capability};

/// Prefill of about 10,000 tokens a second: a mid-size model on one GPU.
pub(super) const DEFAULT_PREFILL_US_PER_TOKEN: f64 = 100.0;
/// The part of an iteration that does not depend on the batch: reading the weights once.
pub(super) const DEFAULT_STEP_US: f64 = 10_000.0;
/// The part that does: attention over each sequence's cache.
pub(super) const DEFAULT_STEP_US_PER_SEQUENCE: f64 = 20.0;
/// TensorRT-LLM's usual engine limit for this kind of GPU.
pub(super) const DEFAULT_MAX_BATCH_SIZE: u32 = 256;
/// With the default block size, about half a million tokens of KV cache.
pub(super) const DEFAULT_NUM_BLOCKS: u32 = 16_384;
/// TensorRT-LLM's default for `tokens_per_block`.
pub(super) const DEFAULT_TOKENS_PER_BLOCK: u32 = 32;
/// Large enough for any load test that is not about long contexts.
pub(super) const DEFAULT_MAX_SEQ_LEN: u32 = 8192;
/// TensorRT-LLM's default for `max_num_tokens`: prompt tokens one iteration takes at most.
pub(super) const DEFAULT_MAX_NUM_TOKENS: u32 = 8192;
/// A common vocabulary size; the caller gives its tokenizer's.
pub(super) const DEFAULT_VOCAB_SIZE: u32 = 32_000;

/// The timing model. A step cost of 0 throughout means: as fast as the worker awaits.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedOptions {
    /// Microseconds of an iteration per prompt token in it.
    pub prefill_us_per_token: f64,
    /// Microseconds of every iteration.
    pub step_us: f64,
    /// Microseconds of an iteration per sequence in it.
    pub step_us_per_sequence: f64,
    /// Sequences that run at once.
    pub max_batch_size: u32,
    /// KV cache capacity in blocks; a request waits until its whole length has room.
    pub num_blocks: u32,
    pub tokens_per_block: u32,
    /// Prompt plus generated tokens of one sequence.
    pub max_seq_len: u32,
    /// Prompt tokens in one iteration; longer prompts take several.
    pub max_num_tokens: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
}

impl Default for SimulatedOptions {
    fn default() -> Self {
        Self {
            prefill_us_per_token: DEFAULT_PREFILL_US_PER_TOKEN,
            step_us: DEFAULT_STEP_US,
            step_us_per_sequence: DEFAULT_STEP_US_PER_SEQUENCE,
            max_batch_size: DEFAULT_MAX_BATCH_SIZE,
            num_blocks: DEFAULT_NUM_BLOCKS,
            tokens_per_block: DEFAULT_TOKENS_PER_BLOCK,
            max_seq_len: DEFAULT_MAX_SEQ_LEN,
            max_num_tokens: DEFAULT_MAX_NUM_TOKENS,
            vocab_size: DEFAULT_VOCAB_SIZE,
        }
    }
}

impl SimulatedOptions {
    /// What the worker is told: several sequences of a prompt and a minimum length cost nothing to
    /// promise where every sequence runs to its limit; everything that would need logits is absent.
    pub(super) fn info(&self) -> ModelInfo {
        ModelInfo {
            executor: "simulated".to_owned(),
            vocab_size: self.vocab_size,
            max_seq_len: self.max_seq_len,
            max_input_len: self.max_seq_len.saturating_sub(1),
            max_batch_size: self.max_batch_size,
            max_num_tokens: self.max_num_tokens,
            max_beam_width: 1,
            tokens_per_block: self.tokens_per_block,
            capabilities: vec![
                capability::NUM_RETURN_SEQUENCES.to_owned(),
                capability::MIN_TOKENS.to_owned(),
            ],
        }
    }
}
