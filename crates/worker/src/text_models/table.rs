//! Every tensor of the four text models: Triton's names, types and shapes, and what each becomes.
//!
//! The only table of them: requests are read against it, metadata and config are written from it, and Python
//! writes Triton's model repositories from it ([`text_model_tables`]).

use std::sync::LazyLock;

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::tensor::DataType::{
    self, Bool, Bytes, Fp16, Fp32, Int32, Int64, Uint8, Uint64,
};

use super::llmapi::tensors as llmapi;
use super::spec::{IMAGES, Role, TEXT_OUTPUT, TextInput};
use crate::model::spec::{LIST, MATRIX, ONE};
use crate::model::{self, CORE_MODEL, CoreInput, OutputSpec, Passage};

/// A model that speaks text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TextModelKind {
    /// Text to token ids.
    Preprocessing,
    /// Token ids to text.
    Postprocessing,
    /// Text in, text out: the three models in a row.
    Ensemble,
    /// Text in, text out, with the options of Triton's business logic scripting (BLS).
    Bls,
    /// Text in, text out, with the tensors of TensorRT-LLM's `llmapi`. It has the core model's name, so it is not among
    /// [`ALL`](Self::ALL).
    LlmApi,
}

impl TextModelKind {
    pub const ALL: [Self; 4] = [
        Self::Preprocessing,
        Self::Postprocessing,
        Self::Ensemble,
        Self::Bls,
    ];

    /// Triton's name for the model.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Preprocessing => "preprocessing",
            Self::Postprocessing => "postprocessing",
            Self::Ensemble => "ensemble",
            Self::Bls => "tensorrt_llm_bls",
            Self::LlmApi => CORE_MODEL,
        }
    }

    /// The model with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The name by which a request asks it. One process may have several sets of these models, and a request that was
    /// made inside Triton names none.
    pub(crate) fn asked_as(self, message: &ModelInferRequest) -> &str {
        match message.model_name.as_str() {
            "" => self.name(),
            name => name,
        }
    }

    /// Whether it asks the core model.
    pub const fn generates(self) -> bool {
        matches!(self, Self::Ensemble | Self::Bls | Self::LlmApi)
    }

    pub(crate) fn inputs(self) -> &'static [TextInput] {
        static ENSEMBLE: LazyLock<Vec<TextInput>> =
            LazyLock::new(|| [GENERATION, ENSEMBLE_GUIDES, OLDER_NAMES].concat());
        static BLS: LazyLock<Vec<TextInput>> =
            LazyLock::new(|| [GENERATION, BLS_ONLY, OLDER_NAMES].concat());
        match self {
            Self::Preprocessing => PREPROCESSING,
            Self::Postprocessing => POSTPROCESSING,
            Self::Ensemble => &ENSEMBLE,
            Self::Bls => &BLS,
            Self::LlmApi => llmapi::INPUTS,
        }
    }

    pub(crate) fn input(self, name: &str) -> Option<&'static TextInput> {
        self.inputs().iter().find(|input| input.name == name)
    }

    pub(crate) fn outputs(self) -> &'static [OutputSpec] {
        static GENERATED: LazyLock<Vec<OutputSpec>> = LazyLock::new(|| {
            let core = model::core_outputs()
                .filter(|output| output.declared && !NOT_OF_TEXT_MODELS.contains(&output.name));
            std::iter::once(OutputSpec::new(TEXT_OUTPUT, Bytes, LIST))
                .chain(core)
                .collect()
        });
        match self {
            Self::Preprocessing => PREPROCESSED,
            Self::Postprocessing => POSTPROCESSED,
            Self::Ensemble | Self::Bls => &GENERATED,
            Self::LlmApi => &llmapi::OUTPUTS,
        }
    }

    pub(crate) fn output(self, name: &str) -> Option<&'static OutputSpec> {
        self.outputs().iter().find(|output| output.name == name)
    }
}

