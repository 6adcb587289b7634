"""What people type who know other servers, and what it is here. Owns the names of vLLM, SGLang, trtllm-serve
and Ollama; does not know what an option means, and accepts none of these names: two names for one option
confuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

import click

#: Commands whose options this is about.
SERVERS = ("serve", "worker")

#: Of the command itself; those of others are behind its name.
_FLAG = re.compile(r"`(--[a-z-]+)")
_MODEL = "pass MODEL without an option: `inflight serve MODEL`"
_CACHE_SHARE = (
    "use `--executor tensorrt_llm --executor-option kv_cache_free_gpu_mem_fraction=SHARE`, a share of the GPU"
    " memory that is free once the model is loaded"
)


def _limit(flag: str, name: str) -> str:
    return f"use `{flag}`, or with `--executor tensorrt_llm` `--executor-option {name}=NUMBER`"


def _executor_option(name: str, value: str = "VALUE") -> str:
    return f"use `--executor-option {name}={value}`"


def _argument(name: str) -> str:
    return f"write `{name}:` into a YAML file, and use `--executor-option llm_args=FILE`"


def _not_supported(what: str) -> str:
    return f"leave it out: {what}"


_EXPERTS = _executor_option("moe_expert_parallel_size", "NUMBER")
_TOKENIZER = "leave it out: the tokenizer is the one in the model's directory"
_GUIDES = (
    "leave it out: the reference executor guides with llguidance; for TensorRT-LLM, use"
    " `--executor tensorrt_llm --executor-option guided_decoding_backend=NAME`"
)
_LENGTH = _limit("--max-seq-len", "max_seq_len")
_APART = "use `inflight launch` with a topology whose models have `phases`: `context` and `generation`"
#: Option, with dashes for underscores -> what to do instead.
OPTIONS = {
    "--model": _MODEL,
    "--model-path": _MODEL,
    "--tensor-parallel-size": "use `--tp-size`",
    "--tp": "use `--tp-size`",
    "--pp": "use `--pp-size`",
    "--dp": "use `--replicas`",
    "--pipeline-parallel-size": "use `--pp-size`",
    "--data-parallel-size": "use `--replicas`",
    "--dp-size": "use `--replicas`",
    "--ep-size": _EXPERTS,
    "--enable-expert-parallel": _EXPERTS,
    "--max-model-len": _LENGTH,
    "--context-length": _LENGTH,
    "--max-num-seqs": _limit("--max-batch-size", "max_batch_size"),
    "--max-running-requests": _limit("--max-batch-size", "max_batch_size"),
    "--max-total-tokens": _executor_option("max_tokens_in_paged_kv_cache", "NUMBER"),
    "--max-num-batched-tokens": _limit("--max-num-tokens", "max_num_tokens"),
    "--max-beam-width": _executor_option("max_beam_width", "NUMBER"),
    "--dtype": _executor_option("dtype"),
    "--quantization": "quantize with `inflight build --quantization`; a quantized checkpoint needs no option",
    "--kv-cache-dtype": _executor_option("kv_cache_dtype"),
    "--gpu-memory-utilization": _CACHE_SHARE,
    "--mem-fraction-static": _CACHE_SHARE,
    "--kv-cache-free-gpu-memory-fraction": _CACHE_SHARE,
    "--free-gpu-memory-fraction": _CACHE_SHARE,
    "--cpu-offload-gb": _executor_option("gpu_weights_percent", "SHARE") + ", of an engine built for it",
    "--swap-space": _executor_option("kv_cache_host_memory_bytes", "BYTES"),
    "--block-size": "use `--tokens-per-block`; of an engine, `inflight build` sets it",
    "--enable-prefix-caching": _executor_option("enable_kv_cache_reuse", "true"),
    "--enable-chunked-prefill": _executor_option("enable_chunked_context", "true"),
    "--trust-remote-code": "use `--executor tensorrt_llm --executor-option trust_remote_code=true`",
    "--extra-llm-api-options": _executor_option("llm_args", "FILE"),
    "--context-parallel-size": _executor_option("context_parallel_size", "NUMBER"),
    "--cp-size": _executor_option("context_parallel_size", "NUMBER"),
    "--moe-expert-parallel-size": _EXPERTS,
    "--moe-cluster-parallel-size": _argument("moe_cluster_parallel_size"),
    "--cluster-size": _argument("moe_cluster_parallel_size"),
    "--gpus-per-node": _argument("gpus_per_node"),
    "--enable-attention-dp": _argument("enable_attention_dp"),
    "--fail-fast-on-attention-window-too-large": _argument("fail_fast_on_attention_window_too_large"),
    "--num-postprocess-workers": "leave it out: text is made in the gateway, not in the worker",
    "--custom-module-dirs": _not_supported("only models that TensorRT-LLM has itself are served"),
    "--metadata-server-config-file": _APART,
    "--server-role": _APART,
    "--disagg-cluster-uri": _APART,
    "--media-io-kwargs": "use `--images-per-request`, `--image-max-bytes` and the like",
    "--video-pruning-rate": _not_supported("videos are not supported"),
    "--extra-visual-gen-options": _not_supported("images and videos are not generated"),
    # Of `trtllm-serve embeddings`.
    "--max-queue-delay": "leave it out: what is queued while a batch is encoded is the next batch",
    "--max-queue-size": "use `--max-queued-requests`",
    "--otlp-traces-endpoint": "use `--otlp-endpoint`",
    "--grpc": "use `--grpc-port`: a worker serves KServe's protocol over gRPC, not TensorRT-LLM's",
    "--backend": "use `--executor`",
    "--tokenizer": _TOKENIZER,
    "--tokenizer-path": _TOKENIZER,
    "--custom-tokenizer": _TOKENIZER,
    "--download-dir": "set the environment variable `HF_HOME`",
    "--hf-token": "set the environment variable `HF_TOKEN`",
    "--revision": "pass MODEL as `ORG/NAME@REVISION`",
    "--hf-revision": "pass MODEL as `ORG/NAME@REVISION`",
    "--seed": "leave it out: each request has its `seed`",
    "--enable-auto-tool-choice": "leave it out: tool calls are recognized by default",
    "--tool-call-parser": "use `--tool-parser`",
    "--enable-lora": "use `--adapter-dir` with `--allow-lora-loading`",
    "--max-lora-rank": "use `--executor tensorrt_llm --executor-option max_lora_rank=NUMBER`",
    "--max-loras": "use `--executor reference --executor-option lora_max_adapters=NUMBER`",
    "--lora-modules": "use `--executor-option lora_adapter_dir=DIR`",
    "--ssl-certfile": "use `--tls-certificate`",
    "--ssl-keyfile": "use `--tls-key`",
    "--allowed-origins": "use `--allowed-origin`, once for each",
    "--limit-mm-per-prompt": "use `--images-per-request`",
    "--chat-template-content-format": "leave it out: the gateway finds the form that the template reads",
    "--guided-decoding-backend": _GUIDES,
    "--structured-outputs-config": _GUIDES,
    "--grammar-backend": _GUIDES,
    "--enable-metrics": "leave it out: `/metrics` is always served",
    "--disable-log-requests": "use `--log warn`",
    "--disable-log-stats": "leave it out: statistics are metrics, not log lines",
    "--log-level": "use `--log`",
    "--uvicorn-log-level": "use `--log`",
}
_LISTED = "`/v1/models` lists those that are served, and `inflight top` shows their workers"
#: Command -> what to do instead.
COMMANDS = {
    "run": "use `inflight serve MODEL`, and `inflight chat` in another terminal",
    "start": "use `inflight serve MODEL`",
    "server": "use `inflight serve MODEL`",
    "pull": "`inflight serve ORG/NAME` downloads the model",
    "download": "`inflight serve ORG/NAME` downloads the model",
    "models": _LISTED,
    "list": _LISTED,
    "ls": _LISTED,
    "ps": _LISTED,
    "show": "use `inflight inspect MODEL`",
    "embeddings": "use `inflight serve MODEL --executor tensorrt_llm --executor-option encode_only=true`",
    "disaggregated": _APART,
    "benchmark": "use `inflight bench`",
    "convert": "use `inflight build`",
    "quantize": "use `inflight build MODEL --quantization FORMAT`",
}


def unknown_option(error: click.NoSuchOption) -> click.NoSuchOption:
    """The error with what the option is here; the same error for an option that no other server has."""
    if error.ctx is None or error.ctx.command.name not in SERVERS:
        return error
    name = error.option_name.lower().replace("_", "-")
    taken = {flag for option in error.ctx.command.get_params(error.ctx) for flag in option.opts}
    # trtllm-serve writes its names with underscores.
    known = f"use `{name}`" if name in taken else OPTIONS.get(name)
    if known is None:
        return error
    if error.ctx.command.name == "worker" and not set(_FLAG.findall(known)) <= taken:
        known = f"with `inflight serve`, {known}"
    return click.NoSuchOption(
        error.option_name, f"No such option '{error.option_name}': {known}.", ctx=error.ctx
    )


def unknown_command(name: str, commands: Iterable[str], ctx: click.Context) -> click.UsageError:
    """What to say to a command that does not exist."""
    known = COMMANDS.get(name.lower())
    near = get_close_matches(name, list(commands))
    if known is not None:
        hint = f": {known}."
    elif near:
        hint = ". Did you mean " + " or ".join(f"'{one}'" for one in near) + "?"
    else:
        hint = "."
    return click.UsageError(f"No such command '{name}'{hint}", ctx)
