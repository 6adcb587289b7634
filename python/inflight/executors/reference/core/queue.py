"""The sequences that wait, in the order in which they are to be admitted.

Paused ones and those that were begun elsewhere come first: their clients wait for the next token. Then
comes the highest priority, and within one priority who is due first. A request is due once twice the tokens
of its prompt have come, with it and after it: so short prompts pass long ones, and those that pass a prompt
have at most as many tokens together as it has itself. Those that nobody waits for are the last, begun or
not. Owns that order and nothing else.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from .scheduler import Due
from .sequence import RequestState, SequenceState

#: More would shorten the median wait further and lengthen the longest.
_DUE_AFTER_TIMES = 2


class WaitingQueue:
    """Sequences by rank; taken from anywhere, since a cancel or the capacity may choose any of them."""

    def __init__(self) -> None:
        self._sequences: list[SequenceState] = []
        #: Tokens of the prompts that came so far: for which somebody waits, and nobody.
        self._came = [0, 0]

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._sequences)

    def set_due(self, owner: RequestState, tokens: int) -> None:
        """Sets when a request that has just come is due; ``tokens`` of its prompts are to be computed."""
        owner.due = self._came[owner.is_idle] + _DUE_AFTER_TIMES * tokens
        owner.tokens = tokens
        self._came[owner.is_idle] += tokens

    def hurry(self, sequence: SequenceState, tokens: int) -> None:
        """The request that came last needs none of its ``tokens`` computed: it is due now."""
        self.remove(sequence)
        self._came[sequence.owner.is_idle] -= tokens
        self.set_due(sequence.owner, 0)
        self.push(sequence)

    def push(self, sequence: SequenceState) -> None:
        """Adds a sequence at its place."""
        bisect.insort(self._sequences, sequence, key=_rank)

    def remove(self, sequence: SequenceState) -> bool:
        """Takes a sequence out; False where it does not wait."""
        place = bisect.bisect_left(self._sequences, _rank(sequence), key=_rank)
        if place == len(self._sequences) or self._sequences[place] is not sequence:
            return False
        del self._sequences[place]
        return True


def _rank(sequence: SequenceState) -> tuple[bool, bool, float, int, int]:
    """Its place in the order, the same as long as it waits."""
    owner = sequence.owner
    begun = sequence.paused or bool(sequence.sampler.generated)
    return (owner.is_idle, not begun, -owner.admitted.extras.priority, *due(sequence))


def due(sequence: SequenceState) -> Due:
    """When it is due, and its key: they count up as requests arrive."""
    return (sequence.owner.due or 0, sequence.key)
