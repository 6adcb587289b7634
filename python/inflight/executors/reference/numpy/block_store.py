"""Blocks of NumPy's cache for other workers: as bytes, and as a file that another process maps.

Owns their layout: keys of all layers, then values.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from inflight.executors.reference.core.block_store import CannotOpenError, Export

from .cache import PagedCache

#: Blocks of an exported cache.
_EXPORT = struct.Struct("<Q")


class NumpyBlocks:
    """Implements `core.block_store.BlockStore`."""

    def __init__(self, cache: PagedCache) -> None:
        self._layers = [layer.reshape(-1, cache.tokens_per_block, *layer.shape[1:]) for layer in cache.stored]
        self._cache = cache
        one = self._layers[0]
        self._shape = one.shape[1:]
        self.layout = f"numpy float32 {len(self._layers)}x{'x'.join(map(str, self._shape))}"
        self.block_bytes = len(self._layers) * one[0].nbytes

    def fence(self) -> None:
        """Nothing: an iteration is over when its launch returns."""

    def buffer(self, blocks: int) -> NumpyBuffer:
        return NumpyBuffer(self._layers, blocks * self.block_bytes)

    def export(self) -> Export | None:
        if self._cache.descriptor is None:
            return None
        return Export(_EXPORT.pack(len(self._layers[0])), self._cache.descriptor)

    def open(self, export: Export) -> OpenedFile:
        if export.descriptor is None or len(export.data) != _EXPORT.size:
            raise CannotOpenError("it is not a cache of NumPy's")
        [blocks] = _EXPORT.unpack(export.data)
        try:
            size = os.fstat(export.descriptor).st_size
            if not blocks or size != blocks * self.block_bytes:
                raise CannotOpenError(f"{size} bytes are not {blocks} blocks of {self.block_bytes}")
            memory = mmap.mmap(export.descriptor, size, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise CannotOpenError(f"its memory cannot be mapped: {error}") from error
        return OpenedFile(memory, self._layers, blocks)


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


class OpenedFile:
    """Implements `core.block_store.OpenedBlocks`."""

    def __init__(self, memory: mmap.mmap, layers: Sequence[Any], blocks: int) -> None:
        self._ours, self._blocks = layers, blocks
        shape = (len(layers), blocks, *layers[0].shape[1:])
        self._theirs = np.frombuffer(memory, dtype=layers[0].dtype).reshape(shape)

    def fetch(self, theirs: Sequence[int], ours: Sequence[int], after: Any) -> None:  # noqa: ARG002
        if not all(0 <= block < self._blocks for block in theirs):
            raise ValueError(f"a block is not one of {self._blocks}")
        # As arrays: a tuple would be one place in several dimensions.
        read, write = np.asarray(theirs), np.asarray(ours)
        for layer, other in zip(self._ours, self._theirs, strict=True):
            layer[write] = other[read]

    def close(self) -> None:
        # The memory is unmapped once no array is left of it.
        self._theirs, self._blocks = np.empty(0, dtype=self._theirs.dtype), 0
