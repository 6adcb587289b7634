//! What the simulated executor pretends to be, and what each thing costs.

use crate::executor::{ModelInfo, capability};
use crate::options::declared;

declared::options! {
    /// The timing model. With every cost at 0, tokens come as fast as the worker takes them.
    #[derive(Clone, Debug, PartialEq)]
    pub struct SimulatedOptions {
        /// Microseconds of every iteration
        // Whatever its batch: reading the weights once.
        step_us: f64 = 10_000.0 => min: Some(0.0), unit: Some("microseconds");

        /// Microseconds per sequence in an iteration
        // Attention over its cache.
        step_us_per_sequence: f64 = 20.0 => min: Some(0.0), unit: Some("microseconds");

        /// Microseconds per prompt token
        // 10,000 prompt tokens a second: a mid-size model on one GPU.
        prefill_us_per_token: f64 = 100.0 => min: Some(0.0), unit: Some("microseconds");

        /// Milliseconds that one prompt may add to an iteration while streams generate; all together twice as much; 0: no
        /// bound
        // As the reference executor bounds them. Off, so that a prompt takes as many iterations as its tokens say.
        max_prompt_ms: u32 = 0;

        /// Microseconds for each token of a prompt whose KV cache comes from another worker
        // A 10th of what computing it costs here: an 8B model's cache at some 10 GB a second.
        transfer_us_per_token: f64 = 10.0 => min: Some(0.0), unit: Some("microseconds");

        /// File of the text that every answer repeats
        // Ids below `vocab_size`. Without one, answers are printable characters that depend on the prompt.
        answer: Vec<u32> = Vec::new();

        /// KV cache capacity in blocks
        // A request waits until its whole length fits. About half a million tokens.
        num_blocks: u32 = 16_384 => min: Some(1.0);

        /// Keep blocks after their request, for prompts that begin alike
        // Until their room is needed. Off, so that a prompt costs the same however often it comes.
        enable_kv_cache_reuse: bool = false;

        /// Tokens in a KV cache block
        // As in TensorRT-LLM.
        tokens_per_block: u32 = 32 => min: Some(1.0);

        /// Sequences that run at once
        // TensorRT-LLM's usual limit for this kind of GPU.
        max_batch_size: u32 = 256 => min: Some(1.0);

        /// Prompt plus generated tokens of a sequence
        // Enough for any load test that is not about long contexts.
        max_seq_len: u32 = 8192 => min: Some(1.0);

        /// Tokens in one iteration, prompts included
        // Longer prompts take several. As in TensorRT-LLM.
        max_num_tokens: u32 = 8192 => min: Some(1.0);

        /// Token ids are below this
        // A common size; callers pass their tokenizer's.
        vocab_size: u32 = 32_000 => min: Some(1.0);
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
            capability::CONTEXT_PHASE.to_owned(),
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
