//! The parameters of one prompt's generation, every default filled in. Plain values between the API's
//! request and a server's tensors; named after TensorRT-LLM's `SamplingParams`.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// Everything about one prompt's generation except the prompt. `None` among the sampler's settings is
/// neutral and is not sent.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// How many sequences to generate.
    pub n: u32,
    pub max_tokens: u32,
    /// Whether tokens arrive as they are generated; otherwise each sequence arrives in one piece.
    pub streaming: bool,
    /// Whether those of several iterations may arrive together, because nobody reads them before the last.
    pub may_wait: bool,
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
    /// `None` for most requests.
    pub extras: Option<Box<Extras>>,
}

/// How long a sequence may think.
#[derive(Clone, Debug, PartialEq)]
pub struct Thinking {
    pub tokens: i32,
    /// The tokens that begin its reasoning; empty: the prompt has.
    pub start: Vec<i32>,
    pub end: Vec<i32>,
}

/// What few requests ask for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extras {
    pub guide: Option<Guide>,
    /// At least two.
    pub beams: Option<Beams>,
    /// For a model that takes token ids; none is empty.
    pub bad_words: Vec<Vec<i32>>,
    /// The same for a model that takes text.
    pub bad_texts: Vec<String>,
    /// The only tokens that may be generated; empty: any.
    pub allowed_ids: Vec<i32>,
    pub thinking: Option<Thinking>,
    /// The alternatives that are reported; empty: the likeliest.
    pub log_prob_ids: Vec<i32>,
    /// Size of the vocabulary, where `allowed_ids` are given.
    pub vocabulary: u32,
    pub no_repeat_ngram_size: Option<i32>,
    pub cache_salt: Option<String>,
    /// Triton's level, 1 first.
    pub priority: Option<u32>,
    pub lora_task_id: Option<u64>,
    pub images: ImageFiles,
}

/// The files of the prompt's images, in the order of their placeholders.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ImageFiles(pub Vec<Bytes>);

impl fmt::Debug for ImageFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Megabytes are nothing for a log.
        write!(f, "ImageFiles({})", self.0.len())
    }
}

/// What the output must match, as `GuidedDecodingParams` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guide {
    pub guide_type: &'static str,
    pub guide: Arc<str>,
}

/// A beam search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beams {
    pub width: i32,
    pub length_penalty: f32,
    pub early_stopping: bool,
}

impl SamplingParams {
    /// One token, the likeliest: what tests of other crates begin with.
    pub fn greedy() -> Self {
        Self {
            n: 1,
            max_tokens: 1,
            streaming: true,
            may_wait: false,
            temperature: 0.0,
            top_k: 1,
            top_p: 1.0,
            min_p: None,
            seed: 1,
            repetition_penalty: None,
            presence_penalty: None,
            frequency_penalty: None,
            min_tokens: None,
            end_id: None,
            pad_id: None,
            stop_ids: Vec::new(),
            logit_bias: Vec::new(),
            log_probs: None,
            prompt_log_probs: None,
            cached_tokens: false,
            extras: None,
        }
    }

    /// Whether the likeliest token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.top_k == 1 || self.temperature == 0.0
    }

    /// Tokens that end a sequence and are not part of it.
    pub fn end_ids(&self) -> Arc<[i32]> {
        self.stop_ids.iter().copied().chain(self.end_id).collect()
    }

    /// The beam search, if there is one. Its sequences arrive in one piece.
    pub fn beams(&self) -> Option<&Beams> {
        self.extras.as_ref()?.beams.as_ref()
    }

    /// Sequences that the server sends besides the `n` that were asked for: a search for one sequence
    /// reports all its beams.
    pub fn spare_sequences(&self) -> u32 {
        match self.beams() {
            Some(beams) if self.n == 1 => u32::try_from(beams.width).unwrap_or(1).saturating_sub(1),
            _ => 0,
        }
    }
}
