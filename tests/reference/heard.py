"""The fixture of a model that hears: its clips, its cases, and requests with them.

What transformers makes of the cases is in `heard.npz` (see `fixtures/ORIGIN.md`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inflight.executors.base import NamedTensor, Request
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.hearing import HearingConfig

from .served import LETTERS, copy_fixture, write_tokenizer
from .support import FIXTURES, request

NAME = "whisper"
CASES = ("plain", "short", "before", "times", "more_times")
CLIPS = 3
TEXT = 64
END, START, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, BEFORE, SILENCE, NO_TIMES = range(TEXT, TEXT + 9)
FIRST_TIME = NO_TIMES + 1
#: What is heard at most.
SAMPLES = 32_000


@lru_cache(maxsize=1)
def record() -> dict[str, npt.NDArray[Any]]:
    with np.load(FIXTURES / NAME / "heard.npz") as file:
        return dict(file)


@dataclass(frozen=True)
class Case:
    """A prompt with a clip, and what transformers makes of it."""

    prompt: list[int]
    clip: int
    #: Greedily, under the rules of the model's generation, and the logits in the place of each.
    tokens: list[int]
    logits: npt.NDArray[np.float32]


def case(name: str) -> Case:
    values = record()
    return Case(
        values[f"{name}.prompt"].tolist(),
        int(values[f"{name}.clip"]),
        values[f"{name}.tokens"].tolist(),
        values[f"{name}.logits"],
    )


def clip(number: int) -> npt.NDArray[np.float32]:
    return record()[f"clip_{number}"]


def long_clip() -> npt.NDArray[np.float32]:
    """One of several windows."""
    return np.concatenate([clip(0), clip(2), clip(0)[::-1]])


@dataclass(frozen=True)
class Part:
    """A part of the long clip's transcript, in seconds, with the tokens that begin and end it."""

    start: float
    end: float
    tokens: list[int]


def long_parts() -> list[Part]:
    """What transformers makes of the long clip."""
    values = record()
    cuts = np.split(values["long.tokens"], np.cumsum(values["long.counts"])[:-1])
    starts, ends = values["long.starts"].tolist(), values["long.ends"].tolist()
    return [Part(start, end, own.tolist()) for start, end, own in zip(starts, ends, cuts, strict=True)]


def hearing() -> HearingConfig:
    found = load_config(FIXTURES / NAME).hearing
    assert found is not None
    return found


def audio(samples: npt.NDArray[np.float32], datatype: str = "FP32") -> NamedTensor:
    return NamedTensor("WAV", datatype, (len(samples),), samples.astype("<f4").tobytes())


def asked(client_id: int, prompt: Sequence[int], number: int, **fields: Any) -> Request:
    """A request with a clip of the fixture."""
    tensors = [audio(clip(number)), *fields.pop("tensors", [])]
    return request(client_id, prompt, fields.pop("max_tokens", 16), tensors=tensors, end_id=END, **fields)


_SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|en|>",
    "<|de|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)


def write_served(folder: Path) -> Path:
    """The fixture as a checkpoint that is served, with letters as tokens."""
    copy_fixture(NAME, folder, "heard.npz")
    # As published: times are tokens of their own, and not special.
    times = [f"<|{step / 50:.2f}|>" for step in range(101)]
    names = ["<unk>", *LETTERS, *"'-:;()", *_SPECIAL, *times]
    assert (names.index("<|endoftext|>"), names.index("<|0.00|>")) == (END, FIRST_TIME)
    write_tokenizer(folder, names, _SPECIAL, times)
    settings = {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
