"""A checkpoint's tensors on the device, in the model's type. Owns their way there and its progress.

Bytes go from the file to the device tensor by tensor: a checkpoint is never whole in the host's
memory. Knows nothing of layers, nor of what quantized matrices compute.
"""

from __future__ import annotations

import logging
import math
import time

import torch

from inflight.executors.reference.model.config import ModelConfig
from inflight.executors.reference.model.split import Parts
from inflight.executors.reference.model.tensors import required_tensors
from inflight.executors.reference.model.weights import CheckpointWeights
from inflight.model.quantization import MXFP4_GROUP, Quantization

from . import compressed
from .operations import Tensor
from .upload import Uploads

_log = logging.getLogger(__name__)

_TYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "I32": torch.int32,
    "I64": torch.int64,
}

#: Seconds between two lines of progress.
_REPORT_EVERY = 5.0


def stored_dtype(checkpoint: CheckpointWeights, config: ModelConfig) -> str:
    """PyTorch's name of the type that a checkpoint's weights are stored in: its final norm's."""
    stored, _ = checkpoint.raw(f"{config.names.final_norm}.weight")
    return str(_TYPES[stored.dtype]).removeprefix("torch.")


class DeviceWeights:
    """Tensors of a checkpoint by name; implements `model.Weights`. Quantized matrices stay so."""

    def __init__(self, checkpoint: CheckpointWeights, device: Tensor, dtype: Tensor) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        self._loaded_bytes = 0
        self._reported = time.monotonic()
        self._uploads = Uploads(device) if device.type == "cuda" else None

    def tensor(self, name: str) -> Tensor:
        how = self._checkpoint.compressed(name)
        if how is not None:
            return compressed.load(how, lambda role: self._stored(how.tensors[role]))
        return self._stored(name).to(self._dtype)

    def wide(self, name: str) -> Tensor:
        if self._checkpoint.compressed(name) is not None:
            return self.tensor(name).expanded(torch.float32)
        return self._stored(name).float()

    def close(self) -> None:
        """Gives back what loading needed."""
        if self._uploads is not None:
            self._uploads.close()

    def _stored(self, name: str) -> Tensor:
        """A tensor on the device, in the type that it is stored in."""
        path, header = self._checkpoint.place(name)
        if self._uploads is None or self._checkpoint.is_part(name) or header.begin == header.end:
            header, data = self._checkpoint.raw(name)
            raw = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
            raw = raw.to(self._device)
        else:
            raw = self._uploads.read(path, header.begin, header.end - header.begin)
            self._checkpoint.note(len(raw))
        self._loaded_bytes += len(raw)
        if time.monotonic() - self._reported > _REPORT_EVERY:
            self._reported = time.monotonic()
            _log.info("loading weights: %.1f GiB", self._loaded_bytes / 2**30)
        return raw.view(_TYPES[header.dtype]).view(header.shape)


class RandomWeights:
    """Weights drawn from a fixed seed, for measuring: ``load_format`` `dummy`, as TensorRT-LLM names it.

    Norms are 1 and the rest is small enough that activations stay finite through any number of layers. The
    layers' matrices are quantized as the config says, but the routers of experts.
    """

    def __init__(
        self, config: ModelConfig, device: Tensor, dtype: Tensor, parts: Parts | None = None
    ) -> None:
        """Of tensors in ``parts`` these: every rank draws the whole, so that all hold parts of one model."""
        self._parts = parts or {}
        self._scheme = config.quantization
        names = config.names
        self._layers = names.layer.partition("{}")[0]
        self._router = names.router
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
        is_router = bool(self._router) and f".{self._router}." in name
        if self._scheme is not None and self._scheme.layout == "mxfp4":
            if len(shape) == 3:
                return self._quantized_experts(*shape)
        elif self._scheme is not None and name.startswith(self._layers) and not is_router:
            return self._quantized(shape, self._scheme)
        drawn = torch.empty(shape, dtype=self._dtype, device=self._device)
        drawn.normal_(0.0, self._scale, generator=self._generator)
        if part is None:
            return drawn
        pieces = [drawn.narrow(part.axis, start, stop - start) for start, stop in part.ranges]
        filled = drawn.new_zeros(part.shape(shape))
        if not pieces:
            return filled
        filled.narrow(part.axis, 0, sum(piece.shape[part.axis] for piece in pieces)).copy_(
            torch.cat(pieces, part.axis)
        )
        return filled

    def wide(self, name: str) -> Tensor:
        return self.tensor(name).float()

    def _quantized_experts(self, experts: int, inputs: int, outputs: int) -> Tensor:
        """All experts' matrices in MXFP4; the numbers of all nibbles have a root mean square of 2.93."""
        tiles = compressed.tiled_by_pairs(torch.zeros(outputs, inputs, dtype=torch.uint8), MXFP4_GROUP).shape
        weight = torch.randint(
            0, 256, (experts, *tiles), dtype=torch.uint8, device=self._device, generator=self._generator
        )
        places = (experts, outputs, inputs // MXFP4_GROUP)
        exponent = 127 + round(math.log2(self._scale / 2.93))
        scales = torch.full(places, exponent, dtype=torch.uint8, device=self._device)
        return compressed.Fp4Matrix(weight, compressed.by_fours(scales), MXFP4_GROUP)

    def _quantized(self, shape: tuple[int, ...], scheme: Quantization) -> Tensor:
        """A matrix of the scheme, about as large as the others."""
        rows, columns = shape
        if scheme.layout == "fp8":
            drawn = torch.empty(shape, dtype=torch.float32, device=self._device)
            drawn.normal_(0.0, 16.0, generator=self._generator)
            block = scheme.block or (1, columns)
            places = [-(-whole // part) for whole, part in zip(shape, block, strict=True)]
            scales = torch.full(places, self._scale / 16.0, device=self._device)
            weight = drawn.clamp_(-448, 448).to(torch.float8_e4m3fn)
            return compressed.Fp8Matrix(weight, scales, block[0], block[1])
        group = columns if scheme.group_size < 0 else scheme.group_size
        quants = torch.randint(
            0, 16, shape, dtype=torch.uint8, device=self._device, generator=self._generator
        )
        places = [columns // group, rows]
        scales = torch.full(places, self._scale / 4.6, dtype=torch.float16, device=self._device)
        words = compressed.with_zeros(scales, torch.full_like(scales, 8))
        return compressed.Int4Matrix(compressed.tiled(quants, group), words, group)
