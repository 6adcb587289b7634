"""How much of a model has been read, for those who watch it load.

Owns the one watcher of this process, which loads one model at a time. Code that reads reports here, and knows
nothing of listeners.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Takes the bytes that were read, and all that there are to read.
Watcher = Callable[[int, int], None]

#: Progress is reported this often at most, and of this many per cent at least: a line in the log each time.
TELL_EVERY_S = 1.0
TELL_EVERY_PERCENT = 5

_watcher: Watcher | None = None


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Calls ``watcher`` for what is read meanwhile, from the thread that reads."""
    global _watcher
    before, _watcher = _watcher, watcher
    try:
        yield
    finally:
        _watcher = before


class Progress:
    """The reading of one set of weights of ``total`` bytes."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._read = 0

    def add(self, count: int) -> None:
        """``count`` more bytes were read. What is read twice counts once the rest has been read."""
        self._read = min(self._read + count, self._total)
        if _watcher is not None:
            _watcher(self._read, self._total)


def in_words(tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Watcher:
    """A watcher that reports to people now and then: "40 % of 14.9 GiB read". Quick readings have none."""
    told_at, told = clock(), 0

    def watch(read: int, total: int) -> None:
        nonlocal told_at, told
        percent = 100 * read // max(total, 1)
        if percent < told:
            # The weights of another model.
            told = 0
        if clock() - told_at >= TELL_EVERY_S and percent - told >= TELL_EVERY_PERCENT:
            told_at, told = clock(), percent
            size = f"{total / 2**30:.1f} GiB" if total >= 1 << 30 else f"{total / 2**20:.1f} MiB"
            tell(f"{percent} % of {size} read")

    return watch
