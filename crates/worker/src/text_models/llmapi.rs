//! The tensors of TensorRT-LLM's `llmapi` model, which has the core model's name and speaks text. A request with them is
//! answered as one of BLS. Owns the table of these tensors and the translation both ways.
//!
//! Follows upstream's model: the sampler's defaults are those of its `SamplingParams`, a stream's responses have the
//! text so far, and an answer in one piece begins with the prompt unless that is excluded. Where upstream has no batch
//! dimension, one of size 1 is taken too, and answered alike.

use std::sync::LazyLock;

use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::names;
use inflight_kserve::step::FinishReason;
use inflight_kserve::tensor::DataType::{Bool, Bytes, Fp32, Int32, Int64, Uint64};
use inflight_kserve::tensor::{
    Element, RequestBuilder, ResponseBuilder, Tensor, TensorError, Tensors,
};

use super::error::TextRequestError;
use super::generation::Generation;
use super::source::TextSource;
use super::table::{
    LIST, ONE, Role, TEXT_OUTPUT, TextInput, TextModelKind, TextOutput, input, output,
};
use super::wanted::Wanted;
use crate::model::{self, CORE_MODEL_VERSION, TensorMismatch};

/// The input that distinguishes these requests from the core model's.
const TEXT_INPUT: &str = "text_input";
/// `SamplingParams.max_tokens` of a request that says none.
const MAX_TOKENS: i32 = 32;
/// What Python writes where there is no reason.
const NONE: &str = "None";

const fn bls(
    name: &'static str,
    datatype: inflight_kserve::tensor::DataType,
    bls: &'static str,
) -> TextInput {
    input(name, datatype, ONE, Role::Bls(bls))
}

/// In the order of upstream's config.pbtxt.
pub(super) const INPUTS: &[TextInput] = &[
    bls(TEXT_INPUT, Bytes, TEXT_INPUT).dims(LIST).required(),
    input("image_url", Bytes, LIST, Role::Unsupported),
    bls("streaming", Bool, "stream"),
    input("sampling_param_best_of", Int32, ONE, Role::Own),
    input("sampling_param_temperature", Fp32, ONE, Role::Own),
    input("sampling_param_top_k", Int32, ONE, Role::Own),
    input("sampling_param_top_p", Fp32, ONE, Role::Own),
    bls(
        "sampling_param_frequency_penalty",
        Fp32,
        "frequency_penalty",
    ),
    bls("sampling_param_presence_penalty", Fp32, "presence_penalty"),
    input("sampling_param_max_tokens", Int32, ONE, Role::Own),
    bls("sampling_param_stop", Bytes, "stop_words").dims(LIST),
    bls("sampling_param_seed", Uint64, "seed"),
    input(
        "sampling_param_exclude_input_from_output",
        Bool,
        ONE,
        Role::Own,
    ),
    bls(
        "sampling_param_return_perf_metrics",
        Bool,
        "return_perf_metrics",
    ),
    input(
        "sampling_param_logits_post_processor_name",
        Bytes,
        ONE,
        Role::Unsupported,
    ),
    input("return_finish_reason", Bool, ONE, Role::Own),
    input("return_stop_reason", Bool, ONE, Role::Own),
    bls("return_cumulative_logprob", Bool, "return_log_probs"),
    input(names::STOP, Bool, ONE, Role::Own),
    input("lora_id", Uint64, ONE, Role::Unsupported),
    input("lora_name", Bytes, ONE, Role::Unsupported),
    input("lora_path", Bytes, ONE, Role::Unsupported),
    input("lora_ckpt_source", Bytes, ONE, Role::Unsupported),
];

const FINISH_REASON: &str = "finish_reason";
const STOP_REASON: &str = "stop_reason";
/// Ours, and BLS'.
const SUM: (&str, &str) = ("cumulative_logprob", "cum_log_probs");
/// Performance metrics: ours, and BLS'.
const METRICS: [(&str, &str); 10] = [
    ("kv_cache_reused_block", "kv_cache_reused_blocks"),
    ("kv_cache_alloc_new_blocks", "kv_cache_alloc_new_blocks"),
    ("kv_cache_alloc_total_blocks", "kv_cache_alloc_total_blocks"),
    ("arrival_time_ns", "arrival_time_ns"),
    ("first_scheduled_time_ns", "first_scheduled_time_ns"),
    ("first_token_time_ns", "first_token_time_ns"),
    ("last_token_time_ns", "last_token_time_ns"),
    ("acceptance_rate", "acceptance_rate"),
    ("total_accepted_draft_tokens", "total_accepted_draft_tokens"),
    ("total_draft_tokens", "total_draft_tokens"),
];