/// Outputs of the core model that text replaces, or that no text model passes on.
const NOT_OF_TEXT_MODELS: [&str; 3] = ["output_ids", "sequence_length", "context_phase_params"];

/// An input that preprocessing reads under this name.
const fn read(
    name: &'static str,
    datatype: DataType,
    dims: &'static [i64],
    preprocessing: &'static str,
) -> TextInput {
    TextInput::new(name, datatype, dims, Role::Preprocessing(preprocessing))
}

/// An input that the core model takes under this name.
const fn core(name: &'static str, datatype: DataType, core: &'static str) -> TextInput {
    TextInput::new(name, datatype, ONE, Role::Core(core))
}

/// What ensemble and BLS share, in the order of Triton's config.pbtxt.
const GENERATION: &[TextInput] = &[
    read("text_input", Bytes, ONE, "QUERY").required(),
    read("decoder_text_input", Bytes, ONE, "DECODER_QUERY"),
    read("max_tokens", Int32, ONE, "REQUEST_OUTPUT_LEN").required(),
    core("num_return_sequences", Int32, "num_return_sequences"),
    read("bad_words", Bytes, LIST, "BAD_WORDS_DICT"),
    read("stop_words", Bytes, LIST, "STOP_WORDS_DICT"),
    TextInput::new("exclude_input_in_output", Bool, ONE, Role::ExcludeInput),
    read("end_id", Int32, ONE, "END_ID"),
    read("pad_id", Int32, ONE, "PAD_ID"),
    core("top_k", Int32, "runtime_top_k"),
    core("top_p", Fp32, "runtime_top_p"),
    core("temperature", Fp32, "temperature"),
    core("length_penalty", Fp32, "len_penalty"),
    core("repetition_penalty", Fp32, "repetition_penalty"),
    core("min_tokens", Int32, "min_tokens"),
    core("presence_penalty", Fp32, "presence_penalty"),
    core("frequency_penalty", Fp32, "frequency_penalty"),
    core("seed", Uint64, "seed"),
    core("return_log_probs", Bool, "return_log_probs"),
    core("return_context_logits", Bool, "return_context_logits"),
    core("return_generation_logits", Bool, "return_generation_logits"),
    core("return_perf_metrics", Bool, "return_perf_metrics"),
    core("return_num_input_tokens", Bool, "return_num_input_tokens"),
    core("return_num_output_tokens", Bool, "return_num_output_tokens"),
    core("beam_width", Int32, "beam_width"),
    core("stream", Bool, "streaming"),
    core("prompt_embedding_table", Fp16, "prompt_embedding_table")
        .dims(MATRIX)
        .any_float(),
    read(
        "prompt_table_extra_id",
        Uint64,
        ONE,
        "PROMPT_TABLE_EXTRA_ID",
    ),
    core("prompt_vocab_size", Int32, "prompt_vocab_size"),
    read("embedding_bias_words", Bytes, LIST, "EMBEDDING_BIAS_WORDS"),
    read(
        "embedding_bias_weights",
        Fp32,
        LIST,
        "EMBEDDING_BIAS_WEIGHTS",
    ),
    core("lora_task_id", Uint64, "lora_task_id"),
    core("lora_weights", Fp16, "lora_weights")
        .dims(MATRIX)
        .ragged(),
    core("lora_config", Int32, "lora_config")
        .dims(&[-1, 3])
        .ragged(),
];

const ENSEMBLE_GUIDES: &[TextInput] = &[
    core(
        "guided_decoding_guide_type",
        Bytes,
        "guided_decoding_guide_type",
    )
    .ragged(),
    core("guided_decoding_guide", Bytes, "guided_decoding_guide").ragged(),
];

