"""The adapter's options, by the parameter names of Triton's `tensorrt_llm` model and of TensorRT-LLM.

Owns types, allowed values and how text becomes them (a command line and a config.pbtxt both speak text).
An option that is None was not given: TensorRT-LLM's own default holds. Knows no class of TensorRT-LLM.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from inflight.errors import UserMistake

_TRUE = frozenset({"true", "1"})
_FALSE = frozenset({"false", "0"})


def _option(kind: str, *, runtimes: str = "engines", choices: tuple[str, ...] = (), low: float = 0) -> Any:
    return field(default=None, metadata={"kind": kind, "runtimes": runtimes, "choices": choices, "low": low})


@dataclass(frozen=True)
class Options:
    """What the executor is started with. `runtimes` in a field's metadata says who takes it."""

    # Sizes: below those of the engine; for PyTorch what memory is planned for.
    max_batch_size: int | None = _option("int", runtimes="both", low=1)
    max_num_tokens: int | None = _option("int", runtimes="both", low=1)
    max_beam_width: int | None = _option("int", runtimes="both", low=1)
    max_seq_len: int | None = _option("int", runtimes="pytorch", low=1)
    max_input_len: int | None = _option("int", runtimes="pytorch", low=1)
    max_queue_size: int | None = _option("int")
    # Scheduling.
    gpt_model_type: str | None = _option(
        "str", choices=("V1", "v1", "inflight_batching", "inflight_fused_batching")
    )
    batch_scheduler_policy: str | None = _option(
        "str", runtimes="both", choices=("max_utilization", "guaranteed_no_evict", "static_batch")
    )
    context_chunking_policy: str | None = _option(
        "str", runtimes="both", choices=("first_come_first_served", "equal_progress")
    )
    enable_chunked_context: bool | None = _option("bool", runtimes="both")
    enable_batch_size_tuning: bool | None = _option("bool")
    enable_max_num_tokens_tuning: bool | None = _option("bool")
    dynamic_batch_moving_average_window: int | None = _option("int", low=1)
    enable_trt_overlap: bool | None = _option("bool")
    max_seq_idle_microseconds: int | None = _option("int")
    recv_poll_period_ms: int | None = _option("int")
    # KV cache.
    max_tokens_in_paged_kv_cache: int | None = _option("int", runtimes="both", low=1)
    max_attention_window_size: list[int] | None = _option("ints", runtimes="both")  # noqa: RUF009 -- a field
    sink_token_length: int | None = _option("int", runtimes="both")
    kv_cache_free_gpu_mem_fraction: float | None = _option("fraction", runtimes="both")
    cross_kv_cache_fraction: float | None = _option("fraction")
    kv_cache_host_memory_bytes: int | None = _option("int", runtimes="both")
    kv_cache_onboard_blocks: bool | None = _option("bool", runtimes="both")
    enable_kv_cache_reuse: bool | None = _option("bool", runtimes="both")
    enable_partial_reuse: bool | None = _option("bool", runtimes="both")
    event_buffer_max_size: int | None = _option("int", runtimes="both")
    kv_cache_dtype: str | None = _option("str", runtimes="pytorch")
    # Statistics and log probabilities.
    iter_stats_max_iterations: int | None = _option("int")
    request_stats_max_iterations: int | None = _option("int")
    normalize_log_probs: bool | None = _option("bool")
    gather_generation_logits: bool | None = _option("bool")
    # Ranks and devices.
    communication_mode: str | None = _option("str", choices=("leader", "orchestrator"))
    spawn_processes: bool | None = _option("bool")
    executor_worker_path: str | None = _option("str")
    gpu_device_ids: list[int] | None = _option("ints")  # noqa: RUF009 -- a field
    participant_ids: list[int] | None = _option("ints")  # noqa: RUF009 -- a field
    num_nodes: int | None = _option("int", low=1)
    # LoRA.
    lora_cache_optimal_adapter_size: int | None = _option("int", runtimes="both", low=1)
    lora_cache_max_adapter_size: int | None = _option("int", runtimes="both", low=1)
    lora_cache_gpu_memory_fraction: float | None = _option("fraction", runtimes="both")
    lora_cache_host_memory_bytes: int | None = _option("int", runtimes="both")
    #: Triton's layout: arrays by task id, read at start.
    lora_prefetch_dir: str | None = _option("str")
    #: Hugging Face adapters by task id (`7/adapter_config.json`), read when a request asks for one.
    lora_adapter_dir: str | None = _option("str", runtimes="pytorch")
    lora_target_modules: list[str] | None = _option("strs", runtimes="pytorch")  # noqa: RUF009 -- a field
    max_lora_rank: int | None = _option("int", runtimes="pytorch", low=1)
    # Decoding.
    decoding_mode: str | None = _option(
        "str",
        choices=(
            "auto",
            "top_k",
            "top_p",
            "top_k_top_p",
            "beam_search",
            "medusa",
            "redrafter",
            "lookahead",
            "eagle",
        ),
    )
    lookahead_window_size: int | None = _option("int", low=1)
    lookahead_ngram_size: int | None = _option("int", low=1)
    lookahead_verification_set_size: int | None = _option("int", low=1)
    medusa_choices: list[list[int]] | None = _option("choices")  # noqa: RUF009 -- a field
    eagle_choices: list[list[int]] | None = _option("choices")  # noqa: RUF009 -- a field
    speculative_decoding_fast_logits: bool | None = _option("bool")
    guided_decoding_backend: str | None = _option("str", runtimes="both", choices=("xgrammar", "llguidance"))
    xgrammar_tokenizer_info_path: str | None = _option("str")
    # Engine and kernels.
    encoder_model_path: str | None = _option("str")
    gpu_weights_percent: float | None = _option("fraction")
    multi_block_mode: bool | None = _option("bool")
    enable_context_fmha_fp32_acc: bool | None = _option("bool")
    cuda_graph_mode: bool | None = _option("bool", runtimes="both")
    cuda_graph_cache_size: int | None = _option("int")
    cache_transceiver_backend: str | None = _option(
        "str", runtimes="both", choices=("DEFAULT", "MPI", "UCX", "NIXL", "MOONCAKE")
    )
    # PyTorch only.
    tensor_parallel_size: int | None = _option("int", runtimes="pytorch", low=1)
    pipeline_parallel_size: int | None = _option("int", runtimes="pytorch", low=1)
    context_parallel_size: int | None = _option("int", runtimes="pytorch", low=1)
    moe_tensor_parallel_size: int | None = _option("int", runtimes="pytorch", low=1)
    moe_expert_parallel_size: int | None = _option("int", runtimes="pytorch", low=1)
    dtype: str | None = _option("str", runtimes="pytorch")
    trust_remote_code: bool | None = _option("bool", runtimes="pytorch")
    sampler_type: str | None = _option(
        "str", runtimes="pytorch", choices=("auto", "TorchSampler", "TRTLLMSampler")
    )
    attn_backend: str | None = _option("str", runtimes="pytorch")
    stream_interval: int | None = _option("int", runtimes="pytorch", low=1)
    cuda_graph_batch_sizes: list[int] | None = _option("ints", runtimes="pytorch")  # noqa: RUF009 -- a field
    cuda_graph_enable_padding: bool | None = _option("bool", runtimes="pytorch")
    disable_overlap_scheduler: bool | None = _option("bool", runtimes="pytorch")
    disable_flashinfer_sampling: bool | None = _option("bool", runtimes="pytorch")
    #: `auto`: take responses by whole batches where the installed version lets one; `off`: never.
    batch_tap: str | None = _option("str", runtimes="pytorch", choices=("auto", "off"))


