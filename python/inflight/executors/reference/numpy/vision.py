"""A vision tower's forward pass: an image's patches to the embeddings of its tokens.

Owns the order of operations and the tower's attention; the other operations are in `arrays`. One image at a
time, so that what comes out does not depend on others. Knows nothing of files or prompts.
"""

from __future__ import annotations

import numpy as np

from inflight.executors.reference.core.probabilities import softmax
from inflight.executors.reference.model.array_types import Float32, Int
from inflight.executors.reference.model.layers import Weights, held
from inflight.executors.reference.model.vision import NORM_EPSILON, VisionConfig
from inflight.executors.reference.model.vision_layers import VisionLayer, load_tower
from inflight.executors.reference.model.vision_layout import NO_PATCH, VisionLayout, vision_layout

from . import arrays


class NumpyTower:
    """A loaded tower, immutable after construction."""

    def __init__(self, config: VisionConfig, weights: Weights[Float32]) -> None:
        self.config = config
        self._ends, self._layers = load_tower(config, weights, arrays)

    @property
    def memory_bytes(self) -> int:
        """What the weights take."""
        return sum(int(array.nbytes) for array in held(self._ends, *self._layers).values())

    def embed(self, patches: Float32, height: int, width: int) -> Float32:
        """The embeddings ``[tokens, out]`` of ``height`` x ``width`` patches ``[patches, numbers]``."""
        config, ends = self.config, self._ends
        layout = vision_layout(config, height, width)
        cosines, sines = np.cos(layout.angles), np.sin(layout.angles)
        x = arrays.linear(patches, ends.patches)
        for index, layer in enumerate(self._layers):
            x += self._attend(x, layer, layout, (cosines, sines), index in config.full_layers)
            normed = arrays.rms_norm(x, layer.mlp_norm, NORM_EPSILON)
            active = arrays.silu_gate(arrays.linear(normed, layer.gate_up, layer.gate_up_bias))
            x += arrays.linear(active, layer.down, layer.down_bias)
        merged = arrays.rms_norm(x, ends.norm, NORM_EPSILON).reshape(-1, config.merged_width)
        inner = arrays.gelu(arrays.linear(merged, ends.inner, ends.inner_bias))
        return arrays.linear(inner, ends.outer, ends.outer_bias)

    def _attend(
        self,
        x: Float32,
        layer: VisionLayer[Float32],
        layout: VisionLayout,
        turns: tuple[Float32, Float32],
        sees_all: bool,
    ) -> Float32:
        config, count = self.config, len(x)
        normed = arrays.rms_norm(x, layer.attention_norm, NORM_EPSILON)
        qkv = arrays.linear(normed, layer.qkv, layer.qkv_bias)
        heads = qkv.reshape(count, 3 * config.num_heads, config.head_dim)
        rotated = arrays.rope(heads[:, : 2 * config.num_heads], *turns)
        queries, keys = np.split(rotated, 2, axis=1)
        places = np.arange(count)[None] if sees_all else layout.windows
        mixed = attend(queries, keys, heads[:, 2 * config.num_heads :], places)
        return arrays.linear(mixed.reshape(count, -1), layer.output, layer.output_bias)


def attend(queries: Float32, keys: Float32, values: Float32, windows: Int) -> Float32:
    """Attention of ``[patches, heads, head_dim]`` among the patches of each window ``[windows, most]``."""
    mixed = np.empty_like(queries)
    heads, scale = queries.shape[1], np.float32(queries.shape[2] ** -0.5)
    most = windows.shape[1]
    # Some windows at a time, and of a large one some queries.
    step = max(1, arrays.MAX_SCORES // (heads * most * most))
    slice_size = max(1, arrays.MAX_SCORES // (heads * most))
    for first in range(0, len(windows), step):
        own = windows[first : first + step]
        there = own != NO_PATCH
        mask = np.where(there, np.float32(0.0), arrays.MASKED)[:, None, None, :]
        # [windows, heads, most, head_dim]; what is missing reads the last patch, and is masked.
        seen, given = (part[own].transpose(0, 2, 1, 3) for part in (keys, values))
        for start in range(0, most, slice_size):
            rows = own[:, start : start + slice_size]
            asked = (queries[rows] * scale).transpose(0, 2, 1, 3)
            weights = softmax(asked @ seen.transpose(0, 1, 3, 2) + mask)
            out = (weights @ given).transpose(0, 2, 1, 3)
            kept = there[:, start : start + slice_size]
            mixed[rows[kept]] = out[kept]
    return mixed
