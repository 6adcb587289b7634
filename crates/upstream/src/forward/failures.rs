//! What a failure is in KServe's words.

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

/// The status that the client gets for a failed call. The transport reports UNKNOWN when the connection is lost, and
/// Triton's TensorRT-LLM models report INTERNAL for every error.
pub(super) fn lost(status: Status) -> Status {
    let code = match rpc::lost_code(&status) {
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
