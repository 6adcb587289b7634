//! Every input tensor of the core model: Triton's under Triton's names, ours under `inflight_`.
//!
//! Names, datatypes and dimensions are those of Triton's `tensorrt_llm` model (its config.pbtxt, and
//! what its backend reads besides). Each row says what becomes of the tensor and which capability of
//! the executor it needs.

use std::collections::HashMap;
use std::sync::LazyLock;

use inflight_kserve::names;
use inflight_kserve::tensor::DataType;

use crate::executor::{SamplingConfig, capability as can};

/// One input tensor.
pub(crate) struct InputSpec {
    pub(crate) name: &'static str,
    pub(crate) datatype: DataType,
    /// Without the batch dimension; -1 is any length.
    pub(crate) dims: &'static [i64],
    pub(crate) optional: bool,
    /// Rows of a batch may differ in length (Triton's `allow_ragged_batch`).
    pub(crate) ragged: bool,
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
}

/// The values a number may have.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Answers and behaviours that are switched on by a BOOL input.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) return_log_probs: bool,
    pub(crate) return_context_logits: bool,
    pub(crate) return_generation_logits: bool,
    pub(crate) return_perf_metrics: bool,
    pub(crate) return_num_input_tokens: bool,
    pub(crate) return_num_output_tokens: bool,
    pub(crate) exclude_input_in_output: bool,
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
    exclude_input_in_output: false,
    stop: false,
    streaming: None,
};

/// What becomes of an input.
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
    EarlyStopping,
    /// Triton takes a value of 0 or less for "not set".
    TopP,
    /// A token id of the vocabulary.
    TokenId(fn(&mut SamplingConfig, i32)),
    Float(fn(&mut SamplingConfig, f32), Range),
    Int(fn(&mut SamplingConfig, i32), Range),
    Flag(fn(&mut Flags, bool)),
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

const SCALAR: &[i64] = &[1];
const LIST: &[i64] = &[-1];
const MATRIX: &[i64] = &[-1, -1];

const fn scalar(name: &'static str, datatype: DataType, field: Field) -> InputSpec {
    InputSpec {
        name,
        datatype,
        dims: SCALAR,
        optional: true,
        ragged: false,
        capability: None,
        neutral: Neutral::Never,
        field,
    }
}

const fn list(
    name: &'static str,
    datatype: DataType,
    dims: &'static [i64],
    field: Field,
) -> InputSpec {
    InputSpec {
        dims,
        ragged: true,
        ..scalar(name, datatype, field)
    }
}

const fn flag(name: &'static str, set: fn(&mut Flags, bool)) -> InputSpec {
    scalar(name, DataType::Bool, Field::Flag(set))
}

impl InputSpec {
    const fn required(self) -> Self {
        Self {
            optional: false,
            ..self
        }
    }

    const fn needs(self, capability: &'static str, neutral: Neutral) -> Self {
        Self {
            capability: Some(capability),
            neutral,
            ..self
        }
    }
}

use DataType::{Bool, Bytes, Fp16, Fp32, Int32, Int64, Uint8, Uint64};
use Field::{Float, Int, Passed, TokenId};
use Neutral::{Empty, Negative, Never, One, Zero, ZeroOrOne};

