//! The worker's own families: what an operator watches, in Prometheus' units and under the name that clients know
//! the model by. Pure.

use super::Counters;
use super::gauges::Load;
use super::page::Page;

/// `model` is the name that the gateway serves it under.
pub(super) fn write(page: &mut Page, model: &str, counters: &Counters, active: usize) {
    let own = [("model", model)];
    let load = Load::of(counters.iteration.as_ref(), active);
    let mut gauges = vec![
        (
            "inflight_worker_running_requests",
            "Requests that the latest iteration worked for",
            load.running,
        ),
        (
            "inflight_worker_waiting_requests",
            "Requests that wait for their turn in an iteration",
            load.waiting,
        ),
    ];
    if let Some(cache) = load.cache {
        gauges.extend([
            (
                "inflight_worker_kv_cache_usage_ratio",
                "Share of the blocks of the KV cache that requests hold",
                cache.usage,
            ),
            (
                "inflight_worker_kv_cache_hit_ratio",
                "Share of the blocks of prompts that were found in the KV cache, since the start",
                cache.hit_ratio,
            ),
        ]);
    }
    for (name, help, value) in gauges {
        page.single((name, "gauge", help), &own, value);
    }
    for (name, help, value) in [
        (
            "inflight_worker_prompt_tokens_total",
            "Prompt tokens of requests that have ended",
            counters.prompt_tokens,
        ),
        (
            "inflight_worker_generated_tokens_total",
            "Tokens that the executor has returned",
            counters.generated_tokens,
        ),
        (
            "inflight_worker_dropped_spans_total",
            "Trace spans dropped because the collector rejected them or was too slow",
            counters.dropped_spans,
        ),
    ] {
        page.single((name, "counter", help), &own, value as f64);
    }
    drafts(page, &own, counters);
    let iteration = counters.iteration.as_ref();
    if let Some(stats) = iteration.and_then(|stats| stats.dis_serving_stats.as_ref()) {
        let name = "inflight_worker_kv_transfer_fallbacks_total";
        let help = "Prompts that other workers had computed and this one computed again, in part or as a whole";
        page.family(name, "counter", help);
        for (reason, count) in &stats.fallbacks {
            page.sample(name, &[own[0], ("reason", reason)], *count as f64);
        }
    }
    for (name, help, histogram) in [
        (
            "inflight_worker_queue_time_seconds",
            "Time before the executor took a request",
            &counters.queue_time,
        ),
        (
            "inflight_worker_time_to_first_token_seconds",
            "Time from a request's arrival to its first token",
            &counters.first_token_time,
        ),
        (
            "inflight_worker_time_per_output_token_seconds",
            "Mean time between the tokens of a request, from its first to its last",
            &counters.token_time,
        ),
        (
            "inflight_worker_request_time_seconds",
            "Time from a request's arrival to its last token",
            &counters.request_time,
        ),
    ] {
        page.histogram((name, help), &own, histogram);
    }
}

/// Of an executor that reports guesses.
fn drafts(page: &mut Page, own: &[(&str, &str); 1], counters: &Counters) {
    let iteration = counters.iteration.as_ref();
    if iteration.is_none_or(|stats| stats.spec_decoding_stats.is_none()) {
        return;
    }
    let totals = &counters.totals;
    for (name, help, value) in [
        (
            "inflight_worker_draft_tokens_total",
            "Tokens that were guessed, by a draft model, from the prompt or by clients",
            totals.draft_tokens,
        ),
        (
            "inflight_worker_accepted_draft_tokens_total",
            "Tokens that were guessed and that the model chose as well",
            totals.accepted_tokens,
        ),
    ] {
        page.single((name, "counter", help), own, value as f64);
    }
}
