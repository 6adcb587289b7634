"""The errors a person meets when a checkpoint cannot be served.

Owns their wording: one sentence that says what is wrong, then a remedy. Knows nothing of requests; the
refusal of one request is a row of a response, never an exception.
"""

from __future__ import annotations


class ModelError(Exception):
    """A checkpoint, its configuration or an option cannot be used. ``str()`` is fit for a terminal."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


class CheckpointError(ModelError):
    """A file of the checkpoint is missing, damaged or does not fit its configuration."""


class UnsupportedModelError(ModelError):
    """The checkpoint is sound, but uses something this executor does not implement."""


class OptionError(ModelError):
    """An option of the executor has a value it cannot have."""
