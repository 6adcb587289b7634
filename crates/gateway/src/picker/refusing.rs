//! What the proxy answers where no endpoint is picked: the error in the form of the API that the request is of.

use inflight_anthropic::error as anthropic;
use inflight_ext_proc::messages::ProcessingResponse;
use inflight_ext_proc::{HttpRequest, refusal};
use inflight_openai::ApiError;

use crate::error;

/// The error as the proxy's answer.
pub(super) fn refused(request: Option<&HttpRequest>, error: &ApiError) -> ProcessingResponse {
    let path = request.map_or("", |request| &request.path);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let is_anthropics = request.is_some_and(|request| error::is_anthropic(path, &request.headers));
    let is_call = request.is_some_and(HttpRequest::is_grpc);
    let grpc = is_call.then(|| error::grpc_code(error) as u32);
    let (status, body) = if is_call {
        // The proxy makes a status of gRPC of it.
        (error.status(), error.message.clone().into_bytes())
    } else if is_anthropics {
        let id = request.and_then(|request| request.headers.get("x-request-id"));
        let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
        (anthropic::status(error), anthropic::to_json(error, id))
    } else if error::is_kserve(path) {
        let body = serde_json::json!({ "error": error.message });
        (error.status(), body.to_string().into_bytes())
    } else {
        (error.status(), error.to_json())
    };
    let retry = error.retry_after_s().map(|seconds| seconds.to_string());
    let mut headers = Vec::new();
    if !is_call {
        headers.push(("content-type", "application/json"));
    }
    // Why, in the words of llm-d's picker.
    match error.status() {
        429 => headers.push(("x-llm-d-request-dropped-reason", "rejected-saturated")),
        503 => headers.push(("x-llm-d-request-dropped-reason", "rejected-no-endpoints")),
        _ => {}
    }
    if let Some(retry) = &retry {
        headers.push(("retry-after", retry));
    }
    refusal(status, grpc, headers, body)
}

#[cfg(test)]
mod tests {
    use inflight_ext_proc::messages::processing_response::Response;

    use super::*;

    #[test]
    fn an_error_is_answered_in_the_form_of_its_api() {
        for (path, error, status, text, header) in [
            (
                "/v1/chat/completions",
                ApiError::unavailable("No worker is ready."),
                503,
                "\"message\":\"No worker is ready.\"",
                "rejected-no-endpoints",
            ),
            (
                "/v2/rerank?a=b",
                ApiError::payload_too_large(5),
                413,
                "\"type\":\"invalid_request_error\"",
                "application/json",
            ),
            (
                "/v1/messages?beta=true",
                ApiError::rate_limited("Too many."),
                429,
                "\"type\":\"rate_limit_error\"",
                "rejected-saturated",
            ),
            (
                "/v2/models/m/infer",
                ApiError::payload_too_large(5),
                413,
                "{\"error\":",
                "application/json",
            ),
        ] {
            let request = HttpRequest {
                path: path.to_owned(),
                ..HttpRequest::default()
            };
            let answer = refused(Some(&request), &error);
            let Some(Response::ImmediateResponse(answer)) = answer.response else {
                panic!("{answer:?}");
            };
            assert_eq!(answer.status.unwrap().code, status, "{path}");
            let body = String::from_utf8(answer.body.to_vec()).unwrap();
            assert!(body.contains(text), "{path}: {body}");
            let headers = answer.headers.unwrap().set_headers;
            let values = headers.into_iter().filter_map(|header| header.header);
            let mut values = values.map(|header| header.raw_value);
            assert!(values.any(|value| value == header.as_bytes()), "{path}");
        }
    }
}
