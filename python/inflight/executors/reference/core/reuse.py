"""Which blocks hold which tokens: finding what was computed before, and choosing what to forget.

Owns the content of blocks: a chain of hashes from the beginning of a sequence, the order of eviction with
TensorRT-LLM's retention priorities, and the stored and removed events. Knows nothing of how many blocks
there are or who uses them: that is `blocks.BlockPool`.

A block's keys and values depend on all tokens before them, so that its hash is made of its tokens and the
hash of the block before; the first one's parent is the salt, which keeps tenants apart.
"""

from __future__ import annotations

import hashlib
import heapq
import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .cache_changes import ChangeLog, Origin
from .eviction import EvictionOrder

#: TensorRT-LLM's ``KvCacheRetentionConfig.kDefaultRetentionPriority``: 0 goes first, 100 last.
DEFAULT_PRIORITY = 35

#: The bits of a token's id; above them is its extra id.
_TOKEN = 0xFFFFFFFF

#: Of an extra id: a client's 64 bits, or an image's name.
_EXTRA_BYTES = 16

#: Blocks that are compared for a beginning in common. A long system prompt with thousands of different
#: continuations must not cost thousands of comparisons.
_MAX_CANDIDATES = 32


def root(salt: bytes = b"") -> bytes:
    """The parent of a sequence's first block."""
    return _digest(b"inflight", salt)


def with_extra_ids(tokens: Sequence[int], extra_ids: Sequence[int]) -> Sequence[int]:
    """Tokens as blocks know them: with the extra ids of the first of them above their 32 bits, so that
    virtual tokens of different prompt tables differ, and those of different images."""
    if not extra_ids:
        return tokens
    marked = [token | extra << 32 for token, extra in zip(tokens, extra_ids, strict=False)]
    return [*marked, *tokens[len(marked) :]]


