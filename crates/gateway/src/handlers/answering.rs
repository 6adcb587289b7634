//! The answer to a chat or completions request: streamed, or whole. Owns its headers; the content is
//! inflight-streams'.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderName, HeaderValue, header};
use inflight_base::wall_clock::since_epoch;
use inflight_openai::chunk::{AnswerKind, ChunkTemplate, StreamInfo};
use inflight_openai::{ApiError, IgnoredFields};
use inflight_streams::active_request::ActiveRequest;
use inflight_streams::body::{EventBody, EventWriter};
use inflight_streams::chunks::ChunkWriter;
use inflight_streams::details::AnswerDetails;
use inflight_streams::prompts_mover::noted;
use inflight_streams::whole;
use inflight_upstream::classify::Refused;
use inflight_upstream::survival::Report;

use super::arrival::Arrival;
use super::locate::Located;
use super::models;
use super::prepared::Prepared;
use super::sending;
use crate::error::LoggedAtEnd;
use crate::middleware::Timing;
use crate::state::AppState;

pub(crate) const IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-inflight-ignored-fields");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Sends a request to a worker and answers it. The status is sent with the first output of a stream, or with the
/// whole answer when it is not streamed, so that a failure before then gets its own status.
///
/// # Errors
/// The request failed before anything was answered.
pub(super) async fn answer(
    state: &Arc<AppState>,
    prepared: &Arc<Prepared>,
    arrival: Arrival,
    kind: AnswerKind,
) -> Result<Response, ApiError> {
    let mut request = begin(state, prepared, arrival).await?;
    let timing = timing(&request, prepared);
    let resumed = request.resumed();
    let response = if prepared.generation.stream {
        streamed(state, request, prepared, kind)
    } else {
        complete(state, &mut request, prepared, kind)?
    };
    Ok(finish(response, prepared, timing, resumed))
}

/// Where the time went until the answer can be sent.
pub(super) fn timing(request: &ActiveRequest, prepared: &Prepared) -> Option<Timing> {
    let (upstream, first) = request.times()?;
    Some(Timing {
        upstream,
        first_token: Some(first).filter(|_| prepared.generation.stream),
    })
}

/// Sends a request to a worker and waits until the answer can be sent, streamed or whole.
///
/// # Errors
/// See [`answer`].
pub(super) async fn begin(
    state: &Arc<AppState>,
    prepared: &Arc<Prepared>,
    arrival: Arrival,
) -> Result<ActiveRequest, ApiError> {
    let request = sending::send(state, prepared, arrival).await;
    let mut request = request.map_err(|error| named(error, prepared))?;
    if prepared.generation.stream {
        request.begin_answer();
    }
    Ok(request)
}

/// Completes the answer to a request that was dispatched.
pub(super) fn finish(
    mut response: Response,
    prepared: &Prepared,
    timing: Option<Timing>,
    resumed: Option<Report>,
) -> Response {
    response.extensions_mut().insert(LoggedAtEnd);
    if let Some(timing) = timing {
        response.extensions_mut().insert(timing);
    }
    report_ignored(&mut response, &prepared.ignored);
    // A stream reports it behind its body.
    let resumed = resumed.filter(|_| !prepared.generation.stream);
    if let Some(report) = resumed {
        response.headers_mut().extend(noted(report));
    }
    response
}

/// Names the fields that had no effect.
pub(super) fn report_ignored(response: &mut Response, ignored: &IgnoredFields) {
    if let Some(value) = ignored.header_value()
        && let Ok(value) = HeaderValue::from_str(&value)
    {
        response.headers_mut().insert(IGNORED_FIELDS, value);
    }
}

