"""Fetches blocks from other workers, in separate threads.

Owns the way of one prompt's blocks into the cache: out of that of another worker of this host, or from a few
connections, in parts, since one connection is slower than the memory at its ends. Every fetch is finished in
the end: with all blocks, with some, or with none. Knows nothing of sequences.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial

from inflight.executors.reference.core.block_store import BlockBuffer, BlockStore
from inflight.executors.reference.core.fetches import Fetch

from . import local, wire
from .buffers import Buffers
from .connections import Connections
from .neighbors import Neighbor, Neighbors

_LOG = logging.getLogger("inflight.reference")

#: Of one copy out of another worker's cache. After each the other is asked whether it was right.
_COPIED_BYTES = 512 << 20

#: Connections of one transfer at most, and what each brings at least.
_MOST_PARTS = 4
_PART_BYTES = 32 << 20


class _Transfer:
    """One fetch and the parts that it comes in."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch
        self.connections = Connections()
        self._lock = threading.Lock()
        self._has_begun = False
        self.split(1)

    def split(self, parts: int) -> None:
        """Has it come in so many parts; before one of them comes."""
        count = len(self.fetch.blocks)
        #: Blocks, by their places among those of the fetch; and how many of each have come.
        self.parts = [range(part * count // parts, (part + 1) * count // parts) for part in range(parts)]
        self.arrived = [0] * parts
        self._left = parts

    def begin(self) -> bool:
        """Whether a part may begin; False once nobody wants the fetch."""
        with self._lock:
            if not self._has_begun:
                self._has_begun = self.fetch.claim()
                if self._has_begun:
                    self.fetch.on_cancel(self.connections.close)
            return self._has_begun

    def end(self, problem: str | None) -> bool:
        """Notes that a part is over; whether it was the last. What follows one that failed is of no use."""
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
            if problem is not None and self.fetch.problem is None:
                self.fetch.problem = problem
        if problem is not None:
            self.connections.close()
        return is_last

    def prefix(self) -> int:
        """Blocks that have come, up to the first that has not."""
        count = 0
        for part, arrived in zip(self.parts, self.arrived, strict=True):
            count += arrived
            if arrived < len(part):
                break
        return count


class Fetcher:
    """Implements `core.fetches.Receiver`."""

    def __init__(
        self,
        finish: Callable[[Fetch], None],
        store: BlockStore,
        buffers: Buffers,
        key: bytes,
        wait_s: float,
        whole_s: float,
        neighbors: Neighbors | None,
        *,
        threads: int,
    ) -> None:
        """``neighbors``: None where all comes through connections."""
        self._finish, self._store, self._buffers = finish, store, buffers
        self._key, self._wait_s, self._whole_s = key, wait_s, whole_s
        self._neighbors = neighbors
        self._connections = Connections()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kv-fetch")

    def receive(self, fetch: Fetch) -> None:
        """Begins, or waits until another is through."""
        transfer = _Transfer(fetch)
        with suppress(RuntimeError):  # it is closed: nobody claims the fetch
            if self._neighbors is None:
                self._receive_parts(transfer)
            else:
                self._threads.submit(self._begin, transfer, self._neighbors)

    def close(self) -> None:
        """Begins no transfer any more, and ends those that run."""
        self._connections.close()
        if self._neighbors is not None:
            self._neighbors.close()
        self._threads.shutdown(wait=False)

    def _receive_parts(self, transfer: _Transfer) -> None:
        """Errors: RuntimeError once it is closed."""
        size = len(transfer.fetch.blocks) * self._store.block_bytes
        transfer.split(max(1, min(_MOST_PARTS, size // _PART_BYTES, len(transfer.fetch.blocks))))
        for part in range(len(transfer.parts)):
            self._threads.submit(self._run, transfer, partial(self._receive, transfer, part))

    def _begin(self, transfer: _Transfer, neighbors: Neighbors) -> None:
        """Finds out where the blocks are."""
        if not transfer.begin():
            return
        with ExitStack() as stack:
            for address in transfer.fetch.offer.addresses:
                neighbor = stack.enter_context(neighbors.at(address))
                if neighbor is not None:
                    self._run(transfer, partial(self._copy, transfer, address, neighbor))
                    return
        try:
            self._receive_parts(transfer)
        except RuntimeError:
            transfer.fetch.problem = "cancelled"
            self._finish(transfer.fetch)

    def _run(self, transfer: _Transfer, bring: Callable[[], None]) -> None:
        """A part of a transfer from its beginning to its end, whatever that is."""
        if not transfer.begin():
            return
        fetch, problem = transfer.fetch, None
        try:
            bring()
        except wire.Failed as failed:
            problem = "cancelled" if fetch.is_cancelled else failed.reason
        except Exception:
            # Whatever it is, the prompt can still be computed.
            _LOG.exception("kv blocks not fetched")
            problem = "failed"
        if transfer.end(problem):
            fetch.on_cancel(None)
            fetch.arrived = transfer.prefix()
            fetch.seconds = time.monotonic() - fetch.started_s
            self._finish(fetch)

    def _copy(self, transfer: _Transfer, address: tuple[str, int], neighbor: Neighbor) -> None:
        """All of it, out of the cache of a worker of this host."""
        fetch, [places] = transfer.fetch, transfer.parts
        whole_s = self._left_s(fetch)
        connection = local.connect(address, self._wait_s)
        if connection is None:
            raise wire.Failed("unreachable")
        with self._connections.kept(connection), transfer.connections.kept(connection):
            line = wire.Line(connection, self._wait_s, whole_s)
            asked = wire.Asked(fetch.offer.id, fetch.first, len(places), len(places), len(places))
            wire.ask(line, asked, self._key, self._store.block_bytes)
            theirs = local.receive_numbers(line, neighbor.instance, len(places))
            most = max(1, _COPIED_BYTES // self._store.block_bytes)
            for start in range(0, len(places), most):
                if fetch.is_cancelled:
                    raise wire.Failed("cancelled")
                stop = min(start + most, len(places))
                neighbor.blocks.fetch(theirs[start:stop], fetch.blocks[start:stop], fetch.after)
                line.send(local.DONE if stop == len(places) else local.HELD)
                # Had they been given back before this answer, these may be another prompt's.
                if line.receive(len(local.HELD)) != local.HELD:
                    raise wire.Failed("gone")
                transfer.arrived[0] = stop

    def _left_s(self, fetch: Fetch) -> float:
        """Seconds that a transfer may still take. Errors: `wire.Failed`."""
        left_s = self._whole_s - (time.monotonic() - fetch.started_s)
        if left_s <= 0:
            raise wire.Failed("timeout")
        return left_s

    def _receive(self, transfer: _Transfer, part: int) -> None:
        fetch, places = transfer.fetch, transfer.parts[part]
        whole_s = self._left_s(fetch)
        connection = self._connect(fetch)
        with self._connections.kept(connection), transfer.connections.kept(connection):
            line = wire.Line(connection, self._wait_s, whole_s)
            asked = wire.Asked(
                fetch.offer.id,
                fetch.first + places.start,
                len(places),
                self._buffers.blocks,
                len(fetch.blocks),
            )
            wire.ask(line, asked, self._key, self._store.block_bytes)
            with self._buffers.one(self._wait_s) as buffer:
                while transfer.arrived[part] < len(places):
                    rest = places[transfer.arrived[part] :]
                    transfer.arrived[part] += self._take(line, fetch, rest, buffer)

    def _take(self, line: wire.Line, fetch: Fetch, rest: range, buffer: BlockBuffer) -> int:
        """The next piece into the cache; returns its blocks."""
        most = min(len(rest), self._buffers.blocks)
        count = wire.read_piece(line.receive(wire.PIECE_BYTES), most, self._store.block_bytes)
        line.receive_into(buffer.memory[: count * self._store.block_bytes])
        if fetch.is_cancelled:
            raise wire.Failed("cancelled")
        buffer.write(fetch.blocks[rest.start : rest.start + count], fetch.after)
        return count

    def _connect(self, fetch: Fetch) -> socket.socket:
        if fetch.is_cancelled:
            raise wire.Failed("cancelled")
        for address in fetch.offer.addresses:
            with suppress(OSError):
                return socket.create_connection(address, timeout=self._wait_s)
        raise wire.Failed("unreachable")
