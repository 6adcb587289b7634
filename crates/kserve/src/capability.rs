//! What an executor supports beyond plain sampling, by the names in `ModelDescription.capabilities`. What
//! every executor supports (greedy, top-k and top-p sampling, stop words, streaming, cancellation) has no
//! name.

/// A constant for each name, and the list of all.
macro_rules! capabilities {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $value;)*

        /// Each constant's name and value, for other languages.
        pub const ALL: &[(&str, &str)] = &[$((stringify!($name), $value)),*];
    };
}

capabilities! {
    LOG_PROBS = "log_probs";
    TOP_LOG_PROBS = "top_log_probs";
    /// Log probabilities of tokens that the request names.
    LOG_PROB_IDS = "log_prob_ids";
    /// A bound on the tokens of a sequence's reasoning.
    THINKING_BUDGET = "thinking_budget";
    PROMPT_LOG_PROBS = "prompt_log_probs";
    MIN_P = "min_p";
    PENALTIES = "penalties";
    MIN_TOKENS = "min_tokens";
    BAD_WORDS = "bad_words";
    EMBEDDING_BIAS = "embedding_bias";
    NUM_RETURN_SEQUENCES = "num_return_sequences";
    BEAM_SEARCH = "beam_search";
    TOP_P_DECAY = "top_p_decay";
    NO_REPEAT_NGRAM = "no_repeat_ngram_size";
    CONTEXT_LOGITS = "context_logits";
    GENERATION_LOGITS = "generation_logits";
    PERF_METRICS = "perf_metrics";
    PROMPT_TUNING = "prompt_tuning";
    LORA = "lora";
    /// LoRA adapters can be loaded and unloaded while requests run.
    ADAPTER_LOADING = "adapter_loading";
    DRAFT_TOKENS = "draft_tokens";
    GUIDED_DECODING = "guided_decoding";
    /// Structural tags in the later form of xgrammar, `{"type": "structural_tag", "format": {…}}`.
    STRUCTURAL_FORMATS = "structural_formats";
    LOOKAHEAD = "lookahead";
    KV_CACHE_RETENTION = "kv_cache_retention";
    CONTEXT_PHASE = "context_phase";
    ENCODER = "encoder";
    MROPE = "mrope";
    CROSS_ATTENTION = "cross_attention";
    /// Images with the prompt, as the bytes of image files.
    IMAGES = "images";
    /// The model transcribes: each request needs a clip, and text alone is refused.
    TRANSCRIPTION = "transcription";
    EMBEDDINGS = "embeddings";
    CACHE_SALT = "cache_salt";
    PRIORITY = "priority";
    /// Requests may bring what was generated before, and continue from there.
    RESUME = "resume";
    /// The worker reports its load (service `CacheState`); it says so itself, whatever its executor can.
    CACHE_STATE = "cache_state";
    /// Those reports also have the blocks that the KV cache holds.
    CACHE_EVENTS = "cache_events";
    /// Short prompts pass long ones: of one priority, a request starts once twice its tokens have come.
    SHORT_PROMPTS_FIRST = "short_prompts_first";
}
