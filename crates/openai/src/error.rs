//! The error envelope: every failure that a client can see, its status and OpenAI's words for it. Owns
//! the map from meaning to status, `type` and `code`; does not know where a failure came from.
//!
//! openai-python retries 408, 409, 429 and every 5xx, so a failure that would repeat has none of those.

mod schema;

use std::time::Duration;

use serde::Serialize;

pub use self::schema::error_schema;

/// What kind of failure, as data: the status, `type` and `code` follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The body cannot be served as it is; the detail is in `code` and `param`.
    InvalidRequest,
    ContextLengthExceeded,
    InvalidApiKey,
    ModelNotFound,
    UnknownUrl,
    /// What the id names is not there, or not this client's.
    NotFound,
    MethodNotAllowed,
    PayloadTooLarge,
    /// The body is of a type, or compressed in a way, that is not read.
    UnsupportedMediaType,
    /// The request comes from where none is accepted, whatever its key.
    Forbidden,
    RateLimited,
    /// Its client has used the tokens that it may.
    TokensUsed,
    Internal,
    /// The model's answer is not what the request demands; another attempt may be.
    InvalidAnswer,
    /// No worker can serve it now; another attempt may succeed.
    Unavailable,
    /// The time allowed for the request ran out.
    Timeout,
}

impl ErrorKind {
    const ALL: [Self; 16] = [
        Self::InvalidRequest,
        Self::ContextLengthExceeded,
        Self::InvalidApiKey,
        Self::ModelNotFound,
        Self::UnknownUrl,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::PayloadTooLarge,
        Self::UnsupportedMediaType,
        Self::Forbidden,
        Self::RateLimited,
        Self::TokensUsed,
        Self::Internal,
        Self::InvalidAnswer,
        Self::Unavailable,
        Self::Timeout,
    ];

    /// The HTTP status.
    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidRequest | Self::ContextLengthExceeded => 400,
            Self::InvalidApiKey => 401,
            Self::Forbidden => 403,
            Self::ModelNotFound | Self::UnknownUrl | Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::PayloadTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::RateLimited | Self::TokensUsed => 429,
            Self::Internal => 500,
            Self::InvalidAnswer => 502,
            Self::Unavailable => 503,
            Self::Timeout => 504,
        }
    }

    /// The envelope's `type`.
    pub const fn error_type(self) -> &'static str {
        match self {
            Self::InvalidRequest
            | Self::ContextLengthExceeded
            | Self::InvalidApiKey
            | Self::ModelNotFound
            | Self::UnknownUrl
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::PayloadTooLarge
            | Self::UnsupportedMediaType
            | Self::Forbidden => "invalid_request_error",
            Self::RateLimited => "requests",
            Self::TokensUsed => "tokens",
            Self::Internal | Self::InvalidAnswer | Self::Unavailable | Self::Timeout => {
                "server_error"
            }
        }
    }

    /// The envelope's `code`, unless the error carries a more exact one.
    pub const fn code(self) -> Option<&'static str> {
        match self {
            Self::InvalidRequest | Self::NotFound => None,
            Self::ContextLengthExceeded => Some("context_length_exceeded"),
            Self::InvalidApiKey => Some("invalid_api_key"),
            Self::ModelNotFound => Some("model_not_found"),
            Self::UnknownUrl => Some("unknown_url"),
            Self::MethodNotAllowed => Some("method_not_supported"),
            Self::PayloadTooLarge => Some("request_too_large"),
            Self::UnsupportedMediaType => Some("unsupported_media_type"),
            Self::Forbidden => Some("forbidden"),
            Self::RateLimited | Self::TokensUsed => Some("rate_limit_exceeded"),
            Self::Internal => Some("server_error"),
            Self::InvalidAnswer => Some("invalid_answer"),
            Self::Unavailable => Some("service_unavailable"),
            Self::Timeout => Some("timeout"),
        }
    }
}

