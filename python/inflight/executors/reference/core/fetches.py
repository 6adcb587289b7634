"""Blocks of a prompt on their way here from the worker that computed it.

Owns one transfer's state between the engine's thread, which gives it blocks to write to and takes what has
come, and the thread that receives. Blocks are never given back while somebody may write to them.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .blocks import BlockPool, BlockTable
from .context_phase import Offer


@dataclass(slots=True, eq=False)
class Fetch:
    """One prompt's blocks: which of them are asked for, and where they go."""

    offer: Offer
    client_id: int
    #: The first that is not here, and where it and those after it go; set when the transfer begins.
    first: int = 0
    blocks: Sequence[int] = ()
    #: What the writing comes after: `block_store.BlockStore.fence`.
    after: Any = None
    #: When it began, on the transfer's clock, and how long it took.
    started_s: float = 0.0
    seconds: float = 0.0
    #: Blocks that have come, from the first on; whole once it is over.
    arrived: int = 0
    #: Why the others have not; None: all have.
    problem: str | None = None
    #: Of a sequence that has ended meanwhile: given back once nobody writes.
    abandoned: BlockTable | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_claimed: bool = False
    _cancelled: bool = False
    _stop: Callable[[], None] | None = None

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled

    @property
    def is_claimed(self) -> bool:
        return self._is_claimed

    def claim(self) -> bool:
        """Whether the caller is the one that brings it to an end."""
        with self._lock:
            is_first, self._is_claimed = not self._is_claimed, True
        return is_first

    def on_cancel(self, stop: Callable[[], None] | None) -> None:
        """Calls ``stop`` once nobody wants the blocks any more, at once where nobody does."""
        with self._lock:
            self._stop = stop
            cancelled = self._cancelled
        if cancelled and stop is not None:
            stop()

    def abandon(self, table: BlockTable) -> None:
        """Nobody wants the blocks any more; ``table`` is given back once nobody writes to them."""
        self.abandoned = table
        self.cancel()

    def cancel(self) -> None:
        """Ends the transfer soon."""
        with self._lock:
            self._cancelled = True
            stop = self._stop
        if stop is not None:
            stop()


class Receiver(Protocol):
    """Receives in separate threads."""

    def receive(self, fetch: Fetch) -> None:
        """Begins, unless somebody else claims the fetch before a thread does. One that is claimed comes to
        `Fetches.finish` within a bound of time."""


@dataclass(slots=True)
class Transfers:
    """Counts since the start."""

    #: Transfers that brought something, and their time all together.
    count: int = 0
    seconds: float = 0.0
    blocks: int = 0
    #: Prompts of which something was computed here instead, by reason.
    fallbacks: Counter[str] = field(default_factory=Counter)


class Fetches:
    """The transfers in progress of one engine."""

    def __init__(
        self, pool: BlockPool, transfers: Transfers, wait_s: float, clock: Callable[[], float]
    ) -> None:
        """A transfer that no thread has begun after ``wait_s`` is given up: nobody holds its blocks now."""
        self._pool, self._transfers = pool, transfers
        self._wait_s, self._clock = wait_s, clock
        #: In order of their beginning; claimed ones go when they are the first.
        self._queue: deque[Fetch] = deque()
        self._lock = threading.Lock()
        self._finished: list[Fetch] = []
        self._running = 0
        self._wake: Callable[[], None] = _nobody

    def __len__(self) -> int:
        return self._running

    def on_change(self, wake: Callable[[], None]) -> None:
        """Calls ``wake`` when `take` has something."""
        self._wake = wake

    def begin(self, receiver: Receiver, fetch: Fetch) -> None:
        """Starts a transfer whose blocks are known. The engine's thread."""
        self._running += 1
        fetch.started_s = self._clock()
        self._queue.append(fetch)
        receiver.receive(fetch)

    def left_s(self) -> float | None:
        """Seconds until one is to be given up; None: all have begun."""
        while self._queue and self._queue[0].is_claimed:
            self._queue.popleft()
        if not self._queue:
            return None
        return max(0.0, self._queue[0].started_s + self._wait_s - self._clock())

    def finish(self, fetch: Fetch) -> None:
        """Nobody writes for it any more. The receiver's thread."""
        with self._lock:
            self._finished.append(fetch)
        self._wake()

    def take(self) -> list[Fetch]:
        """What is over since the last call and still wanted. The engine's thread."""
        if not self._running:
            return []
        for fetch in self._queue:
            if fetch.is_cancelled and fetch.claim():
                self.finish(fetch)
        while self.left_s() == 0.0:
            late = self._queue.popleft()
            if late.claim():
                late.problem = "busy"
                self.finish(late)
        with self._lock:
            finished, self._finished = self._finished, []
        self._running -= len(finished)
        for fetch in finished:
            if fetch.abandoned is not None:
                self._pool.release(fetch.abandoned)
            else:
                self._count(fetch)
        return [fetch for fetch in finished if fetch.abandoned is None]

    def _count(self, fetch: Fetch) -> None:
        transfers = self._transfers
        if fetch.arrived:
            transfers.count += 1
            transfers.seconds += fetch.seconds
            transfers.blocks += fetch.arrived
        if fetch.problem is not None:
            transfers.fallbacks[fetch.problem] += 1


def _nobody() -> None:
    pass
