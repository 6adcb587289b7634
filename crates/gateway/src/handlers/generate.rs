//! What chat and completions share: from a body to a running generation, and from that to a response.
//! Owns the order of the steps; each step's rules are elsewhere.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderName, HeaderValue, header};
use inflight_openai::chunk::{ChunkTemplate, StreamInfo};
use inflight_openai::{ApiError, IgnoredFields};
use inflight_text::StopMatcher;
use tokio::sync::OwnedSemaphorePermit;

use super::prompt::PreparedPrompt;
use crate::app::App;
use crate::error;
use crate::inbound::{self, Inbound};
use crate::metrics::FieldLabels;
use crate::middleware::RequestContext;
use crate::stream::body::{EventBody, Shape};
use crate::stream::choice::Choice;
use crate::stream::collect;
use crate::stream::generation::{Generation, Handles, Observed};
use crate::stream::inbox::Inbox;
use crate::stream::logprobs::LogProbs;
use crate::translate::plan::Plan;
use crate::translate::tensors::{Origin, infer_request};
use crate::translate::triton::{Question, triton_request};
use crate::upstream::connection::{Connection, Wire};
use crate::upstream::outbound::NotQueued;
use crate::upstream::served::ServedModel;
use crate::upstream::table::{ModelEntry, NoModel};
use crate::upstream::triton::answer::{Expected, Reader};

const IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-inflight-ignored-fields");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// A worker that is lost between choice and submission is replaced this often.
const SUBMIT_ATTEMPTS: usize = 3;

/// A request that is checked, rendered and tokenized.
#[derive(Debug)]
pub struct Prepared {
    pub entry: Arc<ModelEntry>,
    pub served: Arc<ServedModel>,
    pub generation: inflight_openai::Generation,
    pub prompts: Vec<PreparedPrompt>,
    /// `Some(k)`: choices tell log probabilities, with k alternatives.
    pub log_probs: Option<u32>,
    pub ignored: IgnoredFields,
}

/// Serves one request of either shape. `prepare` is pure CPU work in proportion to the body.
pub async fn respond(
    app: Arc<App>,
    request: Request,
    shape: Shape,
    prepare: fn(&App, &[u8]) -> Result<Prepared, ApiError>,
) -> Response {
    match try_respond(app, request, shape, prepare).await {
        Ok(response) => response,
        Err(error) => error::response(&error),
    }
}

async fn try_respond(
    app: Arc<App>,
    request: Request,
    shape: Shape,
    prepare: fn(&App, &[u8]) -> Result<Prepared, ApiError>,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let context = parts.extensions.get::<RequestContext>().cloned();
    let context = context.unwrap_or_else(|| RequestContext {
        id: Arc::from(""),
        started: Instant::now(),
        trace_parent: None,
    });
    let Inbound { bytes, held } =
        inbound::read(&parts.headers, body, app.max_body_bytes, &app.admission).await?;
    let length = bytes.len();
    let admitted = app.admission.admit()?;
    let worker = Arc::clone(&app);
    let work = move || {
        let prepared = prepare(&worker, &bytes);
        // The body's memory is free from here on.
        drop((bytes, held));
        prepared
    };
    let prepared = app.admission.work(length, work).await?;
    for field in prepared.ignored.labels() {
        app.metrics
            .ignored_fields
            .get_or_create(&FieldLabels { field })
            .inc();
    }
    let mut generation = start(&app, &prepared, &context, admitted)?;
    // 200 is held until the first rows: what fails before has a status of its own.
    collect::first_rows(&mut generation).await?;
    let mut response = if prepared.generation.stream {
        stream(generation, &prepared, shape)
    } else {
        collect::finished(&mut generation).await?;
        whole(&mut generation, &prepared, shape)?
    };
    if let Some(value) = prepared.ignored.header_value()
        && let Ok(value) = HeaderValue::from_str(&value)
    {
        response.headers_mut().insert(IGNORED_FIELDS, value);
    }
    Ok(response)
}

