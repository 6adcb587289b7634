//! From failures to answers. Owns how an [`ApiError`] maps to HTTP; the error envelopes are inflight-openai's and
//! inflight-anthropic's, and which error a worker's failure is, inflight-streams'.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use inflight_anthropic::error as anthropic;
use inflight_openai::ApiError;
use inflight_streams::requests::Failure;
use tonic::Code;

/// What OpenAI's clients read before `retry-after`, which has no parts of seconds.
pub(crate) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The error's code in gRPC.
pub(crate) fn grpc_code(error: &ApiError) -> Code {
    match error.status() {
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        429 => Code::ResourceExhausted,
        503 => Code::Unavailable,
        400..=499 => Code::InvalidArgument,
        _ => Code::Internal,
    }
}

/// Marks a response whose request is logged when its last byte is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedAtEnd;

/// The error of a handler.
#[derive(Debug)]
pub(crate) struct HttpError(ApiError);

impl From<ApiError> for HttpError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        response(&self.0)
    }
}

/// Whether `path` is part of KServe's HTTP API; its clients read errors as [`flat_response`] writes them.
pub(crate) fn is_kserve(path: &str) -> bool {
    path == "/v2" || (path.starts_with("/v2/") && path != RERANK_OF_COHERE)
}

/// Below KServe's paths, and none of them: Cohere's clients send it.
const RERANK_OF_COHERE: &str = "/v2/rerank";

/// Whether `path` asks how KServe's server is, which everybody may.
pub(crate) fn is_probe(path: &str) -> bool {
    path.starts_with("/v2/health/")
}

/// Sent by every client of Anthropic's API, which shares the paths of models with OpenAI's.
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

/// Whether a request is one of Anthropic's API; its clients read errors as [`in_anthropics_form`] writes them.
pub(crate) fn is_anthropic(path: &str, headers: &HeaderMap) -> bool {
    let is_below = |root: &str| {
        let rest = path.strip_prefix(root);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    is_below("/v1/messages") || (is_below("/v1/models") && headers.contains_key(ANTHROPIC_VERSION))
}

/// The error that a response was made of.
#[derive(Clone, Debug)]
struct Cause(ApiError);

/// The error as an HTTP response.
pub(crate) fn response(error: &ApiError) -> Response {
    let mut response = with_body(error, error.to_json().into());
    response.extensions_mut().insert(Cause(error.clone()));
    response
}

/// Writes the error of a failed response as Anthropic's API does; others stay as they are.
pub(crate) fn in_anthropics_form(response: &mut Response, request_id: &str) {
    if let Some(Cause(error)) = response.extensions_mut().remove::<Cause>() {
        let status = StatusCode::from_u16(anthropic::status(&error));
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        *response.body_mut() = anthropic::to_json(&error, request_id).into();
    }
}

/// The error as an HTTP response in Triton's form; KServe's clients fail on OpenAI's.
pub(crate) fn flat_response(error: &ApiError) -> Response {
    let body = serde_json::json!({ "error": error.message });
    with_body(error, body.to_string().into())
}

/// A response that is logged as a failure.
pub(crate) fn marked(mut response: Response) -> Response {
    let failure = Failure {
        code: None,
        param: None,
    };
    response.extensions_mut().insert(failure);
    response
}

fn with_body(error: &ApiError, body: axum::body::Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    if let Some((seconds, millis)) = error.retry_after_s().zip(error.retry_after_ms()) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis));
    }
    let failure = Failure {
        code: error.code(),
        param: error.param.clone(),
    };
    response.extensions_mut().insert(failure);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_carries_envelope_type_and_retry_after() {
        let response = response(&ApiError::unavailable("no worker"));
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()["retry-after"], "1");
        assert_eq!(response.headers()["retry-after-ms"], "1000");
    }
}
