//! The gateway's Prometheus metrics. Owns names and labels; knows nothing of where they are measured.

mod picks;
mod placements;
mod resumes;

use std::sync::Arc;

use inflight_upstream::metrics::RetryReason;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use self::picks::Picks;

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

/// How a line of a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnd {
    Succeeded,
    Failed,
    /// It failed, and will be tried again.
    Again,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LineLabels {
    end: &'static str,
}

impl LineEnd {
    const ALL: [Self; 3] = [Self::Succeeded, Self::Failed, Self::Again];
}

impl From<LineEnd> for LineLabels {
    fn from(end: LineEnd) -> Self {
        let end = match end {
            LineEnd::Succeeded => "succeeded",
            LineEnd::Failed => "failed",
            LineEnd::Again => "again",
        };
        Self { end }
    }
}

/// The state of one worker when the metrics are read.
#[derive(Clone, Debug)]
pub(crate) struct WorkerSample {
    pub address: Arc<str>,
    pub is_up: bool,
    /// Requests that wait for its output.
    pub active: usize,
    /// Of its responses that wait for KServe's clients.
    pub unread_bytes: usize,
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
    /// What is measured of requests that generate.
    pub streams: Arc<inflight_streams::metrics::Metrics>,
    /// What is counted on the way to servers.
    pub upstream: Arc<inflight_upstream::metrics::Metrics>,
    pub ignored_fields: Family<FieldLabels, Counter>,
    pub tokenize_time: Histogram,
    pub dropped_spans: Counter,
    batch_lines: Family<LineLabels, Counter>,
    pub batch_lines_running: Gauge,
    /// For proxies that ask where requests go.
    pub picks: Picks,
}

impl Metrics {
    /// Registers everything.
    pub(crate) fn new() -> Arc<Self> {
        let mut registry = Registry::with_prefix("inflight_gateway");
        let requests = Family::<RequestLabels, Counter>::default();
        let streams = Arc::<inflight_streams::metrics::Metrics>::default();
        registry.register(
            "requests",
            "HTTP requests by route and status",
            requests.clone(),
        );
        registry.register(
            "active_requests",
            "Requests that are being answered",
            streams.active_requests.clone(),
        );
        registry.register(
            "generations",
            "Answered requests by how they ended",
            streams.generations.clone(),
        );
        let upstream = Arc::<inflight_upstream::metrics::Metrics>::default();
        registry.register(
            "retries",
            "Requests sent to another worker, by what was wrong with the one before",
            upstream.retries.clone(),
        );
        for reason in RetryReason::ALL {
            // So that a rate can be taken from the first one on.
            drop(upstream.retries.get_or_create(&reason.into()));
        }
        registry.register(
            "prompt_tokens",
            "Prompt tokens sent to workers",
            streams.tokens_in.clone(),
        );
        registry.register(
            "generated_tokens",
            "Tokens received from workers for open requests",
            upstream.tokens_out.clone(),
        );
        let ignored_fields = Family::<FieldLabels, Counter>::default();
        registry.register(
            "ignored_fields",
            "Request fields that were ignored, by name",
            ignored_fields.clone(),
        );
        registry.register_with_unit(
            "time_to_first_token",
            "Time from a request's arrival to its first token",
            Unit::Seconds,
            streams.time_to_first_token.clone(),
        );
        registry.register_with_unit(
            "inter_token_time",
            "Time between the tokens of a choice, as they arrive at the gateway",
            Unit::Seconds,
            streams.inter_token_time.clone(),
        );
        registry.register_with_unit(
            "request_time",
            "Time from a request's arrival to its last token, of those that were answered whole",
            Unit::Seconds,
            streams.request_time.clone(),
        );
        // 50 µs to 26 s.
        let tokenize_time = Histogram::new(exponential_buckets(0.00005, 2.0, 20));
        registry.register_with_unit(
            "tokenize_time",
            "Time to render and tokenize the prompts of one request",
            Unit::Seconds,
            tokenize_time.clone(),
        );
        let dropped_spans = Counter::default();
        registry.register(
            "dropped_spans",
            "Trace spans dropped because the collector rejected them or was too slow",
            dropped_spans.clone(),
        );
        let batch_lines = Family::<LineLabels, Counter>::default();
        registry.register(
            "batch_lines",
            "Lines of batches that were run, by how they ended; again: they failed and will be tried again",
            batch_lines.clone(),
        );
        for end in LineEnd::ALL {
            // So that a rate can be taken from the first one on.
            drop(batch_lines.get_or_create(&end.into()));
        }
        let batch_lines_running = Gauge::default();
        registry.register(
            "batch_lines_running",
            "Lines of batches that are being run; they are among the active requests",
            batch_lines_running.clone(),
        );
        registry.register(
            "troubled_sources",
            "Sources of worker addresses that cannot be followed at the moment; the log names them",
            upstream.discovery.troubled_sources.clone(),
        );
        registry.register(
            "unlisted_workers",
            "Workers that their source no longer lists and that stay because they answer",
            upstream.discovery.unlisted_workers.clone(),
        );
        resumes::register(&upstream.resumes, &mut registry);
        placements::register(&upstream.placements, &mut registry);
        let picks = Picks::register(&mut registry);
        Arc::new(Self {
            registry,
            requests,
            streams,
            upstream,
            ignored_fields,
            tokenize_time,
            dropped_spans,
            batch_lines,
            batch_lines_running,
            picks,
        })
    }

