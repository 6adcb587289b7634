"""The errors of a checkpoint or option that this executor cannot serve.

The refusal of one request is a row of a response, never an exception.
"""

from __future__ import annotations

from inflight.errors import CheckpointError, OptionError, UserMistake

__all__ = ["CheckpointError", "OptionError", "UnsupportedModelError"]


class UnsupportedModelError(UserMistake):
    """The checkpoint is sound, but uses something that this executor does not implement."""
