"""The paged key-value cache's accounts: which block belongs to whom.

Owns a pool that never leaks. Knows nothing of requests, of the arrays behind the blocks (a runner's) or of
when a sequence may run: how much it may take is the scheduler's promise (`scheduler`). What a block
holds, and which unused one is forgotten first, is in `reuse`.

A block is *used* while a table refers to it, *cached* while nobody does but its content can still be
found, and *free* otherwise. Used blocks may be shared: by sequences that begin alike, and by beams.

With host blocks, what would be forgotten moves to the host's memory, where attention cannot read it, and
comes back once it is found. Host blocks have the numbers after those of the cache. The pool notes its moves
as copies, in order; a runner makes them before it computes (`runner.Work.copies`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import reuse
from .cache_changes import ChangeLog, Origin
from .reuse import DEFAULT_PRIORITY, DEFAULT_RETENTION, NO_MATCH, Match, Retention, ReuseIndex
from .window import CacheWindow

#: In `BlockTable.blocks`: the block has left the sliding window and is another's.
GONE = -1


_NO_ORIGIN = Origin()


class BlockAccountingError(RuntimeError):
    """A mistake of the caller, never of a request: more taken than there is, or a table freed twice."""


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence, in order of position; `GONE` for those that it needs no more."""

    blocks: list[int] = field(default_factory=list)
    #: Where the first of its blocks that `BlockPool.trim` has not given back may be.
    trimmed: int = 0
    #: For its request's metrics: blocks found, and blocks taken.
    found: int = 0
    taken: int = 0
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
    #: Blocks whose content went to the host, and came back.
    offloaded_blocks: int = 0
    onboarded_blocks: int = 0

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

    def __init__(
        self,
        num_blocks: int,
        tokens_per_block: int,
        index: ReuseIndex | None = None,
        *,
        window: CacheWindow | None = None,
        num_host_blocks: int = 0,
        offload_min_priority: int = DEFAULT_PRIORITY,
    ) -> None:
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.tokens_per_block = tokens_per_block
        self.stats = CacheStats()
        #: None: a sequence reads all of its blocks until its end.
        self.window = window
        self._offload_min_priority = offload_min_priority
        #: None: nothing is found again (``enable_kv_cache_reuse`` is off).
        self._index = index
        self._free = list(range(num_blocks - 1, -1, -1))
        self._free_host = list(range(num_blocks + num_host_blocks - 1, num_blocks - 1, -1))
        self._references = [0] * (num_blocks + num_host_blocks)
        self._copies: list[tuple[int, int, int]] = []
        #: Host blocks that came back since the last `take_copies`, and where to.
        self._onboarded: dict[int, int] = {}
        if index is not None:
            index.first_host_block = num_blocks

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

    @property
    def used_host(self) -> int:
        """Host blocks that hold something."""
        return self.num_host_blocks - len(self._free_host)

    def refresh(self, now_s: float) -> None:
        """Sets the time, and ends the priorities of blocks that have expired by then."""
        if self._index is not None:
            self._index.refresh(now_s)

    def match(self, tokens: Sequence[int], hashes: Sequence[bytes], parent: bytes) -> Match:
        """What of ``tokens`` is in the cache; ``hashes`` is their `reuse.chain` from ``parent``."""
        return NO_MATCH if self._index is None else self._index.match(tokens, hashes, parent)

    def cost(self, match: Match, blocks: int) -> int:
        """Blocks that ``blocks`` more take of what is available, when the match's are among them.

        Cached blocks cost as much as free ones, and one that is to be copied must stay meanwhile.
        """
        copied = (
            match.partial is not None
            and match.partial < self.num_blocks
            and self._references[match.partial] == 0
        )
        if self.window is not None:
            # Sharing spares nothing for long: a shared block that one of its users has no more need of is
            # not free, while that user may take another. So what becomes shared is counted twice.
            return blocks + sum(self._references[block] == 1 for block in match.blocks) + copied
        in_use = sum(self._references[block] > 0 for block in match.blocks)
        return blocks - in_use + copied

    def hold(self, match: Match) -> BlockTable:
        """A table of the blocks that were found, and are still needed; they stay from now on."""
        table = BlockTable(list(match.blocks), found=len(match.blocks))
        for block in match.blocks:
            self._use(block)
        if match.partial is not None:
            self._use(match.partial)
        self.trim(table, match.tokens(self.tokens_per_block))
        table.stored = table.trimmed
        return table

    def fill(self, table: BlockTable, match: Match, tokens: int, now: int | None = None) -> None:
        """Brings back what was found on the host, and takes the rest of the blocks for a context of
        ``tokens``; of ``now`` tokens, where the caller will `grow` the table to the others."""
        found = len(match.blocks)
        for place, block in enumerate(table.blocks):
            if block >= self.num_blocks:
                table.blocks[place] = self._onboard(block)
        self.grow(table, tokens if now is None else max(now, match.tokens(self.tokens_per_block)))
        self.stats.alloc_total_blocks += found
        self.stats.reused_blocks += found
        self.stats.missed_blocks += blocks_for(tokens, self.tokens_per_block) - found
        if match.partial is not None:
            # It stayed only so that nobody took it before this.
            partial = self._onboarded.get(match.partial, match.partial)
            self._unuse(partial)
            self._copies.append((partial, table.blocks[found], match.partial_tokens))

    def needed(self, tokens: int) -> list[int]:
        """The places of the blocks that a sequence reads from that token on."""
        places = range(blocks_for(tokens, self.tokens_per_block))
        if self.window is None:
            return list(places)
        gone = self.window.gone(tokens, self.tokens_per_block)
        return [place for place in places if place not in gone]

    def keep(self, table: BlockTable, tokens: int) -> BlockTable | None:
        """A second table of the blocks that are `needed`, which stay until it is released too. Takes nothing
        of what is available while the first is there. None: they are not all there."""
        places = self.needed(tokens)
        if not places or places[-1] >= len(table.blocks):
            return None
        kept = [table.blocks[place] for place in places]
        if GONE in kept:
            return None
        for block in kept:
            self._use(block)
        return BlockTable(kept, stored=len(kept))

    def reserve(self, table: BlockTable, tokens: int) -> None:
        """Takes the blocks that are `needed` and that a table lacks: their content comes from elsewhere."""
        missing = set(self.needed(tokens))
        for place in range(len(table.blocks), blocks_for(tokens, self.tokens_per_block)):
            if place in missing:
                self.grow(table, (place + 1) * self.tokens_per_block)
            else:
                table.blocks.append(GONE)
                table.trimmed = place + 1

    def trim(self, table: BlockTable, position: int) -> None:
        """Gives back the blocks that no query from ``position`` on sees."""
        if self.window is None:
            return
        gone = self.window.gone(position, self.tokens_per_block)
        for place in range(max(table.trimmed, gone.start), min(gone.stop, len(table.blocks))):
            self._unuse(table.blocks[place])
            table.blocks[place] = GONE
        table.trimmed = max(table.trimmed, gone.stop)

    def take_copies(self) -> list[tuple[int, int, int]]:
        """What is to be copied before anything is written, in order: from, to, tokens."""
        copies, self._copies = self._copies, []
        self._onboarded.clear()
        return copies

    def grow(self, table: BlockTable, tokens: int) -> None:
        """Takes blocks until the table holds ``tokens`` tokens."""
        missing = blocks_for(tokens, self.tokens_per_block) - len(table.blocks)
        if missing <= 0:
            return
        if table.closed or missing > self.available:
            raise BlockAccountingError(f"{missing} blocks asked and {self.available} available")
        table.blocks.extend(self._take_many(missing))
        self.stats.alloc_total_blocks += missing
        self.stats.alloc_new_blocks += missing
        table.taken += missing

    def fork(self, table: BlockTable, tokens: int) -> BlockTable:
        """A second table with the content of the first's ``tokens``, for a beam that goes another way.

        Full blocks are shared, and the last one, where it is not full, is copied.
        """
        full = tokens // self.tokens_per_block
        shared = table.blocks[:full]
        for block in shared:
            if block != GONE:
                self._use(block)
        twin = BlockTable(list(shared), table.trimmed, stored=min(table.stored, full))
        if tokens % self.tokens_per_block:
            self.grow(twin, tokens)
            self._copies.append((table.blocks[full], twin.blocks[full], tokens % self.tokens_per_block))
        return twin

    def store(
        self,
        table: BlockTable,
        tokens: Sequence[int],
        hashes: Sequence[bytes],
        parent: bytes,
        worth: Callable[[int], Retention] = _like_any,
        *,
        ended: bool = False,
        origin: Origin = _NO_ORIGIN,
    ) -> None:
        """Makes ``tokens``, all computed, findable: full blocks, and what is left once the table has ended.

        ``hashes`` is the tokens' `reuse.chain` from ``parent``, which was made of ``origin``; ``worth``
        returns what a block is worth by the position of its first token. Nothing can be found after a block
        that left the window unseen.
        """
        if self._index is None or GONE in table.blocks[table.stored :]:
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
                None if place else origin,
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
        self,
        block: int,
        parent: bytes,
        content_hash: bytes,
        tokens: Sequence[int],
        retention: Retention,
        origin: Origin | None = None,
    ) -> None:
        index = self._index
        if index is None:
            return
        if not index.holds(block):
            index.store(block, parent, content_hash, tokens, retention, origin)
        elif retention != DEFAULT_RETENTION:
            # The latest user's wish holds, as in TensorRT-LLM.
            index.retain(block, retention)

    def release(self, table: BlockTable) -> None:
        """Gives back all blocks. The last go first, so that what is evicted first is a sequence's end."""
        if table.closed:
            raise BlockAccountingError("a block table was released twice")
        for block in reversed(table.blocks):
            if block != GONE:
                self._unuse(block)
        table.blocks, table.closed = [], True

    def owned(self, table: BlockTable) -> int:
        """Blocks of the table that nobody else uses: what releasing it makes available."""
        return sum(block != GONE and self._references[block] == 1 for block in table.blocks)

    def take_events(self) -> list[dict[str, Any]]:
        """Stored and removed blocks since the last call, for a router."""
        return self._index.take_events() if self._index is not None else []

    def log_changes(self) -> ChangeLog | None:
        """Where full blocks' changes are from now on; None where nothing is found again."""
        return self._index.log_changes() if self._index is not None else None

    def _take_many(self, count: int) -> list[int]:
        """As many times `_take`, which a long prompt's streams would notice."""
        index = self._index
        if index is None or self.num_host_blocks:
            return [self._take() for _ in range(count)]
        split = max(0, len(self._free) - count)
        blocks = self._free[split:][::-1]
        del self._free[split:]
        blocks += index.evict(count - len(blocks))
        if len(blocks) < count:
            raise BlockAccountingError("no block is free or unused")
        for block in blocks:
            self._references[block] = 1
        return blocks

    def _take(self) -> int:
        block = self._free.pop() if self._free or self._index is None else self._evict(self._index)
        self._references[block] = 1
        return block

    def _evict(self, index: ReuseIndex) -> int:
        """The unused block that is worth least; its content moves to the host or is forgotten."""
        block = index.worst()
        if block is None:
            raise BlockAccountingError("no block is free or unused")
        index.use(block)
        host = self._host_block(index, index.priority(block))
        if host is None:
            index.forget(block)
        else:
            self._move(index, block, host)
            self.stats.offloaded_blocks += 1
            index.unuse(host)
        return block

    def _host_block(self, index: ReuseIndex, priority: int) -> int | None:
        """Where content of that priority may go; None where what is there is worth more."""
        if priority < self._offload_min_priority:
            return None
        if self._free_host:
            return self._free_host.pop()
        host = index.worst(level=1)
        if host is None or index.priority(host) > priority:
            return None
        index.use(host)
        index.forget(host)
        return host

    def _onboard(self, host: int) -> int:
        """The block of the cache that a found host block's content is in from now on."""
        if self._index is None or host in self._onboarded:
            return self._onboarded[host]
        block = self._take()
        self._references[block], self._references[host] = self._references[host], 0
        self._move(self._index, host, block)
        self._free_host.append(host)
        self._onboarded[host] = block
        self.stats.onboarded_blocks += 1
        return block

    def _move(self, index: ReuseIndex, block: int, target: int) -> None:
        index.move(block, target)
        self._copies.append((block, target, self.tokens_per_block))

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
