"""Masks of the tokens that may come next: each sequence's place in its grammar, and all masks at once.

Owns when masks are computed. Guides only note their tokens; then all of them take their tokens and compute
their masks together, on all cores and without the interpreter's lock. Many are computed by a thread beside
the engine's from the moment when their tokens are known; few where they are asked for. Knows nothing of what
a guide is made of, which is `guides`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.uint8]

_NO_MASKS: Bits = np.zeros((0, 0), dtype=np.uint8)

#: Guides from which on threads are worth waking: those of the pool, and the one beside the engine's.
_MANY_FOR_THE_POOL = 4
_MANY_FOR_A_THREAD = 16


class Guide:
    """One sequence's place in its grammar. Made by `Guides.compile`."""

    def __init__(self, matcher: Any, masks: Masks, family: int = 0) -> None:
        self.matcher, self._masks, self.family = matcher, masks, family
        #: The next mask; None until it is computed.
        self.next: Bits | None = None
        #: The masks that were computed together with the last one, and its place among them.
        self.table: Bits = _NO_MASKS
        self.place = 0
        #: The token that was observed last.
        self.token = 0
        #: Why the mask that was last computed cannot be trusted.
        self.error: str | None = None

    def copy(self) -> Guide:
        """The same place, for another sequence of the request."""
        bits = self.bits()
        other = Guide(self.matcher.deep_copy(), self._masks, self.family)
        other.next, other.error = bits, self.error
        return other

    @property
    def eos_tokens(self) -> frozenset[int]:
        """The tokens that end a grammar, whatever the request calls its end."""
        return self._masks.eos_tokens

    def mask(self) -> Mask:
        """Which tokens may come next ``[vocabulary]``."""
        return np.unpackbits(self.bits(), count=self._masks.vocab_size, bitorder="little").view(np.bool_)

    def bits(self) -> Bits:
        """The mask as it comes: at least ``vocabulary`` bits, the lowest of each byte first."""
        if self.next is None:
            self._masks.compute_stale()
        return cast(Bits, self.next)

    def observe(self, token: int) -> None:
        """Goes on by a token that the mask allows."""
        if self.next is None:
            self._masks.compute_stale()
        self.token, self.next = token, None
        self._masks.stale.append(self)

    def begin(self) -> None:
        """Has the masks that are missing computed, of this guide and all others, while the caller goes on: to
        be called when all tokens of an iteration are observed."""
        self._masks.begin()

    def end(self) -> None:
        """Its sequence has ended; a row of it that is in flight may still ask for a mask, of no effect."""
        if self.next is None:
            self._masks.forget(self)
            self.next = self._masks.nothing

    def problem(self) -> str | None:
        """Why the mask that was last computed cannot be trusted; None: it can. Waits for nothing."""
        return self.error


class Masks:
    """Computes the masks of all guides of a tokenizer."""

    def __init__(self, executor: Any, vocab_size: int, eos_tokens: frozenset[int]) -> None:
        self._executor, self.vocab_size, self.eos_tokens = executor, vocab_size, eos_tokens
        self._words = (vocab_size + 31) // 32
        self.nothing: Bits = np.zeros(4 * self._words, dtype=np.uint8)
        #: Families with a guide that hit a limit.
        self.failed: set[int] = set()
        #: Guides that noted a token and lack their next mask; of one thread, which observes.
        self.stale: list[Guide] = []
        self._thread: ThreadPoolExecutor | None = None
        self._computing: Future[None] | None = None

    def begin(self) -> None:
        """Takes the tokens that were noted, and starts to compute the masks that are missing, if these are
        many."""
        if len(self.stale) < _MANY_FOR_A_THREAD:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "reference-masks")
        self._wait()
        stale, self.stale = self.stale, []
        self._take_tokens(stale)
        began = threading.Event()
        self._computing = self._thread.submit(self._compute_beside, stale, began)
        # The interpreter's lock is the other thread's until it computes without it.
        began.wait()

    def forget(self, guide: Guide) -> None:
        """Computes no mask for a guide that is not begun."""
        self.stale = [one for one in self.stale if one is not guide]

    def compute_stale(self) -> None:
        """Has every mask that is missing when it returns."""
        self._wait()
        stale, self.stale = self.stale, []
        if stale:
            self._take_tokens(stale)
            self.compute(stale)

    def compute(self, guides: list[Guide]) -> None:
        """Computes the masks of guides that no other thread uses."""
        table = np.zeros((len(guides), self._words), dtype=np.uint32)
        first, row_bytes = table.ctypes.data, table.strides[0]
        if len(guides) < _MANY_FOR_THE_POOL:
            for place, guide in enumerate(guides):
                guide.matcher.unsafe_compute_mask_ptr(first + place * row_bytes, row_bytes)
        else:
            # A family has one lock: side by side, its guides are one thread's.
            by_family = sorted(range(len(guides)), key=lambda row: guides[row].family)
            matchers = [(guides[row].matcher, row) for row in by_family]
            self._executor.unsafe_compute_mask_ptr(matchers, first, row_bytes, len(guides))
        masks = table.view(np.uint8)
        for place, guide in enumerate(guides):
            guide.next, guide.table, guide.place = masks[place], masks, place
            if guide.matcher.is_error():
                guide.error = str(guide.matcher.get_error()).splitlines()[0]
                self.failed.add(guide.family)

    def _compute_beside(self, guides: list[Guide], began: threading.Event) -> None:
        began.set()
        self.compute(guides)

    def _wait(self) -> None:
        computing, self._computing = self._computing, None
        if computing is not None:
            computing.result()

    def _take_tokens(self, guides: list[Guide]) -> None:
        if len(guides) < _MANY_FOR_THE_POOL:
            for guide in guides:
                guide.matcher.consume_token(guide.token)
        else:
            by_family = sorted(guides, key=lambda guide: guide.family)
            self._executor.consume_token_par([(guide.matcher, guide.token) for guide in by_family])


def stacked(guides: Sequence[Guide]) -> Bits:
    """The masks of several sequences as they come ``[guides, bytes]``."""
    rows = [guide.bits() for guide in guides]
    table = guides[0].table
    # Masks that were computed together are in order already: the usual case, and megabytes.
    if len(table) == len(guides) and all(
        one.table is table and one.place == place for place, one in enumerate(guides)
    ):
        return table
    return np.stack(rows)
