"""A runner on PyTorch from a checkpoint and options: device, kernels, weights, sizes.

Owns the order of these steps, how much of a GPU the cache takes, and the sentences for what does not fit.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from inflight.executors.reference.core.options import Options, Sizes, choosing_rows, plan_sizes, row_numbers
from inflight.executors.reference.core.runner import Built
from inflight.executors.reference.core.scheduler import Limits
from inflight.executors.reference.errors import OptionError
from inflight.executors.reference.model import split
from inflight.executors.reference.model.config import ModelConfig
from inflight.executors.reference.model.layers import Weights
from inflight.executors.reference.model.log_mel import WINDOW
from inflight.executors.reference.model.processor import Processor, load_processor
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights
from inflight.executors.reference.parallel.team import Team
from inflight.model.memory import FREE_MEMORY_FRACTION

from . import operations
from .block_store import TorchBlocks
from .communicator import TorchCommunicator, connect, local_device
from .compressed import has_fp8
from .device import choose_dtype, open_device
from .encoder import TorchEncoder
from .hearing import TorchHearing
from .model import TorchModel
from .runner import TorchRunner
from .steps import DeviceSteps
from .vision import TorchSight
from .weights import DeviceWeights, RandomWeights, stored_dtype

_log = logging.getLogger(__name__)

#: Rows of logits that sampling and log probabilities hold at once, in float32 and several times over, and
#: what sampling keeps of each sequence slot.
_SAMPLING_BYTES_A_LOGIT = 24


def build(
    model_dir: Path, config: ModelConfig, options: Options, device: str, team: Team | None = None
) -> Built:
    """Loads a checkpoint to the device and makes its cache, or this rank's part of both; a rank above 0 then
    stays inside. Raises `UserMistake` with what cannot be loaded or does not fit."""
    if options.backend == "numpy":
        raise OptionError(f"backend `numpy` does not run on device `{device}`", "use backend `pytorch`")
    if options.batch_invariant:
        raise OptionError(
            "option `batch_invariant` needs backend `numpy`", "leave it out, or serve on the CPU"
        )
    place = open_device(device if team is None or device == "cpu" else local_device(team.job))
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if options.kv_cache_dtype == "fp8" and place.type == "cuda" and not has_fp8(place):
        raise OptionError(
            "option `kv_cache_dtype` `fp8` needs a GPU of compute capability 8.9 or later", "leave it out"
        )
    started = time.monotonic()
    communicator = None if team is None else connect(team.job, team.meeting, place)
    try:
        with torch.inference_mode():
            model = _load(model_dir, config, options, place, communicator)
            sizes = _sizes(model_dir, options, model, team)
            limits = Limits(options.max_batch_size, sizes.max_num_tokens, max_rows=choosing_rows(options))
            if team is not None and team.follower is not None:
                steps = DeviceSteps(model, sizes.num_blocks, limits, sizes.num_host_blocks)
                with steps.queueing():
                    team.follower.follow(steps)
            leader = None if team is None else team.leader
            runner = TorchRunner(
                model,
                sizes.num_blocks,
                limits,
                leader,
                sizes.num_host_blocks,
                options.lora_cache_gpu_memory_fraction,
                options.lora_cache_host_memory_bytes,
                _sight(model_dir, options, model),
                _hearing(options, model),
            )
    except torch.OutOfMemoryError as error:
        total = torch.cuda.get_device_properties(place).total_memory
        raise OptionError(
            f"the model and its cache do not fit in the {total >> 30} GiB of device `{place}`",
            "lower `max_tokens_in_paged_kv_cache` or `max_num_tokens`, or serve a smaller model",
        ) from error
    _log.info(
        "%s in %s on %s after %.1f s: %d blocks of %d tokens",
        config.architecture,
        model.dtype,
        place,
        time.monotonic() - started,
        sizes.num_blocks,
        options.tokens_per_block,
    )
    blocks = TorchBlocks(model, runner.stream) if team is None else None
    return Built(runner, sizes, model.memory_bytes + sizes.cache_bytes, blocks)


def _sight(model_dir: Path, options: Options, model: TorchModel) -> TorchSight | None:
    """What a model that sees looks with."""
    if model.tower is None:
        return None
    processor = load_processor(model_dir, model.tower.config)
    return TorchSight(model.tower, processor, options.image_cache_memory_bytes)


def _hearing(options: Options, model: TorchModel) -> TorchHearing | None:
    """What a model that hears listens with, before graphs are captured: they read where its clips are."""
    if model.encoder is None:
        return None
    return TorchHearing(model.encoder, _clips(options, model.encoder), options.max_batch_size)


def _clips(options: Options, encoder: TorchEncoder) -> int:
    """Clips that are kept: one a sequence, and as many again for second requests, as far as they may."""
    within = options.audio_cache_memory_bytes // encoder.config.clip_bytes(encoder.dtype.itemsize)
    return int(min(within, 2 * options.max_batch_size))


def _encoder_bytes(options: Options, encoder: TorchEncoder) -> int:
    """What clips take, and some times what the encoder makes of one: its layers, and its transform."""
    config, element = encoder.config, encoder.dtype.itemsize
    layers = element * config.positions * (8 * config.hidden_size + 3 * config.intermediate_size)
    transform = 8 * 8 * config.frames * WINDOW
    return int((_clips(options, encoder) + 1) * config.clip_bytes(element) + layers + transform)


def _load(
    model_dir: Path,
    config: ModelConfig,
    options: Options,
    device: Any,
    communicator: TorchCommunicator | None,
) -> TorchModel:
    longest = min(options.max_seq_len or config.max_position_embeddings, config.max_position_embeddings)
    kernels = _kernels(device)
    rank, ranks = (0, 1) if communicator is None else (communicator.rank, communicator.size)
    parts = split.parts(config, rank, ranks)
    weights: Weights[Any]
    if options.load_format == "dummy":
        weights = RandomWeights(config, device, choose_dtype(options.dtype, "bfloat16", device), parts)
    else:
        checkpoint = CheckpointWeights.of(config, find_weights(model_dir), parts)
        dtype = choose_dtype(options.dtype, stored_dtype(checkpoint, config), device)
        weights = DeviceWeights(checkpoint, device, dtype)
    local = split.local_config(config, rank, ranks)
    try:
        return TorchModel(
            local, weights, longest, options.tokens_per_block, kernels, communicator, options.kv_cache_dtype
        )
    finally:
        if isinstance(weights, DeviceWeights):
            weights.close()


def _kernels(device: Any) -> ModuleType:
    """Triton's where it is installed (it comes with PyTorch for CUDA), else plain operations."""
    if device.type != "cuda":
        return operations
    try:
        from . import kernels
    except ImportError as error:
        _log.warning("without Triton generation is several times slower: %s", error)
        return operations
    return kernels


