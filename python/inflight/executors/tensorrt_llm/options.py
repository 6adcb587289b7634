"""The adapter's options, by the parameter names of Triton's `tensorrt_llm` model and of TensorRT-LLM.

Owns types, allowed values and how text becomes them (a command line and a config.pbtxt both speak text).
An option with the value None was not given: TensorRT-LLM's own default holds. Knows none of TensorRT-LLM's
classes.
"""

# ruff: noqa: RUF009 -- options are fields

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight.errors import OptionError, UserMistake
from inflight.options import Kind, Option, declared, option, parse_values

#: The runtimes that take an option.
ENGINES_ONLY, PYTORCH_ONLY, BOTH = ("engines",), ("pytorch",), ("engines", "pytorch")


@dataclass(frozen=True)
class ExecutorOption(Option):
    """An option, and the runtimes that take it."""

    runtimes: tuple[str, ...] = ENGINES_ONLY


def _option(kind: Kind, meaning: str, **more: Any) -> Any:
    return option(kind, meaning, of=ExecutorOption, **more)


@dataclass(frozen=True)
class Options:
    """What the executor is started with."""

    # Sizes: below those of the engine; for PyTorch what memory is planned for.
    max_batch_size: int | None = _option("int", "Sequences in one iteration", runtimes=BOTH, minimum=1)
    max_num_tokens: int | None = _option("int", "Tokens in one iteration", runtimes=BOTH, minimum=1)
    max_beam_width: int | None = _option("int", "Widest beam search", runtimes=BOTH, minimum=1)
    max_seq_len: int | None = _option(
        "int", "Prompt plus output of one sequence", runtimes=PYTORCH_ONLY, minimum=1
    )
    max_input_len: int | None = _option("int", "Longest prompt", runtimes=PYTORCH_ONLY, minimum=1)
    max_queue_size: int | None = _option(
        "int", "Requests that wait for a place in the batch; 0 means no limit", minimum=0
    )
    # Scheduling.
    gpt_model_type: str | None = _option(
        "choice",
        "How requests are batched; the executor supports in-flight batching only",
        choices=("V1", "v1", "inflight_batching", "inflight_fused_batching"),
    )
    batch_scheduler_policy: str | None = _option(
        "choice",
        "Whether a request starts only if its whole cache is sure to fit",
        runtimes=BOTH,
        choices=("max_utilization", "guaranteed_no_evict", "static_batch"),
    )
    context_chunking_policy: str | None = _option(
        "choice",
        "Which prompts get chunks first",
        runtimes=BOTH,
        choices=("first_come_first_served", "equal_progress"),
    )
    enable_chunked_context: bool | None = _option("bool", "Process long prompts in chunks", runtimes=BOTH)
    enable_batch_size_tuning: bool | None = _option("bool", "Adjust the batch size to the load")
    enable_max_num_tokens_tuning: bool | None = _option(
        "bool", "Adjust the tokens of an iteration to the load"
    )
    dynamic_batch_moving_average_window: int | None = _option(
        "int", "Iterations over which that load is averaged", minimum=1
    )
    enable_trt_overlap: bool | None = _option("bool", "Prepare one batch while another runs")
    max_seq_idle_microseconds: int | None = _option(
        "int", "Microseconds after which an idle sequence is dropped", minimum=0
    )
    recv_poll_period_ms: int | None = _option(
        "int", "Milliseconds between polls for requests; 0 polls all the time", minimum=0
    )
    # KV cache.
    max_tokens_in_paged_kv_cache: int | None = _option(
        "int", "Tokens in the KV cache", runtimes=BOTH, minimum=1
    )
    max_attention_window_size: list[int] | None = _option(
        "ints", "Tokens that attention sees, for each layer in turn", runtimes=BOTH
    )
    sink_token_length: int | None = _option(
        "int", "First tokens of a sequence that a sliding window keeps", runtimes=BOTH, minimum=0
    )
    kv_cache_free_gpu_mem_fraction: float | None = _option(
        "fraction", "Share of the free GPU memory for the KV cache", runtimes=BOTH
    )
    cross_kv_cache_fraction: float | None = _option(
        "fraction", "Share of the KV cache for an encoder-decoder's cross attention"
    )
    kv_cache_host_memory_bytes: int | None = _option(
        "int", "Main memory for blocks that leave the GPU, in bytes", runtimes=BOTH, minimum=0
    )
    kv_cache_onboard_blocks: bool | None = _option(
        "bool", "Copy blocks in main memory back to the GPU before use", runtimes=BOTH
    )
    enable_kv_cache_reuse: bool | None = _option(
        "bool", "Reuse the cache of equal prompt beginnings", runtimes=BOTH
    )
    enable_partial_reuse: bool | None = _option("bool", "Reuse blocks that match only in part", runtimes=BOTH)
    kv_cache_dtype: str | None = _option("text", "Precision of the KV cache", runtimes=PYTORCH_ONLY)
    event_buffer_max_size: int | None = _option(
        "int",
        "Stored and removed blocks of the KV cache that are kept until they are asked for",
        runtimes=PYTORCH_ONLY,
        minimum=0,
    )
    # Statistics and log probabilities.
    iter_stats_max_iterations: int | None = _option("int", "Iterations whose statistics are kept", minimum=0)
    normalize_log_probs: bool | None = _option("bool", "Divide cumulative log probabilities by the length")
    gather_generation_logits: bool | None = _option("bool", "Keep the logits of outputs", runtimes=BOTH)
    # Ranks and devices.
    communication_mode: str | None = _option(
        "choice",
        "Whether the first rank or a separate process leads the others",
        choices=("leader", "orchestrator"),
    )
    spawn_processes: bool | None = _option("bool", "Whether the orchestrator starts the ranks")
    executor_worker_path: str | None = _option("text", "Program that the orchestrator starts for each rank")
    gpu_device_ids: list[int] | None = _option("instances", "GPUs by number")
    participant_ids: list[int] | None = _option("instances", "MPI ranks that run the engine")
    num_nodes: int | None = _option("int", "Machines that share the model", minimum=1)
    # LoRA.
    lora_cache_optimal_adapter_size: int | None = _option(
        "int", "Adapter size for which the LoRA cache is laid out", runtimes=BOTH, minimum=1
    )
    lora_cache_max_adapter_size: int | None = _option(
        "int", "Largest adapter that the LoRA cache takes", runtimes=BOTH, minimum=1
    )
    lora_cache_gpu_memory_fraction: float | None = _option(
        "fraction", "Share of the free GPU memory for the LoRA cache", runtimes=BOTH
    )
    lora_cache_host_memory_bytes: int | None = _option(
        "int", "Main memory for the LoRA cache, in bytes", runtimes=BOTH, minimum=0
    )
    lora_prefetch_dir: str | None = _option(
        "text", "Adapters to load at start, in Triton's layout: arrays by task id"
    )
    lora_adapter_dir: str | None = _option(
        "text",
        "Hugging Face adapters by task id (`7/adapter_config.json`), loaded on first use",
        runtimes=PYTORCH_ONLY,
    )
    lora_target_modules: list[str] | None = _option(
        "texts", "Modules that adapters change", runtimes=PYTORCH_ONLY
    )
    max_lora_rank: int | None = _option("int", "Largest rank of an adapter", runtimes=PYTORCH_ONLY, minimum=1)
    # Decoding.
    decoding_mode: str | None = _option(
        "choice",
        "How tokens are chosen",
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
    lookahead_window_size: int | None = _option("int", "Window of lookahead decoding", minimum=1)
    lookahead_ngram_size: int | None = _option("int", "N-gram size of lookahead decoding", minimum=1)
    lookahead_verification_set_size: int | None = _option(
        "int", "N-grams that lookahead decoding verifies in a step", minimum=1
    )
    medusa_choices: list[list[int]] | None = _option("token_paths", "Tree of Medusa's draft tokens")
    eagle_choices: list[list[int]] | None = _option("token_paths", "Tree of Eagle's draft tokens")
    speculative_decoding_fast_logits: bool | None = _option(
        "bool", "Send draft logits from rank to rank, not through the request"
    )
    guided_decoding_backend: str | None = _option(
        "choice", "Library that compiles grammars", runtimes=BOTH, choices=("xgrammar", "llguidance")
    )
    xgrammar_tokenizer_info_path: str | None = _option("text", "Tokenizer information that XGrammar needs")
    # Engine and kernels.
    encoder_model_path: str | None = _option("text", "Engine of the encoder of an encoder-decoder")
    gpu_weights_percent: float | None = _option("fraction", "Share of the weights that stays on the GPU")
    multi_block_mode: bool | None = _option("bool", "Split attention over long sequences among blocks")
    enable_context_fmha_fp32_acc: bool | None = _option(
        "bool", "Accumulate attention over prompts in float32"
    )
    cuda_graph_mode: bool | None = _option("bool", "Run iterations as CUDA graphs", runtimes=BOTH)
    cuda_graph_cache_size: int | None = _option("int", "CUDA graphs that are kept", minimum=0)
    cache_transceiver_backend: str | None = _option(
        "choice",
        "How caches move between prefill and decode workers",
        runtimes=BOTH,
        choices=("DEFAULT", "MPI", "UCX", "NIXL", "MOONCAKE"),
    )
    # PyTorch only.
    llm_args: str | None = _option(
        "text",
        "YAML file with arguments of `LLM`, as for `trtllm-serve --config`; options win over it",
        runtimes=PYTORCH_ONLY,
    )
    encode_only: bool | None = _option(
        "bool", "Serve the embeddings of an embedding model, and generate nothing", runtimes=PYTORCH_ONLY
    )
    tensor_parallel_size: int | None = _option(
        "int", "GPUs that share every layer", runtimes=PYTORCH_ONLY, minimum=1
    )
    pipeline_parallel_size: int | None = _option(
        "int", "Groups of GPUs that share the list of layers", runtimes=PYTORCH_ONLY, minimum=1
    )
    context_parallel_size: int | None = _option(
        "int", "GPUs that share a long prompt", runtimes=PYTORCH_ONLY, minimum=1
    )
    moe_tensor_parallel_size: int | None = _option(
        "int", "GPUs that share each expert", runtimes=PYTORCH_ONLY, minimum=1
    )
    moe_expert_parallel_size: int | None = _option(
        "int", "GPUs that share the list of experts", runtimes=PYTORCH_ONLY, minimum=1
    )
    dtype: str | None = _option("text", "Precision of the weights", runtimes=PYTORCH_ONLY)
    trust_remote_code: bool | None = _option(
        "bool", "Allow the checkpoint's own Python code, which is untrusted, to run", runtimes=PYTORCH_ONLY
    )
    sampler_type: str | None = _option(
        "choice",
        "Which of TensorRT-LLM's samplers to use",
        runtimes=PYTORCH_ONLY,
        choices=("auto", "TorchSampler", "TRTLLMSampler"),
    )
    attn_backend: str | None = _option("text", "Attention kernels", runtimes=PYTORCH_ONLY)
    stream_interval: int | None = _option(
        "int", "Iterations between two messages of a stream", runtimes=PYTORCH_ONLY, minimum=1
    )
    cuda_graph_batch_sizes: list[int] | None = _option(
        "ints", "Batch sizes with a CUDA graph", runtimes=PYTORCH_ONLY
    )
    cuda_graph_enable_padding: bool | None = _option(
        "bool", "Pad batches up to the next CUDA graph", runtimes=PYTORCH_ONLY
    )
    disable_overlap_scheduler: bool | None = _option(
        "bool", "Do not plan an iteration while another runs", runtimes=PYTORCH_ONLY
    )
    disable_flashinfer_sampling: bool | None = _option(
        "bool", "Do not sample with FlashInfer", runtimes=PYTORCH_ONLY
    )


OPTIONS: Mapping[str, ExecutorOption] = declared(Options)


def parse(values: Mapping[str, Any], runtime: str, environment: Mapping[str, str] = os.environ) -> Options:
    """Typed options. Raises `OptionError` for an unknown name, a bad value, or an option that `runtime`
    (`engines` or `pytorch`) does not take.

    `TRTLLM_ORCHESTRATOR` and `TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES` count as in Triton's backend.
    """
    parsed = parse_values(
        OPTIONS, values, "the tensorrt_llm executor", "docs/reference/tensorrt-llm.md lists its options"
    )
    for name in parsed:
        takes = OPTIONS[name].runtimes
        if runtime not in takes:
            raise OptionError(
                f"the option `{name}` has no effect with {_WORDS[runtime]}",
                f"leave it out; it is an option of {_WORDS[takes[0]]}",
            )
    for name in _OF_AN_INSTANCE & set(parsed):
        if len(parsed[name]) > 1:
            raise OptionError(
                f"`{name}` is `{values[name]}`, which is for `{len(parsed[name])}` instances of a model",
                "pass the part of one instance; an executor is one",
            )
        parsed[name] = parsed[name][0]
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
            "`guided_decoding_backend` is `llguidance`, which engines do not have", "pass `xgrammar`"
        )
    _check_together(options)
    return options


