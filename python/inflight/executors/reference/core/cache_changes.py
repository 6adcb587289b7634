"""What has changed in the cache since somebody looked: blocks as columns, for routers.

Owns the columns. What a change is, is `reuse`'s; who reads them, `inflight.executors.base`'s.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inflight.executors.base import CacheChange, CacheChanges


class Origin(NamedTuple):
    """What the blocks of a sequence share with no others: its adapter's task id, and its salt."""

    lora_task_id: int | None = None
    salt: bytes = b""


@dataclass(slots=True)
class ChangeLog:
    """Changes of blocks of one size, in order."""

    _kinds: bytearray = field(default_factory=bytearray)
    _names: array[int] = field(default_factory=lambda: array("Q"))
    _parents: array[int] = field(default_factory=lambda: array("Q"))
    _tokens: array[int] = field(default_factory=lambda: array("i"))
    _firsts: list[tuple[int, int | None, bytes]] = field(default_factory=list)

    def store(self, name: int, parent: int, tokens: Sequence[int], origin: Origin | None) -> None:
        """A full block can be found; ``origin`` is that of a sequence's first block."""
        if origin is not None:
            self._firsts.append((len(self._parents), *origin))
        self._kinds.append(CacheChange.STORED)
        self._names.append(name)
        self._parents.append(parent)
        self._tokens.extend(tokens)

    def move(self, name: int, level: int) -> None:
        """A block is on a level, 0 for the device's and 1 for the host's."""
        self._kinds.append(CacheChange.MOVED_TO_HOST if level else CacheChange.MOVED_TO_DEVICE)
        self._names.append(name)

    def remove(self, name: int) -> None:
        """A block can no longer be found."""
        self._kinds.append(CacheChange.REMOVED)
        self._names.append(name)

    def take(self) -> CacheChanges | None:
        """The changes since the last call; None without any."""
        if not self._kinds:
            return None
        changes = CacheChanges(
            bytes(self._kinds),
            self._names.tobytes(),
            self._parents.tobytes(),
            self._tokens.tobytes(),
            tuple(self._firsts),
        )
        self._kinds.clear()
        for column in (self._names, self._parents, self._tokens):
            del column[:]
        self._firsts.clear()
        return changes
