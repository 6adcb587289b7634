"""Blocks of a device's cache as bytes, for other workers.

Owns their layout (keys of all layers, then values) and their way through pinned memory, on a stream apart
from the one that iterations are queued on: copies take their turns with kernels, and no iteration waits for
them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from inflight.executors.reference.core.block_store import Export

from . import opened_blocks
from .device_memory import DeviceMemoryError
from .model import TorchModel
from .opened_blocks import OpenedCache
from .operations import Tensor

_LOG = logging.getLogger("inflight.reference")

#: Bytes of one copy between host and device. What an iteration copies, a few bytes, waits for one of them.
_COPIED_BYTES = 1 << 20


class TorchBlocks:
    """Implements `core.block_store.BlockStore`."""

    def __init__(self, model: TorchModel, stream: Any) -> None:
        """``stream`` is that of iterations; None on a CPU."""
        parts, _, *block = model.cache.shape
        self._cache, self._stream = _wide(model.cache), stream
        self.layout = f"pytorch {model.cache_dtype} {parts}x{'x'.join(map(str, block))}"
        self.block_bytes = int(self._cache[:, 0].nbytes)

    def fence(self) -> Any:
        """An event behind all that is queued; on a CPU an iteration is over when its launch returns."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def buffer(self, blocks: int) -> TorchBuffer:
        return TorchBuffer(self._cache, blocks)

    def export(self) -> Export | None:
        try:
            return opened_blocks.export(self._cache)
        except DeviceMemoryError as error:
            _LOG.warning("kv cache not exported to other processes of this host reason=%r", str(error))
            return None

    def open(self, export: Export) -> OpenedCache:
        return OpenedCache(export, self._cache)


def _wide(cache: Tensor) -> Tensor:
    """The cache in the widest elements that it consists of: a kernel copies them one by one."""
    row = cache.shape[-1] * cache.element_size()
    wide = next(one for one in (torch.complex128, torch.int64, torch.uint8) if not row % one.itemsize)
    return cache.view(wide)


def _copy(source: Tensor, target: Tensor) -> None:
    for start in range(0, len(source), _COPIED_BYTES):
        part = source[start : start + _COPIED_BYTES]
        target[start : start + len(part)].copy_(part, non_blocking=True)


class TorchBuffer:
    """Implements `core.block_store.BlockBuffer`."""

    def __init__(self, cache: Tensor, blocks: int) -> None:
        self._cache = cache
        device = cache.device
        self._cuda = device.type == "cuda"
        with torch.inference_mode():
            shape = (blocks * cache[:, 0].nbytes,)
            self._host = torch.empty(shape, dtype=torch.uint8, pin_memory=self._cuda)
            #: Where blocks are one after the other on the device, and their numbers.
            self._staged = torch.empty(shape, dtype=torch.uint8, device=device) if self._cuda else self._host
            self._numbers = torch.empty(blocks, dtype=torch.int64, pin_memory=self._cuda)
            self._places = torch.empty(blocks, dtype=torch.int64, device=device)
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self.memory = memoryview(self._host.numpy())

    def read(self, blocks: Sequence[int]) -> None:
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            staged, size = self._part(len(blocks))
            torch.index_select(self._cache, 1, self._upload(blocks), out=staged)
            if self._cuda:
                _copy(self._staged[:size], self._host)
        self._wait()

    def write(self, blocks: Sequence[int], after: Any) -> None:
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            staged, size = self._part(len(blocks))
            if self._cuda:
                _copy(self._host[:size], self._staged)
            places = self._upload(blocks)
            if after is not None and self._stream is not None:
                self._stream.wait_event(after)
            self._cache.index_copy_(1, places, staged)
        self._wait()

    def _part(self, blocks: int) -> tuple[Tensor, int]:
        """The staged bytes of so many blocks in the cache's shape, and how many they are."""
        parts, _, *block = self._cache.shape
        size = blocks * self._cache[:, 0].nbytes
        return self._staged[:size].view(self._cache.dtype).view(parts, blocks, *block), size

    def _upload(self, blocks: Sequence[int]) -> Tensor:
        count = len(blocks)
        self._numbers[:count] = torch.tensor(blocks, dtype=torch.int64)
        return self._places[:count].copy_(self._numbers[:count], non_blocking=True)

    def _wait(self) -> None:
        # For its stream alone, without the interpreter's lock.
        if self._stream is not None:
            self._stream.synchronize()
