//! The metrics page: Prometheus' text format, with exactly Triton's names and labels. Pure.

use std::fmt::Write;
use std::time::Duration;

use super::{Counters, Histogram};
use crate::executor::IterationStats;
use crate::model::{CORE_MODEL, CORE_MODEL_VERSION};

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// `label`: a further label, by name and value.
    fn sample(&mut self, name: &str, label: Option<(&str, &str)>, value: f64) {
        let _ = write!(
            self.0,
            "{name}{{model=\"{CORE_MODEL}\",version=\"{CORE_MODEL_VERSION}\""
        );
        if let Some((key, text)) = label {
            let _ = write!(self.0, ",{key}=\"{text}\"");
        }
        let _ = writeln!(self.0, "}} {value}");
    }

    fn gauges(&mut self, name: &str, help: &str, label: &str, values: &[(&str, f64)]) {
        self.family(name, "gauge", help);
        for (text, value) in values {
            self.sample(name, Some((label, text)), *value);
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
        let base = format!("model=\"{CORE_MODEL}\",version=\"{CORE_MODEL_VERSION}\"{labels}");
        let mut below = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            below += count;
            let _ = writeln!(self.0, "{name}_bucket{{{base},le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(
            self.0,
            "{name}_bucket{{{base},le=\"+Inf\"}} {}",
            histogram.count
        );
        let _ = writeln!(self.0, "{name}_sum{{{base}}} {}", histogram.sum);
        let _ = writeln!(self.0, "{name}_count{{{base}}} {}", histogram.count);
    }
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64
}

pub(super) fn render(counters: &Counters, active: usize, pending: usize) -> String {
    let mut page = Page(String::with_capacity(8192));
    requests(&mut page, counters, pending);
    executor(&mut page, counters.iteration.as_ref(), active);
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
    page.0
}

fn requests(page: &mut Page, counters: &Counters, pending: usize) {
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

/// What the executor reported of its latest iteration. Without live requests there is none: what a
/// finished iteration scheduled is over.
fn executor(page: &mut Page, iteration: Option<&IterationStats>, active: usize) {
    let none = IterationStats::default();
    let stats = iteration.unwrap_or(&none);
    let inflight = stats.inflight_batching_stats.clone().unwrap_or_default();
    let running = |value: u64| if active == 0 { 0.0 } else { value as f64 };
    let scheduled = running(inflight.num_scheduled_requests);
    let active = active as f64;
    page.gauges(
        "nv_trt_llm_request_metrics",
        "Requests in the executor",
        "request_type",
        &[
            ("active", active),
            ("max", stats.max_num_active_requests as f64),
            ("scheduled", scheduled),
            ("context", running(inflight.num_context_requests)),
            ("waiting", (active - scheduled).max(0.0)),
        ],
    );
    page.gauges(
        "nv_trt_llm_runtime_memory_metrics",
        "Bytes the runtime has allocated",
        "memory_type",
        &[
            ("cpu", stats.cpu_mem_usage as f64),
            ("gpu", stats.gpu_mem_usage as f64),
            ("pinned", stats.pinned_mem_usage as f64),
        ],
    );
    if let Some(cache) = &stats.kv_cache_stats {
        let fraction = if cache.max_num_blocks == 0 {
            0.0
        } else {
            cache.used_num_blocks as f64 / cache.max_num_blocks as f64
        };
        page.gauges(
            "nv_trt_llm_kv_cache_block_metrics",
            "Blocks of the KV cache",
            "kv_cache_block_type",
            &[
                ("max", cache.max_num_blocks as f64),
                ("free", cache.free_num_blocks as f64),
                ("used", cache.used_num_blocks as f64),
                ("tokens_per", cache.tokens_per_block as f64),
                ("reused", cache.reused_blocks as f64),
                ("fraction", fraction),
            ],
        );
    }
    page.gauges(
        "nv_trt_llm_inflight_batcher_metrics",
        "The latest iteration's batch",
        "inflight_batcher_specific_metric",
        &[
            ("total_context_tokens", running(inflight.num_ctx_tokens)),
            ("generation_requests", running(inflight.num_gen_requests)),
            ("micro_batch_id", inflight.micro_batch_id as f64),
            ("paused_requests", running(inflight.num_paused_requests)),
        ],
    );
    page.gauges(
        "nv_trt_llm_general_metrics",
        "The latest iteration",
        "general_type",
        &[("iteration_counter", stats.iter as f64)],
    );
}
