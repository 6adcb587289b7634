//! What the simulated executor pretends to be, and what each thing costs.

use crate::executor::{ModelInfo, capability};

/// The timing model. With every cost at 0, tokens come as fast as the worker takes them.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatedOptions {
    /// Microseconds of an iteration per prompt token in it. Default: 100, which is 10,000 prompt tokens
    /// a second, a mid-size model on one GPU.
    pub prefill_us_per_token: f64,
    /// Microseconds of every iteration, whatever its batch: reading the weights once. Default: 10,000.
    pub step_us: f64,
    /// Microseconds of an iteration per sequence in it: attention over its cache. Default: 20.
    pub step_us_per_sequence: f64,
    /// Sequences that run at once. Default: 256, TensorRT-LLM's usual limit for this kind of GPU.
    pub max_batch_size: u32,
    /// KV cache capacity in blocks; a request waits until its whole length fits. Default: 16,384, about
    /// half a million tokens.
    pub num_blocks: u32,
    /// Whether blocks stay after their request, for prompts that begin alike, until their room is needed. Default:
    /// false, so that a prompt costs the same however often it comes.
    pub enable_kv_cache_reuse: bool,
    /// Default: 32, as in TensorRT-LLM.
    pub tokens_per_block: u32,
    /// Prompt plus generated tokens of one sequence. Default: 8192, enough for any load test that is not
    /// about long contexts.
    pub max_seq_len: u32,
    /// Prompt tokens in one iteration; longer prompts take several. Default: 8192, as in TensorRT-LLM.
    pub max_num_tokens: u32,
    /// Token ids are below this. Default: 32,000, a common size; callers pass their tokenizer's.
    pub vocab_size: u32,
    /// Token ids below `vocab_size` that every answer repeats until its limit. Default: none, and answers are
    /// printable characters that depend on the prompt.
    pub answer: Vec<u32>,
}

impl Default for SimulatedOptions {
    fn default() -> Self {
        Self {
            prefill_us_per_token: 100.0,
            step_us: 10_000.0,
            step_us_per_sequence: 20.0,
            max_batch_size: 256,
            num_blocks: 16_384,
            enable_kv_cache_reuse: false,
            tokens_per_block: 32,
            max_seq_len: 8192,
            max_num_tokens: 8192,
            vocab_size: 32_000,
            answer: Vec::new(),
        }
    }
}

impl SimulatedOptions {
    /// What the worker sees. Several sequences per prompt and a minimum length come for free where every
    /// sequence runs to its limit; whatever needs logits is not supported.
    pub(super) fn info(&self) -> ModelInfo {
        let mut capabilities = vec![
            capability::NUM_RETURN_SEQUENCES.to_owned(),
            capability::MIN_TOKENS.to_owned(),
            capability::RESUME.to_owned(),
        ];
        if self.enable_kv_cache_reuse {
            capabilities.push(capability::CACHE_SALT.to_owned());
            capabilities.push(capability::CACHE_EVENTS.to_owned());
        }
        ModelInfo {
            executor: "simulated".to_owned(),
            vocab_size: self.vocab_size,
            max_seq_len: self.max_seq_len,
            max_input_len: self.max_seq_len.saturating_sub(1),
            max_batch_size: self.max_batch_size,
            max_num_tokens: self.max_num_tokens,
            max_beam_width: 1,
            tokens_per_block: self.tokens_per_block,
            capabilities,
            adapters: Vec::new(),
            weights: String::new(),
        }
    }
}