/// The inputs, in the order of Triton's config.pbtxt, then what only its backend reads, then ours.
pub(crate) static INPUTS: &[InputSpec] = &[
    list("input_ids", Int32, LIST, Field::Prompt),
    list("encoder_input_features", Fp16, MATRIX, Passed).needs(can::ENCODER, Empty),
    scalar("encoder_output_lengths", Int32, Passed).needs(can::ENCODER, Zero),
    scalar("input_lengths", Int32, Field::PromptLength).required(),
    scalar("request_output_len", Int32, Field::MaxTokens).required(),
    scalar("num_return_sequences", Int32, Field::NumReturnSequences)
        .needs(can::NUM_RETURN_SEQUENCES, One),
    list("draft_input_ids", Int32, LIST, Passed).needs(can::DRAFT_TOKENS, Empty),
    list("decoder_input_ids", Int32, LIST, Passed).needs(can::ENCODER, Empty),
    scalar("decoder_input_lengths", Int32, Passed).needs(can::ENCODER, Zero),
    list("draft_logits", Fp32, MATRIX, Passed).needs(can::DRAFT_TOKENS, Empty),
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
        Float(|c, v| c.temperature = Some(v), NOT_NEGATIVE),
    ),
    scalar(
        "runtime_top_k",
        Int32,
        Int(|c, v| c.top_k = Some(v), NOT_NEGATIVE),
    ),
    scalar("runtime_top_p", Fp32, Field::TopP),
    scalar(
        "runtime_top_p_min",
        Fp32,
        Float(|c, v| c.top_p_min = Some(v), FRACTION),
    )
    .needs(can::TOP_P_DECAY, Zero),
    scalar(
        "runtime_top_p_decay",
        Fp32,
        Float(|c, v| c.top_p_decay = Some(v), FRACTION),
    )
    .needs(can::TOP_P_DECAY, One),
    scalar(
        "runtime_top_p_reset_ids",
        Int32,
        TokenId(|c, v| c.top_p_reset_ids = Some(v)),
    )
    .needs(can::TOP_P_DECAY, Negative),
    scalar(
        "len_penalty",
        Fp32,
        Float(|c, v| c.length_penalty = Some(v), ANY),
    )
    .needs(can::BEAM_SEARCH, ZeroOrOne),
    scalar("early_stopping", Bool, Field::EarlyStopping).needs(can::BEAM_SEARCH, ZeroOrOne),
    scalar(
        "repetition_penalty",
        Fp32,
        Float(|c, v| c.repetition_penalty = Some(v), ABOVE_ZERO),
    )
    .needs(can::PENALTIES, One),
    scalar(
        "min_tokens",
        Int32,
        Int(|c, v| c.min_tokens = Some(v), NOT_NEGATIVE),
    )
    .needs(can::MIN_TOKENS, ZeroOrOne),
    scalar(
        "beam_search_diversity_rate",
        Fp32,
        Float(|c, v| c.beam_search_diversity_rate = Some(v), NOT_NEGATIVE),
    )
    .needs(can::BEAM_SEARCH, Zero),
    scalar(
        "presence_penalty",
        Fp32,
        Float(|c, v| c.presence_penalty = Some(v), ANY),
    )
    .needs(can::PENALTIES, Zero),
    scalar(
        "frequency_penalty",
        Fp32,
        Float(|c, v| c.frequency_penalty = Some(v), ANY),
    )
    .needs(can::PENALTIES, Zero),
    scalar("seed", Uint64, Field::Seed),
    flag("return_log_probs", |f, v| f.return_log_probs = v).needs(can::LOG_PROBS, Zero),
    flag("return_context_logits", |f, v| f.return_context_logits = v)
        .needs(can::CONTEXT_LOGITS, Zero),
    flag("return_generation_logits", |f, v| {
        f.return_generation_logits = v
    })
    .needs(can::GENERATION_LOGITS, Zero),
    flag("return_perf_metrics", |f, v| f.return_perf_metrics = v).needs(can::PERF_METRICS, Zero),
    flag("return_num_input_tokens", |f, v| {
        f.return_num_input_tokens = v
    }),
    flag("return_num_output_tokens", |f, v| {
        f.return_num_output_tokens = v
    }),
    flag("exclude_input_in_output", |f, v| {
        f.exclude_input_in_output = v
    }),
    flag(names::STOP, |f, v| f.stop = v),
    flag("streaming", |f, v| f.streaming = Some(v)),
    list("prompt_embedding_table", Fp16, MATRIX, Passed).needs(can::PROMPT_TUNING, Empty),
    list("prompt_table_extra_ids", Uint64, LIST, Passed).needs(can::PROMPT_TUNING, Empty),
    scalar("prompt_vocab_size", Int32, Passed).needs(can::PROMPT_TUNING, Zero),
    list("cross_attention_mask", Bool, MATRIX, Passed).needs(can::CROSS_ATTENTION, Empty),
    list("mrope_rotary_cos_sin", Fp32, LIST, Passed).needs(can::MROPE, Empty),
    scalar("mrope_position_deltas", Int64, Passed).needs(can::MROPE, Never),
    scalar("lora_task_id", Uint64, Passed).needs(can::LORA, Never),
    list("lora_weights", Fp16, MATRIX, Passed).needs(can::LORA, Empty),
    list("lora_config", Int32, &[-1, 3], Passed).needs(can::LORA, Empty),
    list("context_phase_params", Uint8, LIST, Passed).needs(can::CONTEXT_PHASE, Empty),
    list("skip_cross_attn_blocks", Bool, SCALAR, Passed).needs(can::CROSS_ATTENTION, Zero),
    list("retention_token_range_starts", Int32, LIST, Passed).needs(can::KV_CACHE_RETENTION, Empty),
    list("retention_token_range_ends", Int32, LIST, Passed).needs(can::KV_CACHE_RETENTION, Empty),
    list("retention_token_range_priorities", Int32, LIST, Passed)
        .needs(can::KV_CACHE_RETENTION, Empty),
    list("retention_token_range_durations_ms", Int32, LIST, Passed)
        .needs(can::KV_CACHE_RETENTION, Empty),
    list("retention_decode_priority", Int32, SCALAR, Passed).needs(can::KV_CACHE_RETENTION, Never),
    list("retention_decode_duration_ms", Int32, SCALAR, Passed)
        .needs(can::KV_CACHE_RETENTION, Never),
    list("guided_decoding_guide_type", Bytes, SCALAR, Passed).needs(can::GUIDED_DECODING, Never),
    list("guided_decoding_guide", Bytes, SCALAR, Passed).needs(can::GUIDED_DECODING, Never),
    list("lookahead_window_size", Int32, SCALAR, Passed).needs(can::LOOKAHEAD, Never),
    list("lookahead_ngram_size", Int32, SCALAR, Passed).needs(can::LOOKAHEAD, Never),
    list("lookahead_verification_set_size", Int32, SCALAR, Passed).needs(can::LOOKAHEAD, Never),
    scalar(
        "no_repeat_ngram_size",
        Int32,
        Int(|c, v| c.no_repeat_ngram_size = Some(v), NOT_NEGATIVE),
    )
    .needs(can::NO_REPEAT_NGRAM, Zero),
    scalar(names::HANDLE, Uint64, Field::Handle),
    scalar(
        names::MIN_P,
        Fp32,
        Float(|c, v| c.min_p = Some(v), FRACTION),
    )
    .needs(can::MIN_P, Zero),
    scalar(names::NUM_TOP_LOG_PROBS, Int32, Field::NumTopLogProbs).needs(can::TOP_LOG_PROBS, Zero),
    scalar(names::NUM_PROMPT_LOG_PROBS, Int32, Field::NumPromptLogProbs)
        .needs(can::PROMPT_LOG_PROBS, Never),
    list(names::LOGIT_BIAS_IDS, Int32, LIST, Field::LogitBiasIds).needs(can::EMBEDDING_BIAS, Empty),
    list(names::LOGIT_BIAS_VALUES, Fp32, LIST, Field::LogitBiasValues)
        .needs(can::EMBEDDING_BIAS, Empty),
];

/// The input with this name.
pub(crate) fn input(name: &str) -> Option<&'static InputSpec> {
    static BY_NAME: LazyLock<HashMap<&str, &InputSpec>> =
        LazyLock::new(|| INPUTS.iter().map(|spec| (spec.name, spec)).collect());
    BY_NAME.get(name).copied()
}
