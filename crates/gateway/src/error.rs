//! From failures to answers. Owns how worker errors and [`ApiError`] map to HTTP; the error envelopes are
//! inflight-openai's and inflight-anthropic's.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use inflight_anthropic::error as anthropic;
use inflight_openai::ApiError;
use inflight_upstream::expiry::GivenUp;
use tonic::Code;

/// What OpenAI's clients read before `retry-after`, which has no parts of seconds.
pub(crate) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// What a failed response carries for the access log: no text, since that may quote the client.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub code: Option<&'static str>,
    pub param: Option<String>,
}

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

/// The error with which a worker ended a request. `retry_after_ms`: when it expects to have room; 0: not
/// known.
pub(crate) fn from_worker(code: Code, text: &str, retry_after_ms: u32) -> ApiError {
    match code {
        // About the request, and written for the one who made it.
        Code::InvalidArgument | Code::OutOfRange => {
            ApiError::invalid_body(format!("The model's worker refused the request: {text}"))
        }
        Code::Unimplemented => ApiError::invalid_body(format!(
            "The model's worker does not support the request: {text}"
        )),
        Code::DeadlineExceeded => ApiError::timeout("The request timed out."),
        Code::ResourceExhausted => {
            let mut full = ApiError::unavailable("The model's worker is full. Retry later.");
            if retry_after_ms > 0 {
                full.retry_after = Some(Duration::from_millis(retry_after_ms.into()));
            }
            full
        }
        Code::Cancelled | Code::Aborted | Code::Unavailable => {
            ApiError::unavailable("The model's worker was lost. Retry the request.")
        }
        // The cause is the worker's own and may name files or internals: for the log only.
        _ => ApiError::internal(),
    }
}

/// 503: nobody takes the request now.
pub(crate) fn no_worker() -> ApiError {
    ApiError::unavailable("No worker of the model is ready. Retry later.")
}

/// 504, or 503 for what is still open when the grace period is over.
pub(crate) fn given_up(why: GivenUp) -> ApiError {
    match why {
        GivenUp::NoOutput(limit) => ApiError::timeout(format!(
            "The model generated nothing within {} s. Retry later.",
            limit.as_secs()
        )),
        GivenUp::TimedOut => ApiError::timeout("The request timed out."),
        GivenUp::ShuttingDown => {
            ApiError::unavailable("The gateway is shutting down. Retry the request.")
        }
    }
}

/// 400: prompt and requested tokens do not fit, with the numbers.
pub(crate) fn context_length_exceeded(
    field: &'static str,
    context: usize,
    prompt_tokens: usize,
    max_tokens: Option<u32>,
) -> ApiError {
    let message = match max_tokens {
        Some(wanted) => format!(
            "The model's context holds {context} tokens, but the request needs {}: {prompt_tokens} in \
             the prompt and {wanted} to generate. Shorten the prompt or ask for fewer tokens.",
            prompt_tokens.saturating_add(wanted as usize)
        ),
        None => format!(
            "The model's context holds {context} tokens, but the prompt alone has {prompt_tokens}, and \
             nothing could be generated. Shorten the prompt."
        ),
    };
    ApiError::context_length_exceeded(field, message)
}

/// 400: a text so long that it was not even tokenized.
pub(crate) fn text_too_long(field: &'static str, context: usize, at_least: usize) -> ApiError {
    let message = format!(
        "The model's context holds {context} tokens, but the prompt has {at_least} or more. Shorten the \
         prompt."
    );
    ApiError::context_length_exceeded(field, message)
}

/// 400: a token id that the model does not have.
pub(crate) fn outside_vocabulary(field: &str, id: i64, vocabulary: u32) -> ApiError {
    ApiError::invalid_request(
        field,
        format!(
            "The token id `{id}` in `{field}` is not in the model's vocabulary of {vocabulary}."
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_errors_keep_internals_and_tell_what_the_client_can_fix() {
        for (code, status, tells) in [
            (Code::InvalidArgument, 400, true),
            (Code::OutOfRange, 400, true),
            (Code::Unimplemented, 400, true),
            (Code::DeadlineExceeded, 504, false),
            (Code::ResourceExhausted, 503, false),
            (Code::Unavailable, 503, false),
            (Code::Cancelled, 503, false),
            (Code::Internal, 500, false),
            (Code::Unknown, 500, false),
            (Code::from_i32(-7), 500, false),
        ] {
            let error = from_worker(code, "the text", 0);
            assert_eq!(error.status(), status, "{code}");
            assert_eq!(error.message.contains("the text"), tells, "{code}");
            assert_eq!(error.retry_after.is_some(), status == 503, "{code}");
        }
    }

    #[test]
    fn a_full_worker_tells_when_it_expects_to_have_room() {
        for (milliseconds, seconds, exact) in
            [(0, 1, 1000), (1, 1, 1), (1000, 1, 1000), (2001, 3, 2001)]
        {
            let error = from_worker(Code::ResourceExhausted, "full", milliseconds);
            assert_eq!(
                (error.status(), error.retry_after_s()),
                (503, Some(seconds))
            );
            assert_eq!(error.retry_after_ms(), Some(exact));
        }
    }

    #[test]
    fn a_response_carries_envelope_type_and_retry_after() {
        let response = response(&ApiError::unavailable("no worker"));
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()["retry-after"], "1");
        assert_eq!(response.headers()["retry-after-ms"], "1000");
    }
}
