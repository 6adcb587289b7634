//! The names of what is counted of requests whose worker was picked by what workers report.

use inflight_upstream::metrics::{FaultLabels, PlacedBy, Placements};
use inflight_upstream::placement::Fault;
use prometheus_client::registry::Registry;

pub(super) fn register(placements: &Placements, registry: &mut Registry) {
    registry.register(
        "placed_requests",
        "Requests placed by the reports of workers, by what decided",
        placements.requests.clone(),
    );
    for by in PlacedBy::ALL {
        // So that a rate can be taken from the first one on.
        drop(placements.requests.get_or_create(&by.into()));
    }
    registry.register(
        "expected_cached_tokens",
        "Prompt tokens that were expected in the cache of the worker that was picked",
        placements.expected_tokens.clone(),
    );
    registry.register(
        "found_cached_tokens",
        "Prompt tokens of the same requests that the worker found in its cache",
        placements.found_tokens.clone(),
    );
    registry.register(
        "cache_report_faults",
        "Times the gateway stopped trusting a worker's reports of cached blocks, by reason",
        placements.faults.clone(),
    );
    for fault in Fault::ALL {
        let reason = fault.label();
        drop(placements.faults.get_or_create(&FaultLabels { reason }));
    }
}
