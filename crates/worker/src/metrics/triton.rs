//! The families of Triton and of its TensorRT-LLM backend, with exactly their names, labels and units. Pure.

use std::time::Duration;

use super::Counters;
use super::gauges::{GaugeFamily, executor_gauges};
use super::page::Page;
use crate::model::CORE_MODEL_VERSION;

/// `model` is the name of the core model; `active` and `pending` are live requests and those of them that the
/// executor does not have yet.
pub(super) fn write(
    page: &mut Page,
    model: &str,
    counters: &Counters,
    active: usize,
    pending: usize,
) {
    let own = [("model", model), ("version", CORE_MODEL_VERSION)];
    requests(page, &own, counters, pending);
    for family in executor_gauges(counters.iteration.as_ref(), active) {
        let GaugeFamily {
            name,
            help,
            label,
            values,
        } = family;
        page.family(name, "gauge", help);
        for (kind, value) in values {
            page.sample(name, &[own[0], own[1], (label, kind)], value);
        }
    }
    transfers(page, &own, counters);
    let kind = "response_metric_type";
    page.histogram(
        (
            "nv_llm_input_token_len",
            "Prompt tokens of finished requests",
        ),
        &[own[0], own[1], (kind, "total_input_tokens")],
        &counters.input_tokens,
    );
    page.histogram(
        (
            "nv_llm_output_token_len",
            "Generated tokens of finished requests",
        ),
        &[own[0], own[1], (kind, "total_output_tokens")],
        &counters.output_tokens,
    );
}

/// Of an executor that takes prompts from other workers.
fn transfers(page: &mut Page, own: &[(&str, &str); 2], counters: &Counters) {
    let iteration = counters.iteration.as_ref();
    let Some(stats) = iteration.and_then(|stats| stats.dis_serving_stats.as_ref()) else {
        return;
    };
    let name = "nv_trt_llm_disaggregated_serving_metrics";
    let help = "Prompts whose KV cache came from other workers, and the time that it took";
    page.family(name, "counter", help);
    for (kind, value) in [
        ("kv_cache_transfer_ms", stats.kv_cache_transfer_ms),
        ("request_count", stats.request_count as f64),
    ] {
        let label = ("disaggregated_serving_type", kind);
        page.sample(name, &[own[0], own[1], label], value);
    }
}

fn requests(page: &mut Page, own: &[(&str, &str); 2], counters: &Counters, pending: usize) {
    let succeeded = counters.success as f64;
    let name = "nv_inference_request_success";
    page.single((name, "counter", "Requests that succeeded"), own, succeeded);
    let name = "nv_inference_request_failure";
    page.family(name, "counter", "Requests that failed, by reason");
    for (reason, count) in [
        ("REJECTED", counters.rejected),
        ("CANCELED", counters.canceled),
        ("BACKEND", counters.backend),
        ("OTHER", counters.other),
    ] {
        page.sample(name, &[own[0], own[1], ("reason", reason)], count as f64);
    }
    let microseconds = |duration: Duration| duration.as_micros() as f64;
    for (name, help, value) in [
        ("nv_inference_count", "Inferences performed", succeeded),
        (
            "nv_inference_exec_count",
            "Model executions performed",
            succeeded,
        ),
        (
            "nv_inference_request_duration_us",
            "Time of successful requests",
            microseconds(counters.request),
        ),
        (
            "nv_inference_queue_duration_us",
            "Time before the executor took them",
            microseconds(counters.queue),
        ),
        (
            "nv_inference_compute_input_duration_us",
            "Always 0: requests are read before they wait",
            0.0,
        ),
        (
            "nv_inference_compute_infer_duration_us",
            "Time in the executor",
            microseconds(counters.compute_infer),
        ),
        (
            "nv_inference_compute_output_duration_us",
            "Always 0: tokens are sent while the executor works",
            0.0,
        ),
    ] {
        page.single((name, "counter", help), own, value);
    }
    let name = "nv_inference_pending_request_count";
    let help = "Requests the executor has not taken yet";
    page.single((name, "gauge", help), own, pending as f64);
    page.histogram(
        (
            "nv_inference_first_response_histogram_ms",
            "Time from a request to its first response",
        ),
        own,
        &counters.first_response_ms,
    );
}
