//! Errors in Anthropic's words: the envelope, its types and their statuses. Owns the mapping from the
//! gateway's errors; what went wrong is theirs.

use inflight_openai::{ApiError, ErrorKind};
use serde::Serialize;
use serde_json::{Value, json};

/// The HTTP status: the error's own, but for a server without room, which Anthropic distinguishes from a broken
/// one.
pub const fn status(error: &ApiError) -> u16 {
    match error.kind {
        ErrorKind::Unavailable => 529,
        kind => kind.status(),
    }
}

/// The envelope's `error.type`.
pub const fn error_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidRequest
        | ErrorKind::ContextLengthExceeded
        | ErrorKind::MethodNotAllowed
        | ErrorKind::UnsupportedMediaType => "invalid_request_error",
        ErrorKind::InvalidApiKey => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::ModelNotFound | ErrorKind::UnknownUrl | ErrorKind::NotFound => "not_found_error",
        ErrorKind::PayloadTooLarge => "request_too_large",
        ErrorKind::RateLimited | ErrorKind::TokensUsed => "rate_limit_error",
        ErrorKind::Unavailable => "overloaded_error",
        ErrorKind::Timeout => "timeout_error",
        ErrorKind::Internal | ErrorKind::InvalidAnswer => "api_error",
    }
}

/// The code of a request that continues a thread, by which the SDKs' tool runners know to send whole conversations.
const THREAD_UNSUPPORTED: &str = "thread_unsupported_request";

/// 400: threads, in which a client sends only its new turns, are not kept.
pub(crate) fn no_threads() -> ApiError {
    let mut error = ApiError::unsupported(
        "thread",
        "Unsupported parameter: `thread`. Threads are not stored. Leave it out, and send the whole conversation in \
         `messages`.",
    );
    error.code = Some(THREAD_UNSUPPORTED);
    error
}

/// The body: `{"type": "error", "error": {"type", "message"}, "request_id"}`, with `error.details` where clients act
/// on them.
pub fn to_json(error: &ApiError, request_id: &str) -> Vec<u8> {
    let envelope = Envelope {
        envelope_type: "error",
        error: Detail {
            error_type: error_type(error.kind),
            message: message(error),
            details: (error.code == Some(THREAD_UNSUPPORTED)).then_some(Details {
                error_code: THREAD_UNSUPPORTED,
                unsupported: ["thread"],
            }),
        },
        request_id,
    };
    // Strings always serialize.
    serde_json::to_vec(&envelope).unwrap_or_default()
}

/// The message, which names headers and endpoints that clients of this API use.
fn message(error: &ApiError) -> String {
    match error.kind {
        ErrorKind::InvalidApiKey => error
            .message
            .replace("`Authorization: Bearer KEY`", "`x-api-key: KEY`"),
        _ => error.message.clone(),
    }
}

/// The envelope as a JSON schema.
pub fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {
                    "type": {"type": "string"},
                    "message": {"type": "string"},
                    "details": {"type": "object", "properties": {"error_code": {"type": "string"}}},
                },
            },
            "request_id": {"type": "string"},
        },
    })
}

#[derive(Serialize)]
struct Envelope<'a> {
    #[serde(rename = "type")]
    envelope_type: &'static str,
    error: Detail,
    request_id: &'a str,
}

#[derive(Serialize)]
struct Detail {
    #[serde(rename = "type")]
    error_type: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
}

#[derive(Serialize)]
struct Details {
    error_code: &'static str,
    unsupported: [&'static str; 1],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_anthropics_status_and_type() {
        let none: [&str; 0] = [];
        for (error, expected, word) in [
            (
                ApiError::invalid_request("max_tokens", "no"),
                400,
                "invalid_request_error",
            ),
            (
                ApiError::context_length_exceeded("messages", "long"),
                400,
                "invalid_request_error",
            ),
            (ApiError::invalid_api_key(true), 401, "authentication_error"),
            (ApiError::forbidden("origin", "no"), 403, "permission_error"),
            (
                ApiError::model_not_found("m", &none),
                404,
                "not_found_error",
            ),
            (
                ApiError::not_found("POST", "/v1/messages/x"),
                404,
                "not_found_error",
            ),
            (
                ApiError::method_not_allowed("GET", "/v1/messages"),
                405,
                "invalid_request_error",
            ),
            (ApiError::payload_too_large(5), 413, "request_too_large"),
            (
                ApiError::unsupported_media_type("no"),
                415,
                "invalid_request_error",
            ),
            (ApiError::rate_limited("busy"), 429, "rate_limit_error"),
            (ApiError::internal(), 500, "api_error"),
            (ApiError::timeout("late"), 504, "timeout_error"),
            (ApiError::unavailable("full"), 529, "overloaded_error"),
        ] {
            assert_eq!(status(&error), expected, "{error}");
            let body: Value = serde_json::from_slice(&to_json(&error, "req_1")).unwrap();
            assert_eq!(body["type"], "error");
            assert_eq!(body["error"]["type"], word, "{error}");
            assert_eq!(body["request_id"], "req_1");
        }
    }

    #[test]
    fn the_envelope_is_written_to_the_letter() {
        let error = ApiError::invalid_request("max_tokens", "It says \"no\".");
        let body: Value = serde_json::from_slice(&to_json(&error, "req_1")).unwrap();
        let detail = json!({"type": "invalid_request_error", "message": "It says \"no\"."});
        assert_eq!(
            body,
            json!({"type": "error", "error": detail, "request_id": "req_1"})
        );
    }

    #[test]
    fn a_thread_is_refused_as_the_sdks_expect() {
        let body: Value = serde_json::from_slice(&to_json(&no_threads(), "req_1")).unwrap();
        let details =
            json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
        assert_eq!(body["error"]["details"], details);
    }

    #[test]
    fn a_missing_key_is_asked_for_in_this_apis_header() {
        let body = to_json(&ApiError::invalid_api_key(false), "");
        assert!(
            String::from_utf8(body)
                .unwrap()
                .contains("`x-api-key: KEY`")
        );
    }
}
