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

#: Memory that the default number of cache blocks may take.
_DEFAULT_CACHE_BYTES = 2 * 1024**3

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


OPTIONS = declared(Options)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the executor can hold."""

    max_num_tokens: int
    max_seq_len: int
    num_blocks: int
    #: Memory of the cache when every block is in use.
    cache_bytes: int


def parse_options(values: Mapping[str, Any]) -> Options:
    """Options by name; None stands for the default. Raises `OptionError` for an unknown name or value."""
    options = Options(**parse_values(OPTIONS, values, "the reference executor"))
    if options.max_num_tokens is not None and options.max_num_tokens < options.max_batch_size:
        raise OptionError(
            f"option `max_num_tokens` must be at least `max_batch_size` ({options.max_batch_size}), got"
            f" `{options.max_num_tokens}`",
            "raise it, or lower `max_batch_size`: every sequence needs a token in each iteration",
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
            f"option `max_tokens_in_paged_kv_cache` must hold at least one block of {size} tokens, got"
            f" `{tokens}`",
            "raise it, or lower `tokens_per_block`",
        )
    max_seq_len = min(max_seq_len, num_blocks * size)
    max_num_tokens = options.max_num_tokens or max(_DEFAULT_NUM_TOKENS, 2 * options.max_batch_size)
    return Sizes(max_num_tokens, max_seq_len, num_blocks, num_blocks * size * token_bytes)
