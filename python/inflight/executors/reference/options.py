"""The reference executor's options and the sizes that follow from them and a model.

Owns every option's name (TensorRT-LLM's), default and reason. Pure; knows nothing of files or arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .config import ModelConfig
from .errors import OptionError

#: Memory that the default number of cache blocks may take on a CPU.
_DEFAULT_CACHE_BYTES = 2 * 1024**3

#: On a GPU an iteration of many tokens is as cheap a token as it gets: 8192 is TensorRT-LLM's default.
CUDA_DEFAULTS: Mapping[str, Any] = {"max_batch_size": 256, "max_num_tokens": 8192}

_CHOICES = {
    "backend": ("auto", "numpy", "pytorch"),
    "dtype": ("auto", "bfloat16", "float16", "float32"),
    "load_format": ("auto", "dummy"),
}

_DEFAULT_NUM_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may set; integers of at least 1, or one of a few words."""

    #: Sequences in flight.
    max_batch_size: int = 64
    #: Tokens of one iteration: longer prompts go through in chunks, so that they delay no other stream.
    #: None: 256 or twice the batch, so that a chunk of a small model takes some tens of milliseconds.
    max_num_tokens: int | None = None
    #: Prompt plus output of one sequence; None: as much as the model was trained for and the cache holds.
    max_seq_len: int | None = None
    tokens_per_block: int = 32
    #: None: every sequence in flight at its longest, within two gibibytes.
    max_tokens_in_paged_kv_cache: int | None = None
    #: Sequences that wait for a place in the batch; more are refused.
    max_queue_size: int = 4096
    #: What computes; auto: NumPy on a CPU, PyTorch on a GPU.
    backend: str = "auto"
    #: auto: the checkpoint's own on a GPU, float32 on a CPU. NumPy has float32 only.
    dtype: str = "auto"
    #: ``dummy``: random weights instead of the checkpoint's, for measuring; config.json is enough.
    load_format: str = "auto"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the executor can hold."""

    max_num_tokens: int
    max_seq_len: int
    num_blocks: int
    #: Memory of the cache when every block is in use.
    cache_bytes: int


def parse_options(values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Options:
    """Options by name; None stands for the default, ``defaults`` for those of a device.
    Errors: `OptionError` for an unknown name or value."""
    names = [field.name for field in fields(Options)]
    chosen = dict(defaults or {})
    for name, value in values.items():
        if name not in names:
            raise OptionError(
                f"option `{name}` is unknown to the reference executor", f"use one of {', '.join(names)}"
            )
        if value is not None:
            chosen[name] = _word(name, value) if name in _CHOICES else _count(name, value)
    if "max_batch_size" in values and "max_num_tokens" not in values and defaults:
        chosen["max_num_tokens"] = max(chosen["max_num_tokens"], chosen["max_batch_size"])
    options = Options(**chosen)
    if options.max_num_tokens is not None and options.max_num_tokens < options.max_batch_size:
        raise OptionError(
            f"option `max_num_tokens` is `{options.max_num_tokens}`",
            f"it must be at least max_batch_size ({options.max_batch_size}), a token for every sequence",
        )
    return options


def _word(name: str, value: Any) -> str:
    if value not in _CHOICES[name]:
        raise OptionError(f"option `{name}` is `{value}`", f"it must be one of {', '.join(_CHOICES[name])}")
    return str(value)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"option `{name}` is `{value}`", "it must be an integer of at least 1")
    return value


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
            f"option `max_tokens_in_paged_kv_cache` is `{tokens}`",
            f"it must hold at least one block of {size} tokens",
        )
    max_seq_len = min(max_seq_len, num_blocks * size)
    max_num_tokens = options.max_num_tokens or max(_DEFAULT_NUM_TOKENS, 2 * options.max_batch_size)
    return Sizes(max_num_tokens, max_seq_len, num_blocks, num_blocks * size * token_bytes)
