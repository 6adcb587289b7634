"""The reference executor: small Llama-family models on NumPy, with the semantics of TensorRT-LLM.

It exists so that everything around it can be run and tested without a GPU; it is no competitor in speed.
This file puts the parts together:

    config   config.json to values            scheduler  which sequences run next
    weights  safetensors to float32           admission  one request's check
    options  sizes and their defaults         sampler    logits to tokens
    arrays   every operation that costs       stop       whether a sequence ends
    cache    blocks and their storage         sequence   a request in flight
    batch    the ragged rows of an iteration  engine     one iteration
    model    the forward pass                 rows       columns of a response
    runner   what the engine asks to run      numpy_runner  an iteration on NumPy
    threads  how many NumPy uses              executor   threads, waiting, statistics
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CheckpointError, OptionError, UnsupportedModelError

if TYPE_CHECKING:
    from inflight.executors.base import Executor

__all__ = ["CheckpointError", "OptionError", "UnsupportedModelError", "create"]

#: What works, by the names of ``crates/kserve/src/capability.rs``.
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


def create(model_dir: Path | str, device: str = "auto", **options: Any) -> Executor:
    """Loads a Hugging Face checkpoint directory and starts its executor.

    ``device`` is ``auto`` or ``cpu``; ``options`` are the fields of `options.Options`. Raises
    `CheckpointError`, `UnsupportedModelError` or `OptionError`.
    """
    from .config import load_config
    from .threads import import_numpy_for

    if device not in ("auto", "cpu"):
        raise OptionError(
            f"device `{device}` is not available to the reference executor",
            "use `cpu`, or the tensorrt_llm executor",
        )
    model_dir = Path(model_dir)
    if not model_dir.is_dir():
        raise CheckpointError(
            f"model directory `{model_dir}` does not exist",
            "give the path of a Hugging Face checkpoint directory",
        )
    config = load_config(model_dir)
    # NumPy takes its number of threads when it is first imported: below, not with this package.
    import_numpy_for(config.hidden_size)

    from inflight.executors.base import ModelInfo

    from .admission import Bounds
    from .cache import BlockPool, PagedCache
    from .engine import Engine
    from .executor import ReferenceExecutor
    from .model import load_model
    from .numpy_runner import NumpyRunner
    from .options import parse_options, plan_sizes
    from .scheduler import Limits

    values = parse_options(options)
    sizes = plan_sizes(values, config)
    block = values.tokens_per_block
    try:
        model = load_model(model_dir, sizes.max_seq_len)
        cache = PagedCache(config.num_layers, sizes.num_blocks, block, config.num_kv_heads, config.head_dim)
    except MemoryError as error:
        raise OptionError(
            f"the model and a cache of {sizes.cache_bytes >> 20} MiB do not fit in memory",
            "lower `max_tokens_in_paged_kv_cache`, or serve a smaller model",
        ) from error
    engine = Engine(
        NumpyRunner(model, cache),
        BlockPool(sizes.num_blocks, block),
        Limits(values.max_batch_size, sizes.max_num_tokens),
        Bounds(config.vocab_size, sizes.max_seq_len, sizes.num_blocks, block, values.max_queue_size),
    )
    info = ModelInfo(
        executor="reference",
        vocab_size=config.vocab_size,
        max_seq_len=sizes.max_seq_len,
        max_input_len=sizes.max_seq_len - 1,
        max_batch_size=values.max_batch_size,
        max_num_tokens=sizes.max_num_tokens,
        max_beam_width=1,
        tokens_per_block=block,
        capabilities=CAPABILITIES,
    )
    return ReferenceExecutor(engine, info, model.memory_bytes + sizes.cache_bytes)
