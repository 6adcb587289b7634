//! How loaded a model is, as watchers of its cache read it: totals over iterations, and when the executor is asked for
//! them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::executor::IterationStats;

/// How old the executor's figures may be. Asking takes a Python executor's lock.
const FRESH: Duration = Duration::from_millis(250);
/// Part of a new value in the running mean of iterations that only generated.
const NEWEST_PART: f64 = 1.0 / 16.0;

/// What all iterations that were reported did.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct IterationTotals {
    pub(crate) iterations: u64,
    pub(crate) seconds: f64,
    /// Prompt tokens that were computed.
    pub(crate) prefill_tokens: u64,
    pub(crate) prefill_seconds: f64,
    /// Tokens that were guessed, and those that the model would have chosen as well.
    pub(crate) draft_tokens: u64,
    pub(crate) accepted_tokens: u64,
    /// Tokens that the last of them had computed of prompts that were not complete; `None`: the executor does not say.
    pub(crate) partial_tokens: Option<u64>,
    /// What an iteration that only generated takes.
    generating_s: f64,
    /// The number of the last iteration; an executor may report its figures again.
    last: u64,
}

impl IterationTotals {
    pub(crate) fn add(&mut self, stats: &IterationStats) {
        if stats.iter != 0 && stats.iter == self.last {
            return;
        }
        self.last = stats.iter;
        let seconds = (stats.iter_latency_ms / 1e3).max(0.0);
        let (tokens, generates) =
            match (&stats.inflight_batching_stats, &stats.static_batching_stats) {
                (Some(inflight), _) => (inflight.num_ctx_tokens, inflight.num_gen_requests > 0),
                (None, Some(fixed)) => (fixed.num_ctx_tokens, fixed.num_gen_tokens > 0),
                (None, None) => (0, false),
            };
        if let Some(inflight) = &stats.inflight_batching_stats {
            self.partial_tokens = inflight.num_partial_ctx_tokens.or(self.partial_tokens);
        }
        if let Some(drafts) = &stats.spec_decoding_stats {
            self.draft_tokens += drafts.num_draft_tokens;
            self.accepted_tokens += drafts.num_accepted_tokens;
        }
        self.iterations += 1;
        self.seconds += seconds;
        if tokens > 0 {
            let generating = if generates { self.generating_s } else { 0.0 };
            self.prefill_tokens += tokens;
            self.prefill_seconds += (seconds - generating).max(0.0);
        } else if generates && self.generating_s == 0.0 {
            self.generating_s = seconds;
        } else if generates {
            self.generating_s += (seconds - self.generating_s) * NEWEST_PART;
        }
    }
}

/// Whose turn it is to ask the executor, among all who watch.
#[derive(Debug)]
pub(crate) struct Freshness {
    since: Instant,
    /// Milliseconds from `since` to the last question, plus 1; 0: there was none.
    asked: AtomicU64,
}

impl Freshness {
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            asked: AtomicU64::new(0),
        }
    }

    /// Whether the caller is to ask now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.since).as_millis();
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX).saturating_add(1);
        let asked = self.asked.load(Ordering::Relaxed);
        let is_old = asked == 0 || elapsed.saturating_sub(asked) >= FRESH.as_millis() as u64;
        is_old
            && self
                .asked
                .compare_exchange(asked, elapsed, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::InflightBatchingStats;

    fn iteration(iter: u64, milliseconds: f64, context: u64, generating: u64) -> IterationStats {
        IterationStats {
            iter,
            iter_latency_ms: milliseconds,
            inflight_batching_stats: Some(InflightBatchingStats {
                num_ctx_tokens: context,
                num_gen_requests: generating,
                ..InflightBatchingStats::default()
            }),
            ..IterationStats::default()
        }
    }

    #[test]
    fn prefill_takes_what_generating_does_not() {
        let mut totals = IterationTotals::default();
        totals.add(&iteration(1, 40.0, 400, 0));
        totals.add(&iteration(2, 10.0, 0, 3));
        totals.add(&iteration(3, 30.0, 100, 3));
        // Faster than any that only generated: it adds no time, and none is taken back.
        totals.add(&iteration(4, 5.0, 1, 3));
        // Reported again.
        totals.add(&iteration(4, 5.0, 1, 3));
        assert_eq!((totals.iterations, totals.prefill_tokens), (4, 501));
        assert!((totals.seconds - 0.085).abs() < 1e-9);
        assert!((totals.prefill_seconds - 0.060).abs() < 1e-9);
    }

    #[test]
    fn one_watcher_asks_in_a_while() {
        let freshness = Freshness::new();
        let start = freshness.since;
        assert!(freshness.is_due(start));
        assert!(!freshness.is_due(start));
        assert!(!freshness.is_due(start + FRESH / 2));
        assert!(freshness.is_due(start + FRESH));
        assert!(!freshness.is_due(start + FRESH));
    }
}
