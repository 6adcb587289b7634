"""The reference executor: small Llama-family models on NumPy, with the semantics of TensorRT-LLM.

It exists so that everything around it can be run and tested without a GPU; it is no competitor in speed.
This file owns its options and puts the parts together:

    config   config.json to values            batch      the ragged rows of one iteration
    weights  safetensors to float32           scheduler  which sequences run next
    arrays   every operation that costs       sampler    logits to tokens
    cache    blocks and their storage         engine     one iteration
    model    the forward pass                 executor   threads, waiting, statistics
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CheckpointError, ModelError, OptionError, UnsupportedModelError

if TYPE_CHECKING:
    from inflight.executors.base import Executor

__all__ = ["CheckpointError", "ModelError", "OptionError", "UnsupportedModelError", "create"]

#: What works, by the names of ``crates/worker/src/executor.rs``.
CAPABILITIES = (
    "log_probs",
    "top_log_probs",
    "prompt_log_probs",
    "min_p",
    "penalties",
    "min_tokens",
    "bad_words",
    "embedding_bias",
    "num_return_sequences",
)

#: Memory that the default number of cache blocks may take.
_DEFAULT_CACHE_BYTES = 2 * 1024**3

#: Integer options by TensorRT-LLM's names, with their defaults; None: derived from the model.
_DEFAULTS: dict[str, int | None] = {
    # Sequences in flight.
    "max_batch_size": 64,
    # Tokens of one iteration: longer prompts go through in chunks, so that they delay no other stream.
    "max_num_tokens": 1024,
    # Prompt plus output of one sequence; None: as much as the model was trained for and the cache holds.
    "max_seq_len": None,
    "tokens_per_block": 32,
    # None: every sequence in flight at its longest, within two gibibytes.
    "max_tokens_in_paged_kv_cache": None,
    # Sequences that wait for a place.
    "max_queue_size": 4096,
}


def create(model_dir: Path | str, device: str = "auto", **options: Any) -> Executor:
    """Loads a Hugging Face checkpoint directory and starts its executor.

    ``device`` is ``auto`` or ``cpu``. Options, all integers: max_batch_size, max_num_tokens, max_seq_len,
    tokens_per_block, max_tokens_in_paged_kv_cache, max_queue_size. Errors: `ModelError` and its kinds,
    whose text says what is wrong and what to do.
    """
    if device not in ("auto", "cpu"):
        raise OptionError(
            f"device `{device}` is not available to the reference executor",
            "use `cpu`, or the tensorrt_llm executor",
        )
    values = _options(options)

    # NumPy starts its threads on import: here, and not with the package, which command lines import.
    from inflight.executors.base import ModelInfo

    from .admission import Bounds
    from .cache import BlockPool, PagedCache, blocks_for
    from .config import load_config
    from .engine import Engine
    from .executor import ReferenceExecutor
    from .model import LlamaModel
    from .scheduler import Limits
    from .weights import Checkpoint

    model_dir = Path(model_dir)
    if not model_dir.is_dir():
        raise CheckpointError(
            f"model directory `{model_dir}` does not exist",
            "give the path of a Hugging Face checkpoint directory",
        )
    config = load_config(model_dir)
    max_batch_size = values["max_batch_size"] or 1
    max_num_tokens = values["max_num_tokens"] or 1
    tokens_per_block = values["tokens_per_block"] or 1
    if max_num_tokens < max_batch_size:
        raise OptionError(
            f"option `max_num_tokens` is `{max_num_tokens}`",
            f"it must be at least max_batch_size ({max_batch_size}), one token for every sequence",
        )
    max_seq_len = min(values["max_seq_len"] or config.max_position_embeddings, config.max_position_embeddings)
    token_bytes = PagedCache.bytes_per_token(config.num_layers, config.num_kv_heads, config.head_dim)
    cache_tokens = values["max_tokens_in_paged_kv_cache"]
    if cache_tokens is None:
        longest = blocks_for(max_seq_len, tokens_per_block) * tokens_per_block
        cache_tokens = max(
            tokens_per_block, min(max_batch_size * longest, _DEFAULT_CACHE_BYTES // token_bytes)
        )
    num_blocks = cache_tokens // tokens_per_block
    if num_blocks == 0:
        raise OptionError(
            f"option `max_tokens_in_paged_kv_cache` is `{cache_tokens}`",
            f"it must hold at least one block of {tokens_per_block} tokens",
        )
    max_seq_len = min(max_seq_len, num_blocks * tokens_per_block)

    checkpoint = Checkpoint(model_dir)
    try:
        model = LlamaModel(config, checkpoint, max_seq_len)
    finally:
        checkpoint.close()
    engine = Engine(
        model,
        PagedCache(config.num_layers, num_blocks, tokens_per_block, config.num_kv_heads, config.head_dim),
        BlockPool(num_blocks, tokens_per_block),
        Limits(max_batch_size, max_num_tokens),
        Bounds(config.vocab_size, max_seq_len, num_blocks, tokens_per_block, values["max_queue_size"] or 1),
    )
    info = ModelInfo(
        executor="reference",
        vocab_size=config.vocab_size,
        max_seq_len=max_seq_len,
        max_input_len=max_seq_len - 1,
        max_batch_size=max_batch_size,
        max_num_tokens=max_num_tokens,
        max_beam_width=1,
        tokens_per_block=tokens_per_block,
        capabilities=CAPABILITIES,
    )
    return ReferenceExecutor(engine, info, model.memory_bytes + num_blocks * tokens_per_block * token_bytes)


def _options(options: dict[str, Any]) -> dict[str, int | None]:
    """Options checked against `_DEFAULTS`."""
    values = dict(_DEFAULTS)
    for name, value in options.items():
        if name not in _DEFAULTS:
            raise OptionError(
                f"option `{name}` is unknown to the reference executor",
                f"use one of {', '.join(sorted(_DEFAULTS))}",
            )
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"option `{name}` is `{value}`", "it must be an integer of at least 1")
        values[name] = value
    return values
