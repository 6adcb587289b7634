use super::*;
use crate::executor::{InflightBatchingStats, KvCacheStats};

fn end(outcome: Outcome) -> RequestEnd {
    let received = Instant::now();
    let after = |ms| received + Duration::from_millis(ms);
    RequestEnd {
        outcome,
        prompt_tokens: 30,
        output_tokens: 600,
        received,
        handed_over: after(2),
        first_row: Some(after(120)),
        ended: after(1002),
    }
}

fn has(page: &str, sample: &str, labels: &str, value: &str) -> bool {
    let line = format!("{sample}{{model=\"tensorrt_llm\",version=\"1\"{labels}}} {value}");
    page.lines().any(|known| known == line)
}

#[test]
fn counters_have_tritons_names_labels_and_units() {
    let metrics = Metrics::default();
    metrics.ended(
        [Outcome::Success, Outcome::Canceled, Outcome::Backend]
            .map(end)
            .into_iter(),
    );
    metrics.rejected(2);
    metrics.refused();
    let page = metrics.page(0, 5);
    for (sample, labels, value) in [
        ("nv_inference_request_success", "", "1"),
        ("nv_inference_request_failure", ",reason=\"REJECTED\"", "2"),
        ("nv_inference_request_failure", ",reason=\"CANCELED\"", "1"),
        ("nv_inference_request_failure", ",reason=\"BACKEND\"", "1"),
        ("nv_inference_request_failure", ",reason=\"OTHER\"", "1"),
        ("nv_inference_count", "", "1"),
        ("nv_inference_exec_count", "", "1"),
        ("nv_inference_request_duration_us", "", "1002000"),
        ("nv_inference_queue_duration_us", "", "2000"),
        ("nv_inference_compute_infer_duration_us", "", "1000000"),
        ("nv_inference_pending_request_count", "", "5"),
        (
            "nv_llm_input_token_len_bucket",
            ",response_metric_type=\"total_input_tokens\",le=\"10\"",
            "0",
        ),
        (
            "nv_llm_input_token_len_bucket",
            ",response_metric_type=\"total_input_tokens\",le=\"50\"",
            "1",
        ),
        (
            "nv_llm_output_token_len_bucket",
            ",response_metric_type=\"total_output_tokens\",le=\"500\"",
            "0",
        ),
        (
            "nv_llm_output_token_len_bucket",
            ",response_metric_type=\"total_output_tokens\",le=\"+Inf\"",
            "1",
        ),
        (
            "nv_llm_output_token_len_sum",
            ",response_metric_type=\"total_output_tokens\"",
            "600",
        ),
        (
            "nv_inference_first_response_histogram_ms_bucket",
            ",le=\"500\"",
            "1",
        ),
        (
            "nv_trt_llm_request_metrics",
            ",request_type=\"active\"",
            "0",
        ),
    ] {
        assert!(
            has(&page, sample, labels, value),
            "{sample}{labels} {value} in\n{page}"
        );
    }
    let statistics = metrics.statistics();
    let stats = statistics.inference_stats.unwrap();
    assert_eq!(stats.success.unwrap().ns, 1_002_000_000);
    assert_eq!(stats.fail.unwrap().count, 5);
    assert_eq!(stats.queue.unwrap().ns, 2_000_000);
}

#[test]
fn gauges_come_from_the_latest_iteration() {
    let metrics = Metrics::default();
    let iteration = |iter, scheduled| IterationStats {
        iter,
        max_num_active_requests: 64,
        kv_cache_stats: Some(KvCacheStats {
            max_num_blocks: 100,
            used_num_blocks: 25,
            free_num_blocks: 75,
            tokens_per_block: 32,
            ..KvCacheStats::default()
        }),
        inflight_batching_stats: Some(InflightBatchingStats {
            num_scheduled_requests: scheduled,
            num_gen_requests: scheduled,
            ..InflightBatchingStats::default()
        }),
        ..IterationStats::default()
    };
    metrics.iterations(vec![iteration(6, 9), iteration(7, 3)]);
    metrics.iterations(Vec::new());
    let page = metrics.page(5, 0);
    for (sample, labels, value) in [
        (
            "nv_trt_llm_request_metrics",
            ",request_type=\"active\"",
            "5",
        ),
        ("nv_trt_llm_request_metrics", ",request_type=\"max\"", "64"),
        (
            "nv_trt_llm_request_metrics",
            ",request_type=\"scheduled\"",
            "3",
        ),
        (
            "nv_trt_llm_request_metrics",
            ",request_type=\"waiting\"",
            "2",
        ),
        (
            "nv_trt_llm_kv_cache_block_metrics",
            ",kv_cache_block_type=\"fraction\"",
            "0.25",
        ),
        (
            "nv_trt_llm_kv_cache_block_metrics",
            ",kv_cache_block_type=\"tokens_per\"",
            "32",
        ),
        (
            "nv_trt_llm_inflight_batcher_metrics",
            ",inflight_batcher_specific_metric=\"generation_requests\"",
            "3",
        ),
        (
            "nv_trt_llm_general_metrics",
            ",general_type=\"iteration_counter\"",
            "7",
        ),
    ] {
        assert!(
            has(&page, sample, labels, value),
            "{sample}{labels} {value} in\n{page}"
        );
    }
    // An idle worker schedules nothing, whatever its last iteration did.
    let idle = metrics.page(0, 0);
    assert!(has(
        &idle,
        "nv_trt_llm_request_metrics",
        ",request_type=\"scheduled\"",
        "0"
    ));
}

#[test]
fn every_family_has_one_type_line() {
    let page = Metrics::default().page(0, 0);
    let mut types: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("# TYPE"))
        .collect();
    let count = types.len();
    types.sort_unstable();
    types.dedup();
    assert_eq!(types.len(), count);
    assert!(count > 10);
}