/// The words that OpenAI uses in `code` for an invalid request.
pub(crate) mod code {
    pub(crate) const MISSING: &str = "missing_required_parameter";
    pub(crate) const INVALID_TYPE: &str = "invalid_type";
    pub(crate) const INVALID_VALUE: &str = "invalid_value";
    pub(crate) const UNSUPPORTED: &str = "unsupported_parameter";
    pub(crate) const UNSUPPORTED_VALUE: &str = "unsupported_value";
    pub(crate) const INTEGER_ABOVE: &str = "integer_above_max_value";
    pub(crate) const INTEGER_BELOW: &str = "integer_below_min_value";
    pub(crate) const DECIMAL_ABOVE: &str = "decimal_above_max_value";
    pub(crate) const DECIMAL_BELOW: &str = "decimal_below_min_value";
    pub(crate) const ARRAY_ABOVE: &str = "array_above_max_length";
    pub(crate) const EMPTY_ARRAY: &str = "empty_array";
    pub(crate) const STRING_ABOVE: &str = "string_above_max_length";
}

/// A failure as the client sees it. Clients never see internals: the message is written for them.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub kind: ErrorKind,
    /// More exact than the kind's own code; `None` takes that.
    pub code: Option<&'static str>,
    /// The field at fault, as a path: `messages[0].content[1]`.
    pub param: Option<String>,
    pub message: String,
    /// The time until another attempt makes sense: the headers `retry-after` and `retry-after-ms`.
    pub retry_after: Option<Duration>,
}

/// What a limit is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateUnit {
    RequestsPerMinute,
    TokensPerMinute,
    OpenRequests,
}

/// How long a client waits where nothing better is known: a worker that restarts is back in about
/// this time, and openai-python waits no longer than 120 s.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