/// The model's table entry and what its workers serve.
///
/// # Errors
/// 404 when no worker serves it, 503 when one may yet, or none that does is ready.
pub fn locate(app: &App, model: &str) -> Result<(Arc<ModelEntry>, Arc<ServedModel>), ApiError> {
    let entry = app.table.find(model).map_err(|missing| match missing {
        NoModel::NotYet => {
            ApiError::unavailable("Not every worker has been reached yet. Send the request again.")
        }
        NoModel::Unknown => {
            let models = app.table.models();
            let known: Vec<&String> = models.keys().collect();
            ApiError::model_not_found(model, &known)
        }
    })?;
    let connection = entry.pick(None).ok_or_else(no_worker)?;
    let served = Arc::clone(&connection.served);
    Ok((entry, served))
}

fn no_worker() -> ApiError {
    ApiError::unavailable("No worker of the model is ready. Send the request again.")
}

fn start(
    app: &App,
    prepared: &Prepared,
    context: &RequestContext,
    admitted: OwnedSemaphorePermit,
) -> Result<Generation, ApiError> {
    let hash = &prepared.served.description.content_hash;
    for _ in 0..SUBMIT_ATTEMPTS {
        let connection = prepared.entry.pick(Some(hash)).ok_or_else(no_worker)?;
        let inbox = Arc::new(Inbox::default());
        match submit(&connection, prepared, context, &inbox) {
            Ok(handles) => {
                let counts = prepared.prompts.iter().map(|prompt| prompt.count);
                let prompt_tokens = counts.sum::<Option<u64>>();
                app.metrics.tokens_in.inc_by(prompt_tokens.unwrap_or(0));
                let observed = Observed::new(
                    Arc::clone(&app.metrics),
                    Arc::clone(&context.id),
                    context.started,
                    admitted,
                );
                return Ok(Generation::new(
                    inbox,
                    handles,
                    choices(prepared),
                    per_handle(prepared) as usize,
                    prompt_tokens,
                    observed,
                ));
            }
            Err(NotQueued::Closed) => {}
            Err(NotQueued::Full) => {
                return Err(ApiError::unavailable(
                    "The model's worker is not keeping up. Send the request again.",
                ));
            }
        }
    }
    Err(no_worker())
}

/// How many choices a handle has: at a plain Triton one, since not all of its models know several.
fn per_handle(prepared: &Prepared) -> u32 {
    match prepared.served.triton {
        Some(_) => 1,
        None => prepared.generation.n,
    }
}

/// Opens and sends the handles of each prompt; dropping the handles stops what was sent.
fn submit(
    connection: &Arc<Connection>,
    prepared: &Prepared,
    context: &RequestContext,
    inbox: &Arc<Inbox>,
) -> Result<Handles, NotQueued> {
    let n = prepared.generation.n;
    let sequences = per_handle(prepared);
    let mut handles = Handles::new(Arc::clone(connection));
    for (prompt, index) in prepared.prompts.iter().zip(0u32..) {
        for choice in (0..n).step_by(sequences as usize) {
            let handle = connection
                .open(Arc::clone(inbox), index * n + choice, sequences)
                .map_err(|_| NotQueued::Closed)?;
            handles.push(handle);
            send(connection, prepared, prompt, choice, context, handle)?;
        }
    }
    Ok(handles)
}

