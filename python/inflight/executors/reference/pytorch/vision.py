"""A vision tower on PyTorch: `numpy.vision`'s order of operations on device tensors, and the embeddings that
are kept.

Owns the tower's attention: the windows of an image are one batch. Knows nothing of files or prompts.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as functional

from inflight.executors.reference.core.image_cache import ImageCache
from inflight.executors.reference.core.images import Picture, Piece
from inflight.executors.reference.model.layers import Weights, held
from inflight.executors.reference.model.processor import Pixels, Processor
from inflight.executors.reference.model.vision import NORM_EPSILON, VisionConfig
from inflight.executors.reference.model.vision_layers import VisionLayer, load_tower
from inflight.executors.reference.model.vision_layout import NO_PATCH, VisionLayout, vision_layout

from . import operations
from .operations import Tensor


class TorchTower:
    """A loaded tower, immutable after construction."""

    def __init__(self, config: VisionConfig, weights: Weights[Tensor]) -> None:
        self.config = config
        self._ends, self._layers = load_tower(config, _Plain(weights), operations)

    @property
    def device(self) -> Tensor:
        return self._ends.patches.device

    @property
    def memory_bytes(self) -> int:
        """What the weights take."""
        return sum(int(tensor.nbytes) for tensor in held(self._ends, *self._layers).values())

    def embed(self, patches: Tensor, height: int, width: int) -> Tensor:
        """The embeddings ``[tokens, out]`` of ``height`` x ``width`` patches ``[patches, numbers]``."""
        config, ends = self.config, self._ends
        layout = vision_layout(config, height, width)
        turns, windows = self._placed(layout)
        x = functional.linear(patches.to(ends.patches.dtype), ends.patches)
        for index, layer in enumerate(self._layers):
            own = None if index in config.full_layers else windows
            x = x + self._attend(x, layer, turns, own)
            normed = _norm(x, layer.mlp_norm)
            gate, up = functional.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            x = x + functional.linear(functional.silu(gate) * up, layer.down, layer.down_bias)
        merged = _norm(x, ends.norm).reshape(-1, config.merged_width)
        inner = functional.gelu(functional.linear(merged, ends.inner, ends.inner_bias))
        return functional.linear(inner, ends.outer, ends.outer_bias)

    def _placed(self, layout: VisionLayout) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """On the device: cosines and sines; the windows' patches, which of them are there, and where each
        patch is among them."""
        angles = torch.from_numpy(layout.angles).to(self.device)
        there = layout.windows != NO_PATCH
        places = np.empty(int(there.sum()), dtype=np.int64)
        places[layout.windows[there]] = np.flatnonzero(there)
        windows = np.where(there, layout.windows, 0)
        on_device = [torch.from_numpy(array).to(self.device) for array in (windows, there, places)]
        return (angles.cos()[:, None], angles.sin()[:, None]), (on_device[0], on_device[1], on_device[2])

    def _attend(
        self,
        x: Tensor,
        layer: VisionLayer[Tensor],
        turns: tuple[Tensor, Tensor],
        windows: tuple[Tensor, Tensor, Tensor] | None,
    ) -> Tensor:
        config, count = self.config, len(x)
        normed = _norm(x, layer.attention_norm)
        qkv = functional.linear(normed, layer.qkv, layer.qkv_bias)
        heads = qkv.view(count, 3 * config.num_heads, config.head_dim)
        turned = operations.rotate(heads[:, : 2 * config.num_heads], *turns)
        parts = (*turned.chunk(2, dim=1), heads[:, 2 * config.num_heads :])
        if windows is None:
            queries, keys, values = (part.transpose(0, 1)[None] for part in parts)
            mixed = functional.scaled_dot_product_attention(queries, keys, values)[0].transpose(0, 1)
        else:
            own, there, places = windows
            queries, keys, values = (part[own].transpose(1, 2) for part in parts)
            mask = there[:, None, None, :]
            mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
            mixed = mixed.transpose(1, 2).flatten(0, 1)[places]
        return functional.linear(mixed.reshape(count, -1), layer.output, layer.output_bias)


class _Plain:
    """A tower's tensors, uncompressed: it is small next to its language model, and mostly not quantized."""

    def __init__(self, weights: Weights[Tensor]) -> None:
        self._weights = weights
        self._dtype = weights.tensor("visual.merger.ln_q.weight").dtype

    def tensor(self, name: str) -> Tensor:
        found = self._weights.tensor(name)
        return found if isinstance(found, torch.Tensor) else found.expanded(self._dtype)

    def wide(self, name: str) -> Tensor:
        return self._weights.wide(name)


class TorchSight:
    """A tower, how pixels are prepared for it, and the embeddings of the latest images on the device."""

    def __init__(self, tower: TorchTower, processor: Processor, max_bytes: int) -> None:
        self._tower = tower
        self._processor = processor
        self._cache: ImageCache[Tensor] = ImageCache(max_bytes)

    def embedded(self, piece: Piece) -> Tensor:
        """The embeddings of consecutive tokens of an image; the tower runs where none are kept."""
        found = self._cache.get(piece.picture.name, partial(self._compute, piece.picture))
        return found[piece.begin : piece.begin + len(piece.rows)]

    def _compute(self, picture: Picture) -> Tensor:
        return self._tower.embed(self._patches(picture.pixels), picture.height, picture.width)

    def _patches(self, pixels: Pixels) -> Tensor:
        """As `Processor.patches`, on the device: bytes are a quarter of what they become."""
        vision, processor = self._processor.vision, self._processor
        # A copy, which is writable: Pillow's memory is not.
        raw = torch.from_numpy(np.array(pixels)).to(self._tower.device)
        std = torch.tensor(processor.std, dtype=torch.float64)
        mean = torch.tensor(processor.mean, dtype=torch.float64)
        scale, shift = (1 / (255.0 * std)).float().to(raw.device), (mean / std).float().to(raw.device)
        height, width = processor.grid(pixels)
        merge, side = vision.merge_size, vision.patch_size
        cut = (raw.float() * scale - shift).view(
            height // merge, merge, side, width // merge, merge, side, vision.channels
        )
        cut = cut.permute(0, 3, 1, 4, 6, 2, 5).unsqueeze(5)
        return cut.expand(*cut.shape[:5], vision.frames, *cut.shape[6:]).reshape(-1, vision.patch_width)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return operations.rms_norm(x, weight, NORM_EPSILON)
