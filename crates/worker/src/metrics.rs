//! The worker's counters, and the page that shows them: Triton's families, the worker's own, those that
//! schedulers look for, and the machine's.
//!
//! Gauges of the executor come from its own iteration statistics, read when somebody looks; the number
//! of active requests is counted here, so that it is exact at any time. Families of Triton's that have
//! no source in this process (response cache, pinned pool) are absent.

mod gauges;
mod gpu;
mod histogram;
mod host;
pub(crate) mod load_report;
mod own;
mod page;
mod schedulers;
mod server;
mod triton;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use inflight_base::wall_clock::since_epoch;
use inflight_kserve::inference::{
    InferBatchStatistics, InferStatistics, ModelStatistics, StatisticDuration,
};
use parking_lot::Mutex;

use crate::cache::load::IterationTotals;
use crate::executor::IterationStats;
use crate::model::CORE_MODEL_VERSION;

pub use gauges::{GaugeFamily, executor_gauges};
pub(crate) use server::serve;

use gauges::Load;
use histogram::Histogram;
use page::Page;

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

/// Triton's buckets for prompt and output lengths.
const TOKEN_BUCKETS: [f64; 5] = [10.0, 50.0, 100.0, 500.0, 1000.0];
/// Triton's buckets for the first response.
const FIRST_RESPONSE_BUCKETS_MS: [f64; 4] = [100.0, 500.0, 2000.0, 5000.0];
/// The worker's own buckets for times of whole requests, in seconds: each twice the one before.
const TIME_BUCKETS: [f64; 17] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384, 32.768, 65.536,
];
/// And for the time of one token.
const TOKEN_TIME_BUCKETS: [f64; 12] = [
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024,
];

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
    input_tokens: Histogram,
    output_tokens: Histogram,
    first_response_ms: Histogram,
    prompt_tokens: u64,
    /// Filled in for a page; counted outside the lock.
    generated_tokens: u64,
    queue_time: Histogram,
    first_token_time: Histogram,
    token_time: Histogram,
    request_time: Histogram,
    dropped_spans: u64,
    /// The executor's latest iteration.
    iteration: Option<IterationStats>,
    totals: IterationTotals,
}

/// What watchers of the load read.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) free_blocks: u64,
    pub(crate) total_blocks: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) totals: IterationTotals,
}

/// Shared by everything that counts.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// The name of the core model.
    model: Arc<str>,
    /// The name that the gateway serves it under.
    served_model: Arc<str>,
    generated_tokens: AtomicU64,
    counters: Mutex<Counters>,
}

impl Metrics {
    /// Counters of the core model, which has this name, and is served by the gateway under the other.
    pub(crate) fn new(model: Arc<str>, served_model: Arc<str>) -> Self {
        Self {
            model,
            served_model,
            generated_tokens: AtomicU64::new(0),
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
                input_tokens: Histogram::new(&TOKEN_BUCKETS),
                output_tokens: Histogram::new(&TOKEN_BUCKETS),
                first_response_ms: Histogram::new(&FIRST_RESPONSE_BUCKETS_MS),
                prompt_tokens: 0,
                generated_tokens: 0,
                queue_time: Histogram::new(&TIME_BUCKETS),
                first_token_time: Histogram::new(&TIME_BUCKETS),
                token_time: Histogram::new(&TOKEN_TIME_BUCKETS),
                request_time: Histogram::new(&TIME_BUCKETS),
                dropped_spans: 0,
                iteration: None,
                totals: IterationTotals::default(),
            }),
        }
    }
}

impl Metrics {
    /// The name that the gateway serves the model under.
    pub(crate) fn served_model(&self) -> &str {
        &self.served_model
    }

    /// Requests that the executor was through with.
    pub(crate) fn ended(&self, ends: impl Iterator<Item = RequestEnd>) {
        let mut counters = self.counters.lock();
        for end in ends {
            counters.add(&end);
        }
    }

    /// Tokens that one iteration returned.
    pub(crate) fn generated(&self, tokens: usize) {
        self.generated_tokens
            .fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// Requests refused because the worker's queue is full.
    pub(crate) fn rejected(&self, requests: usize) {
        self.counters.lock().rejected += requests as u64;
    }

    /// A request refused for what it asks.
    pub(crate) fn refused(&self) {
        self.counters.lock().other += 1;
    }

    /// Spans of traces that the collector did not take.
    pub(crate) fn dropped_spans(&self, spans: u64) {
        self.counters.lock().dropped_spans += spans;
    }

    /// Takes over what the executor reported. Totals are of all iterations; for the rest, the latest counts.
    pub(crate) fn iterations(&self, stats: Vec<IterationStats>) {
        let mut counters = self.counters.lock();
        for iteration in &stats {
            counters.totals.add(iteration);
        }
        if let Some(latest) = stats.into_iter().next_back() {
            counters.iteration = Some(latest);
        }
    }

    /// For those who watch the load.
    pub(crate) fn figures(&self) -> Figures {
        let counters = self.counters.lock();
        let cache = counters.iteration.as_ref();
        let cache = cache.and_then(|stats| stats.kv_cache_stats.as_ref());
        Figures {
            free_blocks: cache.map_or(0, |cache| cache.free_num_blocks),
            total_blocks: cache.map_or(0, |cache| cache.max_num_blocks),
            generated_tokens: self.generated_tokens.load(Ordering::Relaxed),
            totals: counters.totals.clone(),
        }
    }

    /// The page of the executor's families in Prometheus' text format. `active` and `pending` are counted by the
    /// caller.
    fn page(&self, active: usize, pending: usize) -> Page {
        let mut counters = self.counters.lock().clone();
        counters.generated_tokens = self.generated_tokens.load(Ordering::Relaxed);
        let mut page = Page::default();
        triton::write(&mut page, &self.model, &counters, active, pending);
        own::write(&mut page, &self.served_model, &counters, active);
        schedulers::write(&mut page, &self.served_model, &counters, active);
        page
    }

    /// How loaded the model is, for a header. `active` is counted by the caller.
    pub(crate) fn load_report(&self, form: load_report::Form, active: usize) -> Option<String> {
        let counters = self.counters.lock();
        load_report::write(&Load::of(counters.iteration.as_ref(), active), form)
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
        self.prompt_tokens += u64::from(end.prompt_tokens);
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
        let queue = end.handed_over.saturating_duration_since(end.received);
        self.queue += queue;
        self.queue_time.observe(queue.as_secs_f64());
        self.request_time.observe(request.as_secs_f64());
        self.compute_infer += end.ended.saturating_duration_since(end.handed_over);
        self.input_tokens.observe(f64::from(end.prompt_tokens));
        self.output_tokens.observe(f64::from(end.output_tokens));
        if let Some(first) = end.first_row {
            let waited = first.saturating_duration_since(end.received);
            self.first_response_ms.observe(waited.as_secs_f64() * 1e3);
            self.first_token_time.observe(waited.as_secs_f64());
            let generating = end.ended.saturating_duration_since(first).as_secs_f64();
            if end.output_tokens > 1 {
                let intervals = f64::from(end.output_tokens - 1);
                self.token_time.observe(generating / intervals);
            }
        }
        let now = since_epoch().as_millis();
        self.last_inference_ms = u64::try_from(now).unwrap_or(u64::MAX);
    }

    fn failures(&self) -> u64 {
        self.rejected + self.canceled + self.backend + self.other
    }
}

#[cfg(test)]
mod tests;
