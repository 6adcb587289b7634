"""The reference executor's options and the sizes that follow from them and a model.

Owns every option's name (TensorRT-LLM's), default and reason. Pure; knows nothing of files or arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight.options import declared, option, parse_values

from .config import ModelConfig
from .errors import OptionError

#: Memory that the default number of cache blocks may take on a CPU.
_DEFAULT_CACHE_BYTES = 2 * 1024**3

#: On a GPU an iteration of many tokens is as cheap a token as it gets: 8192 is TensorRT-LLM's default.
CUDA_DEFAULTS: Mapping[str, Any] = {"max_batch_size": 256, "max_num_tokens": 8192}

_DEFAULT_NUM_TOKENS = 256


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
    backend: str = option(
        "choice",
        "What computes; auto: NumPy on a CPU, PyTorch on a GPU",
        default="auto",
        choices=("auto", "numpy", "pytorch"),
    )
    dtype: str = option(
        "choice",
        "Precision to compute in; auto: the checkpoint's on a GPU, float32 on a CPU. NumPy has float32 only",
        default="auto",
        choices=("auto", "bfloat16", "float16", "float32"),
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
    enable_kv_cache_reuse: bool = option(
        "bool", "Keep blocks after their sequence, for prompts that begin alike", default=True
    )
    enable_partial_reuse: bool = option("bool", "Copy and use a block that fits in part", default=True)
    max_beam_width: int = option(
        "int", "Beams that a request may search with; each is a row of the batch", default=4, minimum=1
    )
    max_draft_len: int = option(
        "int",
        "Tokens that prompt lookup guesses at once; 0: none, since guesses cost where a text does not repeat",
        default=0,
        minimum=0,
    )
    max_matching_ngram_size: int = option(
        "int", "Tokens that prompt lookup compares to find what to guess", default=3, minimum=1
    )
    event_buffer_max_size: int = option(
        "int", "Stored and removed blocks that are kept until they are asked for", default=0, minimum=0
    )


OPTIONS = declared(Options)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the executor can hold."""

    max_num_tokens: int
    max_seq_len: int
    num_blocks: int
    #: Memory of the cache when every block is in use.
    cache_bytes: int


def parse_options(values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Options:
    """Options by name; None stands for the default, ``defaults`` for those of a device. Raises `OptionError`
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
    return options


def plan_sizes(
    options: Options,
    config: ModelConfig,
    element_bytes: int = 4,
    default_cache_bytes: int = _DEFAULT_CACHE_BYTES,
) -> Sizes:
    """The sizes that the options leave to the model; ``element_bytes`` is the size of a cached number.
    Errors: `OptionError` for a cache without a block."""
    # Here, because the cache needs NumPy, and who only asks which options there are does not.
    from .cache import blocks_for

    longest = config.max_position_embeddings
    max_seq_len = min(options.max_seq_len or longest, longest)
    size = options.tokens_per_block
    # Keys and values, over all layers.
    token_bytes = 2 * element_bytes * config.num_layers * config.num_kv_heads * config.head_dim
    tokens = options.max_tokens_in_paged_kv_cache
    if tokens is None:
        wanted = options.max_batch_size * blocks_for(max_seq_len, size) * size
        tokens = max(size, min(wanted, default_cache_bytes // token_bytes))
    num_blocks = tokens // size
    if num_blocks == 0:
        raise OptionError(
            f"option `max_tokens_in_paged_kv_cache` must hold at least one block of {size} tokens, got"
            f" `{tokens}`",
            "raise it, or lower `tokens_per_block`",
        )
    max_seq_len = min(max_seq_len, num_blocks * size)
    max_num_tokens = options.max_num_tokens or max(_DEFAULT_NUM_TOKENS, 2 * options.max_batch_size)
    return Sizes(max_num_tokens, max_seq_len, num_blocks, num_blocks * size * token_bytes)