fn send(
    connection: &Connection,
    prepared: &Prepared,
    prompt: &PreparedPrompt,
    choice: u32,
    context: &RequestContext,
    handle: u64,
) -> Result<(), NotQueued> {
    let description = &connection.served.description;
    let origin = Origin {
        request_id: &context.id,
        trace_parent: context.trace_parent.as_deref(),
    };
    let exchanges = match &connection.wire {
        Wire::Steps(outbound) => {
            let model = &description.core_model_name;
            let request = infer_request(&prompt.plan, model, origin, &prompt.tokens, handle);
            return outbound.send(handle, request);
        }
        Wire::Exchanges(exchanges) => exchanges,
    };
    // A served model of such a connection always has its dialect.
    let model = prepared.served.triton.as_ref().ok_or(NotQueued::Closed)?;
    let question = Question {
        plan: &prompt.plan,
        tokens: &prompt.tokens,
        text: &prompt.text,
        stops: &prepared.generation.stop,
        // Each choice draws otherwise, and again the same for the same seed.
        seed: prompt.plan.sampling.seed.wrapping_add(u64::from(choice)),
        vocabulary: description.vocab_size,
        origin,
        request_id: &format!("{}-{handle:x}", context.id),
    };
    let request = triton_request(model, question);
    let expected = Expected {
        limit: prompt.plan.max_tokens,
        end_ids: end_ids(&prompt.plan),
        streaming: prompt.plan.streaming,
        log_probs: prompt.plan.log_probs.is_some(),
        tokenizer: prepared
            .served
            .text
            .as_ref()
            .map(|text| Arc::clone(text.tokenizer())),
        prompt_tokens: prompt.count.is_none() && choice == 0,
    };
    exchanges.send(handle, request, Reader::new(Arc::clone(model), expected));
    Ok(())
}

/// Tokens that end an answer and are no part of it.
fn end_ids(plan: &Plan) -> Arc<[i32]> {
    plan.stop_ids.iter().copied().chain(plan.end_id).collect()
}

fn choices(prepared: &Prepared) -> Vec<Choice> {
    let tokenizer = prepared.served.text.as_ref().map(|text| text.tokenizer());
    let decodes = tokenizer.filter(|_| !prepared.served.takes_text());
    let stops = StopMatcher::new(&prepared.generation.stop);
    let skip_special = prepared.generation.skip_special_tokens.unwrap_or(true);
    let mut choices = Vec::new();
    for prompt in &prepared.prompts {
        let ends = end_ids(&prompt.plan);
        for _ in 0..prepared.generation.n {
            let log_probs = prepared
                .log_probs
                .zip(decodes)
                .map(|(top, tokenizer)| LogProbs::new(Arc::clone(tokenizer), top as usize));
            choices.push(Choice::new(
                decodes,
                skip_special,
                stops.clone(),
                Arc::clone(&ends),
                log_probs,
                prompt.echo.clone(),
            ));
        }
    }
    choices
}

fn stream(generation: Generation, prepared: &Prepared, shape: Shape) -> Response {
    let (id, created) = identity(shape);
    let include_usage = prepared.generation.include_usage;
    let model = &prepared.generation.model;
    let info = StreamInfo {
        id: &id,
        created,
        model,
        include_usage,
    };
    let indices = (0u32..).take(generation.choices.len());
    let templates = indices
        .map(|index| match shape {
            Shape::Chat => ChunkTemplate::chat(&info, index),
            Shape::Completion => ChunkTemplate::completion(&info, index),
        })
        .collect();
    let body = EventBody::new(generation, shape, templates, include_usage);
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would otherwise gather events into its buffer.
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

fn whole(
    generation: &mut Generation,
    prepared: &Prepared,
    shape: Shape,
) -> Result<Response, ApiError> {
    let (id, created) = identity(shape);
    let model = prepared.generation.model.clone();
    let json = match shape {
        Shape::Chat => serde_json::to_vec(&collect::chat(generation, id, created, model)),
        Shape::Completion => {
            serde_json::to_vec(&collect::completion(generation, id, created, model))
        }
    };
    let json = json.map_err(|error| {
        tracing::error!(%error, "cannot write a response");
        ApiError::internal()
    })?;
    let mut response = Response::new(Body::from(json));
    let content_type = HeaderValue::from_static("application/json");
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

/// A fresh id and the time.
fn identity(shape: Shape) -> (String, u64) {
    let prefix = match shape {
        Shape::Chat => "chatcmpl",
        Shape::Completion => "cmpl",
    };
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.as_secs());
    (format!("{prefix}-{:032x}", rand::random::<u128>()), now)
}
