"""The order in which unused blocks are given up: lowest priority first, then least recently used.

Owns that order, one for each memory that holds blocks, and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice


@dataclass(slots=True)
class EvictionOrder:
    """Blocks that nobody uses, by priority."""

    _by_priority: dict[int, OrderedDict[int, None]] = field(default_factory=dict)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    def add(self, block: int, priority: int) -> None:
        """The block's last user is gone just now."""
        waiting = self._by_priority.get(priority)
        if waiting is None:
            waiting = self._by_priority[priority] = OrderedDict()
        waiting[block] = None
        self._count += 1

    def discard(self, block: int, priority: int) -> bool:
        """Takes the block out; whether it was there."""
        waiting = self._by_priority.get(priority)
        if waiting is None or block not in waiting:
            return False
        del waiting[block]
        if not waiting:
            del self._by_priority[priority]
        self._count -= 1
        return True

    def first(self) -> int | None:
        """The block that is worth least; None where there is none."""
        if not self._by_priority:
            return None
        return next(iter(self._by_priority[min(self._by_priority)]))

    def take(self, count: int) -> list[int]:
        """Takes out those that are worth least, at most ``count``, in order."""
        taken: list[int] = []
        while self._by_priority and len(taken) < count:
            priority = min(self._by_priority)
            waiting = self._by_priority[priority]
            blocks = list(islice(waiting, count - len(taken)))
            if len(blocks) == len(waiting):
                del self._by_priority[priority]
            else:
                for block in blocks:
                    del waiting[block]
            taken += blocks
        self._count -= len(taken)
        return taken
