//! The gauges by which schedulers of Kubernetes choose a server, under the names that they know from `trtllm-serve`
//! and vLLM: the endpoint picker of the Gateway API's inference extension and of llm-d, and autoscalers. Pure.
//!
//! Not there: `vllm:lora_requests_info`. It reports which adapters are in the GPU's memory, and no executor says.

use super::Counters;
use super::gauges::Load;
use super::page::Page;

/// `model` is the name that the gateway serves it under.
pub(super) fn write(page: &mut Page, model: &str, counters: &Counters, active: usize) {
    let load = Load::of(counters.iteration.as_ref(), active);
    let trtllm = [("model_name", model), ("engine_type", "trtllm")];
    let vllm = [("model_name", model), ("engine", "0")];
    let waiting = "Requests that wait for their turn in an iteration";
    let running = "Requests that the latest iteration worked for";
    let usage = "Share of the blocks of the KV cache that requests hold";
    let mut gauges = vec![
        ("trtllm_num_requests_waiting", waiting, trtllm, load.waiting),
        ("trtllm_num_requests_running", running, trtllm, load.running),
        ("vllm:num_requests_waiting", waiting, vllm, load.waiting),
        ("vllm:num_requests_running", running, vllm, load.running),
    ];
    if let Some(cache) = &load.cache {
        let hits = "Share of the blocks of prompts that were found in the KV cache";
        let blocks = "Blocks of the KV cache";
        let size = "Tokens of a block of the KV cache";
        gauges.extend([
            ("trtllm_kv_cache_utilization", usage, trtllm, cache.usage),
            ("trtllm_kv_cache_hit_rate", hits, trtllm, cache.hit_ratio),
            ("trtllm_kv_cache_max_blocks", blocks, trtllm, cache.blocks),
            (
                "trtllm_kv_cache_tokens_per_block",
                size,
                trtllm,
                cache.tokens_per_block,
            ),
            ("vllm:kv_cache_usage_perc", usage, vllm, cache.usage),
        ]);
    }
    for (name, help, labels, value) in gauges {
        page.single((name, "gauge", help), &labels, value);
    }
    if let Some(cache) = load.cache {
        let (size, blocks) = (cache.tokens_per_block.to_string(), cache.blocks.to_string());
        let labels = [
            vllm[0],
            vllm[1],
            ("block_size", &*size),
            ("num_gpu_blocks", &*blocks),
        ];
        let help = "The KV cache, in labels";
        page.single(("vllm:cache_config_info", "gauge", help), &labels, 1.0);
    }
}
