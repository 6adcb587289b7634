"""Where the patches of an image are: for the tower's rotary embedding, its windows, and for the language
model.

Patches lie in the order in which they become tokens: those of one token together, tokens row by row. Pure
NumPy; knows nothing of pixels or weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .array_types import Float32, Int
from .vision import ROPE_THETA, VisionConfig

#: In a window: no patch.
NO_PATCH = -1


@dataclass(frozen=True, slots=True, eq=False)
class VisionLayout:
    """Of the patches of one image."""

    #: Angles of the rotary embedding ``[patches, head_dim / 2]``.
    angles: Float32
    #: The patches of each window ``[windows, most]``; `NO_PATCH` fills up those with fewer.
    windows: Int


@lru_cache(maxsize=4)
def vision_layout(config: VisionConfig, height: int, width: int) -> VisionLayout:
    """The layout of ``height`` x ``width`` patches."""
    rows, columns = patch_places(config, height, width)
    spatial = config.head_dim // 2
    exponents = np.arange(0, spatial, 2, dtype=np.float32) / np.float32(spatial)
    frequencies = (np.float32(1.0) / np.power(np.float32(ROPE_THETA), exponents)).astype(np.float32)
    places = np.stack((rows, columns), axis=1).astype(np.float32)
    angles = (places[:, :, None] * frequencies).reshape(len(rows), -1)
    return VisionLayout(angles, _windows(config, rows, columns))


def patch_places(config: VisionConfig, height: int, width: int) -> tuple[Int, Int]:
    """Row and column of each patch."""
    merge = config.merge_size
    shape = (height // merge, merge, width // merge, merge)
    order = np.arange(height * width).reshape(shape).transpose(0, 2, 1, 3).reshape(-1)
    return order // width, order % width


def _windows(config: VisionConfig, rows: Int, columns: Int) -> Int:
    side = config.window * config.merge_size
    across = int(columns.max()) // side + 1
    numbers = rows // side * across + columns // side
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers)
    windows = np.full((len(counts), int(counts.max())), NO_PATCH, dtype=np.int64)
    own = numbers[order]
    windows[own, np.arange(len(order)) - (np.cumsum(counts) - counts)[own]] = order
    return windows


def token_positions(config: VisionConfig, height: int, width: int) -> Int:
    """The three positions of each of an image's tokens, from that of the first on: ``[3, tokens]``, of time,
    row and column. One image has no time."""
    rows, columns = height // config.merge_size, width // config.merge_size
    positions = np.zeros((3, rows, columns), dtype=np.int64)
    positions[1] = np.arange(rows)[:, None]
    positions[2] = np.arange(columns)
    return positions.reshape(3, -1)
