"""What a runner on NumPy sees: the images of a chunk as embeddings, which are kept for the next chunk.

Owns when the tower runs: with the chunk that has an image's first token, on the engine's thread. Knows
nothing of batches.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from inflight.executors.reference.core.image_cache import ImageCache
from inflight.executors.reference.core.images import Picture
from inflight.executors.reference.core.prompt_tuning import Embedded
from inflight.executors.reference.core.runner import Chunk
from inflight.executors.reference.model.array_types import Float32
from inflight.executors.reference.model.processor import Processor

from .vision import NumpyTower


class NumpySight:
    """A tower, how pixels are prepared for it, and the embeddings of the latest images."""

    def __init__(self, tower: NumpyTower, processor: Processor, max_bytes: int) -> None:
        self._tower = tower
        self._processor = processor
        self._cache: ImageCache[Float32] = ImageCache(max_bytes)

    def embedded(self, chunk: Chunk) -> Embedded | None:
        """The rows of a chunk that are of images, counted from its first, and their embeddings."""
        prompt = chunk.sequence.owner.images
        pieces = [] if prompt is None else list(prompt.pieces(chunk.first, chunk.stop))
        if not pieces:
            return None
        values = [
            self._cache.get(piece.picture.name, partial(self._compute, piece.picture))[
                piece.begin : piece.begin + len(piece.rows)
            ]
            for piece in pieces
        ]
        return Embedded(np.concatenate([np.array(piece.rows) for piece in pieces]), np.concatenate(values))

    def _compute(self, picture: Picture) -> Float32:
        patches = self._processor.patches(picture.pixels)
        return self._tower.embed(patches, picture.height, picture.width)
