//! What is counted of a proxy's questions where requests go.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PickLabels {
    by: &'static str,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Picks {
    picks: Family<PickLabels, Counter>,
    retries: Counter,
    time: Histogram,
}

impl Picks {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let picks = Family::<PickLabels, Counter>::default();
        registry.register(
            "endpoint_picks",
            "Requests of a proxy for which an endpoint was picked, by what was known of them: the prompt, the model, or \
             nothing; refused: none was picked",
            picks.clone(),
        );
        let retries = Counter::default();
        registry.register(
            "endpoint_retries",
            "Requests of a proxy that another endpoint answered than the one that was picked, as the proxy says",
            retries.clone(),
        );
        // 50 µs to 26 s.
        let time = Histogram::new(exponential_buckets(0.00005, 2.0, 20));
        registry.register_with_unit(
            "endpoint_pick_time",
            "Time from the last byte of a proxy's request to the endpoint that was picked for it",
            Unit::Seconds,
            time.clone(),
        );
        Self {
            picks,
            retries,
            time,
        }
    }

    /// An endpoint was picked `by` what was known, in so many seconds.
    pub(crate) fn picked(&self, by: &'static str, seconds: f64) {
        self.picks.get_or_create(&PickLabels { by }).inc();
        self.time.observe(seconds);
    }

    /// Another one than that has answered.
    pub(crate) fn retried(&self) {
        self.retries.inc();
    }

    /// None was picked.
    pub(crate) fn refused(&self) {
        let by = "refused";
        self.picks.get_or_create(&PickLabels { by }).inc();
    }
}
