"""The reference executor's options and the sizes that follow from them and a model.

Owns every option's name (TensorRT-LLM's), default and reason. Knows nothing of files or arrays.
Pure, but for a line in the log.
"""

# ruff: noqa: RUF009 -- options are fields

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from inflight.executors.reference.errors import OptionError
from inflight.executors.reference.model.config import ModelConfig
from inflight.options import declared, option, parse_values

from .window import CacheWindow

_LOG = logging.getLogger("inflight.reference")

#: Memory that the default number of cache blocks may take on a CPU.
_DEFAULT_CACHE_BYTES = 2 * 1024**3

#: On a GPU an iteration of many tokens is as cheap a token as it gets: 8192 is TensorRT-LLM's default.
#: Of a model that hears, 32 requests at once with the largest encoder.
CUDA_DEFAULTS: Mapping[str, Any] = {
    "max_batch_size": 256,
    "max_num_tokens": 8192,
    "audio_cache_memory_bytes": 8 << 30,
}

_DEFAULT_NUM_TOKENS = 256

#: Ways of blocks to other workers.
TRANSCEIVERS = ("default", "tcp")

#: TensorRT-LLM's modes of speculative decoding: those that are implemented, and the others.
SPECULATION_MODES = ("ngram", "draft_target")
REFUSED_SPECULATION_MODES = (
    "draft_tokens_external",
    "lookahead_decoding",
    "medusa",
    "explicit_draft_tokens",
    "eagle",
    "mtp",
)


