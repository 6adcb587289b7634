//! The metrics page: Prometheus' text format, with exactly Triton's names and labels. Pure.
//!
//! Not `prometheus-client`, which the gateway uses: it writes OpenMetrics, where a counter's sample always
//! ends in `_total`. Triton's counters do not (`nv_inference_request_success`), and dashboards know them so.

use std::fmt::Write;
use std::time::Duration;

use super::gauges::{GaugeFamily, executor_gauges};
use super::{Counters, Histogram};
use crate::model::CORE_MODEL_VERSION;

struct Page<'a> {
    model: &'a str,
    text: String,
}

impl Page<'_> {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// `label`: a further label, by name and value.
    fn sample(&mut self, name: &str, label: Option<(&str, &str)>, value: f64) {
        let _ = write!(
            self.text,
            "{name}{{model=\"{}\",version=\"{CORE_MODEL_VERSION}\"",
            self.model
        );
        if let Some((key, text)) = label {
            let _ = write!(self.text, ",{key}=\"{text}\"");
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn gauges(&mut self, family: &GaugeFamily) {
        self.family(family.name, "gauge", family.help);
        for (text, value) in &family.values {
            self.sample(family.name, Some((family.label, text)), *value);
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "counter", help);
        self.sample(name, None, value);
    }

    fn histogram<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: Option<(&str, &str)>,
        histogram: &Histogram<N>,
    ) {
        self.family(name, "histogram", help);
        let labels = label.map_or_else(String::new, |(key, text)| format!(",{key}=\"{text}\""));
        let base = format!(
            "model=\"{}\",version=\"{CORE_MODEL_VERSION}\"{labels}",
            self.model
        );
        let mut below = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            below += count;
            let _ = writeln!(self.text, "{name}_bucket{{{base},le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(
            self.text,
            "{name}_bucket{{{base},le=\"+Inf\"}} {}",
            histogram.count
        );
        let _ = writeln!(self.text, "{name}_sum{{{base}}} {}", histogram.sum);
        let _ = writeln!(self.text, "{name}_count{{{base}}} {}", histogram.count);
    }
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64
}

pub(super) fn render(model: &str, counters: &Counters, active: usize, pending: usize) -> String {
    let mut page = Page {
        model,
        text: String::with_capacity(8192),
    };
    requests(&mut page, counters, pending);
    for family in executor_gauges(counters.iteration.as_ref(), active) {
        page.gauges(&family);
    }
    page.histogram(
        "nv_llm_input_token_len",
        "Prompt tokens of finished requests",
        Some(("response_metric_type", "total_input_tokens")),
        &counters.input_tokens,
    );
    page.histogram(
        "nv_llm_output_token_len",
        "Generated tokens of finished requests",
        Some(("response_metric_type", "total_output_tokens")),
        &counters.output_tokens,
    );
    page.text
}

fn requests(page: &mut Page<'_>, counters: &Counters, pending: usize) {
    let succeeded = counters.success as f64;
    page.counter(
        "nv_inference_request_success",
        "Requests that succeeded",
        succeeded,
    );
    let name = "nv_inference_request_failure";
    page.family(name, "counter", "Requests that failed, by reason");
    for (reason, count) in [
        ("REJECTED", counters.rejected),
        ("CANCELED", counters.canceled),
        ("BACKEND", counters.backend),
        ("OTHER", counters.other),
    ] {
        page.sample(name, Some(("reason", reason)), count as f64);
    }
    page.counter("nv_inference_count", "Inferences performed", succeeded);
    page.counter(
        "nv_inference_exec_count",
        "Model executions performed",
        succeeded,
    );
    for (name, help, duration) in [
        (
            "nv_inference_request_duration_us",
            "Time of successful requests",
            counters.request,
        ),
        (
            "nv_inference_queue_duration_us",
            "Time before the executor took them",
            counters.queue,
        ),
        (
            "nv_inference_compute_infer_duration_us",
            "Time in the executor",
            counters.compute_infer,
        ),
    ] {
        page.counter(name, help, microseconds(duration));
    }
    let name = "nv_inference_pending_request_count";
    page.family(name, "gauge", "Requests the executor has not taken yet");
    page.sample(name, None, pending as f64);
    page.histogram(
        "nv_inference_first_response_histogram_ms",
        "Time from a request to its first response",
        None,
        &counters.first_response_ms,
    );
}