/// Upstream's, but for `kv_cache_missed_block` and `kv_cache_hit_rate`, which no executor reports of a request.
pub(super) static OUTPUTS: LazyLock<Vec<TextOutput>> = LazyLock::new(|| {
    let own = [
        output(TEXT_OUTPUT, Bytes, LIST),
        output(FINISH_REASON, Bytes, LIST),
        output(STOP_REASON, Bytes, LIST),
        output(SUM.0, Fp32, LIST),
    ];
    let metrics = METRICS.into_iter().map(|(name, _)| {
        let datatype = match name {
            "acceptance_rate" => Fp32,
            name if name.ends_with("_ns") => Int64,
            _ => Int32,
        };
        output(name, datatype, ONE)
    });
    own.into_iter().chain(metrics).collect()
});

/// The inputs that the core model does not have itself.
pub(crate) fn inputs() -> &'static [TextInput] {
    // Asked for with every request that is read by the model's metadata.
    static OWN: LazyLock<Vec<TextInput>> = LazyLock::new(|| {
        let own = INPUTS
            .iter()
            .filter(|spec| model::input(spec.name).is_none());
        own.copied().collect()
    });
    &OWN
}

/// The outputs that the core model does not have itself.
pub(crate) fn outputs() -> &'static [TextOutput] {
    static OWN: LazyLock<Vec<TextOutput>> = LazyLock::new(|| {
        let own = OUTPUTS
            .iter()
            .filter(|spec| model::output(spec.name).is_none());
        own.copied().collect()
    });
    &OWN
}

/// Whether a request of the core model is one of these.
pub(crate) fn is_asked(message: &ModelInferRequest) -> bool {
    message.inputs.iter().any(|input| input.name == TEXT_INPUT)
}

/// Reads a request.
pub(super) fn generation(
    message: &ModelInferRequest,
    source: &TextSource,
) -> Result<Generation, TextRequestError> {
    let asked = Asked::read(message)?;
    let translated = asked.translate(message)?;
    let mut generation = Generation::read(TextModelKind::Bls, &translated, source)?;
    generation.answer.speak(Form {
        wanted: Wanted::read(TextModelKind::LlmApi, message)?,
        is_batched: asked.is_batched,
        has_finish_reason: asked.is_set("return_finish_reason")?,
        has_stop_reason: asked.is_set("return_stop_reason")?,
    });
    Ok(generation)
}

/// The inputs of a request.
struct Asked<'a> {
    given: Vec<(&'static TextInput, Tensor<'a>)>,
    /// Whether they have a batch dimension.
    is_batched: bool,
}

impl<'a> Asked<'a> {
    fn read(message: &'a ModelInferRequest) -> Result<Self, TextRequestError> {
        let kind = TextModelKind::LlmApi;
        let mut given = Vec::with_capacity(message.inputs.len());
        let mut is_batched = false;
        for tensor in Tensors::inputs(message)? {
            let spec = kind.input(tensor.name);
            let spec = spec.ok_or_else(|| TextRequestError::UnknownInput {
                model: kind.asked_as(message).to_owned(),
                tensor: tensor.name.to_owned(),
            })?;
            if spec.role == Role::Unsupported {
                return Err(TextRequestError::Unsupported { tensor: spec.name });
            }
            model::check_datatype(spec.name, spec.datatype, false, tensor.datatype)?;
            let rows = match tensor.shape {
                [rows, dims @ ..] if model::fits(dims, spec.dims) => usize::try_from(*rows),
                dims if model::fits(dims, spec.dims) => Ok(1),
                shape => return Err(TensorMismatch::shape(spec.name, shape, spec.dims).into()),
            };
            model::checked_rows(rows.unwrap_or_default(), 1)?;
            is_batched |= tensor.shape.len() > spec.dims.len();
            given.push((spec, tensor));
        }
        Ok(Self { given, is_batched })
    }

