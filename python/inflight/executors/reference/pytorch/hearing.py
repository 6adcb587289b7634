"""What a runner on PyTorch hears: which clips are on the device, and which of them each sequence slot hears.

Owns when the encoder runs: with a request's first chunk, on the stream of iterations. The spectrogram is made
on the device, since a transform of thirty seconds on the host would stop every stream for tens of
milliseconds. Knows nothing of layers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional

from inflight.executors.reference.core.hearing import Clip
from inflight.executors.reference.core.sequence import SequenceState
from inflight.executors.reference.model import log_mel
from inflight.executors.reference.model.array_types import Float32, Int

from .encoder import TorchEncoder
from .operations import Tensor


class TorchHearing:
    """An encoder, and the latest clips. A clip stays while a slot hears it: there is room for one a slot."""

    def __init__(self, encoder: TorchEncoder, clips: int, slots: int) -> None:
        """Of ``slots`` sequences, and ``clips``, which are at least as many."""
        self._encoder = encoder
        # A slot more for rows that nobody reads.
        encoder.allocate(max(clips, slots), slots + 1)
        self._free = list(reversed(range(encoder.clips)))
        #: Where the clip of a name is, the latest used last.
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._by_slot: list[bytes | None] = [None] * slots
        if encoder.device.type == "cuda":
            encoder.capture()
        # The first transform and the first product of a shape are slow.
        encoder.hear(0, self._spectrogram(np.zeros(1, dtype=np.float32)))

    def enter(self, sequences: Sequence[SequenceState], upload: Callable[[Any], Tensor]) -> None:
        """Has the slots of sequences hear their clips."""
        changed: dict[int, int] = {}
        for one in sequences:
            clip = one.owner.clip
            if clip is not None and self._by_slot[one.slot] != clip.name:
                self._by_slot[one.slot] = None
                changed[one.slot] = self._place(clip)
                self._by_slot[one.slot] = clip.name
        if changed:
            noted = upload(np.array([[*changed], [*changed.values()]], dtype=np.int32))
            self._encoder.assign(noted[0], noted[1])

    def places(self, sequences: Sequence[SequenceState]) -> Int:
        """Where the clips of sequences are, which have slots."""
        clips = [one.owner.clip for one in sequences]
        return np.array([0 if clip is None else self._place(clip) for clip in clips], dtype=np.int32)

    def _place(self, clip: Clip) -> int:
        """Where a clip is; it is encoded where it is not there."""
        place = self._places.get(clip.name)
        if place is not None:
            self._places.move_to_end(clip.name)
            return place
        if self._free:
            place = self._free.pop()
        else:
            heard = set(self._by_slot)
            place = self._places.pop(next(name for name in self._places if name not in heard))
        self._places[clip.name] = place
        self._encoder.hear(place, self._spectrogram(clip.samples))
        return place

    def _spectrogram(self, samples: Float32) -> Tensor:
        config = self._encoder.config
        # A copy, which is writable: a request's memory is not.
        raw = torch.from_numpy(samples.copy()).to(self._encoder.device)
        return spectrogram(raw, config.mels, config.frames)


def spectrogram(samples: Tensor, mels: int, frames: int) -> Tensor:
    """`log_mel.log_mel` on the samples' device, in float64 as well."""
    hann, filters = _tables(mels, samples.device)
    whole = samples.new_zeros(frames * log_mel.HOP, dtype=torch.float64)
    whole[: len(samples)] = samples
    around = log_mel.WINDOW // 2
    padded = functional.pad(whole[None], (around, around), mode="reflect")[0]
    spectrum = torch.fft.rfft(padded.unfold(0, log_mel.WINDOW, log_mel.HOP)[:frames] * hann)
    power = spectrum.real.square() + spectrum.imag.square()
    levels = (power @ filters).clamp_min(log_mel.FLOOR).log10()
    levels = torch.maximum(levels, levels.max() - log_mel.RANGE)
    return ((levels.t() + 4.0) / 4.0).float()


@lru_cache(maxsize=4)
def _tables(mels: int, device: Any) -> tuple[Tensor, Tensor]:
    """The window and the filters."""
    return tuple(torch.from_numpy(table).to(device) for table in (log_mel.hann(), log_mel.mel_filters(mels)))
