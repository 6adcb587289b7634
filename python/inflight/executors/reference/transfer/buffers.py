"""Host memory for blocks on their way: a few buffers, made when they are first needed, and lent to threads.

Owns the bound on bytes in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from inflight.executors.reference.core.block_store import BlockBuffer, BlockStore

from .wire import Failed


class Buffers:
    """So many, for ``blocks`` blocks each."""

    def __init__(self, store: BlockStore, blocks: int, count: int) -> None:
        self.blocks = blocks
        self._store = store
        self._places = threading.BoundedSemaphore(count)
        self._lock = threading.Lock()
        self._free: list[BlockBuffer] = []

    @contextmanager
    def one(self, wait_s: float) -> Iterator[BlockBuffer]:
        """A buffer for as long as the caller needs it. Errors: `Failed` where none is free for so long."""
        if not self._places.acquire(timeout=wait_s):
            raise Failed("busy")
        try:
            with self._lock:
                buffer = self._free.pop() if self._free else None
            if buffer is None:
                buffer = self._store.buffer(self.blocks)
            try:
                yield buffer
            finally:
                with self._lock:
                    self._free.append(buffer)
        finally:
            self._places.release()
