"""How many tokens of a prompt an iteration may have while streams generate, all of which wait for it.

Owns what a prompt token takes, as measured, and the bound that follows. Knows nothing of who generates, and
has no clock: the times come in.
"""

from __future__ import annotations

#: Part of a new value in the running means.
_NEWEST_PART = 0.25
#: The bound before anything was measured.
_FIRST = 1024
#: Fewer tokens take about as long on a GPU, so no bound is lower; and bounds are multiples, which leaves few
#: rows of a kernel's tiles unused.
_FEWEST = 256
#: A crowd of prompts takes as long as so many of them may. Each stream waits for it again and again; a crowd
#: computed in fewer and longer iterations is done hardly sooner, and its first tokens come all at its end.
_TOGETHER = 2
#: But so many such iterations become one where no fewer wait than generate: if they are cut, it is mostly the
#: crowd that waits, its first ones for the others.
_AT_ONCE = 2


class Pace:
    """Bounds on prompt tokens from a bound on the time that those of one prompt may take."""

    def __init__(self, most_s: float) -> None:
        """``most_s`` is what a prompt may add to an iteration; 0: there is no bound."""
        self._most_s = most_s
        self._token_s: float | None = None
        self._generating_s = 0.0

    @property
    def tokens(self) -> int | None:
        """Tokens of one prompt in an iteration at most; None: there is no bound."""
        if not self._most_s:
            return None
        if self._token_s is None:
            return _FIRST
        tokens = int(self._most_s / max(self._token_s, 1e-9))
        return max(_FEWEST, tokens // _FEWEST * _FEWEST)

    def together(self, prompts: int, left: int | None = None) -> int | None:
        """Tokens of so many prompts in an iteration at most; None: there is no bound. ``left`` is what they
        have left, where they are no fewer than the streams that generate."""
        tokens = self.tokens
        if tokens is None:
            return None
        most = tokens * min(prompts, _TOGETHER)
        if left is not None and prompts > _TOGETHER and left <= most * _AT_ONCE:
            return max(most, left)
        return most

    def note(self, tokens: int, seconds: float) -> None:
        """An iteration with so many prompt tokens took so long."""
        if not tokens:
            self._generating_s += _NEWEST_PART * (seconds - self._generating_s)
        elif tokens >= _FEWEST:
            token_s = max(0.0, seconds - self._generating_s) / tokens
            if self._token_s is None:
                self._token_s = token_s
            self._token_s += _NEWEST_PART * (token_s - self._token_s)
