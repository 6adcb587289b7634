//! Every input tensor of the core model: Triton's under Triton's names, ours under `inflight_`.
//!
//! Names, datatypes and dimensions are those of Triton's `tensorrt_llm` model (its config.pbtxt, and
//! what its backend also reads). Each row says what the tensor becomes and which capability of the
//! executor it needs. This is the only table: Python reads it through `inflight._native.core_model()`.

use std::collections::HashMap;
use std::sync::LazyLock;

use inflight_kserve::names;
use inflight_kserve::tensor::DataType;

use super::spec::{LIST, MATRIX, ONE, TensorSpec};
use crate::executor::{SamplingConfig, capability as can};

/// One input tensor.
pub(crate) type InputSpec = TensorSpec<CoreRole>;

/// What becomes of an input, and for which executors.
#[derive(Clone, Copy)]
pub(crate) struct CoreRole {
    /// What the executor must be able to do, unless the value is [`Neutral`].
    pub(crate) capability: Option<&'static str>,
    pub(crate) neutral: Neutral,
    pub(crate) field: Field,
}

/// Values that ask for nothing, which an executor without the capability may therefore be sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Neutral {
    Never,
    Zero,
    One,
    ZeroOrOne,
    Negative,
    Empty,
    /// One element or none: the preprocessing of Triton's ensemble always makes one decoder id.
    AtMostOne,
}

/// The values a number may have.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Outputs and behavior that a BOOL input switches on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) return_log_probs: bool,
    pub(crate) return_context_logits: bool,
    pub(crate) return_generation_logits: bool,
    pub(crate) return_perf_metrics: bool,
    pub(crate) return_num_input_tokens: bool,
    pub(crate) return_num_output_tokens: bool,
    /// `None`: not sent.
    pub(crate) exclude_input_in_output: Option<bool>,
    pub(crate) stop: bool,
    /// `None`: not sent.
    pub(crate) streaming: Option<bool>,
}

/// No flag sent.
pub(crate) const FLAGS_NONE: Flags = Flags {
    return_log_probs: false,
    return_context_logits: false,
    return_generation_logits: false,
    return_perf_metrics: false,
    return_num_input_tokens: false,
    return_num_output_tokens: false,
    exclude_input_in_output: None,
    stop: false,
    streaming: None,
};

