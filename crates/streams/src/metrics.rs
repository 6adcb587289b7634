//! What is measured of requests that generate. Owns the numbers and their buckets; their names are the gateway's.
//! On the hot path, counters are plain atomics, updated once for several messages or frames.

mod intervals;

use std::sync::Arc;

use inflight_upstream::metrics::ModelLabels;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

pub(crate) use self::intervals::IntervalBatch;
pub use self::intervals::Intervals;

/// A model, and how a streamed or complete generation ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EndLabels {
    model: Arc<str>,
    end: &'static str,
}

type PerModel<M> = Family<ModelLabels, M>;
type Histograms = Family<ModelLabels, Histogram, fn() -> Histogram>;

/// Of all models.
#[derive(Debug)]
pub struct Metrics {
    pub active_requests: Gauge,
    pub generations: Family<EndLabels, Counter>,
    pub tokens_in: PerModel<Counter>,
    pub time_to_first_token: Histograms,
    pub inter_token_time: PerModel<Intervals>,
    pub request_time: Histograms,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            active_requests: Gauge::default(),
            generations: Family::default(),
            tokens_in: PerModel::default(),
            // 1 ms to 65 s.
            time_to_first_token: Histograms::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, 17))
            }),
            inter_token_time: PerModel::default(),
            // 10 ms to 11 minutes.
            request_time: Histograms::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.01, 2.0, 17))
            }),
        }
    }
}

impl Metrics {
    /// What is measured of requests for `model`.
    pub fn for_model(&self, model: &str) -> ModelMetrics {
        let model: Arc<str> = Arc::from(model);
        let labels = ModelLabels {
            model: Arc::clone(&model),
        };
        ModelMetrics {
            model,
            generations: self.generations.clone(),
            tokens_in: self.tokens_in.get_or_create(&labels).clone(),
            time_to_first_token: self.time_to_first_token.get_or_create(&labels).clone(),
            inter_token_time: self.inter_token_time.get_or_create(&labels).clone(),
            request_time: self.request_time.get_or_create(&labels).clone(),
        }
    }
}

/// What is measured of one model's requests; looked up once a request.
#[derive(Clone, Debug)]
pub struct ModelMetrics {
    model: Arc<str>,
    generations: Family<EndLabels, Counter>,
    pub tokens_in: Counter,
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token_time: Intervals,
    pub(crate) request_time: Histogram,
}

impl ModelMetrics {
    /// The model's name.
    pub(crate) fn name(&self) -> &str {
        &self.model
    }

    /// The same, shared.
    pub(crate) fn model(&self) -> Arc<str> {
        Arc::clone(&self.model)
    }

    /// Counts a request that ended like this.
    pub(crate) fn ended(&self, end: &'static str) {
        let model = Arc::clone(&self.model);
        self.generations
            .get_or_create(&EndLabels { model, end })
            .inc();
    }
}
