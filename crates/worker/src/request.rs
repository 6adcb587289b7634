//! From a ModelInferRequest to executor requests, or to a refusal that names what is wrong.
//!
//! Pure: a message, the model's limits and capabilities in; values out. Knows nothing of streams.

mod build;
mod error;
mod parameters;
mod resumed;
mod tensors;
mod words;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use inflight_kserve::inference::ModelInferRequest;
use inflight_kserve::names;
use inflight_kserve::step::Handle;
use inflight_kserve::tensor::Tensors;

use crate::executor::{ModelInfo, Request};
use crate::model::{self, OutputSet};
use crate::shared_memory::Placements;
use crate::text_stream::TextStream;
use crate::trace::RequestTrace;

pub(crate) use error::RequestError;

/// What parsing needs to know of the worker.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// The name of the core model.
    pub(crate) core_model: Arc<str>,
    pub(crate) info: ModelInfo,
    pub(crate) max_message_bytes: usize,
    /// What holds for a request without `exclude_input_in_output`.
    pub(crate) excludes_input: bool,
    /// Whether responses have log probabilities and logits that were not asked for, as zeros.
    pub(crate) fills_outputs: bool,
    /// Whether ids of a prompt that are beyond the vocabulary are wrapped modulo its size.
    pub(crate) wraps_token_ids: bool,
}

impl Limits {
    fn can(&self, capability: &str) -> bool {
        self.info.capabilities.iter().any(|name| name == capability)
    }
}

/// A request that was understood.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// Ends the request of this handle on this stream; no separate answer.
    StopHandle(Handle),
    /// Ends the requests with this request id; answered by an empty final response.
    StopId(String),
    /// New work whose rows travel in step messages.
    Step {
        handle: Handle,
        request: Box<Request>,
        timeout: Option<Duration>,
        wants_cached_tokens: bool,
        may_wait: bool,
        /// As [`PlainRequest::context_only`].
        context_only: bool,
    },
    /// New work, one executor request per row of the batch, each with its prompt where responses
    /// repeat it.
    Plain(Box<Plain>),
}

/// Work whose rows become Triton responses.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) requests: Vec<Request>,
    /// Of each row, what its responses repeat.
    pub(crate) prompts: Vec<Vec<i32>>,
    pub(crate) answer: PlainRequest,
    pub(crate) timeout: Option<Duration>,
    /// The service's.
    pub(crate) trace: Option<Arc<RequestTrace>>,
}

/// How one Triton request is to be answered: shared by the executor requests it became.
#[derive(Debug)]
pub(crate) struct PlainRequest {
    pub(crate) model: Arc<str>,
    pub(crate) id: String,
    pub(crate) outputs: OutputSet,
    /// Rows of the batch; responses carry `batch_index` when there are several.
    pub(crate) batch: u32,
    /// Responses carry `sequence_index` when there are several.
    pub(crate) sequences: u32,
    pub(crate) beam_width: u32,
    pub(crate) streaming: bool,
    /// The answer is the context phase: without `context_phase_params` it is invalid.
    pub(crate) context_only: bool,
    /// Responses have log probabilities and logits that were not asked for, as zeros.
    pub(crate) fills_outputs: bool,
    pub(crate) return_log_probs: bool,
    pub(crate) return_num_input_tokens: bool,
    pub(crate) return_num_output_tokens: bool,
    /// Executor requests whose final row was not sent yet: the last one's response is final.
    unfinished: AtomicU32,
    /// Where outputs go that are not sent in the message.
    pub(crate) placements: Option<Placements>,
    /// The request of a text model that this one was made of, whose answers are text.
    pub(crate) text: Option<TextStream>,
}