def _tower_bytes(processor: Processor, most: int | None, element: int) -> int:
    """What the tower takes for the largest image: its patches, and some times what a layer makes of them."""
    vision = processor.vision
    patches = processor.limited(most).max_pixels // vision.patch_size**2
    return patches * (
        4 * vision.patch_width + element * (8 * vision.hidden_size + 3 * vision.intermediate_size)
    )


def _sizes(model_dir: Path, options: Options, model: TorchModel, team: Team | None) -> Sizes:
    """What fits; of several ranks, on the one with the least memory."""
    config, element, cached = model.config, model.dtype.itemsize, model.cache_dtype.itemsize
    if model.device.type != "cuda":
        return plan_sizes(options, config, cached)
    torch.cuda.synchronize(model.device)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(model.device)
    if team is not None:
        free = min(team.meeting.exchange(free))
    tokens = options.max_num_tokens or 0
    # Twice, because CUDA graphs keep separate memory.
    working = 2 * tokens * row_numbers(config) * element
    working += choosing_rows(options) * config.vocab_size * _SAMPLING_BYTES_A_LOGIT
    if model.tower is not None:
        working += options.image_cache_memory_bytes
        working += _tower_bytes(
            load_processor(model_dir, model.tower.config), options.max_image_tokens, element
        )
    if model.encoder is not None:
        working += _encoder_bytes(options, model.encoder)
    # The tokens of each sequence slot.
    working += 4 * options.max_batch_size * model.shape.max_seq_len
    return plan_sizes(options, config, cached, max(0, int(free * FREE_MEMORY_FRACTION) - working))
