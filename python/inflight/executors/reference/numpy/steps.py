"""One rank's part of an iteration: its part of the model and of the cache, and how rank 0 leads the others.

Knows nothing of sequences or sampling: that is `runner`'s.
"""

from __future__ import annotations

from inflight.executors.reference.model.array_types import Float32, Int
from inflight.executors.reference.parallel.team import Leader

from .batch import Batch
from .cache import PagedCache
from .model import NumpyModel


class NumpySteps:
    """What an iteration asks of one rank's part of a model and its cache."""

    def __init__(self, model: NumpyModel, cache: PagedCache) -> None:
        self._model = model
        self._cache = cache

    def copy(self, source: int, target: int, tokens: int) -> None:
        """As `PagedCache.copy`."""
        self._cache.copy(source, target, tokens)

    def forward(self, batch: Batch, output_rows: Int) -> Float32:
        """As `NumpyModel.forward`."""
        return self._model.forward(batch, self._cache, output_rows)

    def logits(self, hidden: Float32) -> Float32:
        """As `NumpyModel.logits`."""
        return self._model.logits(hidden)


class LedSteps(NumpySteps):
    """Rank 0's part: announces each step to the other ranks before it takes it."""

    def __init__(self, model: NumpyModel, cache: PagedCache, leader: Leader) -> None:
        super().__init__(model, cache)
        self._leader = leader

    def copy(self, source: int, target: int, tokens: int) -> None:
        self._leader.call("copy", source, target, tokens)
        super().copy(source, target, tokens)

    def forward(self, batch: Batch, output_rows: Int) -> Float32:
        self._leader.call("forward", batch, output_rows)
        return super().forward(batch, output_rows)

    def logits(self, hidden: Float32) -> Float32:
        self._leader.call("logits", hidden)
        return super().logits(hidden)
