//! The worker's counters, under Triton's family names, and the page that shows them.
//!
//! Gauges of the executor come from its own iteration statistics, read when somebody looks; the number
//! of active requests is counted here, so that it is exact at any time. Families of Triton's that have
//! no source in this process (GPU, response cache, pinned pool) are absent.

mod gauges;
mod page;
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use inflight_kserve::inference::{
    InferBatchStatistics, InferStatistics, ModelStatistics, StatisticDuration,
};
use parking_lot::Mutex;

use crate::executor::IterationStats;
use crate::model::{CORE_MODEL, CORE_MODEL_VERSION};

pub use gauges::{GaugeFamily, executor_gauges};
pub(crate) use server::serve;

/// How a request ended, by Triton's values of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    Rejected,
    Canceled,
    Backend,
}

/// One executor request that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestEnd {
    pub(crate) outcome: Outcome,
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
    pub(crate) received: Instant,
    pub(crate) handed_over: Instant,
    pub(crate) first_row: Option<Instant>,
    pub(crate) ended: Instant,
}

/// A histogram with cumulative buckets only when shown.
#[derive(Clone, Debug)]
struct Histogram<const N: usize> {
    bounds: [f64; N],
    counts: [u64; N],
    count: u64,
    sum: f64,
}

impl<const N: usize> Histogram<N> {
    const fn new(bounds: [f64; N]) -> Self {
        Self {
            bounds,
            counts: [0; N],
            count: 0,
            sum: 0.0,
        }
    }

    fn observe(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        let bucket = self
            .bounds
            .iter()
            .zip(&mut self.counts)
            .find(|(bound, _)| value <= **bound);
        if let Some((_, count)) = bucket {
            *count += 1;
        }
    }
}

/// Triton's buckets for prompt and output lengths.
const TOKEN_BUCKETS: [f64; 5] = [10.0, 50.0, 100.0, 500.0, 1000.0];
/// Triton's buckets for the first response.
const FIRST_RESPONSE_BUCKETS_MS: [f64; 4] = [100.0, 500.0, 2000.0, 5000.0];

#[derive(Clone, Debug)]
struct Counters {
    success: u64,
    rejected: u64,
    canceled: u64,
    backend: u64,
    other: u64,
    request: Duration,
    failed: Duration,
    queue: Duration,
    compute_infer: Duration,
    last_inference_ms: u64,
    input_tokens: Histogram<5>,
    output_tokens: Histogram<5>,
    first_response_ms: Histogram<4>,
    /// The executor's latest iteration.
    iteration: Option<IterationStats>,
}

/// Shared by everything that counts.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// The name of the core model.
    model: Arc<str>,
    counters: Mutex<Counters>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(CORE_MODEL.into())
    }
}

impl Metrics {
    /// Counters of the core model, which has this name.
    pub(crate) fn new(model: Arc<str>) -> Self {
        Self {
            model,
            counters: Mutex::new(Counters {
                success: 0,
                rejected: 0,
                canceled: 0,
                backend: 0,
                other: 0,
                request: Duration::ZERO,
                failed: Duration::ZERO,
                queue: Duration::ZERO,
                compute_infer: Duration::ZERO,
                last_inference_ms: 0,
                input_tokens: Histogram::new(TOKEN_BUCKETS),
                output_tokens: Histogram::new(TOKEN_BUCKETS),
                first_response_ms: Histogram::new(FIRST_RESPONSE_BUCKETS_MS),
                iteration: None,
            }),
        }
    }
}

impl Metrics {
    /// Requests that the executor was through with.
    pub(crate) fn ended(&self, ends: impl Iterator<Item = RequestEnd>) {
        let mut counters = self.counters.lock();
        for end in ends {
            counters.add(&end);
        }
    }

    /// Requests refused because the worker holds all it may.
    pub(crate) fn rejected(&self, requests: usize) {
        self.counters.lock().rejected += requests as u64;
    }

    /// A request refused for what it asks.
    pub(crate) fn refused(&self) {
        self.counters.lock().other += 1;
    }

    /// Takes over what the executor reported; the latest iteration counts.
    pub(crate) fn iterations(&self, stats: Vec<IterationStats>) {
        if let Some(latest) = stats.into_iter().next_back() {
            self.counters.lock().iteration = Some(latest);
        }
    }

    /// The page in Prometheus' text format. `active` and `pending` are counted by the caller.
    pub(crate) fn page(&self, active: usize, pending: usize) -> String {
        let counters = self.counters.lock().clone();
        page::render(&self.model, &counters, active, pending)
    }

    /// ModelStatistics of the core model. The executor's own queue counts as compute, as Triton's
    /// backend has it.
    pub(crate) fn statistics(&self) -> ModelStatistics {
        let counters = self.counters.lock();
        let duration = |count: u64, duration: Duration| {
            Some(StatisticDuration {
                count,
                ns: u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
            })
        };
        let succeeded = counters.success;
        ModelStatistics {
            name: self.model.to_string(),
            version: CORE_MODEL_VERSION.to_owned(),
            last_inference: counters.last_inference_ms,
            inference_count: succeeded,
            execution_count: succeeded,
            inference_stats: Some(InferStatistics {
                success: duration(succeeded, counters.request),
                fail: duration(counters.failures(), counters.failed),
                queue: duration(succeeded, counters.queue),
                compute_input: duration(succeeded, Duration::ZERO),
                compute_infer: duration(succeeded, counters.compute_infer),
                compute_output: duration(succeeded, Duration::ZERO),
                cache_hit: duration(0, Duration::ZERO),
                cache_miss: duration(0, Duration::ZERO),
            }),
            batch_stats: vec![InferBatchStatistics {
                batch_size: 1,
                compute_input: duration(succeeded, Duration::ZERO),
                compute_infer: duration(succeeded, counters.compute_infer),
                compute_output: duration(succeeded, Duration::ZERO),
            }],
            ..ModelStatistics::default()
        }
    }
}

impl Counters {
    fn add(&mut self, end: &RequestEnd) {
        let request = end.ended.saturating_duration_since(end.received);
        match end.outcome {
            Outcome::Success => self.success += 1,
            Outcome::Rejected => self.rejected += 1,
            Outcome::Canceled => self.canceled += 1,
            Outcome::Backend => self.backend += 1,
        }
        if end.outcome != Outcome::Success {
            self.failed += request;
            return;
        }
        self.request += request;
        self.queue += end.handed_over.saturating_duration_since(end.received);
        self.compute_infer += end.ended.saturating_duration_since(end.handed_over);
        self.input_tokens.observe(f64::from(end.prompt_tokens));
        self.output_tokens.observe(f64::from(end.output_tokens));
        if let Some(first) = end.first_row {
            let waited = first.saturating_duration_since(end.received);
            self.first_response_ms.observe(waited.as_secs_f64() * 1e3);
        }
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.last_inference_ms = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
    }

    fn failures(&self) -> u64 {
        self.rejected + self.canceled + self.backend + self.other
    }
}

#[cfg(test)]
mod tests;
