//! What an executor reports of its iterations, under TensorRT-LLM's keys. Owns the types; what becomes of the numbers
//! is `metrics`' business.

use std::collections::BTreeMap;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

/// One iteration's numbers, by TensorRT-LLM's JSON keys (`IterationStats.to_json_str`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IterationStats {
    pub timestamp: String,
    pub iter: u64,
    #[serde(rename = "iterLatencyMS")]
    pub iter_latency_ms: f64,
    pub num_new_active_requests: u64,
    pub num_active_requests: u64,
    pub num_queued_requests: u64,
    pub num_completed_requests: u64,
    pub max_num_active_requests: u64,
    pub gpu_mem_usage: u64,
    pub cpu_mem_usage: u64,
    pub pinned_mem_usage: u64,
    pub kv_cache_stats: Option<KvCacheStats>,
    pub inflight_batching_stats: Option<InflightBatchingStats>,
    /// Of an executor that batches statically (Triton's `gpt_model_type` `V1`).
    pub static_batching_stats: Option<StaticBatchingStats>,
    /// Of an executor that takes prompts from other workers.
    pub dis_serving_stats: Option<DisServingStats>,
    /// Of an executor that reports guesses.
    pub spec_decoding_stats: Option<SpecDecodingStats>,
}

impl IterationStats {
    /// Requests that the iteration worked for, whichever way they were batched.
    pub fn scheduled(&self) -> u64 {
        let inflight = self.inflight_batching_stats.as_ref();
        let fixed = self.static_batching_stats.as_ref();
        inflight
            .map(|stats| stats.num_scheduled_requests)
            .or(fixed.map(|stats| stats.num_scheduled_requests))
            .unwrap_or(0)
    }

    /// Requests of the iteration whose prompts it computed.
    pub fn context_requests(&self) -> u64 {
        let inflight = self.inflight_batching_stats.as_ref();
        let fixed = self.static_batching_stats.as_ref();
        inflight
            .map(|stats| stats.num_context_requests)
            .or(fixed.map(|stats| stats.num_context_requests))
            .unwrap_or(0)
    }

    /// Microseconds since the epoch; `None` without a timestamp that can be read. It is written
    /// `month-day-year hour:minute:second.microseconds` in the local time of the process, as Triton's
    /// TensorRT-LLM backend reads it.
    pub fn timestamp_us(&self) -> Option<i64> {
        let time = DateTime::strptime("%m-%d-%Y %H:%M:%S.%f", &self.timestamp).ok()?;
        let zoned = time.to_zoned(TimeZone::system()).ok()?;
        Some(zoned.timestamp().as_microsecond())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KvCacheStats {
    pub max_num_blocks: u64,
    pub free_num_blocks: u64,
    pub used_num_blocks: u64,
    pub tokens_per_block: u64,
    pub alloc_total_blocks: u64,
    pub alloc_new_blocks: u64,
    pub reused_blocks: u64,
    pub missed_blocks: u64,
    pub cache_hit_rate: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InflightBatchingStats {
    pub num_scheduled_requests: u64,
    pub num_context_requests: u64,
    pub num_gen_requests: u64,
    pub num_paused_requests: u64,
    pub num_ctx_tokens: u64,
    /// Tokens that are computed of prompts that are not complete, as of the iteration's end. Ours: TensorRT-LLM has no
    /// such figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_partial_ctx_tokens: Option<u64>,
    pub micro_batch_id: u64,
    pub avg_num_decoded_tokens_per_iter: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StaticBatchingStats {
    pub num_scheduled_requests: u64,
    pub num_context_requests: u64,
    pub num_ctx_tokens: u64,
    pub num_gen_tokens: u64,
    pub empty_gen_slots: u64,
}

/// Tokens that an iteration guessed, and those that the model would have chosen as well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SpecDecodingStats {
    pub num_draft_tokens: u64,
    pub num_accepted_tokens: u64,
}

/// KV cache blocks that came from other workers, since the start; TensorRT-LLM has the time of each request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DisServingStats {
    #[serde(rename = "kvCacheTransferMS")]
    pub kv_cache_transfer_ms: f64,
    pub request_count: u64,
    /// Prompts of which something was computed here instead, by reason.
    pub fallbacks: BTreeMap<String, u64>,
}
