"""Masks of the tokens that may come next: each sequence's place in its grammar, and all masks at once.

Owns when masks are computed, and the table that holds them. Guides only note their tokens; then all of them
take their tokens and compute their masks together, on all cores and without the interpreter's lock: many
on another thread than the engine's, as soon as the tokens are known; few when a mask is asked for. The mask
of a sequence in flight is in the row of its slot, so that a runner can copy all of them at once. Knows
nothing of what a guide is made of, which is `guides`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from inflight.executors.reference.model.array_types import Float32

Mask = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.uint8]

#: Guides from which on it is worth waking the pool's threads, and the thread that computes masks.
_MANY_FOR_THE_POOL = 4
_MANY_FOR_A_THREAD = 16

_NO_SLOT = -1
_NO_ENDS: frozenset[int] = frozenset()


class Guide:
    """One sequence's place in its grammar. Made by `Guides.compile`."""

    __slots__ = ("_own", "error", "family", "masks", "matcher", "slot", "stale")

    def __init__(self, matcher: Any, masks: Masks, family: int = 0) -> None:
        self.matcher, self.masks, self.family = matcher, masks, family
        #: The sequence's, while it has one.
        self.slot = _NO_SLOT
        #: Whether it noted a token, and its next mask is not computed or still being computed.
        self.stale = False
        #: The mask of a guide without a slot.
        self._own: Bits = masks.nothing
        #: Why the mask that was last computed cannot be trusted.
        self.error: str | None = None

    def copy(self) -> Guide:
        """The same place, for another sequence of the request."""
        bits = self.bits()
        other = Guide(self.matcher.deep_copy(), self.masks, self.family)
        other._own, other.error = bits.copy(), self.error
        return other

    @property
    def shared(self) -> Masks | None:
        """Whose table has its masks, for a runner to copy them at once; None: each is asked for by itself."""
        return self.masks

    @property
    def eos_tokens(self) -> frozenset[int]:
        """The tokens that end a grammar, whatever the request calls its end."""
        return self.masks.eos_tokens

    def mask(self) -> Mask:
        """Which tokens may come next ``[vocabulary]``."""
        return np.unpackbits(self.bits(), count=self.masks.vocab_size, bitorder="little").view(np.bool_)

    def bits(self) -> Bits:
        """The mask as it comes: at least ``vocabulary`` bits, the lowest of each byte first. The guide's next
        mask overwrites it."""
        if self.stale:
            self.masks.compute_noted()
        return self._row()

    @property
    def outweighs(self) -> int | None:
        """A guide may be more than a mask: where the tokens from this one on are together likelier than every
        other, one of them must come next. None: no such rule holds now."""
        return None

    def weigh(self, logits: Float32) -> None:
        """Applies that rule to the logits that the mask has left, in place."""
        first = self.outweighs
        if first is None:
            return
        best = logits.max()
        together = np.exp(logits[first:] - best).sum(dtype=np.float64)
        if together > np.exp(logits[:first].max() - best):
            logits[:first] = np.finfo(np.float32).min

    def observe(self, token: int) -> None:
        """Advances by a token that the mask allows."""
        self.masks.note([self], [token])

    def resume(self, tokens: Sequence[int]) -> None:
        """Advances by what was generated elsewhere, before it has a slot. `problem` says if that does not
        fit."""
        self.matcher.consume_tokens(list(tokens))
        self.masks.compute(self)

    def enter(self, slot: int) -> None:
        """Its sequence has a slot: its masks are in that row of `Masks.table` from now on."""
        bits = self.bits()
        self.masks.make_room(slot)
        self.slot = slot
        self._row()[:] = bits

    def leave(self) -> None:
        """Its sequence gives its slot back."""
        if self.slot != _NO_SLOT:
            self._own = self.bits().copy()
            self.slot = _NO_SLOT

    def end(self) -> None:
        """Its sequence has ended; a row of it that is in flight may still ask for a mask, of no effect."""
        self.masks.forget(self)

    def problem(self) -> str | None:
        """Why the mask that was last computed cannot be trusted; None: it can. Waits for nothing."""
        return self.error

    def place(self, bits: Bits) -> None:
        """Takes a mask that was computed apart from the table."""
        if self.slot == _NO_SLOT:
            self._own = bits
        else:
            self._row()[:] = bits

    def _row(self) -> Bits:
        return self._own if self.slot == _NO_SLOT else self.masks.table[self.slot]