/// What becomes of an input. Paths are those of [`Request`](crate::executor::Request).
#[derive(Clone, Copy)]
pub(crate) enum Field {
    Prompt,
    PromptLength,
    MaxTokens,
    Handle,
    BeamWidth,
    NumReturnSequences,
    EndId,
    PadId,
    StopWords,
    BadWords,
    EmbeddingBias,
    LogitBiasIds,
    LogitBiasValues,
    Seed,
    NumTopLogProbs,
    NumPromptLogProbs,
    GeneratedIds,
    GeneratedLengths,
    GeneratedSums,
    EarlyStopping,
    /// Triton takes a value of 0 or less for "not set".
    TopP,
    /// A token id of the vocabulary.
    TokenId(&'static str, fn(&mut SamplingConfig, i32)),
    Float(&'static str, fn(&mut SamplingConfig, f32), Range),
    Int(&'static str, fn(&mut SamplingConfig, i32), Range),
    /// Without a path: the worker applies it.
    Flag(Option<&'static str>, fn(&mut Flags, bool)),
    /// Goes to the executor unread.
    Passed,
}

const ANY: Range = Range {
    low: f64::NEG_INFINITY,
    high: f64::INFINITY,
};
const NOT_NEGATIVE: Range = Range {
    low: 0.0,
    high: f64::INFINITY,
};
const FRACTION: Range = Range {
    low: 0.0,
    high: 1.0,
};
const ABOVE_ZERO: Range = Range {
    low: f32::MIN_POSITIVE as f64,
    high: f64::INFINITY,
};

const fn tensor(
    name: &'static str,
    datatype: DataType,
    dims: &'static [i64],
    field: Field,
) -> InputSpec {
    let role = CoreRole {
        capability: None,
        neutral: Neutral::Never,
        field,
    };
    TensorSpec::new(name, datatype, dims, role)
}

const fn scalar(name: &'static str, datatype: DataType, field: Field) -> InputSpec {
    tensor(name, datatype, ONE, field).squeezed()
}

const fn list(
    name: &'static str,
    datatype: DataType,
    dims: &'static [i64],
    field: Field,
) -> InputSpec {
    tensor(name, datatype, dims, field).ragged()
}

/// A switch that the worker applies.
const fn switch(name: &'static str, set: fn(&mut Flags, bool)) -> InputSpec {
    scalar(name, DataType::Bool, Field::Flag(None, set))
}

/// A switch that the executor applies, too.
const fn flag(name: &'static str, path: &'static str, set: fn(&mut Flags, bool)) -> InputSpec {
    scalar(name, DataType::Bool, Field::Flag(Some(path), set))
}

/// A number of the sampling configuration: its kind, its field, its bounds.
macro_rules! sampling {
    ($kind:ident, $field:ident $(, $bounds:expr)?) => {
        Field::$kind(
            concat!("sampling_config.", stringify!($field)),
            |config, value| config.$field = Some(value),
            $($bounds)?
        )
    };
}

impl InputSpec {
    const fn needs(mut self, capability: &'static str, neutral: Neutral) -> Self {
        self.role.capability = Some(capability);
        self.role.neutral = neutral;
        self
    }

    /// The field of [`Request`](crate::executor::Request) that it becomes. None: the worker applies it,
    /// or it travels in `Request::tensors` under its own name.
    pub(crate) fn path(&self) -> Option<&'static str> {
        Some(match self.role.field {
            Field::Prompt => "input_token_ids",
            Field::MaxTokens => "max_tokens",
            Field::BeamWidth => "sampling_config.beam_width",
            Field::NumReturnSequences => "sampling_config.num_return_sequences",
            Field::EndId => "end_id",
            Field::PadId => "pad_id",
            Field::StopWords => "stop_words",
            Field::BadWords => "bad_words",
            Field::EmbeddingBias => "embedding_bias",
            Field::LogitBiasIds | Field::LogitBiasValues => "logit_bias",
            Field::Seed => "sampling_config.seed",
            Field::NumTopLogProbs => "output_config.num_top_log_probs",
            Field::NumPromptLogProbs => "output_config.num_prompt_log_probs",
            Field::EarlyStopping => "sampling_config.early_stopping",
            Field::TopP => "sampling_config.top_p",
            Field::TokenId(path, _) | Field::Float(path, ..) | Field::Int(path, ..) => path,
            Field::Flag(path, _) => return path,
            Field::GeneratedIds | Field::GeneratedLengths => "generated",
            Field::PromptLength | Field::GeneratedSums | Field::Handle | Field::Passed => {
                return None;
            }
        })
    }
}

use DataType::{Bool, Bytes, Fp16, Fp32, Int32, Int64, Uint8, Uint64};
use Field::Passed;
use Neutral::{AtMostOne, Empty, Negative, Never, One, Zero, ZeroOrOne};

/// The inputs, in the order of Triton's config.pbtxt, then what only its backend reads, then ours.
pub(crate) static INPUTS: &[InputSpec] = &[
    list("input_ids", Int32, LIST, Field::Prompt),
    list("encoder_input_features", Fp16, MATRIX, Passed)
        .any_float()
        .needs(can::ENCODER, Empty),
    scalar("encoder_output_lengths", Int32, Passed).needs(can::ENCODER, Zero),
    scalar("input_lengths", Int32, Field::PromptLength).required(),
    scalar("request_output_len", Int32, Field::MaxTokens).required(),
    scalar("num_return_sequences", Int32, Field::NumReturnSequences)
        .needs(can::NUM_RETURN_SEQUENCES, One),
    list("draft_input_ids", Int32, LIST, Passed).needs(can::DRAFT_TOKENS, Empty),
    list("decoder_input_ids", Int32, LIST, Passed).needs(can::ENCODER, AtMostOne),
    scalar("decoder_input_lengths", Int32, Passed).needs(can::ENCODER, ZeroOrOne),
    list("draft_logits", Fp32, MATRIX, Passed)
        .any_float()
        .needs(can::DRAFT_TOKENS, Empty),
    scalar("draft_acceptance_threshold", Fp32, Passed).needs(can::DRAFT_TOKENS, Never),
    scalar("end_id", Int32, Field::EndId),
    scalar("pad_id", Int32, Field::PadId),
    list("stop_words_list", Int32, &[2, -1], Field::StopWords),
    list("bad_words_list", Int32, &[2, -1], Field::BadWords).needs(can::BAD_WORDS, Empty),
    list("embedding_bias", Fp32, LIST, Field::EmbeddingBias).needs(can::EMBEDDING_BIAS, Empty),
    scalar("beam_width", Int32, Field::BeamWidth).needs(can::BEAM_SEARCH, One),
    scalar(
        "temperature",
        Fp32,
        sampling!(Float, temperature, NOT_NEGATIVE),
    ),
    scalar("runtime_top_k", Int32, sampling!(Int, top_k, NOT_NEGATIVE)),
    scalar("runtime_top_p", Fp32, Field::TopP),
    scalar(
        "runtime_top_p_min",
        Fp32,
        sampling!(Float, top_p_min, FRACTION),
    )
    .needs(can::TOP_P_DECAY, Zero),
    scalar(
        "runtime_top_p_decay",
        Fp32,
        sampling!(Float, top_p_decay, FRACTION),
    )
    .needs(can::TOP_P_DECAY, One),
    scalar(
        "runtime_top_p_reset_ids",
        Int32,
        sampling!(TokenId, top_p_reset_ids),
    )
    .needs(can::TOP_P_DECAY, Negative),
    scalar("len_penalty", Fp32, sampling!(Float, length_penalty, ANY))
        .needs(can::BEAM_SEARCH, ZeroOrOne),
    scalar("early_stopping", Bool, Field::EarlyStopping).needs(can::BEAM_SEARCH, ZeroOrOne),
    scalar(
        "repetition_penalty",
        Fp32,
        sampling!(Float, repetition_penalty, ABOVE_ZERO),
    )
    .needs(can::PENALTIES, One),
    scalar(
        "min_tokens",
        Int32,
        sampling!(Int, min_tokens, NOT_NEGATIVE),
    )
    .needs(can::MIN_TOKENS, ZeroOrOne),
    scalar(
        "beam_search_diversity_rate",
        Fp32,
        sampling!(Float, beam_search_diversity_rate, NOT_NEGATIVE),
    )
    .needs(can::BEAM_SEARCH, Zero),
    scalar(
        "presence_penalty",
        Fp32,
        sampling!(Float, presence_penalty, ANY),
    )
    .needs(can::PENALTIES, Zero),
    scalar(
        "frequency_penalty",
        Fp32,
        sampling!(Float, frequency_penalty, ANY),
    )
    .needs(can::PENALTIES, Zero),
    scalar("seed", Uint64, Field::Seed),
    flag(
        "return_log_probs",
        "output_config.return_log_probs",
        |f, v| f.return_log_probs = v,
    )
    .needs(can::LOG_PROBS, Zero),
    flag(
        "return_context_logits",
        "output_config.return_context_logits",
        |f, v| f.return_context_logits = v,
    )
    .needs(can::CONTEXT_LOGITS, Zero),
    flag(
        "return_generation_logits",
        "output_config.return_generation_logits",
        |f, v| f.return_generation_logits = v,
    )
    .needs(can::GENERATION_LOGITS, Zero),
    flag(
        "return_perf_metrics",
        "output_config.return_perf_metrics",
        |f, v| f.return_perf_metrics = v,
    )
    .needs(can::PERF_METRICS, Zero),
    switch("return_num_input_tokens", |f, v| {
        f.return_num_input_tokens = v
    }),
    switch("return_num_output_tokens", |f, v| {
        f.return_num_output_tokens = v
    }),
    switch("exclude_input_in_output", |f, v| {
        f.exclude_input_in_output = Some(v)
    }),
    switch(names::STOP, |f, v| f.stop = v),
    flag("streaming", "streaming", |f, v| f.streaming = Some(v)),
    list(names::PROMPT_TABLE, Fp16, MATRIX, Passed)
        .any_float()
        .needs(can::PROMPT_TUNING, Empty),
    list("prompt_table_extra_ids", Uint64, LIST, Passed).needs(can::PROMPT_TUNING, Empty),
    scalar("prompt_vocab_size", Int32, Passed).needs(can::PROMPT_TUNING, Zero),
    list("cross_attention_mask", Bool, MATRIX, Passed).needs(can::CROSS_ATTENTION, Empty),
    tensor("mrope_rotary_cos_sin", Fp32, LIST, Passed).needs(can::MROPE, Empty),
    tensor("mrope_position_deltas", Int64, ONE, Passed).needs(can::MROPE, Never),
    scalar("lora_task_id", Uint64, Passed).needs(can::LORA, Never),
    list("lora_weights", Fp16, MATRIX, Passed).needs(can::LORA, Empty),
    list("lora_config", Int32, &[-1, 3], Passed).needs(can::LORA, Empty),
    list("context_phase_params", Uint8, LIST, Passed).needs(can::CONTEXT_PHASE, Empty),
    list("skip_cross_attn_blocks", Bool, ONE, Passed).needs(can::CROSS_ATTENTION, Zero),
    list("retention_token_range_starts", Int32, LIST, Passed).needs(can::KV_CACHE_RETENTION, Empty),
    list("retention_token_range_ends", Int32, LIST, Passed).needs(can::KV_CACHE_RETENTION, Empty),
    list("retention_token_range_priorities", Int32, LIST, Passed)
        .needs(can::KV_CACHE_RETENTION, Empty),
    list("retention_token_range_durations_ms", Int32, LIST, Passed)
        .needs(can::KV_CACHE_RETENTION, Empty),
    list("retention_decode_priority", Int32, ONE, Passed).needs(can::KV_CACHE_RETENTION, Never),
    list("retention_decode_duration_ms", Int32, ONE, Passed).needs(can::KV_CACHE_RETENTION, Never),
    list("guided_decoding_guide_type", Bytes, ONE, Passed).needs(can::GUIDED_DECODING, Never),
    list("guided_decoding_guide", Bytes, ONE, Passed).needs(can::GUIDED_DECODING, Never),
    list("lookahead_window_size", Int32, ONE, Passed).needs(can::LOOKAHEAD, Never),
    list("lookahead_ngram_size", Int32, ONE, Passed).needs(can::LOOKAHEAD, Never),
    list("lookahead_verification_set_size", Int32, ONE, Passed).needs(can::LOOKAHEAD, Never),
    scalar(
        "no_repeat_ngram_size",
        Int32,
        sampling!(Int, no_repeat_ngram_size, NOT_NEGATIVE),
    )
    .needs(can::NO_REPEAT_NGRAM, Zero)
    .undeclared(),
    // Names of older releases, which their clients still send.
    scalar("random_seed", Uint64, Field::Seed).undeclared(),
    scalar(
        "min_length",
        Int32,
        sampling!(Int, min_tokens, NOT_NEGATIVE),
    )
    .needs(can::MIN_TOKENS, ZeroOrOne)
    .undeclared(),
    flag(
        "output_log_probs",
        "output_config.return_log_probs",
        |f, v| f.return_log_probs |= v,
    )
    .needs(can::LOG_PROBS, Zero)
    .undeclared(),
    flag(
        "return_kv_cache_reuse_stats",
        "output_config.return_perf_metrics",
        |f, v| f.return_perf_metrics |= v,
    )
    .needs(can::PERF_METRICS, Zero)
    .undeclared(),
    scalar(names::HANDLE, Uint64, Field::Handle).undeclared(),
    scalar(names::MIN_P, Fp32, sampling!(Float, min_p, FRACTION))
        .needs(can::MIN_P, Zero)
        .undeclared(),
    scalar(names::NUM_TOP_LOG_PROBS, Int32, Field::NumTopLogProbs)
        .needs(can::TOP_LOG_PROBS, Zero)
        .undeclared(),
    list(names::LOG_PROB_IDS, Int32, LIST, Passed)
        .needs(can::LOG_PROB_IDS, Empty)
        .undeclared(),
    list(names::THINKING_BUDGET, Int32, ONE, Passed)
        .needs(can::THINKING_BUDGET, Never)
        .undeclared(),
    list(names::THINKING_START_IDS, Int32, LIST, Passed)
        .needs(can::THINKING_BUDGET, Empty)
        .undeclared(),
    list(names::THINKING_END_IDS, Int32, LIST, Passed)
        .needs(can::THINKING_BUDGET, Empty)
        .undeclared(),
    scalar(names::NUM_PROMPT_LOG_PROBS, Int32, Field::NumPromptLogProbs)
        .needs(can::PROMPT_LOG_PROBS, Never)
        .undeclared(),
    list(names::LOGIT_BIAS_IDS, Int32, LIST, Field::LogitBiasIds)
        .needs(can::EMBEDDING_BIAS, Empty)
        .undeclared(),
    list(names::LOGIT_BIAS_VALUES, Fp32, LIST, Field::LogitBiasValues)
        .needs(can::EMBEDDING_BIAS, Empty)
        .undeclared(),
    list(names::GENERATED_IDS, Int32, LIST, Field::GeneratedIds)
        .needs(can::RESUME, Empty)
        .undeclared(),
    list(
        names::GENERATED_LENGTHS,
        Int32,
        LIST,
        Field::GeneratedLengths,
    )
    .needs(can::RESUME, Empty)
    .undeclared(),
    list(names::GENERATED_SUMS, Fp32, LIST, Field::GeneratedSums)
        .needs(can::RESUME, Empty)
        .undeclared(),
    list(names::CACHE_SALT, Bytes, ONE, Passed)
        .needs(can::CACHE_SALT, Never)
        .undeclared(),
    list(names::POOLING, Bytes, ONE, Passed)
        .needs(can::EMBEDDINGS, Never)
        .undeclared(),
    list(names::IMAGES, Bytes, LIST, Passed)
        .needs(can::IMAGES, Empty)
        .undeclared(),
    list(names::AUDIO, Fp32, LIST, Passed)
        .needs(can::TRANSCRIPTION, Empty)
        .undeclared(),
];

/// The input with this name.
pub(crate) fn input(name: &str) -> Option<&'static InputSpec> {
    static BY_NAME: LazyLock<HashMap<&str, &InputSpec>> =
        LazyLock::new(|| INPUTS.iter().map(|spec| (spec.name, spec)).collect());
    BY_NAME.get(name).copied()
}
