"""The exceptions that people read. Owns their shape and exit codes; knows no command and no executor.

What failed, with the value in backticks, and what to do next, one sentence each. Anything else that
reaches the command line is a defect and keeps its traceback.
"""

from __future__ import annotations


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
