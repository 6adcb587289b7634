"""From samples to the spectrogram that an encoder takes: as transformers' feature extractor of Whisper.

Owns the filters and what `preprocessor_config.json` may say. Samples are 16 kHz, one channel, between -1 and
1; files are decoded elsewhere. Knows nothing of models.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from inflight.executors.reference.errors import UnsupportedModelError
from inflight.model.files import read_json
from inflight.model.values import integer

from .array_types import Float32
from .hearing import MELS, HearingConfig

#: Samples a second, of a window of the transform, and between two of them.
RATE, WINDOW, HOP = 16_000, 400, 160

_FILE = "preprocessor_config.json"
#: Of the scale of Slaney's Auditory Toolbox: linear below, logarithmic above, 27 steps to 6.4 times as high.
_LINEAR_TO, _LINEAR_STEP = 1000.0, 200.0 / 3
_LOG_STEP = np.log(6.4) / 27.0
#: Power that counts as silence, and how many decades below the loudest levels end.
FLOOR, RANGE = 1e-10, 8.0


def samples_of(config: HearingConfig) -> int:
    """The samples of a clip."""
    return config.frames * HOP


def check_preprocessor(model_dir: Path, config: HearingConfig) -> None:
    """Raises `UnsupportedModelError` where the checkpoint prepares samples otherwise than is done here, and
    `CheckpointError` for a file that cannot be right."""
    if not (model_dir / _FILE).is_file():
        return
    values = read_json(model_dir / _FILE)
    for key, own in (
        ("feature_size", config.mels),
        ("sampling_rate", RATE),
        ("n_fft", WINDOW),
        ("hop_length", HOP),
    ):
        if integer(values, key, own) != own:
            raise UnsupportedModelError(
                f"`{key}` in `{_FILE}` is `{values[key]}`, which the reference executor does not support",
                f"use a checkpoint with {own}",
            )
    seconds = integer(values, "chunk_length", samples_of(config) // RATE)
    if seconds * RATE != samples_of(config):
        raise UnsupportedModelError(
            f"`chunk_length` in `{_FILE}` is `{seconds}`, but `max_source_positions` in `config.json` implies"
            f" `{samples_of(config) / RATE:g}`",
            "check that both files belong to this checkpoint",
        )


def log_mel(samples: Float32, mels: int, frames: int) -> Float32:
    """The spectrogram ``[mels, frames]`` of samples, filled up with silence to so many frames."""
    whole = np.zeros(frames * HOP, dtype=np.float64)
    whole[: len(samples)] = samples
    padded = np.pad(whole, WINDOW // 2, mode="reflect")
    cut = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:frames]
    spectrum = np.fft.rfft(cut * hann())
    power = spectrum.real**2 + spectrum.imag**2
    levels = np.log10(np.maximum(power @ mel_filters(mels), FLOOR))
    np.maximum(levels, levels.max() - RANGE, out=levels)
    return cast(Float32, ((levels.T + 4.0) / 4.0).astype(np.float32))


@lru_cache(maxsize=1)
def hann() -> npt.NDArray[np.float64]:
    """The window ``[WINDOW]``. Periodic: of one sample more, without the last."""
    return np.hanning(WINDOW + 1)[:-1]


@lru_cache(maxsize=len(MELS))
def mel_filters(mels: int) -> npt.NDArray[np.float64]:
    """Triangles of one area each ``[frequencies, mels]``, from 0 to half the rate."""
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    corners = _hertz(np.linspace(_mel(0.0), _mel(RATE / 2), mels + 2))
    widths = np.diff(corners)
    distances = corners[None] - frequencies[:, None]
    rising = -distances[:, :-2] / widths[:-1]
    falling = distances[:, 2:] / widths[1:]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return cast("npt.NDArray[np.float64]", triangles * (2.0 / (corners[2:] - corners[:-2])))


def _mel(hertz: float) -> float:
    if hertz < _LINEAR_TO:
        return hertz / _LINEAR_STEP
    return float(_LINEAR_TO / _LINEAR_STEP + np.log(hertz / _LINEAR_TO) / _LOG_STEP)


def _hertz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    above = mels - _LINEAR_TO / _LINEAR_STEP
    return np.where(above < 0, mels * _LINEAR_STEP, _LINEAR_TO * np.exp(_LOG_STEP * above))
