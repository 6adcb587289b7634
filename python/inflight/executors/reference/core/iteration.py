"""What one iteration did: the rows that it reports, and counts for the statistics.

Owns the counts' meaning, which is TensorRT-LLM's. Knows nothing of how an iteration is planned or computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from .rows import Row, TokenRows


def _no_clock() -> float:
    return 0.0


def _never() -> bool:
    return False


@dataclass(slots=True)
class Iteration:
    """What one step did, for the statistics; counts are of sequences, as TensorRT-LLM's are."""

    output: list[Row | TokenRows] = field(default_factory=list)
    admitted: int = 0
    completed: int = 0
    context_requests: int = 0
    generation_requests: int = 0
    context_tokens: int = 0
    generated_tokens: int = 0
    #: Sequences that got tokens: one each, or several where guesses were right.
    decoded_requests: int = 0
    paused: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    requests_with_drafts: int = 0
    #: What the admitted waited, all together, and what a draft model took.
    queue_latency_s: float = 0.0
    draft_s: float = 0.0
    #: When it began, by the executor's clock, which ends the priorities of cached blocks.
    now_s: float = 0.0
    #: That clock, for the times of tokens.
    clock: Callable[[], float] = _no_clock
    #: Whether a request has come since: an iteration that nobody waits for may be given up for it.
    is_awaited: Callable[[], bool] = _never

    def give_up(self) -> None:
        """Nothing was computed."""
        self.context_requests = self.generation_requests = self.context_tokens = 0

    @property
    def rows(self) -> list[Row]:
        """The output row by row."""
        parts = [[part] if isinstance(part, Row) else part.rows() for part in self.output]
        return list(itertools.chain.from_iterable(parts))
