//! Inputs of which workers make a vector each: texts become token ids, and each input a call to a worker that pools its
//! hidden states. Owns the calls' tensors; which worker answers is `upstream`'s, what vectors are for is the caller's.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use futures_util::{StreamExt, TryStreamExt, stream};
use inflight_kserve::inference::grpc_inference_service_server::GrpcInferenceService;
use inflight_kserve::inference::{ModelInferRequest, ModelInferResponse};
use inflight_kserve::names;
use inflight_kserve::tensor::{RequestBuilder, Tensors};
use inflight_models::capability::{Capability, lacks};
use inflight_models::served::ServedModel;
use inflight_openai::completions::Prompt;
use inflight_openai::embeddings::Pooling;
use inflight_openai::{ApiError, IgnoredFields};
use inflight_streams::error::from_worker;
use inflight_text::Scope;
use inflight_translate::error::outside_vocabulary;
use inflight_upstream::forward::ForwardCall;
use tokio::time::Instant;

use super::arrival::Arrival;
use super::asking::Asking;
use super::locate::{Located, locate_or_only};
use super::{answering, prompt};
use crate::middleware::Timing;
use crate::state::AppState;

/// Inputs of one request that are with workers at once: enough to fill a batch, and others get their turn.
const CALLS: usize = 32;

/// Inputs as token ids.
#[derive(Debug)]
pub(super) struct PooledInputs {
    inputs: Vec<Vec<i32>>,
    pooling: Pooling,
    /// What the vectors must have, if the request says so.
    dimensions: Option<u32>,
    name: String,
    /// What calls name the model by.
    model: String,
}

/// The vectors of inputs, in their order.
pub(super) struct Pooled {
    pub(super) vectors: Vec<Vec<f32>>,
    /// Tokens of all inputs.
    pub(super) tokens: u64,
    /// From the first call to the last answer.
    pub(super) upstream: Duration,
}

/// What becomes one vector.
pub(super) struct Input {
    /// The field that errors name.
    pub(super) field: String,
    pub(super) prompt: Prompt,
    /// How many of its tokens count at most.
    pub(super) most: Option<usize>,
}

/// How inputs become vectors.
pub(super) struct How {
    pub(super) pooling: Pooling,
    /// Whether texts get the tokenizer's special tokens.
    pub(super) adds: bool,
    pub(super) dimensions: Option<u32>,
}

impl PooledInputs {
    /// Tokenizes inputs. The only model's name is filled in where there is none.
    ///
    /// # Errors
    /// 404: there is no such model, or it makes no vectors. 400: an input that it cannot take.
    pub(super) fn prepare(
        state: &Asking<'_>,
        model: &mut String,
        inputs: impl IntoIterator<Item = Input>,
        how: &How,
    ) -> Result<Self, ApiError> {
        let Located {
            entry,
            served,
            adapter,
        } = locate_or_only(state, model)?;
        if let Some(reason) = lacks(&served, Capability::Embeddings) {
            return Err(ApiError::no_embeddings(model, &reason));
        }
        if adapter.is_some() {
            return Err(ApiError::no_embeddings(model, "does not support adapters"));
        }
        let started = Instant::now();
        let inputs = inputs.into_iter().map(|input| {
            let Input {
                field,
                prompt,
                most,
            } = input;
            let tokens = tokens_of(&served, prompt, how.adds, state.scope());
            let mut tokens = tokens.map_err(|error| at(error, &field))?;
            tokens.truncate(most.unwrap_or(usize::MAX));
            check_length(&served, tokens.len(), &field)?;
            Ok(tokens.into_iter().map(|id| id as i32).collect())
        });
        let inputs = inputs.collect::<Result<Vec<Vec<i32>>, ApiError>>()?;
        let spent = started.elapsed().as_secs_f64();
        state.metrics.tokenize_time.observe(spent);
        Ok(Self {
            inputs,
            pooling: how.pooling,
            dimensions: how.dimensions,
            name: entry.name.clone(),
            // Each worker's own model has this name among the models of all.
            model: format!("{}:{}", entry.name, served.description.core_model_name),
        })
    }

