//! Names on the wire that are ours, or that several crates must spell alike. `inflight_` marks the tensors
//! that Triton's TensorRT-LLM model lacks; its own tensor names are where they are read and written.

/// A server's name in its metadata, which Triton's clients show: a worker's and a gateway's.
pub const SERVER_NAME: &str = "inflight";
/// What of Triton's extensions a gateway passes on.
pub const GATEWAY_EXTENSIONS: [&str; 5] = [
    "model_repository",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
];
/// The extensions of Triton that a worker supports, and ours.
pub const WORKER_EXTENSIONS: [&str; 8] = [
    "model_repository",
    "model_configuration",
    "statistics",
    "system_shared_memory",
    "logging",
    "trace",
    "binary_tensor_data",
    STEP_BATCHING_EXTENSION,
];

/// Extension in the server metadata of a worker that supports step batching (see [`crate::step`]).
pub const STEP_BATCHING_EXTENSION: &str = "inflight_step_batching_v1";

/// Metadata of the UNAVAILABLE that a worker answers while it loads its model: what it does, for people.
pub const STAGE_HEADER: &str = "inflight-stage";

/// Metadata of a call of `ModelStreamInfer` whose requests will all have handles, before it has any: the core model that
/// they are for. A worker that leaves says so there, too.
pub const STEPS_HEADER: &str = "inflight-steps";

/// Request and response parameter names of Triton's streaming protocol.
pub const FINAL_RESPONSE: &str = "triton_final_response";
/// Parameter of the last response of a gateway's stream: how the request continued at other servers.
pub const RESUMED: &str = "inflight_resumed";
pub const ENABLE_EMPTY_FINAL_RESPONSE: &str = "triton_enable_empty_final_response";
/// Request parameter of Triton's: microseconds that the whole request may take, an integer.
pub const TIMEOUT: &str = "timeout";

/// Request parameter, a boolean: nobody reads the tokens before the last, so those of several iterations may come
/// together. Only for requests with a handle.
pub const MAY_WAIT: &str = "inflight_may_wait";

/// Response parameter next to a stream's `error_message`: the gRPC code of the request's error, an integer.
pub const ERROR_CODE: &str = "inflight_error_code";
/// Request parameter of Triton's: a level, 1 goes first; 0 is "not set".
pub const PRIORITY: &str = "priority";

/// Input, UINT64 `[1]`: the request's handle, unique on its stream; asks for step batching.
pub const HANDLE: &str = "inflight_handle";
/// Input, FP32 `[1]`: minimum probability relative to the likeliest token.
pub const MIN_P: &str = "inflight_min_p";
/// Input, INT32 `[1]`: alternatives reported per generated token (OpenAI `top_logprobs`).
pub const NUM_TOP_LOG_PROBS: &str = "inflight_num_top_log_probs";
/// Input, INT32 `[n]`: the alternatives that are reported, in this order, in place of the likeliest; as many as
/// [`NUM_TOP_LOG_PROBS`] says.
pub const LOG_PROB_IDS: &str = "inflight_log_prob_ids";
/// Input, INT32 `[1]`: after so many tokens of reasoning, its end comes next.
pub const THINKING_BUDGET: &str = "inflight_thinking_budget";
/// Inputs, INT32 `[n]`: the tokens that begin and end a sequence's reasoning; without the first, the prompt has begun
/// it.
pub const THINKING_START_IDS: &str = "inflight_thinking_start_ids";
pub const THINKING_END_IDS: &str = "inflight_thinking_end_ids";
/// Input, INT32 `[1]`: log probabilities of the prompt's tokens with this many alternatives (0: none
/// but the token's own).
pub const NUM_PROMPT_LOG_PROBS: &str = "inflight_num_prompt_log_probs";
/// Inputs, INT32 `[n]` and FP32 `[n]`: sparse form of `embedding_bias`.
pub const LOGIT_BIAS_IDS: &str = "inflight_logit_bias_ids";
pub const LOGIT_BIAS_VALUES: &str = "inflight_logit_bias_values";
/// Input, BYTES `[1]`: requests with different salts share no block of the KV cache.
pub const CACHE_SALT: &str = "inflight_cache_salt";
/// Inputs, INT32 `[tokens]` and `[sequences]`: what each sequence of the prompt has generated before, one after
/// another, and how many tokens each has. -1: the sequence has ended, and nothing more of it is wanted. Without
/// lengths, all tokens are the first sequence's. The worker generates the rest, as if it had generated these.
pub const GENERATED_IDS: &str = "inflight_generated_ids";
pub const GENERATED_LENGTHS: &str = "inflight_generated_lengths";
/// Input, FP32 `[sequences]`: the sums of the log probabilities of these tokens, which `cum_log_probs` continues.
pub const GENERATED_SUMS: &str = "inflight_generated_cum_log_probs";
/// Input, BYTES `[n]`: the files of the prompt's images (PNG, JPEG, WebP or GIF), in the order of their places in it.
pub const IMAGES: &str = "inflight_images";
/// Input, FP32 `[n]`: the samples of the clip that is transcribed, of 16 kHz and one channel, as Triton's Whisper
/// model has it.
pub const AUDIO: &str = "WAV";
/// Input, FP16 `[tokens, size]`: embeddings of the prompt's virtual tokens, whose ids are those from the vocabulary's
/// size on; Triton's name.
pub const PROMPT_TABLE: &str = "prompt_embedding_table";
/// Input, BYTES `[1]`: how the prompt becomes an embedding, `mean` or `last`.
pub const POOLING: &str = "inflight_pooling";

