"""Serves held blocks to other workers through connections.

Owns the pieces. Who holds what, and for how long, is `core.holds`'.
"""

from __future__ import annotations

import socket

from inflight.executors.reference.core.block_store import BlockBuffer, BlockStore
from inflight.executors.reference.core.holds import Hold, Holds

from . import wire
from .buffers import Buffers
from .listening import Port

#: Connections that are served at once or wait for a buffer.
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
        self._port = Port(listener, self._answer, connections=_CONNECTIONS)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port, *_ = self._listener.getsockname()
        return str(host), int(port)

    def close(self) -> None:
        """Accepts no connection any more, and ends those that are open."""
        self._port.close()

    def _answer(self, connection: socket.socket) -> None:
        line = wire.Line(connection, self._wait_s, self._whole_s)
        asked, tell = wire.asked(line, self._key, self._store.block_bytes)
        hold = find(self._holds, asked)
        if hold is None or not asked.piece:
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


def find(holds: Holds, asked: wire.Asked) -> Hold | None:
    """What holds the blocks that somebody asks for; None where one of them is not held."""
    hold = holds.find(asked.id)
    return None if hold is None or not 0 < asked.blocks <= len(hold.blocks) - asked.first else hold
