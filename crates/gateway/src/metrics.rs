//! The gateway's Prometheus metrics. Owns names and labels; knows nothing of where they are measured.
//! Counters on the hot path are plain atomics, moved per message or per frame.

use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Route template and status of a finished request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    pub route: &'static str,
    pub status: u16,
}

/// A field that the gateway recognized but did not apply.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct FieldLabels {
    pub field: &'static str,
}

/// How a streamed or complete generation ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct EndLabels {
    pub end: &'static str,
}

/// Why another worker may do what one did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryReason {
    /// The worker was lost, is shutting down, or gave the request up.
    Unavailable,
    /// The worker's queue is full.
    Full,
    /// The worker has stopped answering, and may yet go on.
    Silent,
}

impl RetryReason {
    const ALL: [Self; 3] = [Self::Unavailable, Self::Full, Self::Silent];

    /// For metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Full => "full",
            Self::Silent => "silent",
        }
    }
}

/// Why a request went to another worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RetryLabels {
    reason: &'static str,
}

impl From<RetryReason> for RetryLabels {
    fn from(reason: RetryReason) -> Self {
        Self {
            reason: reason.label(),
        }
    }
}

/// The state of one worker when the metrics are read.
#[derive(Clone, Debug)]
pub(crate) struct WorkerSample {
    pub address: Arc<str>,
    pub is_up: bool,
    /// Requests that wait for its output.
    pub active: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerLabels {
    worker: String,
}

type WorkerGauge = Family<WorkerLabels, Gauge>;

/// All metrics and their registry.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pub requests: Family<RequestLabels, Counter>,
    pub active_requests: Gauge,
    pub generations: Family<EndLabels, Counter>,
    pub retries: Family<RetryLabels, Counter>,
    pub tokens_in: Counter,
    pub tokens_out: Counter,
    pub ignored_fields: Family<FieldLabels, Counter>,
    pub time_to_first_token: Histogram,
    pub tokenize_time: Histogram,
}

impl Metrics {
    /// Registers everything.
    pub(crate) fn new() -> Arc<Self> {
        let mut registry = Registry::with_prefix("inflight_gateway");
        let requests = Family::<RequestLabels, Counter>::default();
        registry.register(
            "requests",
            "HTTP requests by route and status",
            requests.clone(),
        );
        let active_requests = Gauge::default();
        registry.register(
            "active_requests",
            "Requests that are being answered",
            active_requests.clone(),
        );
        let generations = Family::<EndLabels, Counter>::default();
        registry.register(
            "generations",
            "Answered requests by how they ended",
            generations.clone(),
        );
        let retries = Family::<RetryLabels, Counter>::default();
        registry.register(
            "retries",
            "Requests sent to another worker, by what was wrong with the one before",
            retries.clone(),
        );
        for reason in RetryReason::ALL {
            // So that a rate can be taken from the first one on.
            drop(retries.get_or_create(&reason.into()));
        }
        let tokens_in = Counter::default();
        registry.register(
            "prompt_tokens",
            "Prompt tokens sent to workers",
            tokens_in.clone(),
        );
        let tokens_out = Counter::default();
        registry.register(
            "generated_tokens",
            "Tokens received from workers for open requests",
            tokens_out.clone(),
        );
        let ignored_fields = Family::<FieldLabels, Counter>::default();
        registry.register(
            "ignored_fields",
            "Request fields that were ignored, by name",
            ignored_fields.clone(),
        );
        // 1 ms to 65 s.
        let time_to_first_token = Histogram::new(exponential_buckets(0.001, 2.0, 17));
        registry.register_with_unit(
            "time_to_first_token",
            "Time from a request's arrival to its first token",
            Unit::Seconds,
            time_to_first_token.clone(),
        );
        // 50 µs to 26 s.
        let tokenize_time = Histogram::new(exponential_buckets(0.00005, 2.0, 20));
        registry.register_with_unit(
            "tokenize_time",
            "Time to render and tokenize the prompts of one request",
            Unit::Seconds,
            tokenize_time.clone(),
        );
        Arc::new(Self {
            registry,
            requests,
            active_requests,
            generations,
            retries,
            tokens_in,
            tokens_out,
            ignored_fields,
            time_to_first_token,
            tokenize_time,
        })
    }

    /// The OpenMetrics text, with the workers' state at this moment.
    ///
    /// # Errors
    /// A metric cannot be written.
    pub(crate) fn encode(&self, workers: &[WorkerSample]) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("inflight_gateway_worker");
        let (up, active) = (WorkerGauge::default(), WorkerGauge::default());
        registry.register("up", "Whether the worker is ready", up.clone());
        registry.register("active", "Requests active on the worker", active.clone());
        for sample in workers {
            let labels = WorkerLabels {
                worker: sample.address.to_string(),
            };
            up.get_or_create(&labels).set(i64::from(sample.is_up));
            let count = i64::try_from(sample.active).unwrap_or(i64::MAX);
            active.get_or_create(&labels).set(count);
        }
        let mut page = String::new();
        text::encode_registry(&mut page, &self.registry)?;
        text::encode_registry(&mut page, &registry)?;
        text::encode_eof(&mut page)?;
        Ok(page)
    }
}
