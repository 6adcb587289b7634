//! The tensors of TensorRT-LLM's `llmapi` model, and which of BLS' they are.

use std::sync::LazyLock;

use inflight_kserve::names;
use inflight_kserve::tensor::DataType::{self, Bool, Bytes, Fp32, Int32, Int64, Uint64};

use crate::model::spec::{LIST, ONE, OutputSpec};
use crate::text_models::spec::{Role, TEXT_OUTPUT, TextInput};

/// The input that distinguishes these requests from the core model's.
pub(super) const TEXT_INPUT: &str = "text_input";

/// Which adapter is asked for, together with its name and its path.
pub(super) const LORA_ID: &str = "lora_id";
/// Who wrote an adapter's files.
pub(super) const LORA_SOURCE: &str = "lora_ckpt_source";

const fn bls(name: &'static str, datatype: DataType, bls: &'static str) -> TextInput {
    TextInput::new(name, datatype, ONE, Role::Bls(bls))
}

/// In the order of upstream's config.pbtxt.
pub(in crate::text_models) const INPUTS: &[TextInput] = &[
    bls(TEXT_INPUT, Bytes, TEXT_INPUT).dims(LIST).required(),
    TextInput::new("image_url", Bytes, LIST, Role::Unsupported),
    bls("streaming", Bool, "stream"),
    TextInput::new("sampling_param_best_of", Int32, ONE, Role::Own),
    TextInput::new("sampling_param_temperature", Fp32, ONE, Role::Own),
    TextInput::new("sampling_param_top_k", Int32, ONE, Role::Own),
    TextInput::new("sampling_param_top_p", Fp32, ONE, Role::Own),
    bls(
        "sampling_param_frequency_penalty",
        Fp32,
        "frequency_penalty",
    ),
    bls("sampling_param_presence_penalty", Fp32, "presence_penalty"),
    TextInput::new("sampling_param_max_tokens", Int32, ONE, Role::Own),
    bls("sampling_param_stop", Bytes, "stop_words").dims(LIST),
    bls("sampling_param_seed", Uint64, "seed"),
    TextInput::new(
        "sampling_param_exclude_input_from_output",
        Bool,
        ONE,
        Role::Own,
    ),
    bls(
        "sampling_param_return_perf_metrics",
        Bool,
        "return_perf_metrics",
    ),
    TextInput::new(
        "sampling_param_logits_post_processor_name",
        Bytes,
        ONE,
        Role::Unsupported,
    ),
    TextInput::new("return_finish_reason", Bool, ONE, Role::Own),
    TextInput::new("return_stop_reason", Bool, ONE, Role::Own),
    bls("return_cumulative_logprob", Bool, "return_log_probs"),
    TextInput::new(names::STOP, Bool, ONE, Role::Own),
    TextInput::new(LORA_ID, Uint64, ONE, Role::Own),
    TextInput::new(names::LORA_NAME, Bytes, ONE, Role::Own),
    TextInput::new(names::LORA_PATH, Bytes, ONE, Role::Own),
    TextInput::new(LORA_SOURCE, Bytes, ONE, Role::Own),
];

pub(super) const FINISH_REASON: &str = "finish_reason";
pub(super) const STOP_REASON: &str = "stop_reason";
/// Ours, and BLS'.
pub(super) const SUM: (&str, &str) = ("cumulative_logprob", "cum_log_probs");
/// Performance metrics: ours, and BLS'.
pub(super) const METRICS: [(&str, &str); 10] = [
    ("kv_cache_reused_block", "kv_cache_reused_blocks"),
    ("kv_cache_alloc_new_blocks", "kv_cache_alloc_new_blocks"),
    ("kv_cache_alloc_total_blocks", "kv_cache_alloc_total_blocks"),
    ("arrival_time_ns", "arrival_time_ns"),
    ("first_scheduled_time_ns", "first_scheduled_time_ns"),
    ("first_token_time_ns", "first_token_time_ns"),
    ("last_token_time_ns", "last_token_time_ns"),
    ("acceptance_rate", "acceptance_rate"),
    ("total_accepted_draft_tokens", "total_accepted_draft_tokens"),
    ("total_draft_tokens", "total_draft_tokens"),
];

/// Upstream's, but for `kv_cache_missed_block` and `kv_cache_hit_rate`, which no executor reports of a request.
pub(in crate::text_models) static OUTPUTS: LazyLock<Vec<OutputSpec>> = LazyLock::new(|| {
    let own = [
        OutputSpec::new(TEXT_OUTPUT, Bytes, LIST),
        OutputSpec::new(FINISH_REASON, Bytes, LIST),
        OutputSpec::new(STOP_REASON, Bytes, LIST),
        OutputSpec::new(SUM.0, Fp32, LIST),
    ];
    let metrics = METRICS.into_iter().map(|(name, _)| {
        let datatype = match name {
            "acceptance_rate" => Fp32,
            name if name.ends_with("_ns") => Int64,
            _ => Int32,
        };
        OutputSpec::new(name, datatype, ONE)
    });
    own.into_iter().chain(metrics).collect()
});
