"""How far the reasoning of a sequence is, by the tokens that begin and end it.

For every executor that bounds it. Does not depend on a text or a model: the request says which tokens those
are, and whether the prompt has already begun the reasoning. What may come next is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Tokens of an answer within which its reasoning begins: line breaks may come first.
_BEGINS_WITHIN = 16


@dataclass(frozen=True)
class Marks:
    """What begins and ends a request's reasoning."""

    #: Empty: the prompt has begun it.
    start: tuple[int, ...]
    end: tuple[int, ...]


@dataclass
class Reasoning:
    """How far the reasoning of one sequence is, by the tokens of its answer."""

    marks: Marks
    thinks: bool
    over: bool = False
    #: Tokens of the answer, and those of its reasoning.
    seen: int = 0
    thought: int = 0
    #: How many of the last tokens are the beginning of the mark that is looked for.
    matched: int = 0

    def observe(self, token: int) -> None:
        """Takes the next token of the answer."""
        if self.over:
            return
        mark = self.marks.end if self.thinks else self.marks.start
        self.seen += 1
        self.matched = _matched(mark, self.matched, token)
        if self.matched == len(mark):
            self.over, self.thinks, self.matched = self.thinks, True, 0
        elif self.thinks:
            self.thought += 1
        elif self.seen >= _BEGINS_WITHIN:
            self.over = True


def _matched(mark: tuple[int, ...], matched: int, token: int) -> int:
    """How much of ``mark`` the tokens end with, of which ``matched`` did before this one."""
    tail = (*mark[:matched], token)
    for length in range(len(tail), 0, -1):
        if tail[-length:] == mark[:length]:
            return length
    return 0
