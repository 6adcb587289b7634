//! The tensor names of the dialects, and their types. Pure data: owns what a setting is called where;
//! knows nothing of models.
//!
//! Source of the names: the models of Triton's TensorRT-LLM backend (`tensorrt_llm`, `ensemble`,
//! `tensorrt_llm_bls`) and TensorRT-LLM's `llmapi` model. Where releases renamed a tensor, the newest
//! name comes first.

use inflight_kserve::inference::{DataType, ModelConfig};
use inflight_kserve::names;

/// A family of tensor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `tensorrt_llm`: token ids in and out.
    TokenIds,
    /// `ensemble` and `tensorrt_llm_bls`: text in and out.
    Text,
    /// TensorRT-LLM's `llmapi` model: text in and out, under the names of its SamplingParams.
    LlmApi,
}

/// What a request can set, whatever the tensor is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    MaxTokens,
    Streaming,
    ExcludeInput,
    Temperature,
    TopK,
    TopP,
    Seed,
    RepetitionPenalty,
    PresencePenalty,
    FrequencyPenalty,
    MinTokens,
    MinP,
    EndId,
    PadId,
    StopIds,
    StopWords,
    BadWords,
    BadIds,
    NoRepeatNgram,
    CacheSalt,
    LoraTask,
    GuideType,
    Guide,
    EmbeddingBias,
    ReturnLogProbs,
    ReturnFinishReason,
    ReturnInputTokens,
    ReturnOutputTokens,
}

impl Setting {
    /// Whether there is a value that changes nothing, for a model that must be sent one.
    pub(super) fn has_neutral(self) -> bool {
        use Setting::*;
        !matches!(
            self,
            NoRepeatNgram | CacheSalt | LoraTask | GuideType | Guide
        )
    }
}

type Names = &'static [&'static str];
/// An entry of [`SETTINGS`].
type SettingNames = (Setting, DataType, Names, Names, Names);

/// Setting, element type, and the tensor's names in the three dialects; no name: not in that dialect.
pub(super) const SETTINGS: [SettingNames; 28] = {
    use DataType::*;
    use Setting::*;
    [
        (
            MaxTokens,
            TypeInt32,
            &["request_output_len"],
            &["max_tokens"],
            &["sampling_param_max_tokens"],
        ),
        (
            Streaming,
            TypeBool,
            &["streaming"],
            &["stream"],
            &["streaming"],
        ),
        (
            ExcludeInput,
            TypeBool,
            &["exclude_input_in_output"],
            &["exclude_input_in_output"],
            &["sampling_param_exclude_input_from_output"],
        ),
        (
            Temperature,
            TypeFp32,
            &["temperature"],
            &["temperature"],
            &["sampling_param_temperature"],
        ),
        (
            TopK,
            TypeInt32,
            &["runtime_top_k"],
            &["top_k"],
            &["sampling_param_top_k"],
        ),
        (
            TopP,
            TypeFp32,
            &["runtime_top_p"],
            &["top_p"],
            &["sampling_param_top_p"],
        ),
        (
            Seed,
            TypeUint64,
            &["seed", "random_seed"],
            &["seed", "random_seed"],
            &["sampling_param_seed"],
        ),
        (
            RepetitionPenalty,
            TypeFp32,
            &["repetition_penalty"],
            &["repetition_penalty"],
            &[],
        ),
        (
            PresencePenalty,
            TypeFp32,
            &["presence_penalty"],
            &["presence_penalty"],
            &["sampling_param_presence_penalty"],
        ),
        (
            FrequencyPenalty,
            TypeFp32,
            &["frequency_penalty"],
            &["frequency_penalty"],
            &["sampling_param_frequency_penalty"],
        ),
        (
            MinTokens,
            TypeInt32,
            &["min_tokens", "min_length"],
            &["min_tokens", "min_length"],
            &[],
        ),
        // Of repositories that host Inflight's executors.
        (MinP, TypeFp32, &[names::MIN_P], &[], &[]),
        (EndId, TypeInt32, &["end_id"], &[], &[]),
        (PadId, TypeInt32, &["pad_id"], &[], &[]),
        (StopIds, TypeInt32, &["stop_words_list"], &[], &[]),
        (StopWords, TypeString, &[], &["stop_words"], &[]),
        (BadWords, TypeString, &[], &["bad_words"], &[]),
        (BadIds, TypeInt32, &["bad_words_list"], &[], &[]),
        (
            NoRepeatNgram,
            TypeInt32,
            &["no_repeat_ngram_size"],
            &[],
            &[],
        ),
        // Of repositories that host Inflight's executors.
        (CacheSalt, TypeString, &[names::CACHE_SALT], &[], &[]),
        (
            LoraTask,
            TypeUint64,
            &["lora_task_id"],
            &["lora_task_id"],
            &[],
        ),
        (
            GuideType,
            TypeString,
            &["guided_decoding_guide_type"],
            &["guided_decoding_guide_type"],
            &[],
        ),
        (
            Guide,
            TypeString,
            &["guided_decoding_guide"],
            &["guided_decoding_guide"],
            &[],
        ),
        (EmbeddingBias, TypeFp32, &["embedding_bias"], &[], &[]),
        (ReturnLogProbs, TypeBool, &["return_log_probs"], &[], &[]),
        (
            ReturnFinishReason,
            TypeBool,
            &[],
            &[],
            &["return_finish_reason"],
        ),
        (
            ReturnInputTokens,
            TypeBool,
            &[],
            &["return_num_input_tokens"],
            &[],
        ),
        (
            ReturnOutputTokens,
            TypeBool,
            &[],
            &["return_num_output_tokens"],
            &[],
        ),
    ]
};

