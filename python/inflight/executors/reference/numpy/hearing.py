"""What a runner on NumPy hears: each request's clip as the decoder attends to it, kept while it is in use.

Owns when the encoder runs: with a request's first chunk, on the engine's thread. Knows nothing of batches.
"""

from __future__ import annotations

from functools import partial

from inflight.executors.reference.core.hearing import Clip
from inflight.executors.reference.core.image_cache import ImageCache
from inflight.executors.reference.core.sequence import SequenceState
from inflight.executors.reference.model.log_mel import log_mel

from .encoder import Heard, NumpyEncoder


class NumpyHearing:
    """An encoder, and the latest clips."""

    def __init__(self, encoder: NumpyEncoder, max_bytes: int) -> None:
        """The clips of all sequences that run at once must fit in ``max_bytes``: `assembly` lets no more
        run."""
        self._encoder = encoder
        self._cache: ImageCache[Heard] = ImageCache(max_bytes)

    def of(self, sequence: SequenceState) -> Heard | None:
        """What a sequence hears."""
        clip = sequence.owner.clip
        return None if clip is None else self._cache.get(clip.name, partial(self._compute, clip))

    def _compute(self, clip: Clip) -> Heard:
        config = self._encoder.config
        return self._encoder.hear(log_mel(clip.samples, config.mels, config.frames))