/// Output, INT32 `[sequences]`: TensorRT-LLM's FinishReason number; sent when named in `outputs`.
pub const FINISH_REASON: &str = "inflight_finish_reason";
/// Output, INT32 `[1]`: prompt tokens served from the KV cache; sent when named in `outputs`.
pub const CACHED_TOKENS: &str = "inflight_cached_tokens";
/// Outputs, INT32 and FP32 `[sequences, tokens, k]`.
pub const TOP_LOG_PROB_IDS: &str = "inflight_top_log_prob_ids";
pub const TOP_LOG_PROBS: &str = "inflight_top_log_probs";
/// Output, FP32 `[prompt tokens]`; the first token's is NaN. With alternatives: INT32 and FP32 `[prompt tokens, k]`.
pub const PROMPT_LOG_PROBS: &str = "inflight_prompt_log_probs";
pub const PROMPT_TOP_LOG_PROB_IDS: &str = "inflight_prompt_top_log_prob_ids";
pub const PROMPT_TOP_LOG_PROBS: &str = "inflight_prompt_top_log_probs";
/// Output, FP32 `[hidden size]`: the prompt's embedding, of length 1; sent when named in `outputs`.
pub const EMBEDDING: &str = "inflight_embedding";

/// A parameter of a step message: the worker is about to end, and its requests may continue elsewhere.
pub(crate) const LEAVING: &str = "inflight_leaving";

/// Columns of a step message (see [`crate::step`]).
pub(crate) const SEQUENCE_INDEX: &str = "inflight_sequence_index";
pub(crate) const TOKEN_OFFSETS: &str = "inflight_token_offsets";
pub(crate) const FINAL: &str = "inflight_final";
pub(crate) const ERROR_ROWS: &str = "inflight_error_rows";
pub(crate) const ERROR_CODES: &str = "inflight_error_codes";
pub(crate) const ERROR_TEXTS: &str = "inflight_error_texts";
pub(crate) const ERROR_RETRY_AFTER_MS: &str = "inflight_error_retry_after_ms";
pub(crate) const LOG_PROB_ROWS: &str = "inflight_log_prob_rows";
pub(crate) const TOP_LOG_PROB_ROWS: &str = "inflight_top_log_prob_rows";
pub(crate) const TOP_LOG_PROB_WIDTHS: &str = "inflight_top_log_prob_widths";
pub(crate) const CACHED_TOKENS_ROWS: &str = "inflight_cached_tokens_rows";
pub(crate) const CONTEXT_PHASE_ROWS: &str = "inflight_context_phase_rows";
pub(crate) const CONTEXT_PHASES: &str = "inflight_context_phases";
pub(crate) const PROMPT_LOG_PROB_ROWS: &str = "inflight_prompt_log_prob_rows";
pub(crate) const PROMPT_LOG_PROB_OFFSETS: &str = "inflight_prompt_log_prob_offsets";
pub(crate) const PROMPT_TOP_LOG_PROB_WIDTHS: &str = "inflight_prompt_top_log_prob_widths";

/// Tensors of Triton's core model that step batching and its helpers use.
pub const OUTPUT_IDS: &str = "output_ids";
pub const OUTPUT_LOG_PROBS: &str = "output_log_probs";
/// Output and input, UINT8 `[n]`: what a `context_only` request leaves for a `generation_only` one, in the executor's own
/// bytes.
pub const CONTEXT_PHASE_PARAMS: &str = "context_phase_params";
/// A request parameter: which phases to run; `context_and_generation` where it is not sent.
pub const REQUEST_TYPE: &str = "request_type";
pub const CONTEXT_ONLY: &str = "context_only";
pub const GENERATION_ONLY: &str = "generation_only";
/// Input, BOOL `[1]`: cancels the request it names instead of making one.
pub const STOP: &str = "stop";
/// Inputs of the llmapi model: an adapter's name, and its directory, from which it is loaded.
pub const LORA_NAME: &str = "lora_name";
pub const LORA_PATH: &str = "lora_path";

/// The parameter of a tensor in shared memory: the name of its region. Triton's.
pub const SHARED_MEMORY_REGION: &str = "shared_memory_region";