/// What the answer reports in addition to text and usage.
fn details(state: &AppState, prepared: &Prepared) -> AnswerDetails {
    let generation = &prepared.generation;
    let asked = generation.extensions.as_deref();
    let prompts = || -> Vec<Vec<i32>> {
        let prompts = prepared.prompts.iter();
        prompts.map(|prompt| prompt.tokens.clone()).collect()
    };
    let top = asked.and_then(|asked| asked.prompt_logprobs);
    let text = prepared.model.served.text.as_ref();
    let prompt_logprobs = top
        .zip(text)
        .map(|(top, text)| (top as usize, Arc::clone(text.tokenizer())));
    AnswerDetails {
        stop: generation.stop.clone(),
        prompts: asked
            .filter(|asked| asked.return_token_ids)
            .map(|_| prompts()),
        n: generation.n as usize,
        names_function: prepared.demand().is_some_and(|calls| calls.names_function),
        reasoning_field: state.reasoning_field,
        usage: generation.continuous_usage,
        scored: if prompt_logprobs.is_some() {
            prompts()
        } else {
            Vec::new()
        },
        prompt_logprobs,
    }
}

/// A worker's refusal in terms of the field that it is about.
fn named(mut error: ApiError, prepared: &Prepared) -> ApiError {
    let Located { entry, adapter, .. } = &prepared.model;
    match Refused::by(&error.message) {
        Some(Refused::Adapter) if adapter.is_some() && error.status() == 400 => {
            let known = models::names(std::iter::once(entry));
            return ApiError::model_not_found(&prepared.generation.model, &known);
        }
        Some(Refused::Guide) if error.param.is_none() => {
            let extensions = prepared.generation.extensions.as_ref();
            let guide = extensions.and_then(|extensions| extensions.guide.as_ref());
            error.param = guide.map(|guide| guide.param.to_owned());
        }
        _ => {}
    }
    error
}

fn streamed(
    state: &AppState,
    request: ActiveRequest,
    prepared: &Prepared,
    kind: AnswerKind,
) -> Response {
    let (id, created) = identity(kind);
    let include_usage = prepared.generation.include_usage;
    let model = &prepared.generation.model;
    let info = StreamInfo {
        id: &id,
        created,
        model,
        include_usage,
    };
    let details = details(state, prepared);
    let indices = (0u32..).take(request.choices.len());
    let templates = indices
        .map(|index| match kind {
            AnswerKind::Chat => {
                ChunkTemplate::chat(&info, index).with_reasoning(details.reasoning_field)
            }
            AnswerKind::Completion => ChunkTemplate::completion(&info, index),
        })
        .collect();
    events(EventBody::new(request, |request, out| {
        ChunkWriter::begin(request, kind, templates, include_usage, details, out)
    }))
}

/// A response of server-sent events.
pub(super) fn events<W>(body: EventBody<W>) -> Response
where
    W: EventWriter + Send + Unpin + 'static,
{
    event_stream(Body::new(body))
}

/// A response whose body is server-sent events.
pub(super) fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would otherwise collect events in its buffer.
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

fn complete(
    state: &AppState,
    request: &mut ActiveRequest,
    prepared: &Prepared,
    kind: AnswerKind,
) -> Result<Response, ApiError> {
    let (id, created) = identity(kind);
    let model = prepared.generation.model.clone();
    let details = details(state, prepared);
    match kind {
        AnswerKind::Chat => json(&whole::chat(request, id, created, model, &details)),
        AnswerKind::Completion => json(&whole::completion(request, id, created, model, &details)),
    }
}

/// A response in one piece.
///
/// # Errors
/// 500: the value cannot be written as JSON.
pub(super) fn json(value: &impl serde::Serialize) -> Result<Response, ApiError> {
    let json = serde_json::to_vec(value).map_err(|error| {
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

/// A new id and the time.
fn identity(kind: AnswerKind) -> (String, u64) {
    let prefix = match kind {
        AnswerKind::Chat => "chatcmpl",
        AnswerKind::Completion => "cmpl",
    };
    let now = since_epoch().as_secs();
    (format!("{prefix}-{:032x}", rand::random::<u128>()), now)
}
