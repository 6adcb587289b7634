//! What is counted of answers that continue at another worker. Owns the names.

use inflight_upstream::metrics::{RetryLabels, RetryReason};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Resumes {
    pub resumed: Family<RetryLabels, Counter>,
    pub failed: Counter,
    pub tokens: Counter,
    pub pause: Histogram,
}

impl Resumes {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let resumes = Self {
            resumed: Family::default(),
            failed: Counter::default(),
            tokens: Counter::default(),
            // 1 ms to 33 s.
            pause: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
        };
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
            "Answers that had begun and ended with their worker, though they could have gone on elsewhere",
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
        resumes
    }
}