/// Output tensors that are read.
pub mod output {
    use inflight_kserve::inference::DataType;

    pub const IDS: &str = "output_ids";
    pub const LENGTH: &str = "sequence_length";
    pub const LOG_PROBS: &str = "output_log_probs";
    /// A number; of repositories that host Inflight's executors.
    pub const REASON: &str = inflight_kserve::names::FINISH_REASON;
    pub const TEXT: &str = "text_output";
    pub const FINISH_REASON: &str = "finish_reason";
    pub const INPUT_TOKENS: &str = "num_input_tokens";
    pub const OUTPUT_TOKENS: &str = "num_output_tokens";

    /// Each with the types that can be read.
    pub(in super::super) const TYPES: [(&str, &[DataType]); 8] = {
        use DataType::*;
        [
            (IDS, &[TypeInt32]),
            (LENGTH, &[TypeInt32]),
            (LOG_PROBS, &[TypeFp32, TypeFp16, TypeBf16]),
            (REASON, &[TypeInt32]),
            (TEXT, &[TypeString]),
            (FINISH_REASON, &[TypeString]),
            (INPUT_TOKENS, &[TypeInt32]),
            (OUTPUT_TOKENS, &[TypeInt32]),
        ]
    };
}

impl Dialect {
    /// What the row's setting is called.
    pub(super) fn names(self, row: &SettingNames) -> Names {
        match self {
            Self::TokenIds => row.2,
            Self::Text => row.3,
            Self::LlmApi => row.4,
        }
    }

    /// What a setting is called in the newest releases, where the dialect has it.
    pub(super) fn newest(self, setting: Setting) -> Option<&'static str> {
        let row = SETTINGS.iter().find(|row| row.0 == setting)?;
        self.names(row).first().copied()
    }

    /// The prompt's tensors.
    pub(super) fn prompt(self) -> &'static [(&'static str, DataType)] {
        match self {
            Self::TokenIds => &[
                ("input_ids", DataType::TypeInt32),
                ("input_lengths", DataType::TypeInt32),
            ],
            Self::Text | Self::LlmApi => &[("text_input", DataType::TypeString)],
        }
    }

    /// The one output that must be there.
    pub(super) fn answer(self) -> (&'static str, DataType) {
        match self {
            Self::TokenIds => (output::IDS, DataType::TypeInt32),
            Self::Text | Self::LlmApi => (output::TEXT, DataType::TypeString),
        }
    }

    /// The dialect whose prompt and limit the configuration has.
    pub(super) fn of(config: &ModelConfig) -> Option<Self> {
        let has = |name: &str| config.input.iter().any(|input| input.name == name);
        [Self::TokenIds, Self::Text, Self::LlmApi]
            .into_iter()
            .find(|dialect| {
                let limit = dialect.newest(Setting::MaxTokens).is_some_and(has);
                limit && dialect.prompt().iter().all(|(name, _)| has(name))
            })
    }
}