impl ApiError {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            code: None,
            param: None,
            message: message.into(),
            retry_after: None,
        }
    }

    fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// 400: the field at `param` cannot be served as it is.
    pub fn invalid_request(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
            .with_param(param)
            .with_code(code::INVALID_VALUE)
    }

    /// 400: the body as a whole is at fault (malformed JSON, not UTF-8, not an object).
    pub fn invalid_body(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// 400: the model or worker at hand cannot do what the field at `param` asks.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
            .with_param(param)
            .with_code(code::UNSUPPORTED)
    }

    /// 400: prompt and requested tokens do not fit the model's context. `param` is `messages`,
    /// `prompt` or `max_tokens`.
    pub fn context_length_exceeded(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ContextLengthExceeded, message).with_param(param)
    }

    /// 401: no API key, or a wrong one. The key itself never appears.
    pub fn invalid_api_key(given: bool) -> Self {
        Self::new(
            ErrorKind::InvalidApiKey,
            if given {
                "Incorrect API key provided. Send the server's key in the header `Authorization: Bearer KEY`."
            } else {
                "No API key provided. Send the server's key in the header `Authorization: Bearer KEY`."
            },
        )
    }

    /// 404: no such model; `known` are the names that would have worked.
    pub fn model_not_found<S: AsRef<str>>(model: &str, known: &[S]) -> Self {
        let mut message = format!(
            "The model `{}` does not exist.",
            crate::words::shortened(model)
        );
        match known {
            [] => message.push_str(" No model is loaded yet."),
            known => message.push_str(&available(known)),
        }
        Self::new(ErrorKind::ModelNotFound, message).with_param("model")
    }

    /// 400: the request names no model, and several are served; `known` are the names that would have worked.
    pub fn model_missing<S: AsRef<str>>(known: &[S]) -> Self {
        let message = format!(
            "Missing required parameter: `model`, because several models are served.{}",
            available(known)
        );
        Self::invalid_request("model", message).with_code(code::MISSING)
    }

    /// 400: no response of this client has the id that its request continues from.
    pub fn previous_response_not_found(id: &str) -> Self {
        let id = crate::words::shortened(id);
        Self::invalid_request(
            "previous_response_id",
            format!(
                "Previous response with id '{id}' not found. Responses are kept for a time, where `store` is \
                 not false; send the whole conversation in `input`."
            ),
        )
        .with_code("previous_response_not_found")
    }

    /// 400: the response that its request continues from is still being generated.
    pub fn previous_response_runs(id: &str) -> Self {
        Self::invalid_request(
            "previous_response_id",
            format!(
                "The response '{id}' has not ended. Retrieve it until its status is `completed`, then continue from it."
            ),
        )
    }

    /// 400: the response has no events to send again.
    pub fn response_not_streamed() -> Self {
        Self::unsupported(
            "stream",
            "`stream` is not supported for a response that was not created with `background` and `stream`. Leave it out.",
        )
    }

    /// 400: nobody waits for the answer, and it is not kept.
    pub fn background_not_kept() -> Self {
        Self::invalid_request(
            "background",
            "`background` needs a response that is kept. Leave `store` out, and do not use `background` in a batch; a \
             gateway that keeps no responses has none in the background.",
        )
    }

    /// The answer of a response in the background is larger than what may be kept.
    pub fn response_too_large() -> Self {
        Self::new(
            ErrorKind::Internal,
            "The conversation is too large to be kept. Send the request without `background`.",
        )
    }

    /// 404: no response of this client has the id.
    pub fn response_not_found(id: &str) -> Self {
        let id = crate::words::shortened(id);
        Self::new(
            ErrorKind::NotFound,
            format!(
                "Response with id '{id}' not found. Responses are kept for a time, where `store` is not false."
            ),
        )
    }

    /// 404: no item of this client's responses has the id that is at `place` of the input.
    pub fn item_not_found(id: &str, place: usize) -> Self {
        let id = crate::words::shortened(id);
        Self::new(
            ErrorKind::NotFound,
            format!(
                "Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try \
                 again with `store` set to true, or remove this item from your input."
            ),
        )
        .with_param(format!("input[{place}]"))
    }

    /// 404: no file of this client has the id.
    pub fn file_not_found(id: &str) -> Self {
        let id = crate::words::shortened(id);
        let message =
            format!("No such File object: {id}. It may have expired, or be another key's.");
        Self::new(ErrorKind::NotFound, message).with_param("id")
    }

    /// 404: no batch of this client has the id.
    pub fn batch_not_found(id: &str) -> Self {
        let id = crate::words::shortened(id);
        let message =
            format!("No batch found with id '{id}'. It may have expired, or be another key's.");
        Self::new(ErrorKind::NotFound, message)
    }

    /// 404: the server keeps no files, and runs no batches.
    pub fn no_files() -> Self {
        Self::new(
            ErrorKind::NotFound,
            "This gateway keeps no files and runs no batches. Start it with `--data-dir DIRECTORY` or `--data-url URL`.",
        )
        .with_code("files_not_enabled")
    }

    /// 400: what is kept would be more than it may be.
    pub fn storage_full(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message).with_code("storage_limit_exceeded")
    }

    /// 400: conversations are not compacted.
    pub fn no_compaction() -> Self {
        Self::invalid_body(
            "Conversations are not compacted. Send `/v1/responses` fewer items, or a summary in their place.",
        )
    }

    /// 404: a server has the model, and it cannot be served; `reason` names it and says what to change.
    pub fn model_not_served(reason: &str) -> Self {
        let message = format!("The model cannot be served: {reason}.");
        Self::new(ErrorKind::ModelNotFound, message).with_param("model")
    }

    /// 404: servers have the model, and none of them takes requests from here.
    pub fn model_only_watched(model: &str) -> Self {
        let model = crate::words::shortened(model);
        let message = format!(
            "The servers of the model `{model}` are only watched by this gateway, which sends them no requests. Send \
             the request to one of them, or to the proxy in front of them."
        );
        Self::new(ErrorKind::ModelNotFound, message).with_param("model")
    }

    /// 404: the model is served, but by nobody who makes embeddings of what it reads.
    pub fn no_embeddings(model: &str, reason: &str) -> Self {
        let model = crate::words::shortened(model);
        Self::new(
            ErrorKind::NotFound,
            format!("The model `{model}` offers no embeddings: it {reason}."),
        )
        .with_param("model")
    }

    /// 400: the model is served, and does not transcribe; `reason` says why.
    pub fn no_transcription(model: &str, reason: &str) -> Self {
        let model = crate::words::shortened(model);
        Self::invalid_request(
            "model",
            format!(
                "The model `{model}` does not transcribe: `file` {reason}. Name a model that does."
            ),
        )
    }

    /// 400: the model only transcribes.
    pub fn transcribes_only(model: &str) -> Self {
        let model = crate::words::shortened(model);
        Self::invalid_request(
            "model",
            format!(
                "The model `{model}` transcribes clips and does not take text. Send clips to `/v1/audio/transcriptions`, \
                 or name another model."
            ),
        )
    }

    /// 404: no such route.
    pub fn not_found(method: &str, path: &str) -> Self {
        let path = crate::words::shortened(path);
        Self::new(
            ErrorKind::UnknownUrl,
            format!("Unknown request URL: `{method} {path}`. Check the URL for typos."),
        )
    }

    /// 405: the route exists, the method does not.
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        let path = crate::words::shortened(path);
        Self::new(
            ErrorKind::MethodNotAllowed,
            format!("The method `{method}` is not allowed on `{path}`. Use another HTTP method."),
        )
    }

    /// 413: the body exceeds the server's limit.
    pub fn payload_too_large(limit_bytes: u64) -> Self {
        Self::new(
            ErrorKind::PayloadTooLarge,
            format!(
                "The request body is larger than the limit of `{limit_bytes}` bytes. Send a smaller one."
            ),
        )
    }

    /// 415: the body is not JSON, or compressed.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::UnsupportedMediaType, message)
    }

    /// 403: requests from there, or for that name, are not accepted; `code` says which.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, message).with_code(code)
    }

    /// 429: the server holds as many requests as it may.
    pub fn rate_limited(message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::RateLimited, message);
        error.retry_after = Some(DEFAULT_RETRY_AFTER);
        error
    }

    /// 429: the client's API key has used what it may, and has room again after `wait`. In OpenAI's words.
    pub fn rate_limit_reached(unit: RateUnit, limit: u64, wait: Duration) -> Self {
        let (kind, what) = match unit {
            RateUnit::RequestsPerMinute => (ErrorKind::RateLimited, "requests per min (RPM)"),
            RateUnit::TokensPerMinute => (ErrorKind::TokensUsed, "tokens per min (TPM)"),
            RateUnit::OpenRequests => (ErrorKind::RateLimited, "concurrent requests"),
        };
        let seconds = (wait.as_secs_f64() * 1e3).ceil() / 1e3;
        let mut error = Self::new(
            kind,
            format!(
                "Rate limit reached for this API key on {what}: Limit {limit}. Please try again in {seconds}s."
            ),
        );
        error.retry_after = Some(wait);
        error
    }

    /// Whole seconds until another attempt makes sense, rounded up.
    pub fn retry_after_s(&self) -> Option<u32> {
        let millis = self.retry_after_ms()?;
        u32::try_from(millis.div_ceil(1000)).ok()
    }

    /// The same in milliseconds.
    pub fn retry_after_ms(&self) -> Option<u64> {
        let nanos = self.retry_after?.as_nanos();
        u64::try_from(nanos.div_ceil(1_000_000)).ok()
    }

    /// 503: no worker can serve the request now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::Unavailable, message);
        error.retry_after = Some(DEFAULT_RETRY_AFTER);
        error
    }

    /// 502: the model's call is not what the request demands; `message` says how.
    pub fn invalid_answer(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidAnswer, message)
    }

    /// 504: the request's time ran out.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Timeout, message)
    }

    /// 500: a failure on our side. The cause is not for clients; it belongs in the log, with the request id.
    pub fn internal() -> Self {
        Self::new(
            ErrorKind::Internal,
            "The server had an error while processing the request. Retry, and if it persists, report the request id.",
        )
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.kind.status()
    }

    /// The envelope's `code`.
    pub fn code(&self) -> Option<&'static str> {
        self.code.or(self.kind.code())
    }

    /// The body: `{"error": {"message", "type", "param", "code"}}`.
    pub fn to_json(&self) -> Vec<u8> {
        let envelope = Envelope {
            error: Detail {
                message: &self.message,
                error_type: self.kind.error_type(),
                param: self.param.as_deref(),
                code: self.code(),
            },
        };
        // Strings always serialize.
        serde_json::to_vec(&envelope).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Detail<'a>,
}

