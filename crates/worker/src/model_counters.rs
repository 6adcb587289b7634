//! How often a text model was asked, for ModelStatistics. The core model's counters are `metrics`'.

use std::time::Duration;

use inflight_base::wall_clock::since_epoch;
use inflight_kserve::inference::{
    InferBatchStatistics, InferStatistics, ModelStatistics, StatisticDuration,
};
use parking_lot::Mutex;

use crate::model::CORE_MODEL_VERSION;

/// The counters of one model.
#[derive(Debug, Default)]
pub(crate) struct ModelCounters(Mutex<Counters>);

#[derive(Clone, Debug, Default)]
struct Counters {
    succeeded: u64,
    failed: u64,
    success: Duration,
    failure: Duration,
    last_inference_ms: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Succeeded,
    Failed,
}

impl ModelCounters {
    pub(crate) fn count(&self, ended: Ended, took: Duration) {
        let mut counters = self.0.lock();
        match ended {
            Ended::Failed => {
                counters.failed += 1;
                counters.failure += took;
            }
            Ended::Succeeded => {
                counters.succeeded += 1;
                counters.success += took;
                let now = since_epoch().as_millis();
                counters.last_inference_ms = u64::try_from(now).unwrap_or(u64::MAX);
            }
        }
    }

    /// As Triton answers it. The models have no separate queue, so that all time is compute.
    pub(crate) fn statistics(&self, model: &str) -> ModelStatistics {
        let counters = self.0.lock().clone();
        let duration = |count: u64, duration: Duration| {
            Some(StatisticDuration {
                count,
                ns: u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
            })
        };
        let nothing = || duration(counters.succeeded, Duration::ZERO);
        let computed = || duration(counters.succeeded, counters.success);
        ModelStatistics {
            name: model.to_owned(),
            version: CORE_MODEL_VERSION.to_owned(),
            last_inference: counters.last_inference_ms,
            inference_count: counters.succeeded,
            execution_count: counters.succeeded,
            inference_stats: Some(InferStatistics {
                success: computed(),
                fail: duration(counters.failed, counters.failure),
                queue: nothing(),
                compute_input: nothing(),
                compute_infer: computed(),
                compute_output: nothing(),
                cache_hit: duration(0, Duration::ZERO),
                cache_miss: duration(0, Duration::ZERO),
            }),
            batch_stats: vec![InferBatchStatistics {
                batch_size: 1,
                compute_input: nothing(),
                compute_infer: computed(),
                compute_output: nothing(),
            }],
            ..ModelStatistics::default()
        }
    }
}