impl PlainRequest {
    /// Notes that one executor request is through; true for the last.
    pub(crate) fn finish_one(&self) -> bool {
        self.unfinished.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

/// Reads a request.
///
/// # Errors
/// Whatever is malformed, out of range, unknown, or beyond the executor; each names its tensor.
pub(crate) fn parse(
    message: &ModelInferRequest,
    limits: &Limits,
) -> Result<Incoming, RequestError> {
    if *message.model_name != *limits.core_model {
        return Err(RequestError::UnknownModel(format!(
            "unknown model `{}`: token ids go to `{}`",
            message.model_name, limits.core_model
        )));
    }
    if let Some(text) = model::unknown_version(&limits.core_model, &message.model_version) {
        return Err(RequestError::UnknownModel(text));
    }
    let parameters = parameters::read(message, limits)?;
    let inputs = Tensors::inputs(message)?;
    let batch = tensors::Batch::new(&inputs)?;
    let flags = batch.flags(limits)?;
    let handle = batch.handle()?;
    if flags.stop {
        return match handle {
            Some(handle) => Ok(Incoming::StopHandle(handle)),
            None if message.id.is_empty() => Err(RequestError::StopWithoutId),
            None => Ok(Incoming::StopId(message.id.clone())),
        };
    }
    let outputs = requested_outputs(message)?;
    let streaming = flags.streaming.unwrap_or(handle.is_some());
    let rows = batch.rows(limits.info.max_batch_size)?;
    let mut requests = Vec::with_capacity(rows);
    for row in 0..rows {
        let mut request = build::row(&batch, row, &flags, streaming, limits)?;
        request.tensors.extend(parameters.tensors.iter().cloned());
        requests.push(request);
    }
    let sampling = requests.first().map(|request| &request.sampling_config);
    let (sequences, beam_width) = sampling.map_or((1, 1), |config| {
        (config.num_return_sequences, config.beam_width)
    });
    if streaming && beam_width > 1 {
        return Err(RequestError::StreamingBeams { beam_width });
    }
    if let Some(handle) = handle {
        return step(handle, requests, &flags, outputs, &parameters);
    }
    let excludes = flags
        .exclude_input_in_output
        .unwrap_or(limits.excludes_input);
    let prompts = requests
        .iter()
        .map(|request| {
            if !streaming && !excludes {
                request.input_token_ids.clone()
            } else {
                Vec::new()
            }
        })
        .collect();
    Ok(Incoming::Plain(Box::new(Plain {
        prompts,
        timeout: parameters.timeout,
        trace: None,
        answer: PlainRequest {
            model: Arc::clone(&limits.core_model),
            id: message.id.clone(),
            outputs: outputs.unwrap_or_else(OutputSet::by_default),
            batch: rows as u32,
            sequences,
            beam_width,
            streaming,
            context_only: parameters.context_only,
            fills_outputs: limits.fills_outputs,
            return_log_probs: flags.return_log_probs,
            return_num_input_tokens: flags.return_num_input_tokens,
            return_num_output_tokens: flags.return_num_output_tokens,
            unfinished: AtomicU32::new(rows as u32),
            placements: None,
            text: None,
        },
        requests,
    })))
}

/// The handle of a request that may be malformed otherwise, so that its error can be its row.
pub(crate) fn handle_of_malformed(message: &ModelInferRequest) -> Option<Handle> {
    let place = message
        .inputs
        .iter()
        .position(|input| input.name == names::HANDLE)?;
    if let Some(raw) = message.raw_input_contents.get(place) {
        let bytes = raw.as_ref().try_into().ok();
        return bytes.map(|bytes| Handle(u64::from_le_bytes(bytes)));
    }
    let contents = message.inputs.get(place)?.contents.as_ref()?;
    contents.uint64_contents.first().copied().map(Handle)
}

/// What travels only on a stream of the request's own is refused by name.
fn step(
    handle: Handle,
    mut requests: Vec<Request>,
    flags: &model::Flags,
    outputs: Option<OutputSet>,
    parameters: &parameters::Parameters,
) -> Result<Incoming, RequestError> {
    let refused = [
        (requests.len() > 1, "a batch of several rows"),
        (flags.return_context_logits, "`return_context_logits`"),
        (flags.return_generation_logits, "`return_generation_logits`"),
        (flags.return_perf_metrics, "`return_perf_metrics`"),
    ];
    if let Some((_, what)) = refused.into_iter().find(|(refused, _)| *refused) {
        return Err(RequestError::NotInStepBatching { what });
    }
    let Some(request) = requests.pop() else {
        return Err(RequestError::NotInStepBatching {
            what: "an empty batch",
        });
    };
    let wants_cached_tokens = outputs.is_some_and(|outputs| outputs.has(names::CACHED_TOKENS));
    Ok(Incoming::Step {
        handle,
        request: Box::new(request),
        timeout: parameters.timeout,
        wants_cached_tokens,
        may_wait: parameters.may_wait,
        context_only: parameters.context_only,
    })
}

/// The outputs a request names; `None` where it names none.
fn requested_outputs(message: &ModelInferRequest) -> Result<Option<OutputSet>, RequestError> {
    if message.outputs.is_empty() {
        return Ok(None);
    }
    let mut set = OutputSet::empty();
    for requested in &message.outputs {
        let place = model::output(&requested.name).ok_or_else(|| RequestError::UnknownOutput {
            output: requested.name.clone(),
        })?;
        if let Some(name) = requested.parameters.keys().next() {
            return Err(RequestError::OutputParameter {
                output: requested.name.clone(),
                parameter: name.clone(),
            });
        }
        if !set.insert(place) {
            return Err(RequestError::RepeatedOutput {
                output: requested.name.clone(),
            });
        }
    }
    Ok(Some(set))
}

#[cfg(test)]
mod tests;