    /// Asks workers for their vectors.
    ///
    /// # Errors
    /// Those of workers; 400: vectors of another size than the request wants.
    pub(super) async fn pool(self, state: &AppState, arrival: Arrival) -> Result<Pooled, ApiError> {
        let (context, place) = arrival.call();
        let forward = Arc::clone(&state.forward);
        let call = ForwardCall { forward, context };
        let tokens = self.inputs.iter().map(Vec::len).sum::<usize>() as u64;
        let sent = Instant::now();
        let calls = self.inputs.into_iter().map(|tokens: Vec<i32>| {
            let message = infer_request(&self.model, &tokens, self.pooling);
            embed(&call, message, self.dimensions)
        });
        let vectors = stream::iter(calls).buffered(CALLS).try_collect().await?;
        let upstream = sent.elapsed();
        let counted = state.metrics.streams.for_model(&self.name).tokens_in;
        counted.inc_by(tokens);
        place.used(tokens);
        Ok(Pooled {
            vectors,
            tokens,
            upstream,
        })
    }
}

/// What is made of vectors, as an answer.
///
/// # Errors
/// 500: it cannot be written.
pub(super) fn answer(
    value: &impl serde::Serialize,
    ignored: &IgnoredFields,
    upstream: Duration,
) -> Result<Response, ApiError> {
    let mut response = answering::json(value)?;
    answering::report_ignored(&mut response, ignored);
    response.extensions_mut().insert(Timing {
        upstream,
        first_token: None,
    });
    Ok(response)
}

fn tokens_of(
    served: &ServedModel,
    input: Prompt,
    adds: bool,
    scope: Scope,
) -> Result<Vec<u32>, ApiError> {
    match input {
        Prompt::Tokens(tokens) => {
            let vocabulary = served.vocabulary().unwrap_or(i32::MAX as u32);
            match tokens.iter().find(|id| **id >= vocabulary) {
                Some(id) => Err(outside_vocabulary("input", i64::from(*id), vocabulary)),
                None => Ok(tokens),
            }
        }
        Prompt::Text(text) => {
            let model = served.text.as_deref().ok_or_else(ApiError::internal)?;
            prompt::tokenize(served, model, "input", &text, adds, scope)
        }
    }
}

/// The error at the input that it is about.
fn at(mut error: ApiError, field: &str) -> ApiError {
    if error.param.is_some() {
        error.param = Some(field.to_owned());
    }
    error
}

/// A worker takes a prompt only with room for one token after it.
fn check_length(served: &ServedModel, tokens: usize, field: &str) -> Result<(), ApiError> {
    if tokens == 0 {
        return Err(ApiError::invalid_request(
            field,
            format!("Invalid value for `{field}`: it has no tokens. Send some text."),
        ));
    }
    let room = served.context().map(|context| context.saturating_sub(1));
    let most = room.into_iter().chain(served.max_input()).min();
    match most.filter(|most| tokens > *most) {
        Some(most) => Err(ApiError::context_length_exceeded(
            field,
            format!(
                "The model takes inputs of {most} tokens, but `{field}` has {tokens}. Shorten it."
            ),
        )),
        None => Ok(()),
    }
}

fn infer_request(model: &str, tokens: &[i32], pooling: Pooling) -> ModelInferRequest {
    let length = i32::try_from(tokens.len()).unwrap_or(i32::MAX);
    let mut request = RequestBuilder::new(model, "", size_of_val(tokens) + 64);
    request
        .vector("input_ids", tokens)
        .scalar("input_lengths", length)
        .scalar("request_output_len", 1)
        .push_bytes(names::POOLING, &[1, 1], [pooling.name()])
        .output(names::EMBEDDING);
    request.build()
}

async fn embed(
    call: &ForwardCall,
    message: ModelInferRequest,
    dimensions: Option<u32>,
) -> Result<Vec<f32>, ApiError> {
    let answer = call.model_infer(tonic::Request::new(message)).await;
    let answer = answer.map_err(|status| from_worker(status.code(), status.message(), 0))?;
    let values = read(answer.get_ref()).ok_or_else(|| {
        tracing::error!("a worker answered without an embedding");
        ApiError::internal()
    })?;
    match dimensions.filter(|wanted| *wanted as usize != values.len()) {
        Some(wanted) => Err(ApiError::unsupported(
            "dimensions",
            format!(
                "`dimensions` is `{wanted}`, but the model's embeddings have `{}` values and cannot be \
                 shortened. Leave it out.",
                values.len()
            ),
        )),
        None => Ok(values),
    }
}

fn read(answer: &ModelInferResponse) -> Option<Vec<f32>> {
    let outputs = Tensors::outputs(answer).ok()?;
    let values = outputs.values::<f32>(names::EMBEDDING).ok().flatten()?;
    let is_whole = !values.is_empty() && values.iter().all(|value| value.is_finite());
    is_whole.then_some(values)
}
