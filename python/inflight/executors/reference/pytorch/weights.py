"""A checkpoint's tensors on the device, in the model's type. Owns their way there and its progress.

Bytes go from the file to the device tensor by tensor: a checkpoint is never whole in the host's
memory. Knows nothing of layers.
"""

from __future__ import annotations

import logging
import time

import torch

from inflight.executors.reference.model.config import ModelConfig
from inflight.executors.reference.model.split import Parts
from inflight.executors.reference.model.tensors import required_tensors
from inflight.executors.reference.model.weights import CheckpointWeights

from .operations import Tensor

_log = logging.getLogger(__name__)

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}

#: Seconds between two lines of progress.
_REPORT_EVERY = 5.0


def stored_dtype(checkpoint: CheckpointWeights, config: ModelConfig) -> str:
    """PyTorch's name of the type that a checkpoint's weights are stored in: its final norm's."""
    stored, _ = checkpoint.raw(f"{config.names.final_norm}.weight")
    return str(_TYPES[stored.dtype]).removeprefix("torch.")


class DeviceWeights:
    """Tensors of a checkpoint by name; implements `model.Weights`."""

    def __init__(self, checkpoint: CheckpointWeights, device: Tensor, dtype: Tensor) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        self._loaded_bytes = 0
        self._reported = time.monotonic()

    def tensor(self, name: str) -> Tensor:
        header, data = self._checkpoint.raw(name)
        dtype = _TYPES[header.dtype]
        stored = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        self._loaded_bytes += len(data)
        if time.monotonic() - self._reported > _REPORT_EVERY:
            self._reported = time.monotonic()
            _log.info("loading weights: %.1f GiB", self._loaded_bytes / 2**30)
        return stored.view(header.shape).to(self._device, self._dtype)


class RandomWeights:
    """Weights drawn from a fixed seed, for measuring: ``load_format`` `dummy`, as TensorRT-LLM names it.

    Norms are 1 and the rest is small enough that activations stay finite through any number of layers.
    """

    def __init__(
        self, config: ModelConfig, device: Tensor, dtype: Tensor, parts: Parts | None = None
    ) -> None:
        """Of tensors in ``parts`` these: every rank draws the whole, so that all hold parts of one model."""
        self._parts = parts or {}
        self._shapes = dict(required_tensors(config))
        self._scale = config.hidden_size**-0.5
        self._norm_weight = 1.0 - config.norm_offset
        self._device = device
        self._dtype = dtype
        self._generator = torch.Generator(device=device).manual_seed(0)

    def tensor(self, name: str) -> Tensor:
        shape, part = self._shapes[name], self._parts.get(name)
        if len(shape) == 1:
            value = self._norm_weight if name.endswith(".weight") else 0.0
            kept = shape if part is None else part.shape(shape)
            return torch.full(kept, value, dtype=self._dtype, device=self._device)
        drawn = torch.empty(shape, dtype=self._dtype, device=self._device)
        drawn.normal_(0.0, self._scale, generator=self._generator)
        if part is None:
            return drawn
        pieces = [drawn.narrow(part.axis, start, stop - start) for start, stop in part.ranges]
        filled = drawn.new_zeros(part.shape(shape))
        filled.narrow(part.axis, 0, sum(piece.shape[part.axis] for piece in pieces)).copy_(
            torch.cat(pieces, part.axis)
        )
        return filled
