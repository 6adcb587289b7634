//! The parameters of one prompt's generation, every default filled in. Plain values between the API's
//! request and a server's tensors; named after TensorRT-LLM's `SamplingParams`.

use std::sync::Arc;

/// Everything about one prompt's generation except the prompt. `None` among the sampler's settings is
/// neutral and is not sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SamplingParams {
    /// How many sequences to generate.
    pub n: u32,
    pub max_tokens: u32,
    /// Whether tokens arrive as they are generated; otherwise each sequence arrives in one piece.
    pub streaming: bool,
    pub temperature: f32,
    /// 0: no limit. 1: greedy.
    pub top_k: i32,
    pub top_p: f32,
    pub min_p: Option<f32>,
    pub seed: u64,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub min_tokens: Option<i32>,
    /// The end token; `None`: generate past it.
    pub end_id: Option<i32>,
    pub pad_id: Option<i32>,
    /// Single tokens that end a sequence besides the end token and are not part of its text.
    pub stop_ids: Vec<i32>,
    pub logit_bias: Vec<(i32, f32)>,
    /// `Some(k)`: log probabilities of generated tokens, with k alternatives.
    pub log_probs: Option<u32>,
    /// `Some(k)`: log probabilities of the prompt, with k alternatives.
    pub prompt_log_probs: Option<u32>,
    /// Whether to report how many prompt tokens came from the KV cache.
    pub cached_tokens: bool,
}

impl SamplingParams {
    /// Tokens that end a sequence and are not part of it.
    pub(crate) fn end_ids(&self) -> Arc<[i32]> {
        self.stop_ids.iter().copied().chain(self.end_id).collect()
    }
}
