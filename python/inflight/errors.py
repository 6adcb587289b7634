"""The exceptions that people read. Owns their shape and exit codes; knows nothing of commands and executors.

What failed, with the value in backticks, and what to do next, one sentence each. Anything else that
reaches the command line is a defect and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class InflightError(Exception):
    """Something failed for a reason outside the program: a server is gone, a process died."""

    exit_code = 1

    def __init__(self, what: str, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


class UserMistake(InflightError):
    """A command line, file or environment that cannot work as given."""

    exit_code = 2


class CheckpointError(UserMistake):
    """A file of a checkpoint is missing or damaged, or does not fit the others."""


class OptionError(UserMistake):
    """An option has a value that it cannot have, or is not an option."""


@dataclass(frozen=True)
class Problem:
    """Why something cannot be built: what is wrong, and what to do."""

    what: str
    remedy: str | None

    @classmethod
    def of(cls, error: InflightError) -> Problem:
        """What the error says."""
        return cls(error.what, error.remedy)


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raises one `UserMistake` that reports all of them; does nothing if there are none."""
    if not problems:
        return
    what = "; ".join(problem.what for problem in problems)
    raise UserMistake(
        what, "; ".join(dict.fromkeys(problem.remedy for problem in problems if problem.remedy)) or None
    )
