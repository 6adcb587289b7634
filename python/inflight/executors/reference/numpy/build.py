"""A runner on NumPy from a checkpoint and options.

Owns the order of the steps, and the sentences for what NumPy cannot serve.
"""

from __future__ import annotations

from pathlib import Path

from inflight.executors.reference.core.options import Options, plan_sizes
from inflight.executors.reference.core.runner import Built
from inflight.executors.reference.errors import OptionError
from inflight.executors.reference.model.config import ModelConfig
from inflight.executors.reference.model.processor import load_processor
from inflight.executors.reference.model.split import local_config
from inflight.executors.reference.parallel.team import Team

from .block_store import NumpyBlocks
from .cache import PagedCache
from .communicator import mpi_communicator
from .hearing import NumpyHearing
from .model import load_model
from .runner import NumpyRunner
from .sight import NumpySight
from .steps import NumpySteps


def build(
    model_dir: Path, config: ModelConfig, options: Options, device: str, team: Team | None = None
) -> Built:
    """Loads a checkpoint and makes its cache, or this rank's part of both; a rank above 0 then stays inside.
    Raises `UserMistake` where that cannot be."""
    for name, value, accepted in (
        ("device", device, "cpu"),
        ("dtype", options.dtype, "float32"),
        ("load_format", options.load_format, "auto"),
        ("kv_cache_dtype", options.kv_cache_dtype, "auto"),
    ):
        if value not in (accepted, "auto"):
            raise OptionError(f"{name} `{value}` needs PyTorch", "set the option `backend` to `pytorch`")
    if config.hearing is not None and options.batch_invariant:
        raise OptionError(
            f"option `batch_invariant` does not work with `{config.architecture}`", "leave it out"
        )
    communicator = None if team is None else mpi_communicator(team, in_order=options.batch_invariant)
    rank, ranks = (0, 1) if communicator is None else (communicator.rank, communicator.size)
    local = local_config(config, rank, ranks)
    sizes = plan_sizes(options, local)
    try:
        model = load_model(model_dir, sizes.max_seq_len, config, communicator, options.batch_invariant)
        cache = PagedCache.of(
            local,
            sizes.num_blocks + sizes.num_host_blocks,
            options.tokens_per_block,
            shared=options.cache_transceiver_backend == "default",
        )
    except MemoryError as error:
        raise OptionError(
            f"the model and a cache of {sizes.cache_bytes >> 20} MiB do not fit in memory",
            "lower `max_tokens_in_paged_kv_cache`, or serve a smaller model",
        ) from error
    leader = None
    if team is not None:
        if team.follower is not None:
            team.follower.follow(NumpySteps(model, cache))
        leader = team.leader
    sight = None
    if model.tower is not None and config.vision is not None:
        processor = load_processor(model_dir, config.vision)
        sight = NumpySight(model.tower, processor, options.image_cache_memory_bytes)
    hearing = None
    if model.encoder is not None:
        hearing = NumpyHearing(model.encoder, options.audio_cache_memory_bytes)
    runner = NumpyRunner(model, cache, leader=leader, sight=sight, hearing=hearing)
    blocks = NumpyBlocks(cache) if team is None else None
    return Built(runner, sizes, model.memory_bytes + sizes.cache_bytes, blocks)