const BLS_ONLY: &[TextInput] = &[
    TextInput::new("image_input", Fp16, &[-1, 3, -1, -1], Role::Unsupported),
    TextInput::new("image_bytes_input", Uint8, IMAGES, Role::Unsupported),
    TextInput::new("video_bytes_input", Uint8, IMAGES, Role::Unsupported),
    TextInput::new("image_url_input", Bytes, ONE, Role::Unsupported),
    TextInput::new("num_draft_tokens", Int32, ONE, Role::Own),
    TextInput::new("use_draft_logits", Bool, ONE, Role::Own).squeezed(),
    core(
        "guided_decoding_guide_type",
        Bytes,
        "guided_decoding_guide_type",
    ),
    core("guided_decoding_guide", Bytes, "guided_decoding_guide"),
];

/// Names of older releases, which their clients still send.
const OLDER_NAMES: &[TextInput] = &[
    core("random_seed", Uint64, "seed").undeclared(),
    core("min_length", Int32, "min_tokens").undeclared(),
    core("len_penalty", Fp32, "len_penalty").undeclared(),
    core(
        "return_kv_cache_reuse_stats",
        Bool,
        "return_kv_cache_reuse_stats",
    )
    .undeclared(),
];

const PREPROCESSING: &[TextInput] = &[
    read("QUERY", Bytes, ONE, "QUERY").required(),
    read("DECODER_QUERY", Bytes, ONE, "DECODER_QUERY"),
    TextInput::new("IMAGE_BYTES", Uint8, IMAGES, Role::Unsupported),
    TextInput::new("IMAGE_URL", Bytes, ONE, Role::Unsupported),
    TextInput::new("VIDEO_BYTES", Uint8, IMAGES, Role::Unsupported),
    read("REQUEST_OUTPUT_LEN", Int32, ONE, "REQUEST_OUTPUT_LEN").required(),
    read("BAD_WORDS_DICT", Bytes, LIST, "BAD_WORDS_DICT"),
    read("STOP_WORDS_DICT", Bytes, LIST, "STOP_WORDS_DICT"),
    read("EMBEDDING_BIAS_WORDS", Bytes, LIST, "EMBEDDING_BIAS_WORDS"),
    read(
        "EMBEDDING_BIAS_WEIGHTS",
        Fp32,
        LIST,
        "EMBEDDING_BIAS_WEIGHTS",
    ),
    read("END_ID", Int32, ONE, "END_ID"),
    read("PAD_ID", Int32, ONE, "PAD_ID"),
    read(
        "PROMPT_TABLE_EXTRA_ID",
        Uint64,
        ONE,
        "PROMPT_TABLE_EXTRA_ID",
    ),
];

const PREPROCESSED: &[OutputSpec] = &[
    OutputSpec::new("INPUT_ID", Int32, LIST),
    OutputSpec::new("REQUEST_INPUT_LEN", Int32, ONE),
    OutputSpec::new("DECODER_INPUT_ID", Int32, LIST),
    OutputSpec::new("REQUEST_DECODER_INPUT_LEN", Int32, ONE),
    OutputSpec::new("BAD_WORDS_IDS", Int32, &[2, -1]),
    OutputSpec::new("STOP_WORDS_IDS", Int32, &[2, -1]),
    OutputSpec::new("EMBEDDING_BIAS", Fp32, LIST),
    OutputSpec::new("REQUEST_OUTPUT_LEN", Int32, LIST),
    OutputSpec::new("OUT_END_ID", Int32, ONE),
    OutputSpec::new("OUT_PAD_ID", Int32, ONE),
    OutputSpec::new("OUT_PROMPT_TABLE_EXTRA_IDS", Uint64, LIST),
    // Of images: declared, as in Triton, and never made of text.
    OutputSpec::new("PIXEL_VALUES", Fp16, IMAGES),
    OutputSpec::new("ASPECT_RATIO_IDS", Int64, LIST),
    OutputSpec::new("ASPECT_RATIO_MASK", Int64, MATRIX),
    OutputSpec::new("CROSS_ATTENTION_MASK", Int64, &[-1, -1, -1]),
    OutputSpec::new("IMAGE_SIZES", Int64, &[2]),
    OutputSpec::new("IS_VIDEO_INPUT", Bool, ONE),
    OutputSpec::new("ATTENTION_MASK", Int64, LIST),
    OutputSpec::new("IMAGE_GRID_THW", Int64, &[3]),
    OutputSpec::new("VISION_INPUT_ID", Int32, LIST),
];

