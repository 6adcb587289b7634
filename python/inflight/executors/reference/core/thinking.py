"""A bound on how long a sequence thinks: after so many tokens, the end of its reasoning comes next.

Owns where in its reasoning a sequence is, by the tokens that begin and end it. Does not depend on a text or a
model: the request says which tokens those are, and whether the prompt has already begun the reasoning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .masks import Bits, Mask, RuleGuide

#: Tokens of an answer within which its reasoning begins: line breaks may come first.
_BEGINS_WITHIN = 16


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
        self._thinks = not thinking.start
        self._over = False
        #: Tokens of the answer, and those of its reasoning.
        self._seen = self._thought = 0
        #: How many of the last tokens are the beginning of the mark that is looked for.
        self._matched = 0

    def copy(self) -> ThinkingBudget:
        """Another sequence's, which has generated nothing."""
        return ThinkingBudget(self.thinking, self._vocab_size)

    @property
    def forced(self) -> int | None:
        """The token that must come next; None: any may."""
        if self._over or not self._thinks or self._thought < self.thinking.budget:
            return None
        return self.thinking.end[self._matched]

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
        if self._over:
            return
        mark = self.thinking.end if self._thinks else self.thinking.start
        self._seen += 1
        self._matched = _matched(mark, self._matched, token)
        if self._matched == len(mark):
            self._over, self._thinks, self._matched = self._thinks, True, 0
        elif self._thinks:
            self._thought += 1
        elif self._seen >= _BEGINS_WITHIN:
            self._over = True


def _matched(mark: tuple[int, ...], matched: int, token: int) -> int:
    """How much of ``mark`` the tokens end with, of which ``matched`` did before this one."""
    tail = (*mark[:matched], token)
    for length in range(len(tail), 0, -1):
        if tail[-length:] == mark[:length]:
            return length
    return 0
