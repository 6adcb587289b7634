"""Fetches blocks from other workers, a few prompts at a time, in separate threads.

Owns the way of one prompt's blocks from a connection into the cache. Every end of it is an arrival that is
finished: with all blocks, with some, or with none. Knows nothing of sequences.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from inflight.executors.reference.core.arrivals import Arrival
from inflight.executors.reference.core.block_store import BlockBuffer, BlockStore

from . import wire
from .buffers import Buffers
from .connections import Connections, shut

_LOG = logging.getLogger("inflight.reference")


class Fetcher:
    """Implements `core.arrivals.Receiver`."""

    def __init__(
        self,
        finish: Callable[[Arrival], None],
        store: BlockStore,
        buffers: Buffers,
        key: bytes,
        wait_s: float,
        whole_s: float,
        *,
        transfers: int,
    ) -> None:
        self._finish, self._store, self._buffers = finish, store, buffers
        self._key, self._wait_s, self._whole_s = key, wait_s, whole_s
        self._connections = Connections()
        self._threads = ThreadPoolExecutor(transfers, thread_name_prefix="kv-fetch")

    def fetch(self, arrival: Arrival) -> None:
        """Begins, or waits until another is through."""
        arrival.started_s = time.monotonic()
        try:
            self._threads.submit(self._run, arrival)
        except RuntimeError:
            arrival.problem = "shutdown"
            self._finish(arrival)

    def close(self) -> None:
        """Begins no transfer any more, and ends those that run."""
        self._connections.close()
        self._threads.shutdown(wait=False)

    def _run(self, arrival: Arrival) -> None:
        try:
            self._fetch(arrival)
        except wire.Failed as failed:
            arrival.problem = "cancelled" if arrival.is_cancelled else failed.reason
        except Exception:
            # Whatever it is, the prompt can still be computed.
            _LOG.exception("kv blocks not fetched")
            arrival.problem = "failed"
        finally:
            arrival.on_cancel(None)
            arrival.seconds = time.monotonic() - arrival.started_s
            self._finish(arrival)

    def _fetch(self, arrival: Arrival) -> None:
        whole_s = self._whole_s - (time.monotonic() - arrival.started_s)
        if arrival.is_cancelled or whole_s <= 0:
            raise wire.Failed("timeout")
        connection = self._connect(arrival)
        with self._connections.kept(connection):
            arrival.on_cancel(lambda: shut(connection))
            line = wire.Line(connection, self._wait_s, whole_s)
            nonce = wire.read_greeting(line.receive(wire.GREETING_BYTES))
            count = len(arrival.blocks)
            asked = wire.Asked(arrival.offer.id, arrival.first, count, self._buffers.blocks)
            message, own_nonce = wire.request(asked, self._key, nonce)
            line.send(message)
            wire.read_answer(line.receive(wire.ANSWER_BYTES), self._store.block_bytes, self._key, own_nonce)
            with self._buffers.one() as buffer:
                while arrival.arrived < count:
                    arrival.arrived += self._take(line, arrival, buffer)

    def _take(self, line: wire.Line, arrival: Arrival, buffer: BlockBuffer) -> int:
        """The next piece into the cache; returns its blocks."""
        rest = arrival.blocks[arrival.arrived :]
        most = min(len(rest), self._buffers.blocks)
        count = wire.read_piece(line.receive(wire.PIECE_BYTES), most, self._store.block_bytes)
        line.receive_into(buffer.memory[: count * self._store.block_bytes])
        if arrival.is_cancelled:
            raise wire.Failed("cancelled")
        buffer.write(rest[:count], arrival.after)
        return count

    def _connect(self, arrival: Arrival) -> socket.socket:
        for address in arrival.offer.addresses:
            with suppress(OSError):
                return socket.create_connection(address, timeout=self._wait_s)
        raise wire.Failed("unreachable")
