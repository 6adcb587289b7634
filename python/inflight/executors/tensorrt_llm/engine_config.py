"""Options into `ExecutorConfig`. Owns which option feeds which class and keyword; a keyword whose option was
not given is not passed, so that TensorRT-LLM's default holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inflight.errors import UserMistake
from inflight.executors.tensorrt_llm.options import Options
from inflight.executors.tensorrt_llm.verify import parameters

#: Fixed by Triton's backend: threads and streams that move adapters.
_LORA_WORKERS = 4


@dataclass(frozen=True)
class Knob:
    """An option and the keyword of a configuration class that it becomes; `how` names the conversion."""

    option: str
    owner: str
    keyword: str
    how: str = "same"


KNOBS = (
    Knob("max_beam_width", "ExecutorConfig", "max_beam_width"),
    Knob("max_batch_size", "ExecutorConfig", "max_batch_size"),
    Knob("max_num_tokens", "ExecutorConfig", "max_num_tokens"),
    Knob("max_queue_size", "ExecutorConfig", "max_queue_size"),
    Knob("gpt_model_type", "ExecutorConfig", "batching_type", "batching_type"),
    Knob("enable_chunked_context", "ExecutorConfig", "enable_chunked_context"),
    Knob("enable_trt_overlap", "ExecutorConfig", "enable_trt_overlap"),
    Knob("max_seq_idle_microseconds", "ExecutorConfig", "max_seq_idle_microseconds"),
    Knob("recv_poll_period_ms", "ExecutorConfig", "recv_poll_period_ms"),
    Knob("iter_stats_max_iterations", "ExecutorConfig", "iter_stats_max_iterations"),
    Knob("normalize_log_probs", "ExecutorConfig", "normalize_log_probs"),
    Knob("gather_generation_logits", "ExecutorConfig", "gather_generation_logits"),
    Knob("gpu_weights_percent", "ExecutorConfig", "gpu_weights_percent"),
    Knob("batch_scheduler_policy", "SchedulerConfig", "capacity_scheduler_policy", "scheduler_policy"),
    Knob("context_chunking_policy", "SchedulerConfig", "context_chunking_policy", "chunking_policy"),
    Knob("enable_batch_size_tuning", "DynamicBatchConfig", "enable_batch_size_tuning"),
    Knob("enable_max_num_tokens_tuning", "DynamicBatchConfig", "enable_max_num_tokens_tuning"),
    Knob("dynamic_batch_moving_average_window", "DynamicBatchConfig", "dynamic_batch_moving_average_window"),
    Knob("enable_kv_cache_reuse", "KvCacheConfig", "enable_block_reuse"),
    Knob("max_tokens_in_paged_kv_cache", "KvCacheConfig", "max_tokens"),
    Knob("max_attention_window_size", "KvCacheConfig", "max_attention_window"),
    Knob("sink_token_length", "KvCacheConfig", "sink_token_length"),
    Knob("kv_cache_free_gpu_mem_fraction", "KvCacheConfig", "free_gpu_memory_fraction"),
    Knob("cross_kv_cache_fraction", "KvCacheConfig", "cross_kv_cache_fraction"),
    Knob("kv_cache_host_memory_bytes", "KvCacheConfig", "host_cache_size"),
    Knob("kv_cache_onboard_blocks", "KvCacheConfig", "onboard_blocks"),
    Knob("enable_partial_reuse", "KvCacheConfig", "enable_partial_reuse"),
    Knob("communication_mode", "ParallelConfig", "communication_mode", "communication_mode"),
    Knob("gpu_device_ids", "ParallelConfig", "device_ids"),
    Knob("participant_ids", "ParallelConfig", "participant_ids"),
    Knob("num_nodes", "ParallelConfig", "num_nodes"),
    Knob("executor_worker_path", "OrchestratorConfig", "worker_executable_path"),
    Knob("spawn_processes", "OrchestratorConfig", "spawn_processes"),
    Knob("lora_cache_optimal_adapter_size", "PeftCacheConfig", "optimal_adapter_size"),
    Knob("lora_cache_max_adapter_size", "PeftCacheConfig", "max_adapter_size"),
    Knob("lora_cache_gpu_memory_fraction", "PeftCacheConfig", "device_cache_percent"),
    Knob("lora_cache_host_memory_bytes", "PeftCacheConfig", "host_cache_size"),
    Knob("lora_prefetch_dir", "PeftCacheConfig", "lora_prefetch_dir"),
    Knob("decoding_mode", "DecodingConfig", "decoding_mode", "decoding_mode"),
    Knob("lookahead_window_size", "LookaheadDecodingConfig", "max_window_size"),
    Knob("lookahead_ngram_size", "LookaheadDecodingConfig", "max_ngram_size"),
    Knob("lookahead_verification_set_size", "LookaheadDecodingConfig", "max_verification_set_size"),
    Knob("medusa_choices", "DecodingConfig", "medusa_choices"),
    Knob("eagle_choices", "EagleConfig", "eagle_choices"),
    Knob("speculative_decoding_fast_logits", "SpeculativeDecodingConfig", "fast_logits"),
    Knob("guided_decoding_backend", "GuidedDecodingConfig", "backend", "guided_backend"),
    Knob("xgrammar_tokenizer_info_path", "GuidedDecodingConfig", "encoded_vocab", "tokenizer_info"),
    Knob("multi_block_mode", "ExtendedRuntimePerfKnobConfig", "multi_block_mode"),
    Knob("enable_context_fmha_fp32_acc", "ExtendedRuntimePerfKnobConfig", "enable_context_fmha_fp32_acc"),
    # Properties of that class, no constructor arguments.
    Knob("cuda_graph_mode", "ExtendedRuntimePerfKnobConfig", "cuda_graph_mode", "attribute"),
    Knob("cuda_graph_cache_size", "ExtendedRuntimePerfKnobConfig", "cuda_graph_cache_size", "attribute"),
    Knob("cache_transceiver_backend", "CacheTransceiverConfig", "backend", "transceiver_backend"),
)

#: Class -> where its object goes; in the order in which they are built.
_PARENTS = {
    "DynamicBatchConfig": ("SchedulerConfig", "dynamic_batch_config"),
    "SchedulerConfig": ("ExecutorConfig", "scheduler_config"),
    "KvCacheConfig": ("ExecutorConfig", "kv_cache_config"),
    "OrchestratorConfig": ("ParallelConfig", "orchestrator_config"),
    "ParallelConfig": ("ExecutorConfig", "parallel_config"),
    "PeftCacheConfig": ("ExecutorConfig", "peft_cache_config"),
    "LookaheadDecodingConfig": ("DecodingConfig", "lookahead_decoding_config"),
    "EagleConfig": ("DecodingConfig", "eagle_config"),
    "DecodingConfig": ("ExecutorConfig", "decoding_config"),
    "SpeculativeDecodingConfig": ("ExecutorConfig", "spec_dec_config"),
    "GuidedDecodingConfig": ("ExecutorConfig", "guided_decoding_config"),
    "ExtendedRuntimePerfKnobConfig": ("ExecutorConfig", "extended_runtime_perf_knob_config"),
    "CacheTransceiverConfig": ("ExecutorConfig", "cache_transceiver_config"),
}

_DECODING_MODES = {
    "auto": "Auto",
    "top_k": "TopK",
    "top_p": "TopP",
    "top_k_top_p": "TopKTopP",
    "beam_search": "BeamSearch",
    "medusa": "Medusa",
    # ReDrafter is what TensorRT-LLM calls explicit draft tokens.
    "redrafter": "ExplicitDraftTokens",
    "lookahead": "Lookahead",
    "eagle": "Eagle",
}


def _converters(api: Any) -> dict[str, Callable[[Any], Any]]:
    return {
        "same": lambda value: value,
        "batching_type": lambda value: (
            api.BatchingType.STATIC if value.upper() == "V1" else api.BatchingType.INFLIGHT
        ),
        "scheduler_policy": lambda value: getattr(api.CapacitySchedulerPolicy, value.upper()),
        "chunking_policy": lambda value: getattr(api.ContextChunkingPolicy, value.upper()),
        "communication_mode": lambda value: getattr(api.CommunicationMode, value.upper()),
        "decoding_mode": lambda value: getattr(api.DecodingMode, _DECODING_MODES[value])(),
        "guided_backend": lambda value: getattr(
            api.GuidedDecodingConfig.GuidedDecodingBackend, value.upper()
        ),
        "transceiver_backend": lambda value: getattr(api.CacheTransceiverBackendType, value),
    }


def build_config(
    api: Any, options: Options, tokenizer_info: dict[str, Any] | None, version: str, rank: int = 0
) -> Any:
    """The `ExecutorConfig` of one rank. `api`: the module `tensorrt_llm.bindings.executor`;
    `tokenizer_info`: what xgrammar needs of the tokenizer.

    Errors: `UserMistake` for an option whose class, keyword or value the installed version has not.
    """
    convert = _converters(api)
    keywords: dict[str, dict[str, Any]] = {"ExecutorConfig": {}}
    attributes: dict[str, dict[str, Any]] = {}
    for knob in KNOBS:
        value = getattr(options, knob.option)
        if value is None:
            continue
        owner = _class(api, knob, version)
        if knob.how == "tokenizer_info":
            continue
        if knob.how == "attribute":
            if not hasattr(owner, knob.keyword):
                raise _lacks(knob, version)
            attributes.setdefault(knob.owner, {})[knob.keyword] = value
            keywords.setdefault(knob.owner, {})
            continue
        taken = parameters(owner)
        if taken is not None and knob.keyword not in taken:
            raise _lacks(knob, version)
        try:
            converted = convert[knob.how](value)
        except AttributeError as error:
            raise _lacks(knob, version) from error
        keywords.setdefault(knob.owner, {})[knob.keyword] = converted
    _complete(keywords, options, tokenizer_info, rank)
    for owner_name, (parent, keyword) in _PARENTS.items():
        if owner_name in keywords:
            made = _make(api, owner_name, keywords[owner_name], version)
            for name, value in attributes.get(owner_name, {}).items():
                setattr(made, name, value)
            keywords.setdefault(parent, {})[keyword] = made
    return _make(api, "ExecutorConfig", keywords["ExecutorConfig"], version)


def _make(api: Any, owner: str, keywords: dict[str, Any], version: str) -> Any:
    """The object; keywords that go with options, as the classes that hold others, are checked here."""
    found = getattr(api, owner, None)
    taken = None if found is None else parameters(found)
    missing = sorted(set(keywords) - taken) if taken is not None else []
    if found is None or missing:
        what = ", ".join(f"`{owner}({keyword})`" for keyword in missing) or f"`{owner}`"
        raise UserMistake(
            f"TensorRT-LLM `{version}` has no {what}, which the options given need",
            "leave them out, or install a version that has it",
        )
    return found(**keywords)


def _complete(
    keywords: dict[str, dict[str, Any]], options: Options, tokenizer_info: dict[str, Any] | None, rank: int
) -> None:
    """What goes with what was given."""
    if options.communication_mode == "orchestrator":
        # The ranks that it was not asked to start run the engine for it.
        keywords.setdefault("OrchestratorConfig", {})["is_orchestrator"] = rank == 0
    else:
        keywords.pop("OrchestratorConfig", None)
    if "PeftCacheConfig" in keywords:
        keywords["PeftCacheConfig"].update(
            num_put_workers=_LORA_WORKERS, num_ensure_workers=_LORA_WORKERS, num_copy_streams=_LORA_WORKERS
        )
    if "GuidedDecodingConfig" in keywords and tokenizer_info is not None:
        keywords["GuidedDecodingConfig"].update(tokenizer_info)


def _class(api: Any, knob: Knob, version: str) -> Any:
    found = getattr(api, knob.owner, None)
    if found is None:
        raise _lacks(knob, version)
    return found


def _lacks(knob: Knob, version: str) -> UserMistake:
    return UserMistake(
        f"TensorRT-LLM `{version}` has no `{knob.owner}({knob.keyword})` for the option `{knob.option}`",
        "leave the option out, or install a version that has it",
    )