@dataclass(frozen=True)
class Options:
    """What a user may set."""

    max_batch_size: int = option("int", "Sequences in flight", default=64, minimum=1)
    max_num_tokens: int | None = option(
        "int",
        "Tokens of one iteration: longer prompts go through in chunks, so that they delay no other stream;"
        " by default 256 or twice the batch, a chunk of some tens of milliseconds for a small model",
        minimum=1,
    )
    max_seq_len: int | None = option(
        "int", "Prompt plus output of one sequence; by default what model and cache allow", minimum=1
    )
    tokens_per_block: int = option("int", "Tokens in a block of the KV cache", default=32, minimum=1)
    max_tokens_in_paged_kv_cache: int | None = option(
        "int",
        "Tokens in the KV cache; by default every sequence in flight at its longest, within two gibibytes",
        minimum=1,
    )
    max_queue_size: int = option(
        "int", "Sequences that wait for a place in the batch; more are refused", default=4096, minimum=1
    )
    tensor_parallel_size: int | None = option(
        "int", "Ranks that the model is split over; by default all that `mpirun` started", minimum=1
    )
    backend: str = option(
        "choice",
        "What computes; auto: PyTorch on a GPU, and where it is installed for wide models on a CPU; NumPy for"
        " the others",
        default="auto",
        choices=("auto", "numpy", "pytorch"),
    )
    dtype: str = option(
        "choice",
        "Precision to compute in; auto: on a GPU the checkpoint's 16 bits, or bfloat16 for one in float32; on"
        " a CPU float32. NumPy supports only float32",
        default="auto",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    kv_cache_dtype: str = option(
        "choice",
        "Precision of the KV cache; `fp8` holds twice as many tokens as 16 bits, without scales. auto: that"
        " of the model. NumPy supports only float32",
        default="auto",
        choices=("auto", "fp8"),
    )
    batch_invariant: bool = option(
        "bool",
        "Give a token the same bits whatever is computed with it and whether it was part of a prompt: a"
        " resumed request continues exactly alike. NumPy only; off, since it costs the embedded model a fifth"
        " of its speed with one request, 44 % with 32, and half on long prompts",
        default=False,
    )
    load_format: str = option(
        "choice",
        "`dummy`: random weights instead of the checkpoint's, for measuring; `config.json` is enough",
        default="auto",
        choices=("auto", "dummy"),
    )
    batch_scheduler_policy: str = option(
        "choice",
        "Whether a sequence is admitted once its whole answer fits, or its prompt: then the youngest may be"
        " paused; by default nobody waits in mid-answer",
        default="guaranteed_no_evict",
        choices=("guaranteed_no_evict", "max_utilization"),
    )
    enable_chunked_context: bool = option(
        "bool",
        "Process long prompts in chunks; on, other than in TensorRT-LLM, whose engines must be built for it",
        default=True,
    )
    max_prompt_ms: int = option(
        "int",
        "Milliseconds that one prompt may add to an iteration while streams generate, all of which wait for"
        " it. All prompts together may add twice as much, or four times if no fewer wait than generate and"
        " all are done then. Chunks follow from what was measured. 0: no bound. 50: nobody reads faster, and"
        " a chunk of so long still fills a GPU",
        default=50,
        minimum=0,
    )
    enable_kv_cache_reuse: bool = option(
        "bool", "Keep blocks after their sequence, for prompts that begin alike", default=True
    )
    enable_partial_reuse: bool = option("bool", "Copy and use a block that fits in part", default=True)
    max_beam_width: int = option(
        "int", "Beams that a request may search with; each is a row of the batch", default=4, minimum=1
    )
    speculative_decoding_mode: str | None = option(
        "choice",
        "Who guesses tokens: `ngram` looks in the text so far, `draft_target` asks `speculative_model`; by"
        " default, that model if there is one",
        choices=(*SPECULATION_MODES, *REFUSED_SPECULATION_MODES),
    )
    speculative_model: str | None = option(
        "path", "Checkpoint of a smaller model with the same vocabulary, which guesses tokens"
    )
    max_draft_len: int = option(
        "int",
        "Tokens that are guessed at once; 0: none, since guesses cost where few of them hold",
        default=0,
        minimum=0,
    )
    max_matching_ngram_size: int = option(
        "int", "Tokens that prompt lookup compares to find what to guess", default=3, minimum=1
    )
    max_attention_window_size: list[int] | None = option(
        "ints",
        "Tokens that attention sees, for each layer in turn, where the model itself sees more; blocks that no"
        " layer sees are given back",
    )
    sink_token_length: int = option(
        "int",
        "First tokens of a sequence that a sliding window keeps, as part of its size",
        default=0,
        minimum=0,
    )
    kv_cache_host_memory_bytes: int = option(
        "int",
        "Main memory for blocks that would be forgotten; they come back when they are found. None by default,"
        " since on a CPU a larger cache is simpler",
        default=0,
        minimum=0,
    )
    secondary_offload_min_priority: int = option(
        "int",
        "Retention priority from which on a block moves to main memory; by default, that of most blocks",
        default=35,
        minimum=0,
    )
    lora_adapter_dir: str | None = option(
        "path",
        "Folder of folders with a LoRA adapter each, as PEFT saves it; a folder's name is its task id, or the"
        " name that the worker lists with its task id",
    )
    lora_max_adapters: int = option(
        "int",
        "Most LoRA adapters by name, those of `lora_adapter_dir` and those that are loaded later",
        default=1000,
        minimum=1,
    )
    lora_cache_max_adapter_size: int = option("int", "Largest rank of an adapter", default=64, minimum=1)
    lora_cache_host_memory_bytes: int = option(
        "int", "Main memory for LoRA adapters; the least recently used go first", default=1 << 30, minimum=0
    )
    lora_cache_gpu_memory_fraction: float = option(
        "fraction",
        "Share of the GPU memory left by model and KV cache for LoRA adapters, taken as they come; 0.3: 32 of"
        " rank 16 next to a model of 8 billion parameters on 80 GB",
        default=0.3,
    )
    max_image_tokens: int | None = option(
        "int",
        "Tokens that an image becomes at most, unless it is very narrow; larger ones are made smaller. By"
        " default the checkpoint's bound, often 16,384, which takes seconds even on a GPU, while all streams"
        " wait",
        minimum=1,
    )
    image_cache_memory_bytes: int = option(
        "int",
        "Memory for the embeddings of images, which a conversation sends again with every turn; the least"
        " recently used go first",
        default=256 << 20,
        minimum=0,
    )
    audio_cache_memory_bytes: int = option(
        "int",
        "Memory for what a model that hears keeps of each clip; it bounds how many requests run at once: one"
        " takes up to half a gigabyte in float32. The latest stay for a second request with the same clip."
        " On a GPU 8 GiB by default",
        default=2 << 30,
        minimum=1,
    )
    event_buffer_max_size: int = option(
        "int", "Stored and removed blocks that are kept until they are asked for", default=0, minimum=0
    )
    cache_transceiver_backend: str | None = option(
        "choice",
        "How KV cache blocks of prompts go to other workers, for the request types `context_only` and"
        " `generation_only`: `default` in the memory of one host, from GPU to GPU, where both ends have it,"
        " and else as `tcp`, through a connection; without the option not at all",
        choices=TRANSCEIVERS,
    )
    cache_transceiver_address: str = option(
        "text",
        "HOST:PORT where other workers fetch blocks, as they reach it; port 0 picks a free one. By default"
        " only workers of this machine do, which need no key",
        default="127.0.0.1:0",
    )
    cache_transceiver_key_file: str | None = option(
        "path",
        "File with a secret that all workers share: at least 16 bytes. Needed for addresses of other"
        " machines, since clients carry the addresses between workers",
    )
    kv_transfer_timeout_ms: int = option(
        "int",
        "Milliseconds that blocks wait for the worker that fetches them, and that either side waits for the"
        " other. 1000: a gateway's way takes a few, and each block that waits is one that no prompt uses",
        default=1000,
        minimum=1,
    )
    max_tokens_in_buffer: int | None = option(
        "int",
        "Tokens whose blocks are in host memory on their way, in each direction; by default those of 64 MiB",
        minimum=1,
    )


OPTIONS = declared(Options)

#: What a draft model's engine does not take over from the target's options.
_OWN_OF_TARGET: Mapping[str, Any] = {
    "max_seq_len": None,
    "max_attention_window_size": None,
    "sink_token_length": 0,
    "kv_cache_host_memory_bytes": 0,
    # Each round finds its text in the cache, also where requests do not.
    "enable_kv_cache_reuse": True,
    "enable_partial_reuse": True,
    "enable_chunked_context": True,
    "event_buffer_max_size": 0,
    "speculative_model": None,
    "max_draft_len": 0,
    # A draft model computes a prompt in a moment.
    "cache_transceiver_backend": None,
    # What it guesses changes no token.
    "batch_invariant": False,
}

#: Tokens in the cache of a draft model on a GPU, where the target takes all that is left. With less room than
#: its texts need it computes more of them again.
_DRAFT_CACHE_TOKENS = 131_072


#: Rows that choose a token in an iteration where each guess is one: beyond them a GPU computes longer than it
#: reads weights, and guesses cost what they save.
_MOST_GUESSING_ROWS = 512


def choosing_rows(options: Options) -> int:
    """Rows of an iteration that may choose a token, with a row for each guess."""
    rows = options.max_batch_size * (1 + options.max_draft_len)
    return max(options.max_batch_size, min(rows, _MOST_GUESSING_ROWS))


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the executor can hold."""

    max_num_tokens: int
    max_seq_len: int
    num_blocks: int
    #: Memory of the cache when every block is in use.
    cache_bytes: int
    num_host_blocks: int = 0
    #: What blocks a sequence keeps; None: all.
    window: CacheWindow | None = None


def parse_options(values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Options:
    """Options by name; None selects the default, and ``defaults`` are those of a device. Raises `OptionError`
    for an unknown name or value.
    """
    chosen = {**(defaults or {}), **parse_values(OPTIONS, values, "the reference executor")}
    if "max_batch_size" in values and "max_num_tokens" not in values and defaults:
        chosen["max_num_tokens"] = max(chosen["max_num_tokens"], chosen["max_batch_size"])
    options = Options(**chosen)
    if options.max_num_tokens is not None and options.max_num_tokens < options.max_batch_size:
        raise OptionError(
            f"option `max_num_tokens` must be at least `max_batch_size` ({options.max_batch_size}), got"
            f" `{options.max_num_tokens}`",
            "raise it, or lower `max_batch_size`: every sequence needs a token in each iteration",
        )
    _check_speculation(options)
    return options


def _check_speculation(options: Options) -> None:
    mode = options.speculative_decoding_mode
    if mode in REFUSED_SPECULATION_MODES:
        # Draft tokens that requests bring need no mode: every model takes them.
        hint = "leave it out" if mode == "draft_tokens_external" else f"use {' or '.join(SPECULATION_MODES)}"
        raise OptionError(
            f"option `speculative_decoding_mode`: the reference executor does not implement `{mode}`", hint
        )
    if (mode == "draft_target") > (options.speculative_model is not None):
        raise OptionError(
            "option `speculative_decoding_mode` is `draft_target` without `speculative_model`",
            "pass the checkpoint of the model that guesses",
        )
    if mode == "ngram" and options.speculative_model is not None:
        raise OptionError(
            "option `speculative_decoding_mode` is `ngram`, and `speculative_model` is a model that guesses",
            "leave one of them out",
        )
    if (mode is not None or options.speculative_model is not None) and not options.max_draft_len:
        raise OptionError(
            "speculative decoding needs `max_draft_len`",
            "pass how many tokens are guessed at once, such as 4",
        )


def draft_options(options: Options, device: str) -> Options:
    """What the engine of a draft model is made with."""
    draft = replace(options, **_OWN_OF_TARGET)
    if device == "cuda" and options.max_tokens_in_paged_kv_cache is None:
        return replace(draft, max_tokens_in_paged_kv_cache=_DRAFT_CACHE_TOKENS)
    return draft


def row_numbers(config: ModelConfig) -> int:
    """Numbers that a layer makes of a token, about: what an iteration needs besides weights and cache."""
    inner, hidden = 3 * config.intermediate_size, config.hidden_size
    if config.num_experts:
        # Every chosen expert has a row of the token.
        inner = config.experts_per_token * (inner + hidden)
    if config.mixture is not None:
        inner = max(inner + 3 * config.mixture.shared_size, 3 * config.mixture.dense_size)
    latent = 0
    if config.latent is not None:
        # Queries as they come, as they meet the vectors, and what heads take of these.
        latent = config.num_heads * (config.latent.query_dim + 3 * config.latent.cached_dim)
    return 4 * hidden + max(inner, latent)


def plan_sizes(
    options: Options,
    config: ModelConfig,
    element_bytes: int = 4,
    default_cache_bytes: int = _DEFAULT_CACHE_BYTES,
) -> Sizes:
    """The sizes that the options leave to the model; ``element_bytes`` is the size of a cached number.
    Errors: `OptionError` for a cache without a block."""
    # Here, because the cache needs NumPy, and who only asks which options there are does not.
    from .blocks import blocks_for

    longest = config.max_position_embeddings
    max_seq_len = min(options.max_seq_len or longest, longest)
    size = options.tokens_per_block
    max_num_tokens = options.max_num_tokens or max(_DEFAULT_NUM_TOKENS, 2 * options.max_batch_size)
    window = cache_window(config, max_num_tokens)
    token_bytes = element_bytes * config.cached_numbers
    tokens = options.max_tokens_in_paged_kv_cache
    if tokens is None:
        held = blocks_for(max_seq_len, size)
        if window is not None:
            held = min(held, window.most_blocks(size))
        wanted = options.max_batch_size * held * size
        tokens = max(size, min(wanted, default_cache_bytes // token_bytes))
    num_blocks = tokens // size
    if num_blocks == 0:
        raise OptionError(
            f"option `max_tokens_in_paged_kv_cache` must hold at least one block of {size} tokens, got"
            f" `{tokens}`",
            "raise it, or lower `tokens_per_block`",
        )
    if window is None or window.most_blocks(size) > num_blocks:
        max_seq_len = min(max_seq_len, num_blocks * size)
    if max_seq_len < (options.max_seq_len or 0):
        reason = "positions of the model" if max_seq_len == longest else "tokens of the KV cache"
        _LOG.warning(
            "option `max_seq_len` is `%d`, more than the %d %s: %d counts",
            options.max_seq_len,
            max_seq_len,
            reason,
            max_seq_len,
        )
    host_bytes = options.kv_cache_host_memory_bytes
    if host_bytes and not options.enable_kv_cache_reuse:
        raise OptionError(
            f"option `kv_cache_host_memory_bytes` is `{host_bytes}` without `enable_kv_cache_reuse`",
            "leave it out: only blocks that can be found again move to main memory",
        )
    num_host_blocks = host_bytes // (size * token_bytes)
    if host_bytes and not num_host_blocks:
        raise OptionError(
            f"option `kv_cache_host_memory_bytes` must hold at least one block of {size * token_bytes} bytes,"
            f" got `{host_bytes}`",
            "raise it, or leave it out",
        )
    return Sizes(
        max_num_tokens, max_seq_len, num_blocks, num_blocks * size * token_bytes, num_host_blocks, window
    )


def settle_rope(config: ModelConfig, options: Options) -> ModelConfig:
    """The model with the factors of its rotary embedding that suit the longest sequence, where there are
    several (LongRoPE)."""
    if config.rope is None or config.rope.longrope is None:
        return config
    longest = min(options.max_seq_len or config.max_position_embeddings, config.max_position_embeddings)
    longrope = replace(config.rope.longrope, is_long=longest > config.rope.longrope.original_positions)
    return replace(config, rope=replace(config.rope, longrope=longrope))


def limit_windows(config: ModelConfig, options: Options) -> ModelConfig:
    """The model with the windows that the options allow: in each layer, the smaller of the two.
    Errors: `OptionError` for sinks that fill a window."""
    sizes, sinks = options.max_attention_window_size, options.sink_token_length
    if sizes is None and not sinks:
        return config
    if config.latent is not None:
        raise OptionError(
            f"options `max_attention_window_size` and `sink_token_length` do not work with"
            f" `{config.architecture}`, whose attention is latent",
            "leave them out",
        )
    if sizes is not None and (not sizes or min(sizes) < 1):
        raise OptionError(
            f"option `max_attention_window_size` must hold sizes of at least 1, got `{sizes}`",
            "pass the tokens that attention sees, or a list with those of each layer in turn",
        )
    windows: list[int | None] = []
    for layer, own in enumerate(config.windows):
        asked = sizes[layer % len(sizes)] if sizes else config.max_position_embeddings
        window = min(asked, own or asked)
        # A window as long as any sequence hides nothing.
        windows.append(None if window >= config.max_position_embeddings else window - sinks)
    smallest = min((window for window in windows if window is not None), default=1)
    if smallest < 1:
        raise OptionError(
            f"option `sink_token_length` is `{sinks}` in a window of `{smallest + sinks}`",
            "lower it: the window holds the latest tokens as well",
        )
    return replace(config, windows=tuple(windows), sink_tokens=sinks)


def cache_window(config: ModelConfig, max_num_tokens: int) -> CacheWindow | None:
    """What blocks a sequence keeps; None where some layer sees everything."""
    widths = [window for window in config.windows if window is not None]
    if len(widths) < config.num_layers:
        return None
    return CacheWindow(max(widths), config.sink_tokens, max_num_tokens)
