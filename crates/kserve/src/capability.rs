//! What an executor supports beyond plain sampling, by the names in `ModelDescription.capabilities`. What
//! every executor supports (greedy, top-k and top-p sampling, stop words, streaming, cancellation) has no
//! name.

pub const LOG_PROBS: &str = "log_probs";
pub const TOP_LOG_PROBS: &str = "top_log_probs";
/// Log probabilities of tokens that the request names.
pub const LOG_PROB_IDS: &str = "log_prob_ids";
/// A bound on the tokens of a sequence's reasoning.
pub const THINKING_BUDGET: &str = "thinking_budget";
pub const PROMPT_LOG_PROBS: &str = "prompt_log_probs";
pub const MIN_P: &str = "min_p";
pub const PENALTIES: &str = "penalties";
pub const MIN_TOKENS: &str = "min_tokens";
pub const BAD_WORDS: &str = "bad_words";
pub const EMBEDDING_BIAS: &str = "embedding_bias";
pub const NUM_RETURN_SEQUENCES: &str = "num_return_sequences";
pub const BEAM_SEARCH: &str = "beam_search";
pub const TOP_P_DECAY: &str = "top_p_decay";
pub const NO_REPEAT_NGRAM: &str = "no_repeat_ngram_size";
pub const CONTEXT_LOGITS: &str = "context_logits";
pub const GENERATION_LOGITS: &str = "generation_logits";
pub const PERF_METRICS: &str = "perf_metrics";
pub const PROMPT_TUNING: &str = "prompt_tuning";
pub const LORA: &str = "lora";
/// LoRA adapters can be loaded and unloaded while requests run.
pub const ADAPTER_LOADING: &str = "adapter_loading";
pub const DRAFT_TOKENS: &str = "draft_tokens";
pub const GUIDED_DECODING: &str = "guided_decoding";
/// Structural tags in the later form of xgrammar, `{"type": "structural_tag", "format": {…}}`.
pub const STRUCTURAL_FORMATS: &str = "structural_formats";
pub const LOOKAHEAD: &str = "lookahead";
pub const KV_CACHE_RETENTION: &str = "kv_cache_retention";
pub const CONTEXT_PHASE: &str = "context_phase";
pub const ENCODER: &str = "encoder";
pub const MROPE: &str = "mrope";
pub const CROSS_ATTENTION: &str = "cross_attention";
/// Images with the prompt, as the bytes of image files.
pub const IMAGES: &str = "images";
pub const EMBEDDINGS: &str = "embeddings";
pub const CACHE_SALT: &str = "cache_salt";
pub const PRIORITY: &str = "priority";
/// Requests may bring what was generated before, and continue from there.
pub const RESUME: &str = "resume";
/// The worker reports its load (service `CacheState`); it says so itself, whatever its executor can.
pub const CACHE_STATE: &str = "cache_state";
/// Those reports also have the blocks that the KV cache holds.
pub const CACHE_EVENTS: &str = "cache_events";
