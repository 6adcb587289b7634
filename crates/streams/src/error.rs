//! What went wrong with a request's worker, as clients read it. Owns which error each failure is; how errors are
//! written, and their statuses in HTTP, are inflight-openai's, and codes of gRPC the gateway's.

use std::time::Duration;

use inflight_openai::ApiError;
use inflight_upstream::expiry::GivenUp;
use tonic::Code;

/// The error with which a worker ended a request. `retry_after_ms`: when it expects to have room; 0: not
/// known.
pub fn from_worker(code: Code, text: &str, retry_after_ms: u32) -> ApiError {
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
pub fn no_worker() -> ApiError {
    ApiError::unavailable("No worker of the model is ready. Retry later.")
}

/// 504, or 503 for what is still open when the grace period is over.
pub fn given_up(why: GivenUp) -> ApiError {
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
}