def chain(parent: bytes, tokens: Sequence[int], tokens_per_block: int) -> list[bytes]:
    """The hashes of the full blocks of ``tokens``, which begin at a block's beginning."""
    extra = b""
    # Streams wait for a long prompt's: each step here is one of the library for all tokens, but for the hash.
    try:
        packed = struct.pack(f"<{len(tokens)}i", *tokens)
    except struct.error:
        extra = b"".join((token >> 32).to_bytes(_EXTRA_BYTES, "little") for token in tokens)
        packed = struct.pack(f"<{len(tokens)}I", *(token & _TOKEN for token in tokens))
    size = 4 * tokens_per_block
    hashes = []
    for start in range(0, len(packed) - size + 1, size):
        content = packed[start : start + size]
        if extra:
            # Without extra ids a block's hash is that of its tokens, whatever the rest of the prompt has.
            marks = extra[start // 4 * _EXTRA_BYTES : (start + size) // 4 * _EXTRA_BYTES]
            content += marks if any(marks) else b""
        parent = _digest(parent, content)
        hashes.append(parent)
    return hashes


def _digest(parent: bytes, content: bytes) -> bytes:
    # Of a width at which nobody finds another prompt with the same hash, since its answer would be read.
    return hashlib.blake2b(parent + content, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a block is worth keeping: a priority of 0 to 100, for ``duration_s`` or for ever."""

    priority: int = DEFAULT_PRIORITY
    duration_s: float | None = None


DEFAULT_RETENTION = Retention()


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """A request's wishes: ranges of prompt tokens as (start, end or None, worth), and what is generated."""

    ranges: tuple[tuple[int, int | None, Retention], ...] = ()
    decode: Retention = DEFAULT_RETENTION

    def at(self, position: int, prompt_tokens: int) -> Retention:
        """What a block is worth whose first token is at ``position``."""
        if position >= prompt_tokens:
            return self.decode
        for first, end, retention in self.ranges:
            if first <= position and (end is None or position < end):
                return retention
        return DEFAULT_RETENTION


DEFAULT_PLAN = RetentionPlan()


@dataclass(slots=True)
class Content:
    """What a stored block holds."""

    hash: bytes
    parent: bytes
    #: A full block's tokens, or fewer: such a block is found by partial reuse alone.
    tokens: tuple[int, ...]
    priority: int = DEFAULT_PRIORITY
    #: When the priority ends, by the clock of `ReuseIndex.refresh`.
    expires_s: float | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """What of a sequence is in the cache already."""

    #: Full blocks, from the first on.
    blocks: tuple[int, ...] = ()
    #: The block after them whose first ``partial_tokens`` tokens fit; to be copied.
    partial: int | None = None
    partial_tokens: int = 0

    def tokens(self, tokens_per_block: int) -> int:
        """How many tokens it spares."""
        return len(self.blocks) * tokens_per_block + self.partial_tokens

    def whole(self) -> Match:
        """Without the block that fits in part."""
        return Match(self.blocks)


NO_MATCH = Match()


@dataclass(slots=True)
class ReuseIndex:
    """Content by hash, and the blocks that may be evicted, in order.

    Blocks from ``first_host_block`` on are in the host's memory: the secondary level of the cache.
    """

    tokens_per_block: int
    enable_partial_reuse: bool = True
    event_buffer_max_size: int = 0
    first_host_block: int = sys.maxsize
    _content: dict[int, Content] = field(default_factory=dict)
    _by_hash: dict[bytes, int] = field(default_factory=dict)
    #: By (parent, first token): the blocks that may begin like a prompt, latest last.
    _beginnings: dict[tuple[bytes, int], dict[int, None]] = field(default_factory=dict)
    #: By level: the cache that attention reads, and the host's.
    _evictable: tuple[EvictionOrder, EvictionOrder] = field(
        default_factory=lambda: (EvictionOrder(), EvictionOrder())
    )
    _expiring: list[tuple[float, int]] = field(default_factory=list)
    _now_s: float = 0.0
    _events: deque[tuple[int, Callable[[], dict[str, Any]]]] = field(default_factory=deque)
    _event_id: int = 0
    #: None: nobody asked for changes.
    _log: ChangeLog | None = None

    def log_changes(self) -> ChangeLog:
        """Where full blocks' changes are from now on."""
        self._log = self._log or ChangeLog()
        return self._log

    @property
    def num_evictable(self) -> int:
        """Stored blocks of the primary level that nobody uses."""
        return len(self._evictable[0])

    def holds(self, block: int) -> bool:
        """Whether the block's content can be found again."""
        return block in self._content

    def match(self, tokens: Sequence[int], hashes: Sequence[bytes], parent: bytes) -> Match:
        """The longest beginning of ``tokens`` that is stored.

        ``hashes`` is their `chain`. The last token is never taken from the cache: its logits are
        wanted, and they are made by computing it.
        """
        most = len(tokens) - 1
        size = self.tokens_per_block
        blocks: list[int] = []
        for content_hash in hashes[: most // size]:
            block = self._by_hash.get(content_hash)
            if block is None:
                break
            blocks.append(block)
            parent = content_hash
        if not self.enable_partial_reuse:
            return Match(tuple(blocks))
        start = len(blocks) * size
        rest = tuple(tokens[start : min(start + size, most)])
        partial, longest = None, 0
        if rest:
            # The latest are the likeliest: a conversation continues from its end.
            candidates = self._beginnings.get((parent, rest[0]), {})
            for block, _ in zip(reversed(candidates), range(_MAX_CANDIDATES), strict=False):
                common = _common(self._content[block].tokens, rest)
                if common > longest:
                    partial, longest = block, common
        return Match(tuple(blocks), partial, longest)

    def store(
        self,
        block: int,
        parent: bytes,
        content_hash: bytes,
        tokens: Sequence[int],
        retention: Retention,
        origin: Origin | None = None,
    ) -> bool:
        """Notes what a block holds, ``origin`` if it is the first of its sequence; False where another block
        holds the same already."""
        if content_hash in self._by_hash:
            return False
        content = Content(content_hash, parent, tuple(tokens))
        self._content[block] = content
        self._by_hash[content_hash] = block
        self._beginnings.setdefault((parent, content.tokens[0]), {})[block] = None
        self.retain(block, retention)
        priority = content.priority
        self._note(_stored, content, priority)
        # A block with virtual tokens has no name that others know, and none after it gets one.
        if self._log is not None and self._is_full(content) and max(tokens) <= _TOKEN >> 1:
            self._log.store(_short(content_hash), _short(parent), tokens, origin)
        return True

    def retain(self, block: int, retention: Retention) -> None:
        """Sets a stored, used block's priority and when it ends."""
        content = self._content[block]
        content.priority, content.expires_s = retention.priority, None
        if retention.duration_s is not None:
            content.expires_s = self._now_s + retention.duration_s
            heapq.heappush(self._expiring, (content.expires_s, block))

    def refresh(self, now_s: float) -> None:
        """Lets priorities end whose time has passed."""
        self._now_s = now_s
        while self._expiring and self._expiring[0][0] <= now_s:
            expires_s, block = heapq.heappop(self._expiring)
            content = self._content.get(block)
            if content is None or content.expires_s != expires_s:
                continue
            was_evictable = self.use(block)
            content.priority, content.expires_s = DEFAULT_PRIORITY, None
            if was_evictable:
                self.unuse(block)

    def unuse(self, block: int) -> None:
        """The block's last user is gone: it may be evicted, after all of its priority."""
        self._evictable[self._level(block)].add(block, self._content[block].priority)

    def use(self, block: int) -> bool:
        """The block has a user and stays; whether it was evictable."""
        return self._evictable[self._level(block)].discard(block, self._content[block].priority)

    def worst(self, level: int = 0) -> int | None:
        """The unused block of a level that is worth least; None where all are in use."""
        return self._evictable[level].first()

    def priority(self, block: int) -> int:
        """What a stored block is worth."""
        return self._content[block].priority

    def move(self, block: int, target: int) -> None:
        """A stored, used block's content is in ``target`` from now on, on the other level."""
        content = self._content.pop(block)
        self._content[target] = content
        self._by_hash[content.hash] = target
        beginnings = self._beginnings[content.parent, content.tokens[0]]
        del beginnings[block]
        beginnings[target] = None
        if content.expires_s is not None:
            heapq.heappush(self._expiring, (content.expires_s, target))
        old, new = self._level(block), self._level(target)
        self._note(_moved, content, old, new)
        if self._log is not None and self._is_full(content):
            self._log.move(_short(content.hash), new)

    def _is_full(self, content: Content) -> bool:
        return len(content.tokens) == self.tokens_per_block

    def _level(self, block: int) -> int:
        return int(block >= self.first_host_block)

    def evict(self, count: int) -> list[int]:
        """Forgets unused blocks of the primary level, those first that are worth least: at most ``count``,
        which it returns."""
        blocks = self._evictable[0].take(count)
        for block in blocks:
            self.forget(block)
        return blocks

    def forget(self, block: int) -> None:
        """The block's content is gone."""
        content = self._content.pop(block)
        del self._by_hash[content.hash]
        key = (content.parent, content.tokens[0])
        beginning = self._beginnings[key]
        del beginning[block]
        if not beginning:
            del self._beginnings[key]
        if self.event_buffer_max_size:
            self._note(_removed, content)
        else:
            self._event_id += 1
        if self._log is not None and self._is_full(content):
            self._log.remove(_short(content.hash))

    def take_events(self) -> list[dict[str, Any]]:
        """Events since the last call, oldest first, at most ``event_buffer_max_size``."""
        taken = []
        while self._events:  # one by one, since another thread may ask
            number, describe = self._events.popleft()
            taken.append({"event_id": number, "data": describe()})
        return taken

    def _note(self, describe: Callable[..., dict[str, Any]], *of: Any) -> None:
        """Keeps an event, which is written out when somebody asks: streams wait for who stores."""
        self._event_id += 1
        if self.event_buffer_max_size:
            if len(self._events) == self.event_buffer_max_size:
                self._events.popleft()
            self._events.append((self._event_id, partial(describe, *of)))


def _stored(content: Content, priority: int) -> dict[str, Any]:
    block = {
        "block_hash": _short(content.hash),
        "tokens": [token & _TOKEN for token in content.tokens],
        "cache_level": 0,
        "priority": priority,
    }
    return {"type": "stored", "parent_hash": _short(content.parent), "blocks": [block]}


def _moved(content: Content, old: int, new: int) -> dict[str, Any]:
    level = {"type": "event_diff", "old_value": old, "new_value": new}
    return {"type": "updated", "block_hash": _short(content.hash), "cache_level": level}


def _removed(content: Content) -> dict[str, Any]:
    return {"type": "removed", "block_hashes": [_short(content.hash)]}


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def _short(content_hash: bytes) -> int:
    """A hash as events report it: 64 bits."""
    return int.from_bytes(content_hash[:8], "little")
