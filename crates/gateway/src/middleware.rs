//! What every request passes: its id, the API key, its line in the log and its count. Owns the headers
//! that all answers share; knows no handler.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use inflight_openai::ApiError;

use crate::app::App;
use crate::error::{self, Failure};
use crate::metrics::RequestLabels;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const PROCESSING_MS: HeaderName = HeaderName::from_static("openai-processing-ms");
const VERSION: HeaderName = HeaderName::from_static("openai-version");
/// The API's version, which OpenAI has never changed.
const VERSION_VALUE: HeaderValue = HeaderValue::from_static("2020-10-01");
/// A client's id longer than this is replaced.
const MAX_REQUEST_ID: usize = 128;

/// What handlers know of the request beyond itself.
#[derive(Clone, Debug)]
pub struct RequestContext {
    pub id: Arc<str>,
    pub started: Instant,
    /// W3C trace context, handed to the worker as it came.
    pub trace_parent: Option<Box<str>>,
}

/// Runs around every request.
pub async fn observe(
    State(app): State<Arc<App>>,
    matched: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    let id_value = HeaderValue::from_str(&id).ok();
    let route = route_label(matched.as_ref().map(MatchedPath::as_str));
    let method = request.method().clone();
    let path = request.uri().path();
    let is_api = path == "/v1" || path.starts_with("/v1/");
    let refused = if is_api {
        authorize(&app, request.headers()).err()
    } else {
        None
    };
    let context = RequestContext {
        id: Arc::clone(&id),
        started,
        trace_parent: trace_parent(request.headers()),
    };
    let mut response = match refused {
        Some(refused) => error::response(&refused),
        None => {
            request.extensions_mut().insert(context);
            next.run(request).await
        }
    };
    let elapsed = started.elapsed();
    let status = response.status().as_u16();
    if let Some(value) = id_value {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if is_api {
        let millis = HeaderValue::from(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        response.headers_mut().insert(PROCESSING_MS, millis);
        response.headers_mut().insert(VERSION, VERSION_VALUE);
    }
    app.metrics
        .requests
        .get_or_create(&RequestLabels { route, status })
        .inc();
    let failure = response.extensions_mut().remove::<Failure>();
    let head_ms = elapsed.as_secs_f64() * 1e3;
    match failure {
        // Never the path itself nor the message: both may quote the client.
        Some(failure) => tracing::info!(
            request_id = %id, %method, route, status, head_ms,
            code = failure.code, param = failure.param, "request failed"
        ),
        None if is_api => {
            tracing::info!(request_id = %id, %method, route, status, head_ms, "request")
        }
        // Probes and scrapes.
        None => tracing::debug!(request_id = %id, %method, route, status, head_ms, "request"),
    }
    response
}

/// The client's id if it is harmless, else a new one.
fn request_id(headers: &HeaderMap) -> Arc<str> {
    let harmless = |id: &&str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte);
        !id.is_empty() && id.len() <= MAX_REQUEST_ID && id.bytes().all(allowed)
    };
    let given = headers
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok())
        .filter(harmless);
    match given {
        Some(id) => Arc::from(id),
        None => Arc::from(format!("req_{:032x}", rand::random::<u128>())),
    }
}

/// `traceparent` if it has the form of version 00: four fields in lower-case hex.
fn trace_parent(headers: &HeaderMap) -> Option<Box<str>> {
    let value = headers.get("traceparent")?.to_str().ok()?;
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let lengths = value.split('-').map(str::len);
    let valid = lengths.eq([2, 32, 16, 2]) && value.bytes().all(|byte| byte == b'-' || hex(byte));
    valid.then(|| value.into())
}

fn authorize(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = &app.api_key else {
        return Ok(());
    };
    let given = headers
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes);
    let bearer = given.and_then(|value| {
        let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
    });
    match bearer {
        Some(token) if key.matches(token) => Ok(()),
        _ => Err(ApiError::invalid_api_key(given.is_some())),
    }
}

/// The route's template: paths that clients make up never become labels.
fn route_label(matched: Option<&str>) -> &'static str {
    match matched {
        Some("/v1/chat/completions") => "/v1/chat/completions",
        Some("/v1/completions") => "/v1/completions",
        Some("/v1/models") => "/v1/models",
        Some("/v1/models/{*model}") => "/v1/models/{model}",
        Some("/health/live") => "/health/live",
        Some("/health/ready") => "/health/ready",
        Some("/metrics") => "/metrics",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_context_is_handed_on_only_when_well_formed() {
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", value.parse().unwrap());
            trace_parent(&headers)
        };
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(with(good).as_deref(), Some(good));
        for bad in [
            "",
            "00",
            &good.to_uppercase(),
            &format!("{good}-x"),
            &good.replace('-', "_"),
        ] {
            assert_eq!(with(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_harmless_request_ids_are_taken_over() {
        let with = |id: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(id).unwrap());
            request_id(&headers)
        };
        assert_eq!(&*with(b"my-id.7"), "my-id.7");
        let long = "a".repeat(MAX_REQUEST_ID + 1);
        for bad in [&b""[..], b"a b", b"\xe9", b"a\"b", long.as_bytes()] {
            let id = with(bad);
            assert!(id.starts_with("req_") && id.len() == 36, "{id}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