#: Options that Triton's config has for all instances of a model.
_OF_AN_INSTANCE = frozenset({"gpu_device_ids", "participant_ids"})
_WORDS = {"engines": "engines", "pytorch": "the PyTorch runtime"}


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
            "pass `communication_mode=orchestrator` and `spawn_processes=false`, or leave it out",
        )
    if options.spawn_processes and options.participant_ids is not None:
        raise UserMistake(
            "`participant_ids` is given, but the orchestrator starts the ranks of its engine itself",
            "leave it out, or pass `spawn_processes=false`",
        )
    if options.spawn_processes is False and (not options.participant_ids or 0 in options.participant_ids):
        raise UserMistake(
            "`spawn_processes` is `false`, but `participant_ids` does not say which ranks run the engine",
            "pass the ranks without `0`, which is the orchestrator's, such as `participant_ids=1,2`",
        )
    window = (
        options.lookahead_window_size,
        options.lookahead_ngram_size,
        options.lookahead_verification_set_size,
    )
    if (options.decoding_mode == "lookahead" or any(window)) and not all(window):
        raise UserMistake(
            "`decoding_mode=lookahead` needs three sizes",
            "pass `lookahead_window_size`, `lookahead_ngram_size` and `lookahead_verification_set_size`",
        )
    tuning = (
        options.enable_batch_size_tuning,
        options.enable_max_num_tokens_tuning,
        options.dynamic_batch_moving_average_window,
    )
    if any(value is not None for value in tuning) and any(value is None for value in tuning):
        raise UserMistake(
            "dynamic batch tuning needs three options",
            "set `enable_batch_size_tuning`, `enable_max_num_tokens_tuning` and "
            "`dynamic_batch_moving_average_window`",
        )
