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

/// How busy the executor is, in the numbers that a scheduler asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    /// Requests that the latest iteration worked for.
    pub running: f64,
    pub waiting: f64,
    /// `None`: the executor reports nothing about a KV cache.
    pub cache: Option<Cache>,
}

/// The KV cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cache {
    /// Share of its blocks that requests hold, 0 to 1.
    pub usage: f64,
    pub hit_ratio: f64,
    pub blocks: f64,
    pub tokens_per_block: f64,
}

impl Load {
    /// Of the latest iteration with `active` live requests. What it scheduled is over once no request is live.
    pub(super) fn of(iteration: Option<&IterationStats>, active: usize) -> Self {
        let scheduled = iteration.map_or(0, IterationStats::scheduled);
        let running = if active == 0 { 0.0 } else { scheduled as f64 };
        let cache = iteration.and_then(|stats| stats.kv_cache_stats.as_ref());
        Self {
            running,
            waiting: (active as f64 - running).max(0.0),
            cache: cache.map(|cache| Cache {
                usage: if cache.max_num_blocks == 0 {
                    0.0
                } else {
                    cache.used_num_blocks as f64 / cache.max_num_blocks as f64
                },
                hit_ratio: cache.cache_hit_rate,
                blocks: cache.max_num_blocks as f64,
                tokens_per_block: cache.tokens_per_block as f64,
            }),
        }
    }
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
    let load = Load::of(iteration, active);
    let mut families = vec![
        GaugeFamily {
            name: "nv_trt_llm_request_metrics",
            help: "Requests in the executor",
            label: "request_type",
            values: vec![
                ("active", active as f64),
                ("max", stats.max_num_active_requests as f64),
                ("scheduled", load.running),
                ("context", running(stats.context_requests())),
                ("waiting", load.waiting),
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
    if let (Some(cache), Some(shares)) = (&stats.kv_cache_stats, load.cache) {
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
                ("fraction", shares.usage),
            ],
        });
    }
    families.push(GaugeFamily {
        name: "nv_trt_llm_inflight_batcher_metrics",
        help: "The batch of the latest iteration",
        label: "inflight_batcher_specific_metric",
        values: vec![
            ("total_context_tokens", running(inflight.num_ctx_tokens)),
            ("generation_requests", running(inflight.num_gen_requests)),
            ("micro_batch_id", inflight.micro_batch_id as f64),
            ("paused_requests", running(inflight.num_paused_requests)),
        ],
    });
    if let Some(fixed) = &stats.static_batching_stats {
        families.push(GaugeFamily {
            name: "nv_trt_llm_v1_metrics",
            help: "The batch of the latest iteration, of an executor that batches statically",
            label: "v1_specific_metric",
            values: vec![
                ("total_context_tokens", running(fixed.num_ctx_tokens)),
                ("total_generation_tokens", running(fixed.num_gen_tokens)),
                ("empty_generation_slots", running(fixed.empty_gen_slots)),
            ],
        });
    }
    let mut general = vec![("iteration_counter", stats.iter as f64)];
    // In microseconds, as Triton's backend in C++ has it.
    general.extend(stats.timestamp_us().map(|time| ("timestamp", time as f64)));
    families.push(GaugeFamily {
        name: "nv_trt_llm_general_metrics",
        help: "The latest iteration",
        label: "general_type",
        values: general,
    });
    families
}
