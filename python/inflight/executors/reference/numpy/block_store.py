"""Blocks of NumPy's cache as bytes, for other workers.

Owns their layout: keys of all layers, then values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .cache import PagedCache


class NumpyBlocks:
    """Implements `core.block_store.BlockStore`."""

    def __init__(self, cache: PagedCache) -> None:
        self._layers = [
            layer.reshape(-1, cache.tokens_per_block, *layer.shape[1:])
            for layer in (*cache.keys, *cache.values)
        ]
        one = self._layers[0]
        self._shape = one.shape[1:]
        self.layout = f"numpy float32 {len(self._layers)}x{'x'.join(map(str, self._shape))}"
        self.block_bytes = len(self._layers) * one[0].nbytes

    def fence(self) -> None:
        """Nothing: an iteration is over when its launch returns."""

    def buffer(self, blocks: int) -> NumpyBuffer:
        return NumpyBuffer(self._layers, blocks * self.block_bytes)


class NumpyBuffer:
    """Implements `core.block_store.BlockBuffer`."""

    def __init__(self, layers: Sequence[Any], size: int) -> None:
        self._layers = layers
        self._values = np.empty(size // layers[0].itemsize, dtype=layers[0].dtype)
        self.memory = memoryview(self._values.view(np.uint8).data)

    def read(self, blocks: Sequence[int]) -> None:
        for own, layer in zip(self._parts(len(blocks)), self._layers, strict=True):
            np.take(layer, blocks, axis=0, out=own, mode="clip")

    def write(self, blocks: Sequence[int], after: Any) -> None:  # noqa: ARG002
        for own, layer in zip(self._parts(len(blocks)), self._layers, strict=True):
            layer[blocks] = own

    def _parts(self, blocks: int) -> Any:
        shape = (len(self._layers), blocks, *self._layers[0].shape[1:])
        return self._values[: int(np.prod(shape))].reshape(shape)
