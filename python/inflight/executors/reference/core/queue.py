"""The sequences that wait, in the order in which they are to be admitted.

Those whose clients have seen tokens already come first: paused ones, and those that were begun elsewhere.
Then comes the highest priority, and within one priority the first come. Those that nobody waits for are the
last, begun or not. Owns that order and nothing else.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from .sequence import SequenceState


class WaitingQueue:
    """Sequences by rank; taken from anywhere, since a cancel or the capacity may choose any of them."""

    def __init__(self) -> None:
        self._sequences: list[SequenceState] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._sequences)

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


def _rank(sequence: SequenceState) -> tuple[bool, bool, float, int]:
    # Keys count up as requests arrive.
    owner = sequence.owner
    begun = sequence.paused or bool(sequence.sampler.generated)
    return (owner.is_idle, not begun, -owner.admitted.extras.priority, sequence.key)
