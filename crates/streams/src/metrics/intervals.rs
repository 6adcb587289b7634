//! The histogram of times between tokens, which is on the hot path: equal values are counted in one go, each request
//! gathers its own, and the shared counters are plain atomics. Owns the buckets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Upper bounds in seconds, from fast speculation to a stalled batch; what is above counts in the last.
const BOUNDS: [f64; 13] = [
    0.001,
    0.002,
    0.004,
    0.008,
    0.016,
    0.032,
    0.064,
    0.128,
    0.256,
    0.512,
    1.024,
    4.096,
    f64::INFINITY,
];
/// Observations that a request gathers before all see them; a second or so of a stream.
const BATCH: u32 = 32;

/// Times between tokens, of all requests.
#[derive(Clone, Debug, Default)]
pub struct Intervals(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    buckets: [AtomicU64; BOUNDS.len()],
    nanoseconds: AtomicU64,
}

/// Those of one request that are not yet in [`Intervals`].
#[derive(Debug, Default)]
pub(crate) struct IntervalBatch {
    buckets: [u32; BOUNDS.len()],
    nanoseconds: u64,
    observations: u32,
}

impl IntervalBatch {
    /// Counts `tokens` tokens that each came `after` the one before.
    pub(crate) fn observe(&mut self, tokens: u64, after: Duration) {
        let seconds = after.as_secs_f64();
        let place = BOUNDS.partition_point(|bound| *bound < seconds);
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        if let Some(bucket) = self.buckets.get_mut(place) {
            *bucket = bucket.saturating_add(tokens);
        }
        let nanoseconds = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        let sum = nanoseconds.saturating_mul(u64::from(tokens));
        self.nanoseconds = self.nanoseconds.saturating_add(sum);
        self.observations += 1;
    }

    /// Whether it is time to flush.
    pub(crate) fn is_full(&self) -> bool {
        self.observations >= BATCH
    }

    /// Moves everything to `all`.
    pub(crate) fn flush(&mut self, all: &Intervals) {
        if self.observations == 0 {
            return;
        }
        let batch = std::mem::take(self);
        for (shared, own) in all.0.buckets.iter().zip(batch.buckets) {
            if own > 0 {
                shared.fetch_add(u64::from(own), Ordering::Relaxed);
            }
        }
        let sum = batch.nanoseconds;
        all.0.nanoseconds.fetch_add(sum, Ordering::Relaxed);
    }
}

impl EncodeMetric for Intervals {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counts = self.0.buckets.iter();
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = BOUNDS.into_iter().zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.0.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for Intervals {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::{Registry, Unit};

    use super::*;

    #[test]
    fn a_batch_is_counted_once_in_the_buckets_of_prometheus() {
        let (all, mut batch) = (Intervals::default(), IntervalBatch::default());
        batch.observe(2, Duration::from_millis(3));
        batch.flush(&all);
        batch.flush(&all);
        let mut registry = Registry::default();
        registry.register_with_unit("time", "Time", Unit::Seconds, all);
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        for line in [
            "time_seconds_bucket{le=\"0.002\"} 0",
            "time_seconds_bucket{le=\"0.004\"} 2",
            "time_seconds_bucket{le=\"+Inf\"} 2",
            "time_seconds_count 2",
            "time_seconds_sum 0.006",
        ] {
            assert!(page.contains(&format!("{line}\n")), "{line} in\n{page}");
        }
    }
}
