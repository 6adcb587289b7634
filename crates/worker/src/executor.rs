//! The interface to whatever generates tokens. Owns the request and response types; knows nothing of gRPC.
//!
//! Fields and names are those of TensorRT-LLM's executor API, so that its adapter only forwards them.
//! Implemented by the Python executors (`crates/python`) and by [`SimulatedExecutor`](crate::SimulatedExecutor).

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use inflight_kserve::names;
use inflight_kserve::step::{Code, StepBatch};
use serde::{Deserialize, Serialize};

mod iteration;

pub use crate::cache::{CacheBlocks, CacheReports, Level, Origin, Parent};
pub use inflight_blocks::Seed;
pub use iteration::{
    DisServingStats, InflightBatchingStats, IterationStats, KvCacheStats, SpecDecodingStats,
    StaticBatchingStats,
};

/// The number that the worker gives each request of its executor. The client's own number, the
/// [`Handle`](inflight_kserve::step::Handle) on its stream, never reaches an executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// Generates tokens for many requests at once. One thread enqueues and cancels, another awaits; all
/// methods may be called concurrently.
pub trait Executor: Send + Sync + 'static {
    /// Describes the model. Called once, before the server binds.
    fn info(&self) -> ModelInfo;
    /// Hands over requests. A request that the executor refuses gets a final row with an error.
    fn enqueue(&self, requests: Vec<Request>) -> Result<(), ExecutorFailed>;
    /// Cancels requests; unknown or finished ids are ignored. Each still gets its one final row.
    fn cancel(&self, client_ids: &[ClientId]) -> Result<(), ExecutorFailed>;
    /// Blocks until rows are ready or `timeout` has passed (then an empty batch).
    fn await_responses(&self, timeout: Duration) -> Result<ResponseBatch, ExecutorFailed>;
    /// Returns the iterations since the last call, oldest first, at most a bounded number.
    fn stats(&self) -> Result<Vec<IterationStats>, ExecutorFailed>;
    /// Loads the LoRA adapter of a directory and returns its task id; a name that is loaded already means
    /// these files from now on. Blocks while they are read. One call at a time, and only where the capability
    /// [`ADAPTER_LOADING`](capability::ADAPTER_LOADING) is announced.
    fn load_adapter(&self, name: &str, path: &Path) -> Result<u64, AdapterError> {
        let _ = (name, path);
        Err(AdapterError::unsupported())
    }
    /// Takes an adapter's name away; requests that run keep the adapter. As [`load_adapter`](Self::load_adapter).
    fn unload_adapter(&self, name: &str) -> Result<(), AdapterError> {
        let _ = name;
        Err(AdapterError::unsupported())
    }
    /// Where to report what the KV cache holds from now on. Called once, before any request, and only where the
    /// capability [`CACHE_EVENTS`](capability::CACHE_EVENTS) is announced.
    ///
    /// # Errors
    /// The executor cannot serve.
    fn report_cache(&self, reports: CacheReports) -> Result<(), ExecutorFailed> {
        drop(reports);
        Ok(())
    }
    /// Ends the executor. Running requests get a final row if that is still possible.
    fn shutdown(&self);
}

/// The executor as a whole is broken; the worker process ends with a separate exit code.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the executor failed: {0}")]
pub struct ExecutorFailed(pub String);

/// Why an adapter was not loaded or unloaded.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AdapterError {
    /// Nothing has changed; the text is for the client.
    #[error("{text}")]
    Refused { code: Code, text: String },
    #[error(transparent)]
    Executor(#[from] ExecutorFailed),
}

impl AdapterError {
    fn unsupported() -> Self {
        Self::Refused {
            code: Code::Unimplemented,
            text: "the executor cannot load adapters while it runs".to_owned(),
        }
    }
}

/// What the executor serves and can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// `reference`, `simulated` or `tensorrt_llm`.
    pub executor: String,
    pub vocab_size: u32,
    /// Prompt plus generated tokens that fit one sequence.
    pub max_seq_len: u32,
    pub max_input_len: u32,
    pub max_batch_size: u32,
    pub max_num_tokens: u32,
    pub max_beam_width: u32,
    pub tokens_per_block: u32,
    /// Names from [`capability`]; the worker refuses a request that needs any other.
    pub capabilities: Vec<String>,
    /// LoRA adapters that the executor loaded at its start, in order of name.
    #[serde(default)]
    pub adapters: Vec<Adapter>,
    /// What distinguishes its weights from others; empty: not known.
    #[serde(default)]
    pub weights: String,
}

/// A LoRA adapter that requests may ask for without sending its weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adapter {
    pub name: String,
    pub lora_task_id: u64,
}

pub use inflight_kserve::capability;

