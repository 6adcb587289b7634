//! The names of what is counted of answers that continue at another worker.

use inflight_upstream::metrics::{Resumes, RetryReason};
use prometheus_client::registry::{Registry, Unit};

pub(super) fn register(resumes: &Resumes, registry: &mut Registry) {
    registry.register(
        "resumes",
        "Answers that continued at another worker, by what was wrong with the one before",
        resumes.resumed.clone(),
    );
    for reason in RetryReason::ALL {
        // So that a rate can be taken from the first one on.
        drop(resumes.resumed.get_or_create(&reason.into()));
    }
    registry.register(
        "resumes_failed",
        "Answers that had begun and failed because no worker could resume them",
        resumes.failed.clone(),
    );
    registry.register(
        "resumed_tokens",
        "Tokens of prompts and answers that were computed again to continue at another worker",
        resumes.tokens.clone(),
    );
    registry.register_with_unit(
        "resume_pause",
        "Time from the loss of a worker to the next token from another one",
        Unit::Seconds,
        resumes.pause.clone(),
    );
    registry.register_with_unit(
        "hand_over",
        "Time from the end of a prompt at a worker for contexts to the next token from another worker",
        Unit::Seconds,
        resumes.hand_over.clone(),
    );
}