def parse(values: Mapping[str, Any], runtime: str, environment: Mapping[str, str] = os.environ) -> Options:
    """Typed options. Errors: `UserMistake` for an unknown name, a bad value, or one that `runtime`
    (`engines` or `pytorch`) would ignore.

    `TRTLLM_ORCHESTRATOR` and `TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES` count as in Triton's backend.
    """
    known = {option.name: option for option in fields(Options)}
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        option = known.get(name)
        if option is None:
            raise UserMistake(
                f"the tensorrt_llm executor has no option `{name}`",
                "docs/reference/tensorrt-llm.md lists those it has",
            )
        if value is None:
            continue
        takes = option.metadata["runtimes"]
        if takes not in ("both", runtime):
            raise UserMistake(
                f"the option `{name}` means nothing to {_WORDS[runtime]}",
                f"leave it out; it is for {_WORDS[takes]}",
            )
        parsed[name] = _value(name, option.metadata, value)
    if (
        runtime == "engines"
        and "communication_mode" not in parsed
        and environment.get("TRTLLM_ORCHESTRATOR") == "1"
    ):
        parsed["communication_mode"] = "orchestrator"
    if parsed.get("communication_mode") == "orchestrator" and "spawn_processes" not in parsed:
        parsed["spawn_processes"] = environment.get("TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES", "1") != "0"
    options = Options(**parsed)
    if runtime == "engines" and options.guided_decoding_backend == "llguidance":
        raise UserMistake(
            "`guided_decoding_backend` is `llguidance`, which engines do not have", "give `xgrammar`"
        )
    _check_together(options)
    return options