/// One request, with the names of `tensorrt_llm.bindings.executor.Request`. `None` means that the client
/// sent nothing and the executor's own default applies.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub client_id: ClientId,
    pub input_token_ids: Vec<i32>,
    pub max_tokens: u32,
    pub streaming: bool,
    pub sampling_config: SamplingConfig,
    pub output_config: OutputConfig,
    /// `None`: no end token (ignore_eos).
    pub end_id: Option<i32>,
    pub pad_id: Option<i32>,
    pub bad_words: Vec<Vec<i32>>,
    pub stop_words: Vec<Vec<i32>>,
    /// Dense, `[vocab_size]`; empty: none. The worker merges sparse logit bias into `logit_bias`.
    pub embedding_bias: Vec<f32>,
    pub logit_bias: Vec<(i32, f32)>,
    /// Inputs that only the executor understands (LoRA weights, prompt tables, draft tokens, …), by their
    /// Triton tensor name; only those that its capabilities cover. Two request parameters are among them:
    /// `request_type` (BYTES `[1]`) and `priority` (FP32 `[1]`, from 0 to 1, where 1 goes first).
    pub tensors: Vec<NamedTensor>,
    /// What each sequence generated before, at another executor; empty: nothing. `None`: the sequence has ended, and
    /// gets no rows. `max_tokens` counts these tokens too, and rows do not repeat them. At least one sequence continues.
    pub generated: Vec<Option<Vec<i32>>>,
    /// The sums of these tokens' log probabilities, by sequence; empty: they begin at 0. Responses add to them; an
    /// executor has no use for them.
    pub generated_sums: Vec<f32>,
}

impl Request {
    /// What keeps a request's blocks apart from others'.
    pub(crate) fn cache_seed(&self) -> Seed {
        let (task, salt) = self.cache_origin();
        Seed::new(task, salt)
    }

    /// Whether its token ids say what its blocks hold.
    pub(crate) fn names_blocks(&self) -> bool {
        let others = [names::IMAGES, names::AUDIO, names::PROMPT_TABLE];
        let mut tensors = self.tensors.iter();
        !tensors.any(|tensor| others.contains(&&*tensor.name))
    }

    /// Its adapter and its salt.
    pub(crate) fn cache_origin(&self) -> (Option<u64>, &[u8]) {
        let data = |name| {
            let mut tensors = self.tensors.iter();
            tensors
                .find(|tensor| tensor.name == name)
                .map(|tensor| &tensor.data)
        };
        // Its length in four bytes, then itself.
        let salt = data(names::CACHE_SALT).and_then(|salt| salt.get(4..));
        let task = data("lora_task_id")
            .and_then(|id| Some(u64::from_le_bytes(id.get(..8)?.try_into().ok()?)));
        (task, salt.unwrap_or_default())
    }
}

/// `tensorrt_llm.bindings.executor.SamplingConfig`.
#[derive(Clone, Debug, Default)]
pub struct SamplingConfig {
    /// At least 1 once the worker has built it.
    pub beam_width: u32,
    pub num_return_sequences: u32,
    pub top_k: Option<i32>,
    pub top_p: Option<f32>,
    pub top_p_min: Option<f32>,
    pub top_p_reset_ids: Option<i32>,
    pub top_p_decay: Option<f32>,
    pub min_p: Option<f32>,
    pub seed: Option<u64>,
    pub temperature: Option<f32>,
    pub min_tokens: Option<i32>,
    pub beam_search_diversity_rate: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub length_penalty: Option<f32>,
    pub early_stopping: Option<i32>,
    pub no_repeat_ngram_size: Option<i32>,
}

/// `tensorrt_llm.bindings.executor.OutputConfig` and two of Inflight's fields. Rows never repeat the prompt: the
/// worker prepends it unless the client excluded it.
#[derive(Clone, Debug, Default)]
pub struct OutputConfig {
    pub return_log_probs: bool,
    pub return_context_logits: bool,
    pub return_generation_logits: bool,
    pub return_perf_metrics: bool,
    /// Alternatives per generated token; 0: none.
    pub num_top_log_probs: u32,
    /// `None`: no log probabilities of the prompt; `Some(k)`: with k alternatives.
    pub num_prompt_log_probs: Option<u32>,
}

/// A tensor that the worker passes on unread.
#[derive(Clone, Debug)]
pub struct NamedTensor {
    pub name: String,
    /// KServe datatype, e.g. `FP16`.
    pub datatype: String,
    /// Without the batch dimension.
    pub shape: Vec<i64>,
    pub data: Bytes,
}

/// The rows that one await returned.
///
/// A request with `num_return_sequences` n yields rows for sequences 0 to n − 1. The last row of each has
/// a finish reason, and `finals` marks the request's last row of all. A request that does not stream
/// yields all tokens of a sequence in one row. An executor that knows the end token's log probability puts
/// the end token last among the tokens of the row that ends with it; TensorRT-LLM's C++ runtime does not
/// report it. Matched stop words are among the tokens. Answers to KServe clients leave the end token out.
#[derive(Clone, Debug, Default)]
pub struct ResponseBatch {
    pub rows: StepBatch<ClientId>,
    /// Large per-row outputs, by Triton output name (`context_logits`, `generation_logits`,
    /// `cum_log_probs`, perf metrics), without batch dimension.
    pub tensors: Vec<(u32, NamedTensor)>,
}
