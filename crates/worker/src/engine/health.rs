//! Whether an engine takes requests, and why it does not.

use std::time::Duration;

use tonic::Code;

/// The engine's state, for those who wait for a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// A token went through the executor.
    pub(crate) proven: bool,
    /// No new requests are taken.
    pub(crate) draining: bool,
    pub(crate) failed: Option<String>,
}

impl Health {
    pub(crate) fn is_ready(&self) -> bool {
        self.stage().is_none()
    }

    /// Why it does not take requests: a word for programs, and a text for people.
    pub(crate) fn stage(&self) -> Option<(&'static str, &str)> {
        if let Some(reason) = &self.failed {
            return Some(("failed", reason));
        }
        if self.draining {
            return Some(("draining", "finishing its last requests"));
        }
        (!self.proven).then_some(("starting", "waiting for the executor's first token"))
    }
}

/// Why the engine does not take requests now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAdmitted {
    #[error("the worker's queue is full (`{limit}` requests); retry later")]
    Full { limit: usize },
    #[error(
        "the worker is full: the request would wait about `{:.2}` s for its turn, more than the `{:.2}` s \
         allowed; retry later",
        wait.as_secs_f64(),
        allowed.as_secs_f64()
    )]
    WaitTooLong { wait: Duration, allowed: Duration },
    #[error("the model is not ready; retry once the executor has produced its first token")]
    NotProven,
    #[error("the worker is shutting down; send the request to another worker")]
    Draining,
    #[error(
        "the executor failed and the worker is shutting down; send the request to another worker"
    )]
    Failed,
}

impl NotAdmitted {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Full { .. } | Self::WaitTooLong { .. } => Code::ResourceExhausted,
            Self::NotProven | Self::Draining | Self::Failed => Code::Unavailable,
        }
    }

    /// When what waits now will have had its turn, if that is known.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::WaitTooLong { wait, .. } => Some(*wait),
            _ => None,
        }
    }
}
