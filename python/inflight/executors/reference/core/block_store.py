"""The seam between a runner's cache and what moves blocks to other workers.

Owns the protocols. An implementation owns the arrays; threads and sockets are `transfer`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class CannotOpenError(Exception):
    """Another process's cache cannot be read here; the text is a reason for the log."""


@dataclass(frozen=True, slots=True)
class Export:
    """What another process of this host reads a cache by, with the same rights as its owner."""

    #: The implementation's, of a few hundred bytes at most.
    data: bytes
    #: Of a file that is mapped; open as long as the cache is.
    descriptor: int | None = None


class BlockBuffer(Protocol):
    """Memory of the host for some blocks, of one thread at a time."""

    #: All of it; the first blocks are at its beginning.
    memory: memoryview

    def read(self, blocks: Sequence[int]) -> None:
        """Copies blocks here, one after the other by their places; done when it returns."""

    def write(self, blocks: Sequence[int], after: Any) -> None:
        """Copies what is here to blocks, ``after`` a `BlockStore.fence`; done when it returns."""


class OpenedBlocks(Protocol):
    """The cache of another process. Threads may use it at once; its owner writes to it meanwhile."""

    def fetch(self, theirs: Sequence[int], ours: Sequence[int], after: Any) -> None:
        """Copies blocks to our cache, ``after`` a `BlockStore.fence`; done when it returns. Errors:
        ValueError for a block that they do not have."""

    def close(self) -> None:
        """Lets go of it; nothing is copied any more."""


class BlockStore(Protocol):
    """The blocks of a cache as bytes. Buffers are used while the runner computes with other blocks."""

    #: What the bytes of a block are: caches of the same layout can exchange them.
    layout: str
    block_bytes: int

    def fence(self) -> Any:
        """What all that was launched so far comes before. Called by the runner's thread."""

    def buffer(self, blocks: int) -> BlockBuffer:
        """A buffer for so many blocks. Any thread may ask."""

    def export(self) -> Export | None:
        """What other processes of this host can read the blocks by; None where they cannot."""

    def open(self, export: Export) -> OpenedBlocks:
        """The blocks of another process, from what its `export` returned; any thread may ask. Errors:
        `CannotOpenError`, also where the bytes are not those of a cache of this layout."""
