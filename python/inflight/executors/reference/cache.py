"""The paged key-value cache: which blocks belong to whom, and the arrays behind them.

Owns block accounting (a pool that never leaks) and the storage. Knows nothing of requests or attention.
A sequence reserves its worst case when it is admitted, and takes blocks from the reservation as it
grows: it can never be evicted (TensorRT-LLM's policy GUARANTEED_NO_EVICT), and what is in use is true.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .arrays import Float32


class BlockAccountingError(RuntimeError):
    """A mistake of the caller, never of a request: more taken than reserved, or a table freed twice."""


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence, in order of position, and how many more it may take."""

    blocks: list[int] = field(default_factory=list)
    reserved: int = 0
    closed: bool = False


def blocks_for(tokens: int, tokens_per_block: int) -> int:
    """How many blocks hold ``tokens`` tokens."""
    return -(-tokens // tokens_per_block)


class BlockPool:
    """Counts and hands out blocks 0..num_blocks. Latest freed first, so that few pages are ever touched."""

    def __init__(self, num_blocks: int, tokens_per_block: int) -> None:
        self.num_blocks = num_blocks
        self.tokens_per_block = tokens_per_block
        #: Blocks ever handed out, for the statistics.
        self.total_allocated = 0
        self._free = list(range(num_blocks - 1, -1, -1))
        self._reserved = 0

    @property
    def available(self) -> int:
        """Blocks neither in use nor promised: what a new sequence may reserve."""
        return len(self._free) - self._reserved

    @property
    def used(self) -> int:
        """Blocks that hold tokens now."""
        return self.num_blocks - len(self._free)

    def reserve(self, count: int) -> BlockTable | None:
        """A table that may take ``count`` blocks, or None when they are not available."""
        if count > self.available:
            return None
        self._reserved += count
        return BlockTable(reserved=count)

    def grow(self, table: BlockTable, tokens: int) -> None:
        """Takes blocks until the table holds ``tokens`` tokens."""
        missing = blocks_for(tokens, self.tokens_per_block) - len(table.blocks)
        if missing <= 0:
            return
        if table.closed or missing > table.reserved:
            raise BlockAccountingError(f"{missing} blocks asked of a reservation of {table.reserved}")
        table.blocks.extend(self._free.pop() for _ in range(missing))
        table.reserved -= missing
        self._reserved -= missing
        self.total_allocated += missing

    def release(self, table: BlockTable) -> None:
        """Gives back all blocks and what is left of the reservation."""
        if table.closed:
            raise BlockAccountingError("a block table was released twice")
        self._free.extend(reversed(table.blocks))
        self._reserved -= table.reserved
        table.blocks, table.reserved, table.closed = [], 0, True


class PagedCache:
    """Keys and values by layer: ``[slots, kv_heads, head_dim]``, slot = block x tokens_per_block + offset."""

    def __init__(
        self, num_layers: int, num_blocks: int, tokens_per_block: int, kv_heads: int, head_dim: int
    ) -> None:
        self.tokens_per_block = tokens_per_block
        shape = (num_blocks * tokens_per_block, kv_heads, head_dim)
        # Zeroed pages cost no memory until a block is first written.
        self.keys: list[Float32] = [np.zeros(shape, dtype=np.float32) for _ in range(num_layers)]
        self.values: list[Float32] = [np.zeros(shape, dtype=np.float32) for _ in range(num_layers)]
