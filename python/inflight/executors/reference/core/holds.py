"""Blocks of computed prompts that wait for the worker that generates.

Owns how long they stay: until they are fetched, or until nobody has asked for them or taken anything of them
for a while, and never longer than a bound. The engine's thread adds and gives back; the threads that send
look them up. A block that is given back may be overwritten while somebody reads it: who reads asks after
each copy whether it still held.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

from .blocks import BlockPool, BlockTable
from .context_phase import ID_BYTES

#: How often a hold is prolonged at most by those who read, in its first length.
_MOST_LENGTHS = 10


@dataclass(slots=True, eq=False)
class Hold:
    """The blocks of one prompt."""

    id: bytes
    blocks: tuple[int, ...]
    table: BlockTable
    deadline_s: float
    #: Not prolonged beyond.
    latest_s: float
    #: Blocks that were fetched, in parts.
    fetched: int = 0
    #: Given back: what was copied since may be another prompt's.
    is_over: bool = False


class Holds:
    """Those of one engine."""

    def __init__(self, pool: BlockPool, length_s: float, clock: Callable[[], float]) -> None:
        self._pool, self._length_s, self._clock = pool, length_s, clock
        self._lock = threading.Lock()
        self._by_id: dict[bytes, Hold] = {}
        self._wake: Callable[[], None] = _nobody

    def __len__(self) -> int:
        return len(self._by_id)

    def on_change(self, wake: Callable[[], None]) -> None:
        """Calls ``wake`` when `sweep` has something to give back."""
        self._wake = wake

    # The engine's thread.

    def add(self, table: BlockTable) -> bytes:
        """Takes a table that nobody else releases; returns the id that finds it."""
        now_s = self._clock()
        hold = Hold(
            secrets.token_bytes(ID_BYTES),
            tuple(table.blocks),
            table,
            now_s + self._length_s,
            now_s + _MOST_LENGTHS * self._length_s,
        )
        with self._lock:
            self._by_id[hold.id] = hold
        return hold.id

    def sweep(self) -> None:
        """Gives back what was fetched, and what has waited long enough."""
        if not self._by_id:
            return
        now_s = self._clock()
        with self._lock:
            over = [hold for hold in self._by_id.values() if hold.deadline_s <= now_s]
            for hold in over:
                hold.is_over = True
                del self._by_id[hold.id]
        for hold in over:
            self._pool.release(hold.table)

    def left_s(self) -> float | None:
        """Seconds until something is to be given back; None: nothing is held."""
        with self._lock:
            first = min((hold.deadline_s for hold in self._by_id.values()), default=None)
        return None if first is None else max(0.0, first - self._clock())

    # The threads that send.

    def find(self, id: bytes) -> Hold | None:
        """The hold with this id; somebody reads it from now on."""
        with self._lock:
            hold = self._by_id.get(id)
        return hold if hold is not None and self.prolong(hold) else None

    def prolong(self, hold: Hold) -> bool:
        """Notes that somebody takes of it; False where it is over, and so is what was copied last."""
        with self._lock:
            if not hold.is_over:
                hold.deadline_s = max(hold.deadline_s, min(hold.latest_s, self._clock() + self._length_s))
            return not hold.is_over

    def fetched(self, hold: Hold, blocks: int, whole: int) -> None:
        """Somebody has so many blocks, of the ``whole`` that they need."""
        with self._lock:
            hold.fetched += blocks
            is_done = hold.fetched >= whole
            if is_done:
                hold.deadline_s = hold.latest_s = 0.0
        if is_done:
            self._wake()


def _nobody() -> None:
    pass
