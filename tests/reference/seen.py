"""The fixture of a model that sees: its images as files, its cases, and requests with them.

What transformers makes of the cases is in `seen.npz` (see `fixtures/ORIGIN.md`).
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from inflight.executors.base import NamedTensor, Request
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.extras import read_extras
from inflight.executors.reference.core.image_cache import ImageCache
from inflight.executors.reference.core.images import ImagePrompt, Picture, read_pictures
from inflight.executors.reference.core.refusal import Refused
from inflight.executors.reference.core.seeing import Seeing
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.processor import Processor, load_processor
from inflight.executors.reference.model.vision import VisionConfig

from .served import LETTERS, copy_fixture, write_tokenizer
from .support import FIXTURES, AllTold, request, run

NAME = "qwen2_5_vl"
START, END, IMAGE = 60, 61, 62
CASES = ("one", "two", "turns", "long", "first")
IMAGES = 5


@lru_cache(maxsize=1)
def record() -> dict[str, npt.NDArray[Any]]:
    with np.load(FIXTURES / NAME / "seen.npz") as file:
        return dict(file)


@dataclass(frozen=True)
class Case:
    """A prompt with images, and what transformers makes of it."""

    prompt: list[int]
    #: Which images it has.
    numbers: list[int]
    expanded: list[int]
    positions: npt.NDArray[np.int64]
    #: Greedily, and the log probabilities of all tokens in the place of each.
    tokens: list[int]
    log_probs: npt.NDArray[np.float32]
    #: What three beams find, the best first.
    beams: list[list[int]]


def case(name: str) -> Case:
    prompt, numbers, expanded, tokens = (
        record()[f"{name}.{key}"].tolist() for key in ("prompt", "numbers", "expanded", "tokens")
    )
    positions, log_probs, beams = (record()[f"{name}.{key}"] for key in ("positions", "log_probs", "beams"))
    return Case(prompt, numbers, expanded, positions, tokens, log_probs, beams.tolist())


def vision() -> VisionConfig:
    found = load_config(FIXTURES / NAME).vision
    assert found is not None
    return found


def processor() -> Processor:
    return load_processor(FIXTURES / NAME, vision())


def picture_file(number: int, kind: str = "PNG") -> bytes:
    """An image of the fixture as a file that keeps its pixels."""
    return encoded(record()[f"image_{number}"], kind)


def encoded(pixels: npt.NDArray[np.uint8], kind: str = "PNG") -> bytes:
    """A file that keeps its pixels."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, lossless=True)
    return file.getvalue()


def files(*data: bytes) -> NamedTensor:
    packed = b"".join(struct.pack("<I", len(one)) + one for one in data)
    return NamedTensor("inflight_images", "BYTES", (len(data),), packed)


def read(*numbers: int) -> list[Picture]:
    """Images of the fixture as the engine gets them."""
    return read_pictures(files(*map(picture_file, numbers)), processor(), b"", ImageCache(1 << 20))


def asked(client_id: int, prompt: Sequence[int], numbers: Sequence[int], **fields: Any) -> Request:
    """A request with images of the fixture."""
    tensors = [files(*map(picture_file, numbers)), *fields.pop("tensors", [])]
    return request(client_id, prompt, fields.pop("max_tokens", 12), tensors=tensors, **fields)


def prepared(
    requests: Sequence[Request], seeing: Seeing | None = None
) -> tuple[list[Request], dict[int, ImagePrompt | Refused]]:
    """What the executor's preparation makes of requests."""
    seeing = seeing or Seeing(processor())
    ready: list[Request] = []
    images: dict[int, ImagePrompt | Refused] = {}
    for one in requests:
        extras = read_extras(one)
        if extras.images is None:
            ready.append(one)
            continue
        try:
            own, images[one.client_id] = seeing.prepare(one, extras, extras.images)
        except Refused as refusal:
            own, images[one.client_id] = one, refusal
        ready.append(own)
    return ready, images


def see(subject: Engine, requests: Sequence[Request]) -> AllTold:
    """Runs requests with images to their end."""
    ready, images = prepared(requests)
    return run(subject, ready, images=images)


#: As Qwen2.5-VL's does it.
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' or 'image' in part or 'image_url' in part %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}.{% endfor %}"
)
_SPECIAL = ("<unk>", "<s>", "</s>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def write_served(folder: Path, positions: int = 256) -> Path:
    """The fixture as a checkpoint that is served, for so many positions, with letters as tokens."""
    copy_fixture(NAME, folder, "seen.npz")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = positions
    (folder / "config.json").write_text(json.dumps(config))
    names = [*_SPECIAL[:3], *LETTERS, *_SPECIAL[3:]]
    assert (len(names), names.index("<|image_pad|>")) == (64, IMAGE)
    write_tokenizer(folder, names, _SPECIAL)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
