//! The executor's latest iteration as gauges, under the names of Triton's TensorRT-LLM backend. Pure.

use crate::executor::IterationStats;

/// One family of gauges: a sample for each value of its label.
#[derive(Clone, Debug, PartialEq)]
pub struct GaugeFamily {
    pub name: &'static str,
    pub help: &'static str,
    pub label: &'static str,
    /// By value of the label.
    pub values: Vec<(&'static str, f64)>,
}

/// The gauges of the executor's latest iteration with `active` live requests.
///
/// What an iteration scheduled is over once no request is live. A family without a source in the
/// statistics is absent; numbers that they lack are 0.
pub fn executor_gauges(iteration: Option<&IterationStats>, active: usize) -> Vec<GaugeFamily> {
    let none = IterationStats::default();
    let stats = iteration.unwrap_or(&none);
    let inflight = stats.inflight_batching_stats.clone().unwrap_or_default();
    let running = |value: u64| if active == 0 { 0.0 } else { value as f64 };
    let scheduled = running(inflight.num_scheduled_requests);
    let active = active as f64;
    let mut families = vec![
        GaugeFamily {
            name: "nv_trt_llm_request_metrics",
            help: "Requests in the executor",
            label: "request_type",
            values: vec![
                ("active", active),
                ("max", stats.max_num_active_requests as f64),
                ("scheduled", scheduled),
                ("context", running(inflight.num_context_requests)),
                ("waiting", (active - scheduled).max(0.0)),
            ],
        },
        GaugeFamily {
            name: "nv_trt_llm_runtime_memory_metrics",
            help: "Bytes that the runtime has allocated",
            label: "memory_type",
            values: vec![
                ("cpu", stats.cpu_mem_usage as f64),
                ("gpu", stats.gpu_mem_usage as f64),
                ("pinned", stats.pinned_mem_usage as f64),
            ],
        },
    ];
    if let Some(cache) = &stats.kv_cache_stats {
        let fraction = if cache.max_num_blocks == 0 {
            0.0
        } else {
            cache.used_num_blocks as f64 / cache.max_num_blocks as f64
        };
        families.push(GaugeFamily {
            name: "nv_trt_llm_kv_cache_block_metrics",
            help: "Blocks of the KV cache",
            label: "kv_cache_block_type",
            values: vec![
                ("max", cache.max_num_blocks as f64),
                ("free", cache.free_num_blocks as f64),
                ("used", cache.used_num_blocks as f64),
                ("tokens_per", cache.tokens_per_block as f64),
                ("reused", cache.reused_blocks as f64),
                ("fraction", fraction),
            ],
        });
    }
    families.extend([
        GaugeFamily {
            name: "nv_trt_llm_inflight_batcher_metrics",
            help: "The batch of the latest iteration",
            label: "inflight_batcher_specific_metric",
            values: vec![
                ("total_context_tokens", running(inflight.num_ctx_tokens)),
                ("generation_requests", running(inflight.num_gen_requests)),
                ("micro_batch_id", inflight.micro_batch_id as f64),
                ("paused_requests", running(inflight.num_paused_requests)),
            ],
        },
        GaugeFamily {
            name: "nv_trt_llm_general_metrics",
            help: "The latest iteration",
            label: "general_type",
            values: vec![("iteration_counter", stats.iter as f64)],
        },
    ]);
    families
}
