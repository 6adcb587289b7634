"""The caches of other workers of this host that blocks are copied out of.

Owns which are open, and for how long: until their worker has ended, whose memory would stay taken while
somebody has it open. One that cannot be opened is a line of the log, and its blocks come through connections.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from inflight.executors.reference.core.block_store import BlockStore, CannotOpenError, OpenedBlocks

from . import local, wire
from .connections import Connections

_LOG = logging.getLogger("inflight.reference")

Address = tuple[str, int]

#: Caches that are open at once, and seconds until one that could not be opened is tried again.
_MOST = 64
_RETRY_S = 60.0


class Neighbor:
    """One open cache."""

    def __init__(self, instance: bytes, blocks: OpenedBlocks) -> None:
        self.instance, self.blocks = instance, blocks
        self.users = 0
        self.has_ended = False
        self.is_closed = False


class Neighbors:
    """Those of one worker."""

    def __init__(
        self, store: BlockStore, key: bytes, wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._key, self._wait_s, self._clock = store, key, wait_s, clock
        self._lock = threading.Lock()
        #: Opening takes milliseconds: others that want the same cache wait for it.
        self._opening = threading.Lock()
        self._open: dict[Address, Neighbor] = {}
        #: When those that could not be opened are tried again.
        self._refused: dict[Address, float] = {}
        self._connections = Connections()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def at(self, address: Address) -> Iterator[Neighbor | None]:
        """The cache of the worker at an address, as long as the caller needs it; None where it is not one of
        this host that can be opened."""
        neighbor = self._take(address)
        if neighbor is None:
            yield None
            return
        try:
            yield neighbor
        finally:
            with self._lock:
                neighbor.users -= 1
            self._close_unused(neighbor)

    def close(self) -> None:
        """Lets go of all."""
        self._connections.close()

    def _take(self, address: Address) -> Neighbor | None:
        with self._opening:
            with self._lock:
                found = self._open.get(address)
                if found is not None and not found.has_ended:
                    found.users += 1
                    return found
                if len(self._open) >= _MOST or self._refused.get(address, 0.0) > self._clock():
                    return None
            return self._connect(address)

    def _connect(self, address: Address) -> Neighbor | None:
        connection = local.connect(address, self._wait_s)
        if connection is None:
            return None
        try:
            neighbor = self._attach(connection)
        except Exception as error:  # whatever it is, there is another way
            connection.close()
            if not isinstance(error, (wire.Failed, CannotOpenError, OSError)):
                _LOG.exception("kv cache not opened")
            self._refuse(address, str(error))
            return None
        neighbor.users = 1
        with self._lock:
            self._refused.pop(address, None)
            self._open[address] = neighbor
        threading.Thread(
            target=self._watch, args=(address, neighbor, connection), name="kv-neighbor", daemon=True
        ).start()
        return neighbor

    def _attach(self, connection: socket.socket) -> Neighbor:
        line = wire.Line(connection, self._wait_s, self._wait_s)
        wire.ask(line, local.WHOLE_CACHE, self._key, self._store.block_bytes)
        instance, export = local.receive_export(connection, line)
        try:
            return Neighbor(instance, self._store.open(export))
        finally:
            if export.descriptor is not None:
                os.close(export.descriptor)

    def _refuse(self, address: Address, reason: str) -> None:
        with self._lock:
            is_new = address not in self._refused
            if is_new and len(self._refused) >= _MOST:
                self._refused.clear()
            self._refused[address] = self._clock() + _RETRY_S
        if is_new:
            _LOG.warning(
                "kv cache of a worker of this host not opened, using tcp address=%s:%d reason=%r",
                *address,
                reason,
            )

    def _watch(self, address: Address, neighbor: Neighbor, connection: socket.socket) -> None:
        """Until the other worker ends, or this one."""
        with self._connections.kept(connection), suppress(OSError):
            local.wait_for_end(connection)
        with self._lock:
            neighbor.has_ended = True
            if self._open.get(address) is neighbor:
                del self._open[address]
        self._close_unused(neighbor)

    def _close_unused(self, neighbor: Neighbor) -> None:
        with self._lock:
            is_last = neighbor.has_ended and not neighbor.users and not neighbor.is_closed
            neighbor.is_closed = neighbor.is_closed or is_last
        if is_last:
            neighbor.blocks.close()
