"""Lets other workers of this host copy held blocks out of this worker's cache.

Owns what they are answered. Nothing is copied here: a hold lasts while they say that they copy, and they
hear after each copy whether it lasted.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from inflight.executors.reference.core.block_store import Export
from inflight.executors.reference.core.holds import Holds

from . import local, wire
from .connections import Connections
from .listening import Port
from .sending import find

#: Connections at once; and those that others keep, to hear when this worker ends.
_CONNECTIONS = 64
_MOST_OPEN = 64


class Lender:
    """One listening socket of this host."""

    def __init__(
        self,
        listener: socket.socket,
        holds: Holds,
        export: Export,
        block_bytes: int,
        key: bytes,
        wait_s: float,
        whole_s: float,
    ) -> None:
        self._holds, self._export, self._block_bytes = holds, export, block_bytes
        self._key, self._wait_s, self._whole_s = key, wait_s, whole_s
        self._instance = secrets.token_bytes(local.INSTANCE_BYTES)
        self._kept = Connections()
        self._opened = threading.BoundedSemaphore(_MOST_OPEN)
        self._port = Port(listener, self._answer, connections=_CONNECTIONS)

    def close(self) -> None:
        """Accepts no connection any more, and ends those that are open."""
        self._port.close()
        self._kept.close()

    def _answer(self, connection: socket.socket) -> None:
        if not local.is_own(connection):
            raise wire.Failed("unauthenticated")
        line = wire.Line(connection, self._wait_s, self._whole_s)
        asked, tell = wire.asked(line, self._key, self._block_bytes)
        if asked == local.WHOLE_CACHE:
            self._lend(connection, tell)
            return
        hold = find(self._holds, asked)
        if hold is None:
            tell(wire.Status.GONE)
            raise wire.Failed("gone")
        tell(wire.Status.FOUND)
        line.send(local.numbers(self._instance, hold.blocks[asked.first : asked.first + asked.blocks]))
        while (said := line.receive(len(local.HELD))) in (local.HELD, local.DONE):
            if not self._holds.prolong(hold):
                line.send(local.GONE)
                raise wire.Failed("gone")
            if said == local.DONE:
                self._holds.fetched(hold, asked.blocks, asked.whole)
            line.send(local.HELD)
            if said == local.DONE:
                return
        raise wire.Failed("protocol")

    def _lend(self, connection: socket.socket, tell: Callable[[wire.Status], None]) -> None:
        if not self._opened.acquire(blocking=False):
            return
        try:
            tell(wire.Status.FOUND)
            local.send_export(connection, self._instance, self._export)
            # Not one of the threads that the end of a process waits for: this one ends with the other worker.
            thread = threading.Thread(
                target=self._keep, args=(connection.dup(),), name="kv-lent", daemon=True
            )
            thread.start()
        except BaseException:
            self._opened.release()
            raise

    def _keep(self, connection: socket.socket) -> None:
        """Until the other leaves, or this worker ends."""
        try:
            with self._kept.kept(connection), suppress(OSError):
                local.wait_for_end(connection)
        finally:
            self._opened.release()
