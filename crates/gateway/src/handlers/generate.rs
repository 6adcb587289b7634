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

use crate::app::App;
use crate::error;
use crate::inbound::{self, Inbound};
use crate::metrics::FieldLabels;
use crate::middleware::RequestContext;
use crate::stream::body::{EventBody, Shape};
use crate::stream::choice::{Choice, Echo};
use crate::stream::collect;
use crate::stream::generation::{Generation, Handles, Observed};
use crate::stream::inbox::Inbox;
use crate::stream::logprobs::LogProbs;
use crate::translate::ask::Ask;
use crate::translate::plan::{self, Plan};
use crate::translate::tensors::{Origin, infer_request};
use crate::upstream::assets::ServedModel;
use crate::upstream::connection::Connection;
use crate::upstream::outbound::NotQueued;
use crate::upstream::table::{ModelEntry, NoModel};

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

/// One prompt of a request.
#[derive(Debug)]
pub struct PreparedPrompt {
    pub tokens: Vec<i32>,
    pub plan: Plan,
    pub echo: Option<Arc<Echo>>,
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

/// Tokens of a prompt's text; a text that is far too long is refused before it costs anything.
///
/// # Errors
/// 400 when the text cannot fit or the tokenizer cannot take it.
pub fn tokenize(
    served: &ServedModel,
    field: &'static str,
    text: &str,
    add_special_tokens: bool,
) -> Result<Vec<u32>, ApiError> {
    let tokenizer = served.text.tokenizer();
    let context = served.description.max_seq_len as usize;
    let fewest = tokenizer.fewest_tokens(text.len());
    if fewest > context {
        return Err(error::text_too_long(field, context, fewest));
    }
    tokenizer
        .encode(text, add_special_tokens)
        .map_err(|error| ApiError::invalid_request(field, format!("{error}.")))
}

/// Settles a tokenized prompt.
///
/// # Errors
/// 400, see [`plan::plan`].
pub fn prompt(
    ask: &Ask,
    served: &ServedModel,
    tokens: &[u32],
    echo_text: Option<String>,
) -> Result<PreparedPrompt, ApiError> {
    let plan = plan::plan(ask, served, tokens.len(), rand::random())?;
    let vocabulary = served.description.vocab_size;
    if let Some(id) = tokens.iter().find(|id| **id >= vocabulary) {
        return Err(error::outside_vocabulary(
            ask.prompt_field,
            i64::from(*id),
            vocabulary,
        ));
    }
    let tokens: Vec<i32> = tokens.iter().map(|&id| id as i32).collect();
    let echo = echo_text.map(|text| {
        Arc::new(Echo {
            text,
            tokens: tokens.clone(),
        })
    });
    Ok(PreparedPrompt { tokens, plan, echo })
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
                let prompt_tokens = prepared
                    .prompts
                    .iter()
                    .map(|prompt| prompt.tokens.len() as u64)
                    .sum();
                app.metrics.tokens_in.inc_by(prompt_tokens);
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
                    prepared.generation.n as usize,
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

/// Opens and sends one handle per prompt; dropping the handles stops what was sent.
fn submit(
    connection: &Arc<Connection>,
    prepared: &Prepared,
    context: &RequestContext,
    inbox: &Arc<Inbox>,
) -> Result<Handles, NotQueued> {
    let core_model = &connection.served.description.core_model_name;
    let n = prepared.generation.n;
    let mut handles = Handles::new(Arc::clone(connection));
    for (prompt, index) in prepared.prompts.iter().zip(0u32..) {
        let handle = connection
            .open(Arc::clone(inbox), index * n, n)
            .map_err(|_| NotQueued::Closed)?;
        handles.push(handle);
        let request = infer_request(
            &prompt.plan,
            core_model,
            Origin {
                request_id: &context.id,
                trace_parent: context.trace_parent.as_deref(),
            },
            &prompt.tokens,
            handle,
        );
        connection.submit(handle, request)?;
    }
    Ok(handles)
}

fn choices(prepared: &Prepared) -> Vec<Choice> {
    let tokenizer = prepared.served.text.tokenizer();
    let stops = StopMatcher::new(&prepared.generation.stop);
    let skip_special = prepared.generation.skip_special_tokens.unwrap_or(true);
    let mut choices = Vec::new();
    for prompt in &prepared.prompts {
        let ends: Arc<[i32]> = prompt
            .plan
            .stop_ids
            .iter()
            .copied()
            .chain(prompt.plan.end_id)
            .collect();
        for _ in 0..prepared.generation.n {
            let log_probs = prepared
                .log_probs
                .map(|top| LogProbs::new(Arc::clone(tokenizer), top as usize));
            choices.push(Choice::new(
                tokenizer,
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
