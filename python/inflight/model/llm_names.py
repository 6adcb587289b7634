"""Names of the arguments of TensorRT-LLM's `LLM` and of the fields of its configurations: those that 1.2.1 or
1.3 has, for checks where the package is not installed. An installed package is asked itself, by executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.model.llm_args import suggest
from inflight.model.speculation import CLASSES, LATER_CLASSES

#: The releases whose names these are, for messages.
RELEASES = "1.2.1 or 1.3"

_ARGUMENTS = """
allreduce_strategy attention_dp_config attn_backend backend batch_wait_max_tokens_ratio
batch_wait_timeout_iters batch_wait_timeout_ms batched_logits_processor cache_transceiver_config
checkpoint_format checkpoint_io_policy checkpoint_loader context_parallel_size cp_config
cuda_graph_config custom_tokenizer decoding_config disable_flashinfer_sampling disable_mm_encoder
disable_overlap_scheduler dtype dwdp_config enable_attention_dp enable_autotuner enable_chunked_prefill
enable_early_first_token_response enable_encoder_decoder_mixed_cuda_graph enable_energy_metrics
enable_iter_perf_stats enable_iter_req_stats enable_layerwise_nvtx_marker enable_lm_head_tp_in_adp
enable_lora enable_low_latency_host_dispatch enable_min_latency enable_mla_skip_correction
enable_resource_governor enable_sleep enable_speculative_beam_history_d2h encode_only
encoder_cuda_graph_config encoder_max_batch_size encoder_max_num_tokens env_overrides
fail_fast_on_attention_window_too_large force_dynamic_quantization garbage_collection_gen0_threshold
gather_generation_logits generation_config gms_config gpus_per_node guided_decoding_backend
iter_stats_max_iterations kv_cache_compression_config kv_cache_config kv_connector_config
layer_wise_benchmarks_config load_format lora_config max_batch_size max_beam_width max_input_len
max_num_tokens max_seq_len max_stats_len mla_skip_correction_threshold mm_encoder_only model
model_kwargs moe_cluster_parallel_size moe_config moe_expert_parallel_size moe_tensor_parallel_size
multimodal_config mx_config num_postprocess_workers num_serve_frontends nvfp4_gemm_config
orchestrator_type otlp_traces_endpoint peft_cache_config perf_metrics_max_requests
perf_metrics_output_dir pipeline_parallel_size post_processor_hook postprocess_tokenizer_dir
pp_partition prefill_capture_num_tokens prefill_cuda_graph_backend print_iter_log
prometheus_metrics_config ray_placement_config ray_worker_extension_cls ray_worker_nsight_options
reasoning_parser reorder_policy_config request_stats_max_iterations return_perf_metrics revision
sampler_force_async_worker sampler_type scheduler_config skip_tokenizer_init sleep_config
sparse_attention_config speculative_config stream_interval telemetry_config tensor_parallel_size
tokenizer tokenizer_mode tokenizer_revision torch_compile_config trust_remote_code use_cute_dsl_bf16_bmm
use_cute_dsl_bf16_gemm use_cute_dsl_blockscaling_bmm use_cute_dsl_blockscaling_mm use_fine_grained_sync
"""
#: Arguments of `LLM`.
ARGUMENTS = frozenset(_ARGUMENTS.split())

#: Configuration -> its fields. Configurations whose fields depend on a type, or are in no record, are absent.
FIELDS: dict[str, frozenset[str]] = {
    name: frozenset(fields.split())
    for name, fields in {
        "kv_cache_config": """
            attention_dp_events_gather_period_ms avg_seq_len block_reuse_config copy_on_partial_reuse
            cross_kv_cache_fraction disk_cache_path disk_cache_size disk_prefetch_num_reqs dtype
            enable_block_reuse enable_kv_pool_rebalance enable_partial_reuse enable_swa_scratch_reuse
            event_buffer_max_size fp8_context_mla_kv_len_cap free_gpu_memory_fraction host_cache_size
            iteration_stats_interval kv_cache_event_hash_algo mamba_ssm_cache_dtype
            mamba_ssm_philox_rounds mamba_ssm_stochastic_rounding mamba_state_cache_interval
            mamba_state_config max_attention_window max_gpu_total_bytes max_tokens max_util_for_resume
            onboard_blocks pool_ratio secondary_offload_min_priority sink_token_length tokens_per_block
            use_kv_cache_manager_v2 use_uvm
        """,
        "scheduler_config": """
            capacity_scheduler_policy context_chunking_policy dynamic_batch_config
            enable_prefix_aware_scheduling use_python_scheduler waiting_queue_policy
        """,
        "cache_transceiver_config": """
            backend enable_pipelined_transfer kv_cache_bounce_size_mb kv_transfer_poll_interval_ms
            kv_transfer_sender_future_timeout_ms kv_transfer_timeout_ms max_tokens_in_buffer
            transceiver_runtime
        """,
        "peft_cache_config": """
            device_cache_percent host_cache_size lora_prefetch_dir max_adapter_size
            max_pages_per_block_device max_pages_per_block_host num_copy_streams num_device_module_layer
            num_ensure_workers num_host_module_layer num_put_workers optimal_adapter_size
        """,
        "cuda_graph_config": """
            batch_sizes enable_padding max_batch_size
        """,
        "moe_config": """
            backend disable_finalize_fusion load_balancer max_num_tokens use_low_precision_moe_combine
        """,
        "attention_dp_config": """
            batching_wait_iters enable_balance enable_kv_cache_aware_routing
            kv_cache_routing_account_for_in_transfer kv_cache_routing_cold_start_warmup
            kv_cache_routing_conversation_affinity kv_cache_routing_fair_share_multiplier
            kv_cache_routing_load_balance_weight kv_cache_routing_match_rate_threshold
            kv_cache_routing_max_sessions kv_cache_routing_new_conv_placement timeout_iters
        """,
        "torch_compile_config": """
            capture_num_tokens enable_fullgraph enable_inductor enable_piecewise_cuda_graph
            enable_userbuffers max_num_streams
        """,
        "kv_connector_config": """
            connector_module connector_scheduler_class connector_worker_class
        """,
    }.items()
}


def unknown(arguments: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """The arguments, and fields of configurations, that no known release has, each with what was probably
    meant. A name without such a guess may be one of a later release.
    """
    found = [(name, suggest(name, ARGUMENTS)) for name in arguments if name not in ARGUMENTS]
    for outer, fields in FIELDS.items():
        held = arguments.get(outer)
        for name in held if isinstance(held, Mapping) else ():
            if name not in fields:
                near = suggest(str(name), fields)
                found.append((f"{outer}.{name}", None if near is None else f"{outer}.{near}"))
    drafter = arguments.get("speculative_config")
    kind = drafter.get("decoding_type") if isinstance(drafter, Mapping) else None
    if kind is not None and kind not in (*CLASSES, *LATER_CLASSES, "User_Provided", "SaveState"):
        outer = "speculative_config.decoding_type"
        near = suggest(str(kind), (*CLASSES, *LATER_CLASSES))
        found.append((f"{outer}={kind}", None if near is None else f"{outer}={near}"))
    return found
