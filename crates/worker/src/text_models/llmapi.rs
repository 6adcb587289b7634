//! The tensors of TensorRT-LLM's `llmapi` model, which has the core model's name and speaks text. A request with them is
//! answered as one of BLS. Owns the translation of requests; which tensors there are is in `tensors`, and what becomes of
//! an answer in `form`.
//!
//! Follows upstream's model: the sampler's defaults are those of its `SamplingParams`, a stream's responses have the
//! text so far, and an answer in one piece begins with the prompt unless that is excluded. Where upstream has no batch
//! dimension, one of size 1 is taken too, and answered alike.

pub(super) mod form;
pub(super) mod tensors;

use std::sync::LazyLock;

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::inference::model_infer_request::InferInputTensor;
use inflight_kserve::names;
use inflight_kserve::tensor::{Element, RequestBuilder, Tensor, Tensors};

use super::error::TextRequestError;
use super::generation::Generation;
use super::source::TextSource;
use super::spec::{Role, TEXT_OUTPUT, TextInput};
use super::table::TextModelKind;
use super::wanted::Wanted;
use crate::model::{self, OutputSpec, TensorMismatch};
use form::Form;
use tensors::{INPUTS, LORA_ID, LORA_SOURCE, METRICS, OUTPUTS, SUM, TEXT_INPUT};

/// `SamplingParams.max_tokens` of a request that says none.
const MAX_TOKENS: i32 = 32;
/// Adapters as PEFT saves them, which is what `lora_ckpt_source` says without it.
const PEFT: &str = "hf";

/// The adapter that a request asks for by its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AskedAdapter {
    pub(crate) name: String,
    /// Its directory.
    pub(crate) path: String,
}

/// The adapter that a request asks for by its files. Such a request's tensors are all checked here, before anything is
/// loaded for it.
///
/// # Errors
/// A tensor is malformed, or a part of what names the adapter is missing.
pub(crate) fn asked_adapter(
    message: &ModelInferRequest,
) -> Result<Option<AskedAdapter>, TextRequestError> {
    const PARTS: [&str; 3] = [LORA_ID, names::LORA_NAME, names::LORA_PATH];
    let names_any = |input: &InferInputTensor| {
        PARTS.contains(&input.name.as_str()) || input.name == LORA_SOURCE
    };
    if !message.inputs.iter().any(names_any) {
        return Ok(None);
    }
    let given = GivenInputs::read(message)?;
    if let Some(missing) = PARTS.into_iter().find(|name| given.named(name).is_none()) {
        return Err(TextRequestError::PartOfAdapter { missing });
    }
    let text = |name, default| given.named(name).map_or(Ok(default), Tensor::string);
    let source = text(LORA_SOURCE, PEFT)?;
    if source != PEFT {
        let given = source.chars().take(40).collect();
        return Err(TextRequestError::AdapterSource { given });
    }
    Ok(Some(AskedAdapter {
        name: text(names::LORA_NAME, "")?.to_owned(),
        path: text(names::LORA_PATH, "")?.to_owned(),
    }))
}

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
pub(crate) fn outputs() -> &'static [OutputSpec] {
    static OWN: LazyLock<Vec<OutputSpec>> = LazyLock::new(|| {
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

/// Reads a request. `lora_task_id`: of the adapter that it asks for.
pub(super) fn generation(
    message: &ModelInferRequest,
    source: &TextSource,
    lora_task_id: Option<u64>,
) -> Result<Generation, TextRequestError> {
    let asked = GivenInputs::read(message)?;
    let translated = asked.translate(message, lora_task_id)?;
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
struct GivenInputs<'a> {
    given: Vec<(&'static TextInput, Tensor<'a>)>,
    /// Whether they have a batch dimension.
    is_batched: bool,
}

impl<'a> GivenInputs<'a> {
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
        lora_task_id: Option<u64>,
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
        if let Some(lora_task_id) = lora_task_id {
            out.scalar("lora_task_id", lora_task_id);
        }
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
