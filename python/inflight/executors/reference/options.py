"""The reference executor's options and the sizes that follow from them and a model.

Owns every option's name (TensorRT-LLM's), default and reason. Pure; knows nothing of files or arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .config import ModelConfig
from .errors import OptionError

#: Memory that the default number of cache blocks may take.
_DEFAULT_CACHE_BYTES = 2 * 1024**3

_DEFAULT_NUM_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may set; all integers of at least 1."""

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


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the executor can hold."""

    max_num_tokens: int
    max_seq_len: int
    num_blocks: int
    #: Memory of the cache when every block is in use.
    cache_bytes: int


def parse_options(values: Mapping[str, Any]) -> Options:
    """Options by name; None stands for the default. Errors: `OptionError` for an unknown name or value."""
    names = [field.name for field in fields(Options)]
    for name, value in values.items():
        if name not in names:
            raise OptionError(
                f"option `{name}` is unknown to the reference executor", f"use one of {', '.join(names)}"
            )
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise OptionError(f"option `{name}` is `{value}`", "it must be an integer of at least 1")
    options = Options(**{name: value for name, value in values.items() if value is not None})
    if options.max_num_tokens is not None and options.max_num_tokens < options.max_batch_size:
        raise OptionError(
            f"option `max_num_tokens` is `{options.max_num_tokens}`",
            f"it must be at least max_batch_size ({options.max_batch_size}), a token for every sequence",
        )
    return options


def plan_sizes(options: Options, config: ModelConfig) -> Sizes:
    """The sizes that the options leave to the model. Errors: `OptionError` for a cache without a block."""
    # Here, because the cache needs NumPy, and who only asks which options there are does not.
    from .cache import blocks_for

    longest = config.max_position_embeddings
    max_seq_len = min(options.max_seq_len or longest, longest)
    size = options.tokens_per_block
    # Keys and values, float32, over all layers.
    token_bytes = 2 * 4 * config.num_layers * config.num_kv_heads * config.head_dim
    tokens = options.max_tokens_in_paged_kv_cache
    if tokens is None:
        wanted = options.max_batch_size * blocks_for(max_seq_len, size) * size
        tokens = max(size, min(wanted, _DEFAULT_CACHE_BYTES // token_bytes))
    num_blocks = tokens // size
    if num_blocks == 0:
        raise OptionError(
            f"option `max_tokens_in_paged_kv_cache` is `{tokens}`",
            f"it must hold at least one block of {size} tokens",
        )
    max_seq_len = min(max_seq_len, num_blocks * size)
    max_num_tokens = options.max_num_tokens or max(_DEFAULT_NUM_TOKENS, 2 * options.max_batch_size)
    return Sizes(max_num_tokens, max_seq_len, num_blocks, num_blocks * size * token_bytes)
