//! What is recorded of each answer: its headers that all answers share, its line in the log and its count.

use std::collections::HashMap;

use axum::response::Response;
use http::{HeaderName, HeaderValue, Method};
use inflight_base::milliseconds;
use inflight_rest::Route;
use inflight_streams::requests::Failure;

use super::request_id::{ANTHROPIC_REQUEST_ID, REQUEST_ID, RequestContext};
use super::{Known, timing};
use crate::error::{self, LoggedAtEnd};
use crate::metrics::{Metrics, RequestLabels};

const PROCESSING_MS: HeaderName = HeaderName::from_static("openai-processing-ms");
const VERSION: HeaderName = HeaderName::from_static("openai-version");
/// The API's version, which OpenAI has never changed.
const VERSION_VALUE: HeaderValue = HeaderValue::from_static("2020-10-01");

/// What is recorded of a request besides its answer.
#[derive(Debug)]
pub(super) struct Requested {
    pub(super) method: Method,
    /// See [`route_label`].
    pub(super) route: &'static str,
    /// Whether it is part of the OpenAI API, of Anthropic's or of KServe's; the rest are probes and scrapes.
    pub(super) is_openai: bool,
    pub(super) is_anthropic: bool,
    pub(super) is_kserve: bool,
}

/// Completes the headers of an answer, logs it and counts it.
pub(super) fn record(
    metrics: &Metrics,
    context: &RequestContext,
    requested: &Requested,
    response: &mut Response,
) {
    let elapsed = context.started.elapsed();
    let status = response.status().as_u16();
    let Requested {
        method,
        route,
        is_openai,
        is_anthropic,
        is_kserve,
    } = requested;
    let id = &context.id;
    if let Ok(value) = HeaderValue::from_str(id) {
        if *is_anthropic {
            let value = value.clone();
            response.headers_mut().insert(ANTHROPIC_REQUEST_ID, value);
        }
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if *is_openai {
        let millis = HeaderValue::from(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        response.headers_mut().insert(PROCESSING_MS, millis);
        response.headers_mut().insert(VERSION, VERSION_VALUE);
    }
    if *is_openai || *is_anthropic {
        timing::add_headers(response, elapsed);
    }
    metrics
        .requests
        .get_or_create(&RequestLabels { route, status })
        .inc();
    let failure = response.extensions_mut().remove::<Failure>();
    let logged_at_end = response.extensions_mut().remove::<LoggedAtEnd>().is_some();
    let head_ms = milliseconds(elapsed);
    match failure {
        // Never the path itself nor the message: both may quote the client.
        Some(failure) => tracing::info!(
            request_id = %id, %method, route, status, head_ms,
            code = failure.code, param = failure.param, "request failed"
        ),
        None if (*is_openai || *is_anthropic || *is_kserve) && !logged_at_end => {
            tracing::info!(request_id = %id, %method, route, status, head_ms, "request");
        }
        None => tracing::debug!(request_id = %id, %method, route, status, head_ms, "request"),
    }
}

/// A method's name: OpenTelemetry's word for one that nobody knows is `_OTHER`.
pub(super) fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::PUT => "PUT",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        _ => "_OTHER",
    }
}

/// The route's template: paths that clients make up never become labels.
pub(super) fn route_label(
    known: &HashMap<&'static str, Known>,
    matched: Option<&str>,
    path: &str,
) -> &'static str {
    match matched.map(|matched| known.get(matched)) {
        Some(Some(known)) => known.label,
        Some(None) if error::is_kserve(path) => {
            // By either method: what a path is does not depend on it.
            let route = [inflight_rest::Method::Get, inflight_rest::Method::Post];
            let mut routes = route
                .into_iter()
                .filter_map(|method| Route::parse(method, path).ok());
            routes.next().map_or("/v2/other", |route| route.label())
        }
        _ => "other",
    }
}
