"""Embeddings: a prompt's final hidden states become one vector of length 1.

Owns how they are pooled. The hidden states are those behind the model's last norm, which its logits are made
of. ``mean`` is their mean over the prompt's tokens; ``last`` is that of the last token, the only one that has
seen the whole prompt. A model that was not trained for embeddings gives vectors too, but they may separate
texts badly.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from inflight.executors.reference.model.array_types import Float32


class Pooling(Enum):
    """See the module."""

    MEAN = "mean"
    LAST = "last"

    def rows(self, first: int, stop: int, prompt: int) -> range:
        """Which of the positions ``first`` up to ``stop`` are pooled, of a prompt of ``prompt`` tokens."""
        begin = 0 if self is Pooling.MEAN else prompt - 1
        return range(max(first, begin), max(first, begin, min(stop, prompt)))


POOLINGS = tuple(pooling.value for pooling in Pooling)


class Pool:
    """The sum of the hidden states that came so far."""

    def __init__(self) -> None:
        self._sum: npt.NDArray[np.float64] | None = None

    def add(self, hidden: Float32) -> None:
        """Takes hidden states ``[rows, hidden_size]``."""
        added = hidden.sum(axis=0, dtype=np.float64)
        self._sum = added if self._sum is None else self._sum + added

    def embedding(self) -> Float32 | None:
        """``[hidden_size]``, of length 1; None before anything came. Its mean has the same direction."""
        if self._sum is None:
            return None
        length = float(np.linalg.norm(self._sum))
        scaled = self._sum if length == 0.0 else self._sum / length
        return scaled.astype(np.float32)
