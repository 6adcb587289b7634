//! What a failure is in KServe's words.

use std::error::Error;

use inflight_kserve::streamed::ResponseView;
use tonic::{Code, Status};

use crate::classify::classify;
use crate::expiry::GivenUp;
use crate::rpc;
use crate::table::NoPeer;

/// What the client of a call that was given up reads.
pub(super) fn given_up(why: GivenUp) -> Status {
    match why {
        GivenUp::NoOutput(limit) => Status::deadline_exceeded(format!(
            "the model generated nothing within {} s",
            limit.as_secs()
        )),
        GivenUp::TimedOut => Status::deadline_exceeded("the request timed out"),
        GivenUp::ShuttingDown => Status::unavailable("the gateway is shutting down"),
    }
}

/// The status that the client gets for a failed call. The transport reports UNKNOWN when the connection is lost, in words
/// that name addresses and layers; Triton's TensorRT-LLM models report INTERNAL for every error.
pub(super) fn lost(status: Status) -> Status {
    let code = match rpc::lost_code(&status) {
        Code::Unavailable if status.source().is_some() => {
            return Status::unavailable("the model's server was lost; retry the request");
        }
        Code::Internal => classify(status.message()).0,
        other => other,
    };
    if code == status.code() {
        return status;
    }
    let mut changed = Status::new(code, status.message());
    *changed.metadata_mut() = status.metadata().clone();
    changed
}

/// The failure that a response of a stream reports.
pub(super) fn in_band(response: &ResponseView<'_>) -> Result<(), Status> {
    let message = response.error_message;
    if message.is_empty() {
        return Ok(());
    }
    let code = response.error_code().unwrap_or_else(|| classify(message).0);
    Err(Status::new(code, message))
}

/// The status of a call that no server takes.
pub(super) fn not_picked(why: NoPeer, model: &str, version: &str) -> Status {
    match why {
        // Clients look for these words of Triton's.
        NoPeer::Unknown if version.is_empty() => Status::not_found(format!(
            "Request for unknown model: '{}' is not found",
            shortened(model)
        )),
        NoPeer::Unknown => Status::not_found(format!(
            "Request for unknown model: '{}' version {} is not found",
            shortened(model),
            shortened(version)
        )),
        NoPeer::NotYet => Status::unavailable("not every worker has been reached yet; retry later"),
        NoPeer::NoneReady => Status::unavailable("no worker of the model is ready; retry later"),
        NoPeer::Ambiguous(names) => Status::failed_precondition(format!(
            "`{model}` is ambiguous, because workers serve different models of that name; use one of `{}`",
            names.join("`, `")
        )),
    }
}

/// The beginning of a name that an error repeats.
fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_the_transport_says_is_not_for_clients_and_what_a_server_says_is() {
        let refused = |code| {
            let mut status = Status::new(code, "10.0.0.1:8001");
            status.set_source(Arc::new(std::io::Error::other("connection refused")));
            status
        };
        let lost_text = "the model's server was lost; retry the request";
        for (status, code, text) in [
            (refused(Code::Unavailable), Code::Unavailable, lost_text),
            (refused(Code::Unknown), Code::Unavailable, lost_text),
            (refused(Code::Internal), Code::Unavailable, lost_text),
            (Status::unavailable("full"), Code::Unavailable, "full"),
            (Status::internal("CUDA error"), Code::Internal, "CUDA error"),
            (
                Status::internal("Exceeds maximum queue size"),
                Code::ResourceExhausted,
                "Exceeds maximum queue size",
            ),
        ] {
            let read = lost(status);
            assert_eq!((read.code(), read.message()), (code, text));
        }
    }
}
