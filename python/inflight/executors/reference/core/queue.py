"""The sequences that wait, in the order in which they are to be admitted.

Those whose clients have seen tokens already come first: paused ones, and those that were begun elsewhere.
Then comes the highest priority. Within one priority short prompts pass long ones, as far as a long one can
bear it: those that pass it have at most as many tokens together as it has itself. Those that nobody waits for
are the last, begun or not. Owns that order and nothing else.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from .scheduler import Rank
from .sequence import RequestState, SequenceState

#: A prompt is due once so many times its tokens have come, its own among them: later prompts hold it up for
#: no longer than it takes itself. More would shorten the median wait further and lengthen the longest.
_TIMES = 2


class WaitingQueue:
    """Sequences by rank; taken from anywhere, since a cancel or the capacity may choose any of them."""

    def __init__(self) -> None:
        self._sequences: list[SequenceState] = []
        #: Tokens of the prompts that came so far.
        self._came = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._sequences)

    def expect(self, owner: RequestState, tokens: int) -> None:
        """Says when a request that has just come is due; ``tokens`` of its prompt are not in the cache."""
        owner.due = self._came + _TIMES * tokens
        self._came += tokens

    def push(self, sequence: SequenceState) -> None:
        """Adds a sequence at its place."""
        bisect.insort(self._sequences, sequence, key=rank)

    def remove(self, sequence: SequenceState) -> bool:
        """Takes a sequence out; False where it does not wait."""
        place = bisect.bisect_left(self._sequences, rank(sequence), key=rank)
        if place == len(self._sequences) or self._sequences[place] is not sequence:
            return False
        del self._sequences[place]
        return True


def rank(sequence: SequenceState) -> Rank:
    """Its place in the order; it stays the same while it waits, and while its prompt is computed."""
    # Keys count up as requests arrive.
    owner = sequence.owner
    begun = sequence.paused or bool(sequence.sampler.generated)
    return (owner.is_idle, not begun, -owner.admitted.extras.priority, owner.due or 0, sequence.key)