    fn named(&self, name: &str) -> Option<&Tensor<'a>> {
        let mut given = self.given.iter();
        given
            .find(|(spec, _)| spec.name == name)
            .map(|(_, tensor)| tensor)
    }

    fn scalar<T: Element>(&self, name: &str) -> Result<Option<T>, TextRequestError> {
        let tensor = self.named(name);
        Ok(tensor.map(Tensor::scalar).transpose()?)
    }

    fn is_set(&self, name: &str) -> Result<bool, TextRequestError> {
        Ok(self.scalar(name)?.unwrap_or(false))
    }

    /// The same for BLS.
    fn translate(
        &self,
        message: &ModelInferRequest,
    ) -> Result<ModelInferRequest, TextRequestError> {
        let texts = self.named(TEXT_INPUT).map_or(0, Tensor::count);
        if texts != 1 {
            return Err(TextRequestError::NotOneText { texts });
        }
        if let Some(best_of) = self.scalar::<i32>("sampling_param_best_of")?
            && best_of != 1
        {
            return Err(TextRequestError::BestOf { best_of });
        }
        let mut out = RequestBuilder::new(message.model_name.as_str(), message.id.as_str(), 64);
        for (spec, tensor) in &self.given {
            if let Role::Bls(name) = spec.role {
                let shape = [1, tensor.count() as i64];
                out.push_raw(name, tensor.datatype, &shape, tensor.data.clone());
            }
        }
        let max_tokens = self.scalar("sampling_param_max_tokens")?;
        out.scalar("max_tokens", max_tokens.unwrap_or(MAX_TOKENS));
        let excludes = self.is_set("sampling_param_exclude_input_from_output")?;
        out.scalar("exclude_input_in_output", excludes);
        self.choose(&mut out)?;
        out.output(TEXT_OUTPUT);
        if self.is_set("return_cumulative_logprob")? {
            out.output(SUM.1);
        }
        if self.is_set("sampling_param_return_perf_metrics")? {
            METRICS.iter().for_each(|(_, name)| {
                out.output(*name);
            });
        }
        let mut translated = out.build();
        translated.model_version.clone_from(&message.model_version);
        translated.parameters.clone_from(&message.parameters);
        Ok(translated)
    }

    /// How tokens are chosen: greedily unless something says otherwise, as `SamplingParams` has it.
    fn choose(&self, out: &mut RequestBuilder) -> Result<(), TextRequestError> {
        let temperature = self.scalar::<f32>("sampling_param_temperature")?;
        let top_k = self.scalar::<i32>("sampling_param_top_k")?;
        let top_p = self.scalar::<f32>("sampling_param_top_p")?;
        let says_nothing = temperature.is_none() && top_k.is_none() && top_p.is_none();
        if says_nothing || top_k == Some(1) || top_p == Some(0.0) || temperature == Some(0.0) {
            out.scalar("top_k", 1);
            return Ok(());
        }
        out.scalar("temperature", temperature.unwrap_or(1.0));
        out.scalar("top_k", top_k.unwrap_or(0));
        out.scalar("top_p", top_p.unwrap_or(1.0));
        Ok(())
    }
}

/// What of an answer is sent, and how.
#[derive(Debug)]
pub(super) struct Form {
    wanted: Wanted,
    is_batched: bool,
    has_finish_reason: bool,
    has_stop_reason: bool,
}

impl Form {
    /// The answer that BLS' is. `reason`: why the sequence has ended. `stop`: the stop string that has ended it.
    ///
    /// # Errors
    /// It is malformed.
    pub(super) fn answer(
        &self,
        made: &ModelInferResponse,
        reason: FinishReason,
        stop: Option<&str>,
    ) -> Result<ModelInferResponse, TensorError> {
        let outputs = Tensors::outputs(made)?;
        let shape: &[i64] = if self.is_batched { &[1, 1] } else { &[1] };
        let mut out = ResponseBuilder::new(made.model_name.as_str(), made.id.as_str(), 64);
        out.version(CORE_MODEL_VERSION);
        let reasons = [
            (FINISH_REASON, self.has_finish_reason, word(reason, stop)),
            (STOP_REASON, self.has_stop_reason, stop.unwrap_or(NONE)),
        ];
        let passed = std::iter::once((TEXT_OUTPUT, TEXT_OUTPUT));
        for (name, bls) in passed.chain([SUM]).chain(METRICS) {
            if let Some(tensor) = outputs.get(bls)
                && self.wanted.has(name)
            {
                out.push_raw(name, tensor.datatype, shape, tensor.data.clone());
            }
            if name == TEXT_OUTPUT {
                for (name, is_asked, text) in reasons {
                    if is_asked && self.wanted.has(name) {
                        out.push_bytes(name, shape, [text]);
                    }
                }
            }
        }
        let mut answer = out.build();
        answer.parameters.clone_from(&made.parameters);
        Ok(answer)
    }
}

/// TensorRT-LLM's word for a reason.
fn word(reason: FinishReason, stop: Option<&str>) -> &'static str {
    match reason {
        _ if stop.is_some() => "stop",
        FinishReason::NotFinished => NONE,
        FinishReason::EndId | FinishReason::StopWords => "stop",
        FinishReason::Length => "length",
        FinishReason::TimedOut => "timeout",
        FinishReason::Cancelled => "cancelled",
    }
}
