//! What is counted on the way to servers and back. Owns the labels; the caller owns the metrics' names and the
//! registry.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// The model of a request. Only the names of served models become labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ModelLabels {
    pub model: Arc<str>,
}

/// Why another worker may do what one did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryReason {
    /// The worker was lost, is shutting down, or gave the request up.
    Unavailable,
    /// The worker's queue is full.
    Full,
    /// The worker has stopped answering, but may resume.
    Silent,
    /// The worker is about to end.
    Leaving,
}

impl RetryReason {
    /// Every reason there is.
    pub const ALL: [Self; 4] = [Self::Unavailable, Self::Full, Self::Silent, Self::Leaving];

    /// For metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Full => "full",
            Self::Silent => "silent",
            Self::Leaving => "leaving",
        }
    }
}

/// Why a request went to another worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RetryLabels {
    reason: &'static str,
}

impl From<RetryReason> for RetryLabels {
    fn from(reason: RetryReason) -> Self {
        Self {
            reason: reason.label(),
        }
    }
}

/// What is counted of answers that continue at another worker.
#[derive(Clone, Debug)]
pub struct Resumes {
    pub resumed: Family<RetryLabels, Counter>,
    pub failed: Counter,
    pub tokens: Counter,
    pub pause: Histogram,
    /// From the end of a context at one worker to the next output of another.
    pub hand_over: Histogram,
}

impl Default for Resumes {
    fn default() -> Self {
        Self {
            resumed: Family::default(),
            failed: Counter::default(),
            tokens: Counter::default(),
            // 1 ms to 33 s.
            pause: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
            hand_over: Histogram::new(exponential_buckets(0.001, 2.0, 16)),
        }
    }
}

/// What a request's worker was picked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacedBy {
    /// Some of its prompt was expected in the worker's cache.
    Cache,
    /// The least was expected of the worker.
    Load,
}

impl PlacedBy {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Cache, Self::Load];
}

/// What a request's worker was picked by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PlacedLabels {
    by: &'static str,
}

impl From<PlacedBy> for PlacedLabels {
    fn from(by: PlacedBy) -> Self {
        Self {
            by: match by {
                PlacedBy::Cache => "cache",
                PlacedBy::Load => "load",
            },
        }
    }
}

/// What was wrong with a worker's reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FaultLabels {
    pub reason: &'static str,
}

/// What is counted of requests whose worker was picked by what it reports.
#[derive(Clone, Debug, Default)]
pub struct Placements {
    pub requests: Family<PlacedLabels, Counter>,
    /// Of answers that say what was cached: what was expected.
    pub expected_tokens: Counter,
    /// And what they say.
    pub found_tokens: Counter,
    pub faults: Family<FaultLabels, Counter>,
}

/// How what says where workers are is doing.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// Sources that cannot be followed.
    pub troubled_sources: Gauge,
    /// Workers that stay though no source lists them.
    pub unlisted_workers: Gauge,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub retries: Family<RetryLabels, Counter>,
    pub resumes: Resumes,
    pub placements: Placements,
    pub discovery: Discovery,
    pub tokens_out: Family<ModelLabels, Counter>,
}

impl Metrics {
    /// The tokens that a model's workers have sent.
    pub fn tokens_out(&self, model: &str) -> Counter {
        let labels = ModelLabels {
            model: model.into(),
        };
        self.tokens_out.get_or_create(&labels).clone()
    }
}
