//! The gateway's numbers for Prometheus. Owns names and labels; knows nothing of where they are
//! measured. Counters on the hot path are plain atomics, moved per message or per frame.

use std::fmt::Write as _;
use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::upstream::table::Table;

/// Route template and status of a finished request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    pub route: &'static str,
    pub status: u16,
}

/// A field that the gateway took note of and did not honour.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FieldLabels {
    pub field: &'static str,
}

/// How a streamed or complete generation ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EndLabels {
    pub end: &'static str,
}

/// All metrics and their registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub requests: Family<RequestLabels, Counter>,
    pub active_requests: Gauge,
    pub generations: Family<EndLabels, Counter>,
    pub tokens_in: Counter,
    pub tokens_out: Counter,
    pub ignored_fields: Family<FieldLabels, Counter>,
    pub time_to_first_token: Histogram,
    pub tokenize_time: Histogram,
}

impl Metrics {
    /// Registers everything.
    pub fn new() -> Arc<Self> {
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
            "Requests being generated, the whole response included",
            active_requests.clone(),
        );
        let generations = Family::<EndLabels, Counter>::default();
        registry.register(
            "generations",
            "Generations by how they ended",
            generations.clone(),
        );
        let tokens_in = Counter::default();
        registry.register(
            "prompt_tokens",
            "Tokens of prompts sent to workers",
            tokens_in.clone(),
        );
        let tokens_out = Counter::default();
        registry.register(
            "generated_tokens",
            "Tokens received from workers for living requests",
            tokens_out.clone(),
        );
        let ignored_fields = Family::<FieldLabels, Counter>::default();
        registry.register(
            "ignored_fields",
            "Request fields that were named as ignored",
            ignored_fields.clone(),
        );
        // 1 ms to 65 s.
        let time_to_first_token = Histogram::new(exponential_buckets(0.001, 2.0, 17));
        registry.register_with_unit(
            "time_to_first_token",
            "From the request's arrival to its first row",
            Unit::Seconds,
            time_to_first_token.clone(),
        );
        // 50 µs to 26 s.
        let tokenize_time = Histogram::new(exponential_buckets(0.00005, 2.0, 20));
        registry.register_with_unit(
            "tokenize_time",
            "Rendering and tokenizing one request's prompts",
            Unit::Seconds,
            tokenize_time.clone(),
        );
        Arc::new(Self {
            registry,
            requests,
            active_requests,
            generations,
            tokens_in,
            tokens_out,
            ignored_fields,
            time_to_first_token,
            tokenize_time,
        })
    }

    /// The OpenMetrics text, with the workers' state read at this moment.
    pub fn encode(&self, table: &Table) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, &self.registry)?;
        text.push_str("# HELP inflight_gateway_worker_up Whether the worker is ready.\n");
        text.push_str("# TYPE inflight_gateway_worker_up gauge\n");
        for slot in table.workers() {
            let up = u8::from(slot.is_ready());
            let worker = label_value(&slot.address);
            writeln!(
                text,
                "inflight_gateway_worker_up{{worker=\"{worker}\"}} {up}"
            )?;
        }
        text.push_str("# HELP inflight_gateway_worker_active Requests active on the worker.\n");
        text.push_str("# TYPE inflight_gateway_worker_active gauge\n");
        for slot in table.workers() {
            let active = slot.active();
            let worker = label_value(&slot.address);
            writeln!(
                text,
                "inflight_gateway_worker_active{{worker=\"{worker}\"}} {active}"
            )?;
        }
        text.push_str("# EOF\n");
        Ok(text)
    }
}

fn label_value(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