class RuleGuide(Guide):
    """A rule that is not a grammar: it computes its own masks, has no row in a table, and ends no answer."""

    def __init__(self, vocab_size: int) -> None:
        # It has neither a matcher nor `Masks`.
        self.error = None
        self._vocab_size = vocab_size

    @property
    def shared(self) -> Masks | None:
        """None: its masks are nobody's but its own."""
        return None

    @property
    def eos_tokens(self) -> frozenset[int]:
        """It ends no answer."""
        return _NO_ENDS

    def resume(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.observe(token)

    def enter(self, slot: int) -> None:
        """It has no row in a table."""

    def leave(self) -> None:
        """It has no row in a table."""

    def end(self) -> None:
        """Nothing is computed for it."""


class Masks:
    """Computes the masks of all guides of a tokenizer."""

    def __init__(self, pool: Any, vocab_size: int, eos_tokens: frozenset[int]) -> None:
        self._pool, self.vocab_size, self.eos_tokens = pool, vocab_size, eos_tokens
        self._row_bytes = row_bytes(vocab_size)
        self.nothing: Bits = np.zeros(self._row_bytes, dtype=np.uint8)
        #: By slot, the masks of sequences in flight, once `compute_noted` has returned.
        self.table: Bits = np.zeros((0, self._row_bytes), dtype=np.uint8)
        #: Families with a guide that hit a limit, and whether any guide ever did.
        self.failed: set[int] = set()
        self.has_failed = False
        #: Guides that lack their next mask, and the tokens that lead there; of one thread, which observes.
        self._noted: list[Guide] = []
        self._tokens: list[int] = []
        #: Those whose masks a thread computes, and when it is done.
        self._computing: tuple[list[tuple[Guide, int]], Future[None]] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def adopt(self, table: Bits) -> None:
        """Moves the masks to memory of the runner that its device reads: ``[slots, row_bytes]``."""
        self._wait()
        table[: len(self.table)] = self.table
        self.table = table

    def make_room(self, slot: int) -> None:
        """Has a row for a slot."""
        if slot >= len(self.table):
            table = np.zeros((max(2 * len(self.table), slot + 1), self._row_bytes), dtype=np.uint8)
            self.adopt(table)

    def note(self, guides: Sequence[Guide], tokens: Sequence[int]) -> None:
        """Notes a token of each guide. One that noted a token before it has its mask in between computed."""
        for guide in guides:
            if guide.stale:
                self.compute_noted()
            guide.stale = True
        self._noted += guides
        self._tokens += tokens

    def forget(self, guide: Guide) -> None:
        """Computes no mask for a guide that noted a token, where that is not begun."""
        if guide.stale:
            self._wait()
        if guide.stale:
            guide.stale = False
            kept = [place for place, one in enumerate(self._noted) if one is not guide]
            self._noted = [self._noted[place] for place in kept]
            self._tokens = [self._tokens[place] for place in kept]

    def begin(self) -> None:
        """Starts a thread on the noted tokens and the missing masks if there are many, and does not wait for
        it. Called when all tokens of an iteration are noted."""
        if len(self._noted) < _MANY_FOR_A_THREAD:
            return
        self._wait()
        noted = self._take_noted()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "reference-masks")
        began = threading.Event()
        self._computing = noted, self._thread.submit(self._compute_beside, noted, began)
        # The interpreter's lock is the other thread's until it computes without it.
        began.wait()

    def compute_noted(self) -> None:
        """Has every mask that is missing when it returns."""
        self._wait()
        if self._noted:
            noted = self._take_noted()
            self._compute_all(noted)
            self._finish(noted)

    def _take_noted(self) -> list[tuple[Guide, int]]:
        """Guides, which have taken their tokens, by family: it has one lock, and side by side its guides are
        one thread's."""
        noted = sorted(zip(self._noted, self._tokens, strict=True), key=_family)
        self._noted, self._tokens = [], []
        if len(noted) < _MANY_FOR_THE_POOL:
            for guide, token in noted:
                guide.matcher.consume_token(token)
        else:
            self._pool.consume_token_par([(guide.matcher, token) for guide, token in noted])
        return noted

    def _compute_beside(self, noted: list[tuple[Guide, int]], began: threading.Event) -> None:
        began.set()
        self._compute_all(noted)

    def _compute_all(self, noted: list[tuple[Guide, int]]) -> None:
        """Computes masks to the rows of the table, of guides that no other thread uses."""
        rows = [(guide.matcher, guide.slot) for guide, _ in noted]
        if len(rows) < _MANY_FOR_THE_POOL or any(slot == _NO_SLOT for _, slot in rows):
            # The latter only where nobody reads the table.
            for guide, _ in noted:
                self._compute(guide)
        else:
            table = self.table
            self._pool.unsafe_compute_mask_ptr(rows, table.ctypes.data, self._row_bytes, len(table))

    def _wait(self) -> None:
        """Has the masks that a thread computes."""
        if self._computing is not None:
            (noted, computing), self._computing = self._computing, None
            computing.result()
            self._finish(noted)

    def _finish(self, noted: list[tuple[Guide, int]]) -> None:
        for guide, _ in noted:
            guide.stale = False
            if guide.matcher.is_error():
                self._fail(guide)

    def compute(self, guide: Guide) -> None:
        """Computes the mask of a guide that no other thread uses."""
        self._compute(guide)
        if guide.matcher.is_error():
            self._fail(guide)

    def _compute(self, guide: Guide) -> None:
        bits = np.empty(self._row_bytes, dtype=np.uint8)
        guide.matcher.unsafe_compute_mask_ptr(bits.ctypes.data, self._row_bytes)
        guide.place(bits)

    def _fail(self, guide: Guide) -> None:
        guide.error = str(guide.matcher.get_error()).splitlines()[0]
        self.failed.add(guide.family)
        self.has_failed = True


def _family(noted: tuple[Guide, int]) -> int:
    return noted[0].family


def row_bytes(vocab_size: int) -> int:
    """Bytes of a mask: whole words of 32 bits."""
    return 4 * ((vocab_size + 31) // 32)


def stacked(guides: Sequence[Guide]) -> Bits:
    """The masks of several sequences ``[guides, bytes]``."""
    return np.stack([guide.bits() for guide in guides])
