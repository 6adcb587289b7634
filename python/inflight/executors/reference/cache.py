"""The paged key-value cache: which blocks belong to whom, and the arrays behind them.

Owns block accounting (a pool that never leaks) and the storage. Knows nothing of requests, attention or
when a sequence may run: how much it may take is the scheduler's promise (`scheduler`). What a block
holds, and which unused one is forgotten first, is in `reuse`.

A block is *used* while a table refers to it, *cached* while nobody does but its content can still be
found, and *free* otherwise. Used blocks may be shared: by sequences that begin alike, and by beams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import reuse
from .arrays import Float32
from .reuse import DEFAULT_RETENTION, NO_MATCH, Match, Retention, ReuseIndex


class BlockAccountingError(RuntimeError):
    """A mistake of the caller, never of a request: more taken than there is, or a table freed twice."""


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence, in order of position."""

    blocks: list[int] = field(default_factory=list)
    #: How many of its first blocks `BlockPool.store` has seen.
    stored: int = 0
    closed: bool = False


@dataclass(slots=True)
class CacheStats:
    """Counts since the start, under TensorRT-LLM's names."""

    #: Blocks given to sequences, found ones included.
    alloc_total_blocks: int = 0
    #: Of these, blocks that were to be computed.
    alloc_new_blocks: int = 0
    #: Context blocks found, and context blocks that were not.
    reused_blocks: int = 0
    missed_blocks: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of context blocks that were found."""
        asked = self.reused_blocks + self.missed_blocks
        return self.reused_blocks / asked if asked else 0.0


def _like_any(_position: int) -> Retention:
    return DEFAULT_RETENTION


def blocks_for(tokens: int, tokens_per_block: int) -> int:
    """How many blocks hold ``tokens`` tokens."""
    return -(-tokens // tokens_per_block)


class BlockPool:
    """Hands out blocks 0..num_blocks, counts who uses them, and finds those that hold what is asked.

    Of free blocks the latest freed goes first, so that few pages are ever touched; cached blocks are
    taken when no free one is left.
    """

    def __init__(self, num_blocks: int, tokens_per_block: int, index: ReuseIndex | None = None) -> None:
        self.num_blocks = num_blocks
        self.tokens_per_block = tokens_per_block
        self.stats = CacheStats()
        #: None: nothing is found again (``enable_kv_cache_reuse`` is off).
        self._index = index
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks

    @property
    def reuses(self) -> bool:
        """Whether what sequences computed can be found by others."""
        return self._index is not None

    @property
    def available(self) -> int:
        """Blocks that a sequence may take: free and cached ones."""
        return len(self._free) + self.cached

    @property
    def cached(self) -> int:
        """Blocks that nobody uses and whose content can be found."""
        return self._index.num_evictable if self._index is not None else 0

    @property
    def used(self) -> int:
        """Blocks that some sequence uses."""
        return self.num_blocks - self.available

    def refresh(self, now_s: float) -> None:
        """Tells the time, which ends the priorities of blocks."""
        if self._index is not None:
            self._index.refresh(now_s)

    def match(self, tokens: Sequence[int], hashes: Sequence[bytes], parent: bytes) -> Match:
        """What of ``tokens`` is in the cache; ``hashes`` is their `reuse.chain` from ``parent``."""
        return NO_MATCH if self._index is None else self._index.match(tokens, hashes, parent)

    def cost(self, match: Match, blocks: int) -> int:
        """Blocks that ``blocks`` more take of what is available, when the match's are among them.

        Cached blocks cost as much as free ones, and one that is to be copied must stay meanwhile.
        """
        in_use = sum(self._references[block] > 0 for block in match.blocks)
        copied = match.partial is not None and self._references[match.partial] == 0
        return blocks - in_use + copied

    def hold(self, match: Match) -> BlockTable:
        """A table of the blocks that were found; they stay from now on."""
        for block in match.blocks:
            self._use(block)
        if match.partial is not None:
            self._use(match.partial)
        return BlockTable(list(match.blocks))

    def fill(self, table: BlockTable, match: Match, tokens: int) -> tuple[int, int, int] | None:
        """Takes the rest of the blocks for a context of ``tokens``, after `hold`.

        Returns the copy that makes good for the block that fits in part: from, to, tokens. The caller
        copies before anything else is written.
        """
        found = len(match.blocks)
        self.grow(table, tokens)
        self.stats.alloc_total_blocks += found
        self.stats.reused_blocks += found
        self.stats.missed_blocks += len(table.blocks) - found
        if match.partial is None:
            return None
        self._unuse(match.partial)
        return match.partial, table.blocks[found], match.partial_tokens

    def grow(self, table: BlockTable, tokens: int) -> None:
        """Takes blocks until the table holds ``tokens`` tokens."""
        missing = blocks_for(tokens, self.tokens_per_block) - len(table.blocks)
        if missing <= 0:
            return
        if table.closed or missing > self.available:
            raise BlockAccountingError(f"{missing} blocks asked and {self.available} available")
        table.blocks.extend(self._take() for _ in range(missing))
        self.stats.alloc_total_blocks += missing
        self.stats.alloc_new_blocks += missing

    def fork(self, table: BlockTable, tokens: int) -> tuple[BlockTable, tuple[int, int] | None]:
        """A second table with the content of the first's ``tokens``, for a beam that goes another way.

        Full blocks are shared. The last one, where it is not full, is the caller's to copy: from and to.
        """
        full = tokens // self.tokens_per_block
        shared = table.blocks[:full]
        for block in shared:
            self._use(block)
        twin = BlockTable(list(shared), min(table.stored, full))
        if tokens % self.tokens_per_block == 0:
            return twin, None
        self.grow(twin, tokens)
        return twin, (table.blocks[full], twin.blocks[full])

    def store(
        self,
        table: BlockTable,
        tokens: Sequence[int],
        hashes: Sequence[bytes],
        parent: bytes,
        worth: Callable[[int], Retention] = _like_any,
        *,
        ended: bool = False,
    ) -> None:
        """Makes ``tokens``, all computed, findable: full blocks, and what is left once the table has ended.

        ``hashes`` is the tokens' `reuse.chain` from ``parent``; ``worth`` tells what a block is worth by
        the position of its first token.
        """
        if self._index is None:
            return
        size = self.tokens_per_block
        full = len(tokens) // size
        for place in range(table.stored, full):
            self._store(
                table.blocks[place],
                hashes[place - 1] if place else parent,
                hashes[place],
                tokens[place * size : (place + 1) * size],
                worth(place * size),
            )
        table.stored = max(table.stored, full)
        tail = tokens[full * size :]
        if ended and tail and self._index.enable_partial_reuse:
            before = hashes[full - 1] if full else parent
            [tail_hash] = reuse.chain(before, tail, len(tail))
            self._store(
                table.blocks[full],
                before,
                tail_hash,
                tail,
                worth(full * size),
            )

    def _store(
        self, block: int, parent: bytes, content_hash: bytes, tokens: Sequence[int], retention: Retention
    ) -> None:
        index = self._index
        if index is None:
            return
        if not index.holds(block):
            index.store(block, parent, content_hash, tokens, retention)
        elif retention != DEFAULT_RETENTION:
            # The latest user's wish holds, as in TensorRT-LLM.
            index.retain(block, retention)

    def release(self, table: BlockTable) -> None:
        """Gives back all blocks. The last go first, so that what is evicted first is a sequence's end."""
        if table.closed:
            raise BlockAccountingError("a block table was released twice")
        for block in reversed(table.blocks):
            self._unuse(block)
        table.blocks, table.closed = [], True

    def owned(self, table: BlockTable) -> int:
        """Blocks of the table that nobody else uses: what releasing it makes available."""
        return sum(self._references[block] == 1 for block in table.blocks)

    def take_events(self) -> list[dict[str, Any]]:
        """Stored and removed blocks since the last call, for a router."""
        return self._index.take_events() if self._index is not None else []

    def _take(self) -> int:
        block = self._free.pop() if self._free or self._index is None else self._index.evict()
        self._references[block] = 1
        return block

    def _use(self, block: int) -> None:
        if self._references[block] == 0 and self._index is not None:
            self._index.use(block)
        self._references[block] += 1

    def _unuse(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block]:
            return
        if self._index is not None and self._index.holds(block):
            self._index.unuse(block)
        else:
            self._free.append(block)


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

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copies the first ``tokens`` tokens of one block to another."""
        read = slice(source * self.tokens_per_block, source * self.tokens_per_block + tokens)
        write = slice(target * self.tokens_per_block, target * self.tokens_per_block + tokens)
        for layer in (*self.keys, *self.values):
            layer[write] = layer[read]
