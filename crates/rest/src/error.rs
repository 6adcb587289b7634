//! What a failed request is answered: Triton's status codes, and its `{"error": "…"}`.

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};
use tonic::{Code, Status};

/// gRPC's retry design (proposal A6): when a client should retry, in the metadata of a refusal.
const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// A failed request, as its client reads it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RestError {
    pub status: StatusCode,
    pub message: String,
    /// When to try again, where that may help.
    pub retry_after_s: Option<u32>,
}

impl RestError {
    /// An error that the same request would meet again.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            retry_after_s: None,
        }
    }

    /// 400: the request is at fault.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// The error as its response.
    pub fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.json()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// The error as Triton writes it.
    pub fn json(&self) -> String {
        serde_json::json!({ "error": self.message }).to_string()
    }
}

impl From<Status> for RestError {
    /// The codes that Triton has map as Triton maps them; the others as HTTP means them.
    fn from(status: Status) -> Self {
        let code = match status.code() {
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::InvalidArgument
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::OutOfRange => StatusCode::BAD_REQUEST,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::Unavailable | Code::ResourceExhausted | Code::Aborted => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let pushback = status.metadata().get(RETRY_PUSHBACK);
        let pushback = pushback.and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
        let retry = pushback.map_or(1, |milliseconds| milliseconds.div_ceil(1000).max(1));
        Self {
            status: code,
            message: status.message().to_owned(),
            retry_after_s: (code == StatusCode::SERVICE_UNAVAILABLE).then_some(retry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_as_tritons() {
        for (code, status, retry) in [
            (Code::Internal, 500, None),
            (Code::NotFound, 404, None),
            (Code::Unavailable, 503, Some(1)),
            (Code::Unimplemented, 501, None),
            (Code::InvalidArgument, 400, None),
            (Code::AlreadyExists, 400, None),
            (Code::Unknown, 400, None),
            (Code::ResourceExhausted, 503, Some(1)),
            (Code::DeadlineExceeded, 504, None),
        ] {
            let error = RestError::from(Status::new(code, "a \"text\""));
            assert_eq!(
                (error.status.as_u16(), error.retry_after_s),
                (status, retry)
            );
            assert_eq!(error.json(), r#"{"error":"a \"text\""}"#);
        }
        let mut full = Status::resource_exhausted("full");
        full.metadata_mut().insert(RETRY_PUSHBACK, 2001_u32.into());
        let response = RestError::from(full).response();
        assert_eq!(response.headers()["retry-after"], "3");
    }
}