#[derive(Serialize)]
struct Detail<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    error_type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

/// The names that would have worked, as a sentence.
fn available<S: AsRef<str>>(known: &[S]) -> String {
    let mut message = " Available models: ".to_owned();
    for (position, name) in known.iter().take(16).enumerate() {
        message.push_str(if position == 0 { "`" } else { ", `" });
        message.push_str(name.as_ref());
        message.push('`');
    }
    message.push_str(if known.len() > 16 { ", …" } else { "." });
    message
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(super) fn one_of_each() -> Vec<ApiError> {
        let none: [&str; 0] = [];
        vec![
            ApiError::invalid_request("temperature", "too hot"),
            ApiError::invalid_body("not JSON"),
            ApiError::unsupported("tools", "no tools"),
            ApiError::context_length_exceeded("messages", "too long"),
            ApiError::invalid_api_key(false),
            ApiError::invalid_api_key(true),
            ApiError::model_not_found("gpt-9", &["inflight-demo"]),
            ApiError::model_not_found("gpt-9", &none),
            ApiError::not_found("POST", "/v1/chat"),
            ApiError::previous_response_not_found("resp_1"),
            ApiError::response_not_found("resp_1"),
            ApiError::no_embeddings("m", "needs a worker"),
            ApiError::item_not_found("msg_1", 0),
            ApiError::method_not_allowed("GET", "/v1/completions"),
            ApiError::payload_too_large(33_554_432),
            ApiError::unsupported_media_type("not JSON"),
            ApiError::forbidden("origin_not_allowed", "not you"),
            ApiError::rate_limited("busy"),
            ApiError::rate_limit_reached(RateUnit::TokensPerMinute, 9, Duration::from_millis(1)),
            ApiError::unavailable("no worker"),
            ApiError::invalid_answer("no call"),
            ApiError::timeout("too late"),
            ApiError::internal(),
        ]
    }

    #[test]
    fn envelope_has_openai_shape_for_every_constructor() {
        let mut seen = std::collections::HashSet::new();
        for error in one_of_each() {
            seen.insert(error.kind);
            let body: Value = serde_json::from_slice(&error.to_json()).unwrap();
            let detail = body["error"].as_object().unwrap();
            let mut keys: Vec<_> = detail.keys().map(String::as_str).collect();
            keys.sort_unstable();
            assert_eq!(keys, ["code", "message", "param", "type"]);
            assert_eq!(body.as_object().unwrap().len(), 1);
            assert_eq!(detail["message"], json!(error.message));
            assert_eq!(detail["param"], json!(error.param));
            assert_eq!(detail["code"], json!(error.code()));
        }
        assert_eq!(
            seen.len(),
            ErrorKind::ALL.len(),
            "a kind has no constructor"
        );
    }

    #[test]
    fn kinds_have_openai_words() {
        let words: Vec<_> = ErrorKind::ALL
            .iter()
            .map(|kind| (kind.status(), kind.error_type(), kind.code()))
            .collect();
        let invalid = "invalid_request_error";
        assert_eq!(
            words,
            [
                (400, invalid, None),
                (400, invalid, Some("context_length_exceeded")),
                (401, invalid, Some("invalid_api_key")),
                (404, invalid, Some("model_not_found")),
                (404, invalid, Some("unknown_url")),
                (404, invalid, None),
                (405, invalid, Some("method_not_supported")),
                (413, invalid, Some("request_too_large")),
                (415, invalid, Some("unsupported_media_type")),
                (403, invalid, Some("forbidden")),
                (429, "requests", Some("rate_limit_exceeded")),
                (429, "tokens", Some("rate_limit_exceeded")),
                (500, "server_error", Some("server_error")),
                (502, "server_error", Some("invalid_answer")),
                (503, "server_error", Some("service_unavailable")),
                (504, "server_error", Some("timeout")),
            ]
        );
    }

    #[test]
    fn only_failures_that_may_pass_are_retried_by_clients() {
        use ErrorKind::{Internal, InvalidAnswer, RateLimited, Timeout, TokensUsed, Unavailable};
        for kind in ErrorKind::ALL {
            let may_pass = matches!(
                kind,
                RateLimited | TokensUsed | Internal | InvalidAnswer | Unavailable | Timeout
            );
            let is_retried = matches!(kind.status(), 408 | 409 | 429) || kind.status() >= 500;
            assert_eq!(is_retried, may_pass, "{kind:?}");
        }
    }

    #[test]
    fn overload_tells_when_to_come_back() {
        for error in one_of_each() {
            use ErrorKind::{RateLimited, TokensUsed, Unavailable};
            let waits = matches!(error.kind, RateLimited | TokensUsed | Unavailable);
            assert_eq!(error.retry_after.is_some(), waits, "{:?}", error.kind);
        }
    }

    #[test]
    fn long_model_names_are_shortened() {
        let error = ApiError::model_not_found(&"é".repeat(100_000), &["a"]);
        assert!(error.message.len() < 512);
    }
}