    /// Counts a line of a batch that was run.
    pub(crate) fn batch_line(&self, end: LineEnd) {
        self.batch_lines.get_or_create(&end.into()).inc();
    }

    /// The OpenMetrics text, with the workers' state at this moment.
    ///
    /// # Errors
    /// A metric cannot be written.
    pub(crate) fn encode(&self, workers: &[WorkerSample]) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("inflight_gateway_worker");
        let (up, active, unread_bytes) = <(WorkerGauge, WorkerGauge, WorkerGauge)>::default();
        registry.register("up", "Whether the worker is ready", up.clone());
        registry.register("active", "Requests active on the worker", active.clone());
        registry.register(
            "unread_bytes",
            "Responses of the worker that wait for KServe clients that read slowly",
            unread_bytes.clone(),
        );
        for sample in workers {
            let labels = WorkerLabels {
                worker: sample.address.to_string(),
            };
            up.get_or_create(&labels).set(i64::from(sample.is_up));
            let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
            active.get_or_create(&labels).set(count(sample.active));
            unread_bytes
                .get_or_create(&labels)
                .set(count(sample.unread_bytes));
        }
        let mut page = String::new();
        text::encode_registry(&mut page, &self.registry)?;
        text::encode_registry(&mut page, &registry)?;
        text::encode_eof(&mut page)?;
        Ok(page)
    }
}

/// An OpenMetrics page in Prometheus' older text format, in which a counter's family has the name of its samples.
pub(crate) fn classic(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut counters: Vec<&str> = Vec::new();
    for line in page.lines() {
        let mut words = line.splitn(4, ' ');
        let (mark, kind) = (words.next(), words.next());
        if let (Some("#"), Some("TYPE"), Some(name), Some("counter")) =
            (mark, kind, words.next(), words.next())
        {
            counters.push(name);
        }
    }
    for line in page.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => continue,
            (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(&name) => {
                text.push_str(&format!("# {kind} {name}_total {rest}"));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_name_the_families_as_their_parsers_expect() {
        let metrics = Metrics::new();
        let model = metrics.streams.for_model("m");
        model.tokens_in.inc_by(3);
        metrics.upstream.tokens_out("m").inc();
        let page = metrics.encode(&[]).unwrap();
        for line in [
            "# TYPE inflight_gateway_prompt_tokens counter",
            "inflight_gateway_prompt_tokens_total{model=\"m\"} 3",
        ] {
            assert!(page.contains(&format!("{line}\n")), "{line} in\n{page}");
        }
        let classic = classic(&page);
        for line in [
            "# TYPE inflight_gateway_prompt_tokens_total counter",
            "# HELP inflight_gateway_prompt_tokens_total Prompt tokens sent to workers.",
            "inflight_gateway_prompt_tokens_total{model=\"m\"} 3",
        ] {
            assert!(
                classic.contains(&format!("{line}\n")),
                "{line} in\n{classic}"
            );
        }
        assert!(!classic.contains("# EOF") && !classic.contains("# UNIT"));
    }
}
