"""The seam between a runner's cache and what moves blocks to other workers.

Owns the protocols. An implementation owns the arrays; threads and sockets are `transfer`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class BlockBuffer(Protocol):
    """Memory of the host for some blocks, of one thread at a time."""

    #: All of it; the first blocks are at its beginning.
    memory: memoryview

    def read(self, blocks: Sequence[int]) -> None:
        """Copies blocks here, one after the other by their places; done when it returns."""

    def write(self, blocks: Sequence[int], after: Any) -> None:
        """Copies what is here to blocks, ``after`` a `BlockStore.fence`; done when it returns."""


class BlockStore(Protocol):
    """The blocks of a cache as bytes. Buffers are used while the runner computes with other blocks."""

    #: What the bytes of a block are: caches of the same layout can exchange them.
    layout: str
    block_bytes: int

    def fence(self) -> Any:
        """What all that was launched so far comes before. Called by the runner's thread."""

    def buffer(self, blocks: int) -> BlockBuffer:
        """A buffer for so many blocks. Any thread may ask."""
