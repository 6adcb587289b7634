"""Serves held blocks to other workers, each connection in a separate thread.

Owns the port, how many connections there are at once, and the pieces. Who holds what, and for how long, is
`core.holds`'.
"""

from __future__ import annotations

import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from inflight.executors.reference.core.block_store import BlockBuffer, BlockStore
from inflight.executors.reference.core.holds import Hold, Holds

from . import wire
from .buffers import Buffers
from .connections import Connections

_LOG = logging.getLogger("inflight.reference")

#: Connections that wait to be accepted, and those that are served at once or wait for a buffer.
_BACKLOG = 64
_CONNECTIONS = 64


class Sender:
    """One listening port."""

    def __init__(
        self,
        listener: socket.socket,
        holds: Holds,
        store: BlockStore,
        buffers: Buffers,
        key: bytes,
        wait_s: float,
        whole_s: float,
    ) -> None:
        self._listener, self._holds, self._store, self._buffers = listener, holds, store, buffers
        self._key, self._wait_s, self._whole_s = key, wait_s, whole_s
        self._threads = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="kv-send")
        self._places = threading.BoundedSemaphore(_CONNECTIONS)
        self._connections = Connections()
        self._closing = False
        listener.listen(_BACKLOG)
        self._accepting = threading.Thread(target=self._accept, name="kv-accept", daemon=True)
        self._accepting.start()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port, *_ = self._listener.getsockname()
        return str(host), int(port)

    def close(self) -> None:
        """Accepts no connection any more, and ends those that are open."""
        self._closing = True
        # A thread that accepts is not woken by closing alone.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._connections.close()
        self._threads.shutdown(wait=False)

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closing:
                    return
                # Out of descriptors, or a peer that left at once.
                threading.Event().wait(0.05)
                continue
            if not self._places.acquire(blocking=False):
                # Others are served: this one computes for itself.
                connection.close()
                continue
            try:
                self._threads.submit(self._serve, connection)
            except RuntimeError:
                self._places.release()
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with self._connections.kept(connection):
                self._answer(wire.Line(connection, self._wait_s, self._whole_s))
        except wire.Failed as failed:
            _LOG.warning("kv blocks not sent reason=%s", failed.reason)
        except Exception:
            _LOG.exception("kv blocks not sent")
        finally:
            self._places.release()

    def _answer(self, line: wire.Line) -> None:
        greeting, nonce = wire.greeting()
        line.send(greeting)
        asked, client_nonce, is_known = wire.read_request(line.receive(wire.REQUEST_BYTES), self._key, nonce)

        def tell(status: wire.Status) -> None:
            line.send(wire.answer(status, self._store.block_bytes, self._key, client_nonce))

        if not is_known:
            tell(wire.Status.UNAUTHENTICATED)
            raise wire.Failed("unauthenticated")
        hold = self._holds.find(asked.id)
        if hold is None or not 0 < asked.blocks <= len(hold.blocks) - asked.first or not asked.piece:
            tell(wire.Status.GONE)
            raise wire.Failed("gone")
        with self._buffers.one(self._wait_s) as buffer:
            tell(wire.Status.FOUND)
            self._send(line, hold, asked, buffer)
        self._holds.fetched(hold, asked.blocks, asked.whole)

    def _send(self, line: wire.Line, hold: Hold, asked: wire.Asked, buffer: BlockBuffer) -> None:
        blocks = hold.blocks[asked.first : asked.first + asked.blocks]
        size = min(asked.piece, self._buffers.blocks)
        for start in range(0, len(blocks), size):
            part = blocks[start : start + size]
            buffer.read(part)
            # Asked afterwards: had they been given back before, these may be another prompt's.
            if not self._holds.prolong(hold):
                line.send(wire.piece(0, 0))
                raise wire.Failed("gone")
            count = len(part) * self._store.block_bytes
            line.send(wire.piece(len(part), count))
            line.send(buffer.memory[:count])
