use super::*;
use crate::executor::{
    DisServingStats, InflightBatchingStats, KvCacheStats, SpecDecodingStats, StaticBatchingStats,
};
use crate::model::CORE_MODEL;

impl Default for Metrics {
    fn default() -> Self {
        Self::new(CORE_MODEL.into(), "inflight-demo".into())
    }
}

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
    let page = metrics.page(0, 5).into_text();
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
        ("nv_inference_compute_input_duration_us", "", "0"),
        ("nv_inference_compute_output_duration_us", "", "0"),
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
    let page = metrics.page(5, 0).into_text();
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
    let idle = metrics.page(0, 0).into_text();
    assert!(has(
        &idle,
        "nv_trt_llm_request_metrics",
        ",request_type=\"scheduled\"",
        "0"
    ));
}

#[test]
fn transfers_are_counted_where_the_executor_has_some() {
    let metrics = Metrics::default();
    let family = "nv_trt_llm_disaggregated_serving_metrics";
    assert!(!metrics.page(0, 0).into_text().contains(family));
    metrics.iterations(vec![IterationStats {
        dis_serving_stats: Some(DisServingStats {
            kv_cache_transfer_ms: 12.5,
            request_count: 3,
            fallbacks: [("gone".to_owned(), 2)].into(),
        }),
        ..IterationStats::default()
    }]);
    let page = metrics.page(0, 0).into_text();
    for (kind, value) in [("kv_cache_transfer_ms", "12.5"), ("request_count", "3")] {
        let labels = format!(",disaggregated_serving_type=\"{kind}\"");
        assert!(has(&page, family, &labels, value), "{page}");
    }
    let fallbacks = "inflight_worker_kv_transfer_fallbacks_total{model=";
    assert!(
        page.lines()
            .any(|line| line.starts_with(fallbacks) && line.ends_with("reason=\"gone\"} 2")),
        "{page}"
    );
}

#[test]
fn guesses_are_added_up_over_iterations() {
    let metrics = Metrics::default();
    metrics.iterations(vec![IterationStats::default()]);
    assert!(!metrics.page(0, 0).into_text().contains("draft_tokens"));
    let iteration = |iter, num_draft_tokens, num_accepted_tokens| IterationStats {
        iter,
        spec_decoding_stats: Some(SpecDecodingStats {
            num_draft_tokens,
            num_accepted_tokens,
        }),
        ..IterationStats::default()
    };
    metrics.iterations(vec![iteration(1, 0, 0)]);
    metrics.iterations(vec![iteration(2, 8, 5), IterationStats::default()]);
    // The last one is reported again.
    metrics.iterations(vec![iteration(3, 4, 0), iteration(3, 4, 0)]);
    let page = metrics.page(0, 0).into_text();
    for (family, value) in [
        ("inflight_worker_draft_tokens_total", "12"),
        ("inflight_worker_accepted_draft_tokens_total", "5"),
    ] {
        let ends = format!("}} {value}");
        assert!(
            page.lines()
                .any(|line| line.starts_with(family) && line.ends_with(&ends)),
            "{page}"
        );
    }
}

