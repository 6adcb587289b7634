"""Puts the executor together: a model's config, a runner for it, the engine, and the threads around it.

Owns the order, since NumPy takes its number of threads when it is first imported, and which runner serves;
knows nothing of what the parts do.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.model.identity import weights_identity

from .errors import CheckpointError, OptionError

if TYPE_CHECKING:
    from inflight.executors.base import Executor

    from .core.adapters import Adapters
    from .core.blocks import BlockPool
    from .core.branches import Proposer
    from .core.engine import Engine
    from .core.guides import Guides
    from .core.hearing import Hearing
    from .core.options import Options
    from .core.runner import Built
    from .core.seeing import Seeing
    from .core.statistics import Memory
    from .model.config import ModelConfig
    from .parallel.team import Team
    from .transfer.transceiver import Transceiver

_LOG = logging.getLogger("inflight.reference")


def create(model_dir: Path | str, device: str = "auto", **options: Any) -> Executor:
    """Loads a Hugging Face checkpoint directory and starts its executor.

    ``device`` is ``auto``, ``cpu`` or ``cuda``; ``options`` are the fields of `core.options.Options`. On a
    rank above 0 of several it stays inside until rank 0 ends, then raises `SystemExit`. Raises
    `CheckpointError`, `UnsupportedModelError` or `OptionError`.
    """
    from inflight.executors import ranks

    from .core.options import CUDA_DEFAULTS, limit_windows, parse_options, settle_rope
    from .model.config import load_config
    from .numpy.threads import import_numpy_for
    from .parallel.team import assemble
    from .pytorch.device import find_device

    model_dir = Path(model_dir)
    if not model_dir.is_dir():
        raise CheckpointError(
            f"model directory `{model_dir}` does not exist",
            "pass the path of a Hugging Face checkpoint directory",
        )
    config = load_config(model_dir)
    job = ranks.find()
    # NumPy takes its number of threads when it is first imported: below, not with this package.
    import_numpy_for(config.hidden_size)
    device = find_device(device)
    values = parse_options(options, CUDA_DEFAULTS if device == "cuda" else None)
    config = settle_rope(limit_windows(config, values), values)
    values = _limit_clips(config, values, device)

    from inflight.executors.base import ModelInfo

    from .capabilities import capabilities
    from .core.adapters import Adapters
    from .executor import ReferenceExecutor

    team = assemble(job, values.tensor_parallel_size, config)
    proposer, draft = None, None
    if values.speculative_model is not None:
        if config.hearing is not None:
            raise OptionError(
                f"option `speculative_model` does not work with `{config.architecture}`", "leave it out"
            )
        if team is not None:
            raise OptionError(
                "option `speculative_model` does not work on several ranks", "leave it out, or run one rank"
            )
        proposer, draft = _load_draft_model(Path(values.speculative_model), config, values, device)
    adapters = None
    if config.hearing is not None:
        if values.lora_adapter_dir is not None:
            raise OptionError(
                f"option `lora_adapter_dir` does not work with `{config.architecture}`", "leave it out"
            )
    elif team is None:
        adapters = Adapters(
            config,
            values.lora_cache_max_adapter_size,
            values.lora_cache_host_memory_bytes,
            None if values.lora_adapter_dir is None else Path(values.lora_adapter_dir),
            values.lora_max_adapters,
        )
    elif values.lora_adapter_dir is not None:
        raise OptionError(
            "option `lora_adapter_dir` does not work on several ranks", "leave it out, or run one rank"
        )
    seeing = _load_seeing(model_dir, config, values)
    weights = weights_identity(model_dir, str(values.dtype), *_settings(config, values, seeing))
    engine, built, transceiver = _load_engine(
        model_dir, config, values, device, proposer, team, adapters, weights
    )
    sizes = built.sizes
    guides = None if config.hearing is not None else _load_guides(model_dir, config.vocab_size)
    info = ModelInfo(
        executor="reference",
        vocab_size=config.vocab_size,
        max_seq_len=sizes.max_seq_len,
        max_input_len=min(
            sizes.max_seq_len - 1,
            sizes.max_seq_len if values.enable_chunked_context else sizes.max_num_tokens,
        ),
        max_batch_size=values.max_batch_size,
        max_num_tokens=sizes.max_num_tokens,
        max_beam_width=values.max_beam_width,
        tokens_per_block=values.tokens_per_block,
        capabilities=capabilities(
            guides is not None,
            adapters is not None,
            values.enable_kv_cache_reuse,
            seeing is not None,
            transceiver is not None,
            config.hearing is not None,
        ),
        adapters=() if adapters is None else tuple(sorted(adapters.names.items())),
        weights=weights,
    )
    memory = _memory([built, *([draft] if draft else [])], device)
    leader = None if team is None else team.leader
    return ReferenceExecutor(engine, info, memory, guides, leader, adapters, seeing, transceiver)


def _settings(config: ModelConfig, values: Options, seeing: Seeing | None) -> list[str]:
    """Options that change what a model computes: a request continues only where they are the same. What is
    not set is left out, so that workers of two releases find each other alike."""
    found = [] if seeing is None else [seeing.identity]
    if config.rope is not None and config.rope.longrope is not None:
        found.append(f"longrope {config.rope.longrope.is_long}")
    if values.max_attention_window_size is not None or values.sink_token_length:
        found.append(f"windows {config.windows} {config.sink_tokens}")
    if values.kv_cache_dtype != "auto":
        found.append(f"cache {values.kv_cache_dtype}")
    return found


def _load_engine(
    model_dir: Path,
    config: ModelConfig,
    values: Options,
    device: str,
    proposer: Proposer | None = None,
    team: Team | None = None,
    adapters: Adapters | None = None,
    weights: str = "",
) -> tuple[Engine, Built, Transceiver | None]:
    """A model with its runner, its cache and what schedules it, and the way of blocks to other workers."""
    from .pytorch.device import is_faster_on_cpu

    backend = values.backend
    if backend == "auto":
        # Several ranks on CPUs speak through MPI, which is NumPy's.
        alone = team is None and config.hearing is None and not values.batch_invariant
        faster = alone and is_faster_on_cpu(config.hidden_size)
        backend = "pytorch" if device == "cuda" or faster else "numpy"
    if backend == "pytorch":
        from .pytorch.build import build
    else:
        from .numpy.build import build

    from .core.admission import Bounds
    from .core.blocks import BlockPool
    from .core.drafts import LookupConfig
    from .core.engine import Engine
    from .core.options import choosing_rows
    from .core.reuse import ReuseIndex
    from .core.scheduler import CapacitySchedulerPolicy, Limits

    built = build(model_dir, config, values, device, team)
    sizes, block = built.sizes, values.tokens_per_block
    index = None
    if values.enable_kv_cache_reuse:
        index = ReuseIndex(block, values.enable_partial_reuse, values.event_buffer_max_size)
    lookup = None
    if values.max_draft_len and proposer is None:
        lookup = LookupConfig(values.max_draft_len, values.max_matching_ngram_size)
    policy = CapacitySchedulerPolicy(values.batch_scheduler_policy)
    pool = BlockPool(
        sizes.num_blocks,
        block,
        index,
        window=sizes.window,
        num_host_blocks=sizes.num_host_blocks,
        offload_min_priority=values.secondary_offload_min_priority,
    )
    transceiver = None
    if values.cache_transceiver_backend is not None:
        if config.hearing is not None:
            raise OptionError(
                f"option `cache_transceiver_backend` does not work with `{config.architecture}`",
                "leave it out",
            )
        transceiver = _open_transceiver(values, pool, built, weights, config.vocab_size)
    engine = Engine(
        built.runner,
        pool,
        Limits(
            values.max_batch_size,
            sizes.max_num_tokens,
            policy,
            values.enable_chunked_context,
            max_prompt_s=values.max_prompt_ms / 1e3,
            max_rows=choosing_rows(values),
        ),
        Bounds(
            config.vocab_size,
            sizes.max_seq_len,
            sizes.num_blocks,
            block,
            values.max_queue_size,
            None if values.enable_chunked_context else sizes.max_num_tokens,
            policy is CapacitySchedulerPolicy.MAX_UTILIZATION,
            values.max_beam_width,
            sizes.window,
            config.hidden_size,
            index is not None,
            transceiver is not None,
            _load_hearing(model_dir, config),
        ),
        lookup,
        proposer,
        adapters,
        None if transceiver is None else transceiver.handover,
    )
    return engine, built, transceiver


def _open_transceiver(
    values: Options, pool: BlockPool, built: Built, weights: str, vocab_size: int
) -> Transceiver | None:
    """What moves blocks to and from other workers, where that is asked for and can be."""
    if values.cache_transceiver_backend is None:
        return None
    from .transfer.transceiver import open_transceiver

    if built.blocks is None:
        raise OptionError(
            "option `cache_transceiver_backend` does not work over several ranks",
            "run one rank; a gateway sends workers without it whole requests",
        )
    refused = {
        "without `enable_kv_cache_reuse`": not values.enable_kv_cache_reuse,
        "with `batch_scheduler_policy` `max_utilization`": values.batch_scheduler_policy == "max_utilization",
        "with `kv_cache_host_memory_bytes`": built.sizes.num_host_blocks > 0,
    }
    for what, is_so in refused.items():
        if is_so:
            raise OptionError(
                f"option `cache_transceiver_backend` does not work {what}",
                "leave one of them out; a gateway sends workers without it whole requests",
            )
    return open_transceiver(values, pool, built.blocks, weights, vocab_size)


def _load_draft_model(
    model_dir: Path, target: ModelConfig, values: Options, device: str
) -> tuple[Proposer, Built]:
    """The model that guesses tokens for ``target``."""
    from .core.draft_model import DraftModel
    from .core.options import draft_options
    from .model.config import load_config

    if not model_dir.is_dir():
        raise CheckpointError(
            f"option `speculative_model`: `{model_dir}` does not exist",
            "pass the path of a Hugging Face checkpoint directory",
        )
    config = load_config(model_dir)
    if config.vocab_size != target.vocab_size:
        raise OptionError(
            f"option `speculative_model`: `{model_dir}` has a vocabulary of `{config.vocab_size}`,"
            f" the model has one of `{target.vocab_size}`",
            "pass a model with the same tokenizer",
        )
    engine, built, _ = _load_engine(model_dir, config, draft_options(values, device), device)
    return DraftModel(engine, built.sizes.max_seq_len, values.max_draft_len), built


def _load_seeing(model_dir: Path, config: ModelConfig, values: Options) -> Seeing | None:
    """What prepares images; None: the model does not see, or nothing here decodes files."""
    if config.vision is None:
        return None
    from inflight.executors.images import are_decodable

    from .core.seeing import Seeing
    from .model.processor import load_processor

    if not are_decodable():
        _LOG.warning("images are refused, since Pillow is missing: install `inflight-llm[images]`")
        return None
    return Seeing(load_processor(model_dir, config.vision).limited(values.max_image_tokens))


def _load_hearing(model_dir: Path, config: ModelConfig) -> Hearing | None:
    """What the model takes of a clip and writes; None: it does not hear."""
    if config.hearing is None:
        return None
    from .core.hearing import Hearing
    from .core.transcript import load_marks
    from .model.log_mel import RATE, check_preprocessor, samples_of

    check_preprocessor(model_dir, config.hearing)
    return Hearing(samples_of(config.hearing), RATE, load_marks(model_dir, config.vocab_size))


def _limit_clips(config: ModelConfig, values: Options, device: str) -> Options:
    """No more sequences at once than clips fit in memory, in the type that the model has on the device."""
    if config.hearing is None:
        return values
    is_half = values.dtype in ("float16", "bfloat16") or (values.dtype == "auto" and device == "cuda")
    clip = config.hearing.clip_bytes(2 if is_half else 4)
    most = values.audio_cache_memory_bytes // clip
    if not most:
        raise OptionError(
            f"option `audio_cache_memory_bytes` is `{values.audio_cache_memory_bytes}`, but a clip takes"
            f" `{clip}`",
            "raise it",
        )
    if most < values.max_batch_size:
        _LOG.warning("at most %d requests run at once: raise `audio_cache_memory_bytes` for more", most)
    return replace(values, max_batch_size=min(values.max_batch_size, most))


def _memory(models: Sequence[Built], device: str) -> Memory:
    """Where the weights and the caches are; on a CPU host blocks are part of them."""
    from .core.statistics import Memory

    total = sum(built.memory_bytes for built in models)
    host = sum(
        built.sizes.num_host_blocks * (built.sizes.cache_bytes // built.sizes.num_blocks) for built in models
    )
    return Memory(gpu=total, pinned=host) if device == "cuda" else Memory(cpu=total + host)


def _load_guides(model_dir: Path, vocab_size: int) -> Guides | None:
    """What guides decoding; None where llguidance is not installed or the tokenizer is not there."""
    import importlib.util

    from inflight.model.files import read_json
    from inflight.model.tokenizer import tokenizer_json

    tokenizer = tokenizer_json(model_dir)
    if importlib.util.find_spec("llguidance") is None or tokenizer is None:
        return None
    from .core.guides import Guides

    ends: list[int] = []
    for name in ("config.json", "generation_config.json"):
        if (model_dir / name).is_file():
            value = read_json(model_dir / name).get("eos_token_id")
            named = value if isinstance(value, list) else [value]
            # One outside the vocabulary never comes, and llguidance does not take it.
            ends += [one for one in named if isinstance(one, int) and 0 <= one < vocab_size]
    if not ends:
        return None
    return Guides(tokenizer.decode("utf-8"), vocab_size, sorted(set(ends)))
