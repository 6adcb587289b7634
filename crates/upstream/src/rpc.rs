//! Calls to servers. Owns the time limit of small ones, how a stream's end is awaited, and how much is kept of what a
//! server says went wrong.

use std::error::Error;
use std::time::Duration;

/// For one small call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may take to close a stream after its last response.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Characters kept of an error text; a traceback has a few thousand.
const MAX_ERROR_CHARS: usize = 8_000;

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    #[error("{call} failed: {status}")]
    Failed {
        call: &'static str,
        status: tonic::Status,
    },
    #[error("{call} got no answer within {limit:?}")]
    TimedOut { call: &'static str, limit: Duration },
}

/// Waits for the answer to a small call.
///
/// # Errors
/// [`RpcError`]: it failed, or took too long.
pub async fn call<T>(
    name: &'static str,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, RpcError> {
    match tokio::time::timeout(CALL_TIMEOUT, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(RpcError::Failed { call: name, status }),
        Err(_) => Err(RpcError::TimedOut {
            call: name,
            limit: CALL_TIMEOUT,
        }),
    }
}

/// Reads a stream to its end after its last response, so that both sides close it. A reset would cost both sides work and
/// count as a cancellation.
pub async fn read_to_end<T>(mut responses: tonic::Streaming<T>) {
    let read = async { while let Ok(Some(_)) = responses.message().await {} };
    let _ = tokio::time::timeout(END_TIMEOUT, read).await;
}

/// A status where the transport says UNKNOWN for a connection that is gone, or INTERNAL for a broken one: that one has
/// a source, and what a server says has none.
pub fn lost_code(status: &tonic::Status) -> tonic::Code {
    match status.code() {
        tonic::Code::Unknown | tonic::Code::Cancelled => tonic::Code::Unavailable,
        tonic::Code::Internal if status.source().is_some() => tonic::Code::Unavailable,
        other => other,
    }
}

/// The beginning of an error text, as much of it as is kept.
pub fn abbreviated(text: &str) -> &str {
    let end = text.char_indices().nth(MAX_ERROR_CHARS);
    end.and_then(|(end, _)| text.get(..end)).unwrap_or(text)
}

/// An error with its causes in one line, abbreviated.
pub fn describe(error: &dyn Error) -> String {
    abbreviated(&inflight_base::error_chain(error)).to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_broken_connection_is_lost_and_an_error_of_the_server_is_not() {
        let said = tonic::Status::internal("CUDA error");
        let mut broken = tonic::Status::internal("h2 protocol error: http2 error");
        broken.set_source(Arc::new(std::io::Error::other("http2 error")));
        for (status, code) in [
            (said, tonic::Code::Internal),
            (broken, tonic::Code::Unavailable),
            (
                tonic::Status::unknown("broken pipe"),
                tonic::Code::Unavailable,
            ),
            (tonic::Status::not_found("m"), tonic::Code::NotFound),
        ] {
            assert_eq!(lost_code(&status), code, "{status}");
        }
    }

    #[test]
    fn of_an_endless_error_text_the_beginning_is_kept() {
        let cut = "é".repeat(MAX_ERROR_CHARS);
        for (text, kept) in [("", ""), ("short", "short"), (&cut, &cut)] {
            assert_eq!(abbreviated(text), kept);
        }
        let endless = "é".repeat(1 << 20);
        assert_eq!(abbreviated(&endless), cut);
        let error = RpcError::Failed {
            call: "Call",
            status: tonic::Status::unknown(endless),
        };
        assert_eq!(describe(&error).chars().count(), MAX_ERROR_CHARS);
    }
}