#[test]
fn every_family_has_one_type_line() {
    let page = Metrics::default().page(0, 0).into_text();
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

#[test]
fn the_workers_own_families_are_in_seconds_and_tokens() {
    let metrics = Metrics::new(CORE_MODEL.into(), "a \"b\"".into());
    metrics.ended([Outcome::Success, Outcome::Canceled].map(end).into_iter());
    metrics.generated(700);
    metrics.iterations(vec![iteration_of_three()]);
    let page = metrics.page(5, 1).into_text();
    for (sample, value) in [
        ("inflight_worker_prompt_tokens_total", "60"),
        ("inflight_worker_generated_tokens_total", "700"),
        ("inflight_worker_running_requests", "3"),
        ("inflight_worker_waiting_requests", "2"),
        ("inflight_worker_kv_cache_usage_ratio", "0.25"),
        ("inflight_worker_kv_cache_hit_ratio", "0.5"),
        ("inflight_worker_queue_time_seconds_sum", "0.002"),
        ("inflight_worker_time_to_first_token_seconds_sum", "0.12"),
        ("inflight_worker_request_time_seconds_sum", "1.002"),
        ("inflight_worker_request_time_seconds_count", "1"),
    ] {
        let line = format!("{sample}{{model=\"a \\\"b\\\"\"}} {value}");
        assert!(page.lines().any(|known| known == line), "{line} in\n{page}");
    }
    // 882 ms for the 599 tokens after the first.
    let bucket = "inflight_worker_time_per_output_token_seconds_bucket{model=\"a \\\"b\\\"\"";
    assert!(
        page.contains(&format!("{bucket},le=\"0.001\"}} 0\n")),
        "{page}"
    );
    assert!(
        page.contains(&format!("{bucket},le=\"0.002\"}} 1\n")),
        "{page}"
    );
}

fn iteration_of_three() -> IterationStats {
    IterationStats {
        kv_cache_stats: Some(KvCacheStats {
            max_num_blocks: 100,
            used_num_blocks: 25,
            tokens_per_block: 32,
            cache_hit_rate: 0.5,
            ..KvCacheStats::default()
        }),
        inflight_batching_stats: Some(InflightBatchingStats {
            num_scheduled_requests: 3,
            ..InflightBatchingStats::default()
        }),
        ..IterationStats::default()
    }
}

/// The names are those that the endpoint picker of the Gateway API's inference extension reads by default for
/// `trtllm-serve` and for vLLM.
#[test]
fn schedulers_find_the_names_that_they_know() {
    let metrics = Metrics::new(CORE_MODEL.into(), "m".into());
    let names = |page: &str| -> Vec<String> {
        let known = page
            .lines()
            .filter(|line| line.starts_with("trtllm_") || line.starts_with("vllm:"));
        known.map(str::to_owned).collect()
    };
    // Without a report of the executor, nothing is shown of its cache.
    let silent = names(&metrics.page(2, 0).into_text());
    assert_eq!(
        silent,
        [
            r#"trtllm_num_requests_waiting{model_name="m",engine_type="trtllm"} 2"#,
            r#"trtllm_num_requests_running{model_name="m",engine_type="trtllm"} 0"#,
            r#"vllm:num_requests_waiting{model_name="m",engine="0"} 2"#,
            r#"vllm:num_requests_running{model_name="m",engine="0"} 0"#,
        ]
    );
    metrics.iterations(vec![iteration_of_three()]);
    let told = names(&metrics.page(5, 0).into_text());
    for line in [
        r#"trtllm_num_requests_waiting{model_name="m",engine_type="trtllm"} 2"#,
        r#"trtllm_num_requests_running{model_name="m",engine_type="trtllm"} 3"#,
        r#"trtllm_kv_cache_utilization{model_name="m",engine_type="trtllm"} 0.25"#,
        r#"trtllm_kv_cache_tokens_per_block{model_name="m",engine_type="trtllm"} 32"#,
        r#"trtllm_kv_cache_max_blocks{model_name="m",engine_type="trtllm"} 100"#,
        r#"vllm:num_requests_running{model_name="m",engine="0"} 3"#,
        r#"vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.25"#,
        r#"vllm:cache_config_info{model_name="m",engine="0",block_size="32",num_gpu_blocks="100"} 1"#,
    ] {
        assert!(
            told.iter().any(|known| known == line),
            "{line} in {told:#?}"
        );
    }
}

#[test]
fn static_batches_and_timestamps_have_tritons_names() {
    let metrics = Metrics::default();
    metrics.iterations(vec![IterationStats {
        timestamp: "11-22-2026 18:20:44.250000".to_owned(),
        static_batching_stats: Some(StaticBatchingStats {
            num_scheduled_requests: 4,
            num_context_requests: 1,
            num_ctx_tokens: 9,
            num_gen_tokens: 3,
            empty_gen_slots: 2,
        }),
        ..IterationStats::default()
    }]);
    let page = metrics.page(4, 0).into_text();
    for (sample, labels, value) in [
        (
            "nv_trt_llm_v1_metrics",
            ",v1_specific_metric=\"total_context_tokens\"",
            "9",
        ),
        (
            "nv_trt_llm_v1_metrics",
            ",v1_specific_metric=\"total_generation_tokens\"",
            "3",
        ),
        (
            "nv_trt_llm_v1_metrics",
            ",v1_specific_metric=\"empty_generation_slots\"",
            "2",
        ),
        (
            "nv_trt_llm_request_metrics",
            ",request_type=\"scheduled\"",
            "4",
        ),
        (
            "nv_trt_llm_request_metrics",
            ",request_type=\"context\"",
            "1",
        ),
    ] {
        assert!(
            has(&page, sample, labels, value),
            "{sample}{labels} {value} in\n{page}"
        );
    }
    let line = page
        .lines()
        .find(|line| line.contains("general_type=\"timestamp\""))
        .unwrap();
    let told: i64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    let utc: i64 = 1_795_371_644_250_000;
    // The zone of the machine is at most a day away, and whole quarters of an hour.
    assert!((told - utc).abs() <= 86_400_000_000, "{told}");
    assert_eq!((told - utc) % 900_000_000, 0, "{told}");
    for unreadable in ["", "2026-11-22", "11-22-2026 18:20"] {
        let stats = IterationStats {
            timestamp: unreadable.to_owned(),
            ..IterationStats::default()
        };
        assert_eq!(stats.timestamp_us(), None, "{unreadable}");
    }
}
