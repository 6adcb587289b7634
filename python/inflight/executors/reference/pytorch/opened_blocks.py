"""Another process's cache on a GPU of this host, read from GPU to GPU.

Owns what a cache is exported as, the checks of what another process says, and the copies: by the
GPU's copy engines, which leave its multiprocessors to the iterations that run meanwhile.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from inflight.executors.reference.core.block_store import CannotOpenError, Export

from . import device_memory
from .device_memory import DeviceMemoryError, Plane
from .operations import Tensor

_LOG = logging.getLogger("inflight.reference")

#: Handle; where the cache is in its allocation; blocks; the process and the address there.
_EXPORT = struct.Struct(f"<{device_memory.HANDLE_BYTES}sQQQQ")


def export(cache: Tensor) -> Export | None:
    """What other processes read a cache on a GPU by. Errors: `DeviceMemoryError`."""
    if cache.device.type != "cuda":
        return None
    address = cache.data_ptr()
    base, _ = device_memory.allocation(address, cache.device)
    made = device_memory.handle(base, cache.device)
    return Export(_EXPORT.pack(made, address - base, cache.shape[1], os.getpid(), address))


class OpenedCache:
    """Implements `core.block_store.OpenedBlocks`."""

    def __init__(self, export: Export, cache: Tensor) -> None:
        """``cache``: ours, of the same layout. Errors: `CannotOpenError`."""
        if cache.device.type != "cuda" or len(export.data) != _EXPORT.size:
            raise CannotOpenError("it is not a cache of a GPU's, or ours is not")
        handle, offset, self._blocks, process, address = _EXPORT.unpack(export.data)
        self._cache, self._device = cache, cache.device
        self._opened: int | None = None
        try:
            device_memory.require_planes()
            # Both ends in one process: its addresses are valid as they are.
            if process != os.getpid():
                self._opened = device_memory.opened(handle, self._device)
                address = self._opened + offset
            base, size = device_memory.allocation(address, self._device)
        except DeviceMemoryError as error:
            self.close()
            raise CannotOpenError(str(error)) from error
        self._address: int | None = address
        parts, row = int(cache.shape[0]), int(cache[0, 0].nbytes)
        if not self._blocks or address + self._blocks * parts * row > base + size:
            self.close()
            raise CannotOpenError(f"{size} bytes have no room for {self._blocks} blocks")
        self._row, self._parts = row, parts
        self._stream = torch.cuda.Stream(self._device)
        # One thread at a time: two would only share the link.
        self._lock = threading.Lock()

    def fetch(self, theirs: Sequence[int], ours: Sequence[int], after: Any) -> None:
        if not theirs or min(theirs) < 0 or max(theirs) >= self._blocks:
            raise ValueError(f"a block is not one of {self._blocks}")
        row, stream = self._row, self._stream
        with self._lock:
            if self._address is None:
                raise ValueError("the cache was closed")
            source = Plane(self._address, np.asarray(theirs), row, self._blocks * row)
            target = Plane(self._cache.data_ptr(), np.asarray(ours), row, int(self._cache.shape[1]) * row)
            if after is not None:
                stream.wait_event(after)
            try:
                device_memory.copy_planes(source, target, row, self._parts, self._device, stream.cuda_stream)
            finally:
                # Without the interpreter's lock; also where only some of the copies were queued.
                stream.synchronize()

    def close(self) -> None:
        opened, self._opened = self._opened, None
        self._address = None
        if opened is not None:
            try:
                device_memory.close(opened, self._device)
            except DeviceMemoryError as error:
                _LOG.warning("memory of another process not closed reason=%r", str(error))