_WORDS = {"engines": "engines", "pytorch": "the PyTorch runtime"}


def _value(name: str, metadata: Mapping[str, Any], value: Any) -> Any:
    kind = metadata["kind"]
    try:
        parsed = _PARSERS[kind](value)
    except (ValueError, TypeError):
        raise UserMistake(f"`{name}` is `{value}`", f"give {_EXPECTED[kind]}") from None
    if metadata["choices"] and parsed not in metadata["choices"]:
        raise UserMistake(f"`{name}` is `{value}`", f"give one of {', '.join(metadata['choices'])}")
    if kind == "int" and parsed < metadata["low"]:
        raise UserMistake(f"`{name}` is `{value}`", f"give a whole number from {metadata['low']} on")
    return parsed


def _parse_bool(value: Any) -> bool:
    spelled = str(value).lower()
    if spelled not in _TRUE | _FALSE:
        raise ValueError(value)
    return spelled in _TRUE


def _parse_int(value: Any) -> int:
    if isinstance(value, (bool, float)):
        raise ValueError(value)
    return int(value)


def _parse_fraction(value: Any) -> float:
    number = float(value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(value)
    return number


def _parse_ints(value: Any) -> list[int]:
    items = value if isinstance(value, (list, tuple)) else str(value).split(",")
    return [int(item) for item in items]


def _parse_strs(value: Any) -> list[str]:
    items = value if isinstance(value, (list, tuple)) else str(value).split(",")
    names = [str(item).strip() for item in items]
    if not all(names):
        raise ValueError(value)
    return names


def _parse_choices(value: Any) -> list[list[int]]:
    """Triton's brace lists (`{{0}, {0, 1}}`), JSON, or lists."""
    if isinstance(value, str):
        value = json.loads(re.sub(r"\}", "]", re.sub(r"\{", "[", value)))
        if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
            value = [value]
    return [[int(node) for node in path] for path in value]


_PARSERS: dict[str, Any] = {
    "bool": _parse_bool,
    "int": _parse_int,
    "fraction": _parse_fraction,
    "str": str,
    "ints": _parse_ints,
    "strs": _parse_strs,
    "choices": _parse_choices,
}
_EXPECTED = {
    "bool": "true or false",
    "int": "a whole number",
    "fraction": "a number from 0 to 1",
    "str": "text",
    "ints": "whole numbers with commas between",
    "strs": "names with commas between",
    "choices": "paths like `{{0}, {0, 0}, {1}}`",
}


def _check_together(options: Options) -> None:
    sizes = (options.cuda_graph_batch_sizes, options.cuda_graph_enable_padding)
    if options.cuda_graph_mode is False and sizes != (None, None):
        raise UserMistake(
            "`cuda_graph_mode` is `false`, and other options say how to make CUDA graphs",
            "leave `cuda_graph_batch_sizes` and `cuda_graph_enable_padding` out",
        )
    if options.speculative_decoding_fast_logits and (
        options.communication_mode != "orchestrator" or options.spawn_processes
    ):
        raise UserMistake(
            "`speculative_decoding_fast_logits` is `true`, and draft and target do not share their ranks",
            "give `communication_mode=orchestrator` and `spawn_processes=false`, or leave it out",
        )
    window = (
        options.lookahead_window_size,
        options.lookahead_ngram_size,
        options.lookahead_verification_set_size,
    )
    if (options.decoding_mode == "lookahead" or any(window)) and not all(window):
        raise UserMistake(
            "`decoding_mode=lookahead` needs three sizes",
            "give `lookahead_window_size`, `lookahead_ngram_size` and `lookahead_verification_set_size`",
        )
    tuning = (
        options.enable_batch_size_tuning,
        options.enable_max_num_tokens_tuning,
        options.dynamic_batch_moving_average_window,
    )
    if any(value is not None for value in tuning) and any(value is None for value in tuning):
        raise UserMistake(
            "dynamic batch tuning needs three options",
            "give `enable_batch_size_tuning`, `enable_max_num_tokens_tuning` and "
            "`dynamic_batch_moving_average_window`",
        )