/// Releases up to 0.11 pass log probabilities and logits through postprocessing.
const POSTPROCESSING: &[TextInput] = &[
    TextInput::new("TOKENS_BATCH", Int32, MATRIX, Role::Own).required(),
    TextInput::new("SEQUENCE_LENGTH", Int32, LIST, Role::Own).required(),
    TextInput::new(
        "CUM_LOG_PROBS",
        Fp32,
        LIST,
        Role::Returned("OUT_CUM_LOG_PROBS"),
    )
    .undeclared(),
    TextInput::new(
        "OUTPUT_LOG_PROBS",
        Fp32,
        MATRIX,
        Role::Returned("OUT_OUTPUT_LOG_PROBS"),
    )
    .undeclared(),
    TextInput::new(
        "CONTEXT_LOGITS",
        Fp32,
        MATRIX,
        Role::Returned("OUT_CONTEXT_LOGITS"),
    )
    .any_float()
    .undeclared(),
    TextInput::new(
        "GENERATION_LOGITS",
        Fp32,
        &[-1, -1, -1],
        Role::Returned("OUT_GENERATION_LOGITS"),
    )
    .any_float()
    .undeclared(),
];

const fn older_output(name: &'static str, dims: &'static [i64]) -> OutputSpec {
    OutputSpec::new(name, Fp32, dims).undeclared()
}

const POSTPROCESSED: &[OutputSpec] = &[
    OutputSpec::new("OUTPUT", Bytes, LIST),
    older_output("OUT_CUM_LOG_PROBS", LIST),
    older_output("OUT_OUTPUT_LOG_PROBS", MATRIX),
    older_output("OUT_CONTEXT_LOGITS", MATRIX),
    older_output("OUT_GENERATION_LOGITS", &[-1, -1, -1]),
];

/// One text model's tensors, for other crates.
#[derive(Clone, Debug)]
pub struct TextModelTable {
    pub name: &'static str,
    /// What the newest config.pbtxt of Triton's model declares; `path` is the core model's input that takes
    /// the tensor as it is.
    pub inputs: Vec<CoreInput>,
    pub outputs: Vec<OutputSpec>,
}

/// The tables of all text models.
pub fn text_model_tables() -> impl Iterator<Item = TextModelTable> {
    TextModelKind::ALL.into_iter().map(|kind| TextModelTable {
        name: kind.name(),
        inputs: kind
            .inputs()
            .iter()
            .map(|spec| {
                spec.with(Passage {
                    capability: None,
                    path: match spec.role {
                        Role::Core(name) => Some(name),
                        _ => None,
                    },
                })
            })
            .collect(),
        outputs: kind.outputs().to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_to_the_core_model_is_in_its_table() {
        for kind in TextModelKind::ALL {
            for input in kind.inputs() {
                if let Role::Core(name) = input.role {
                    let core = model::input(name).unwrap();
                    assert_eq!(core.datatype, input.datatype, "{name}");
                }
            }
        }
    }

    #[test]
    fn what_preprocessing_reads_it_declares() {
        for kind in [TextModelKind::Ensemble, TextModelKind::Bls] {
            for input in kind.inputs() {
                if let Role::Preprocessing(name) = input.role {
                    let own = TextModelKind::Preprocessing.input(name).unwrap();
                    assert_eq!(
                        (own.datatype, own.dims),
                        (input.datatype, input.dims),
                        "{name}"
                    );
                }
            }
        }
    }

    #[test]
    fn names_are_unique() {
        for kind in TextModelKind::ALL {
            let mut names: Vec<&str> = kind.inputs().iter().map(|input| input.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), kind.inputs().len(), "{}", kind.name());
        }
    }
}
