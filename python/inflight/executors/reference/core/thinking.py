"""A bound on how long a sequence thinks: after so many tokens, the end of its reasoning comes next.

Owns the token that must come then; where in its reasoning a sequence is, is `inflight.executors.reasoning`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inflight.executors.reasoning import Marks, Reasoning

from .masks import Bits, Mask, RuleGuide


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a request says of its reasoning."""

    #: Tokens between the two marks.
    budget: int
    #: What begins it; empty: the prompt has.
    start: tuple[int, ...]
    end: tuple[int, ...]


class ThinkingBudget(RuleGuide):
    """One sequence's place in its reasoning: a guide that allows every token, unless the end must come."""

    def __init__(self, thinking: Thinking, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.thinking = thinking
        self._everything: Bits = np.full(4 * ((vocab_size + 31) // 32), 0xFF, dtype=np.uint8)
        marks = Marks(thinking.start, thinking.end)
        self._reasoning = Reasoning(marks, thinks=not thinking.start)

    def copy(self) -> ThinkingBudget:
        """Another sequence's, which has generated nothing."""
        return ThinkingBudget(self.thinking, self._vocab_size)

    @property
    def forced(self) -> int | None:
        """The token that must come next; None: any may."""
        known = self._reasoning
        if known.over or not known.thinks or known.thought < self.thinking.budget:
            return None
        return self.thinking.end[known.matched]

    def mask(self) -> Mask:
        return np.unpackbits(self.bits(), count=self._vocab_size, bitorder="little").view(np.bool_)

    def bits(self) -> Bits:
        token = self.forced
        if token is None:
            return self._everything
        bits = np.zeros_like(self._everything)
        bits[token // 8] = 1 << token % 8
        return bits

    def observe(self, token: int) -> None:
        self._reasoning.observe(token)
