"""From an image's file to the pixels that a vision tower looks at: as transformers' processor of Qwen2-VL.

Owns the size that an image is brought to, and the patches that it is cut into. Decoding is
`inflight.executors.images`'. Knows nothing of prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from inflight.executors.images import ImageError
from inflight.executors.reference.errors import UnsupportedModelError
from inflight.model.files import read_json
from inflight.model.values import bad_value, integer

from .array_types import Float32
from .vision import VisionConfig

if TYPE_CHECKING:
    from PIL import Image

#: Where checkpoints say how images are prepared, and under which key; a file in which the key is empty is
#: whole.
_FILES = (("preprocessor_config.json", ""), ("processor_config.json", "image_processor"))
#: CLIP's, as OpenAI published them.
_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)
#: What transformers assumes.
_MIN_PIXELS, _MAX_PIXELS = 56 * 56, 28 * 28 * 1280
#: The longest side may be so many times the other.
_LONGEST = 200
#: Keys that change the pixels, with the only values that are implemented.
_REQUIRED: Mapping[str, tuple[Any, ...]] = {
    "do_resize": (True,),
    "do_rescale": (True,),
    "do_normalize": (True,),
    "resample": (3,),
    "rescale_factor": (1 / 255,),
}

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Processor:
    """How images are prepared for one tower."""

    vision: VisionConfig
    min_pixels: int = _MIN_PIXELS
    max_pixels: int = _MAX_PIXELS
    mean: tuple[float, ...] = _MEAN
    std: tuple[float, ...] = _STD

    def limited(self, tokens: int | None) -> Processor:
        """With images of so many tokens at most, unless their shorter side has one."""
        if tokens is None:
            return self
        most = min(self.max_pixels, tokens * self.vision.factor**2)
        # What is made larger is rounded up.
        least = self.min_pixels if 4 * self.min_pixels <= most else 1
        return replace(self, min_pixels=least, max_pixels=most)

    def resized(self, what: str, image: Image.Image) -> Pixels:
        """The pixels of a decoded image, ``[height, width, 3]`` of whole tokens. Errors: `ImageError`."""
        from PIL import Image

        if max(image.size) > _LONGEST * min(image.size):
            raise ImageError(
                f"`{what}` has `{image.width}` x `{image.height}` pixels; a side may be {_LONGEST} times the "
                "other at most"
            )
        height, width = self.size(image.height, image.width)
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        return np.asarray(image, dtype=np.uint8)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Whole tokens along each side, within the bounds, in proportions that are nearly the image's."""
        factor = self.vision.factor
        rows, columns = round(height / factor) * factor, round(width / factor) * factor
        if rows * columns > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            rows = max(factor, math.floor(height / shrink / factor) * factor)
            columns = max(factor, math.floor(width / shrink / factor) * factor)
        elif rows * columns < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            rows = math.ceil(height * grow / factor) * factor
            columns = math.ceil(width * grow / factor) * factor
        return rows, columns

    def grid(self, pixels: Pixels) -> tuple[int, int]:
        """Patches along each side."""
        return pixels.shape[0] // self.vision.patch_size, pixels.shape[1] // self.vision.patch_size

    def tokens(self, pixels: Pixels) -> int:
        """Tokens that the image takes in a prompt."""
        height, width = self.grid(pixels)
        return height * width // self.vision.merge_size**2

    def patches(self, pixels: Pixels) -> Float32:
        """Normalized patches ``[patches, channels x frames x patch x patch]``, those of one token together.
        Every frame is the image."""
        vision = self.vision
        scale = (1.0 / (255.0 * np.array(self.std))).astype(np.float32)
        shift = (np.array(self.mean) / np.array(self.std)).astype(np.float32)
        height, width = self.grid(pixels)
        merge, side = vision.merge_size, vision.patch_size
        cut = (pixels * scale - shift).reshape(
            height // merge, merge, side, width // merge, merge, side, vision.channels
        )
        cut = cut.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None]
        repeated = np.broadcast_to(cut, (*cut.shape[:5], vision.frames, *cut.shape[6:]))
        patches: Float32 = repeated.reshape(height * width, vision.patch_width)
        return patches


def load_processor(model_dir: Path, vision: VisionConfig) -> Processor:
    """What a checkpoint directory says of images, or transformers' defaults. Raises `CheckpointError`,
    `UnsupportedModelError`."""
    for name, key in _FILES:
        if (model_dir / name).is_file():
            values: Any = read_json(model_dir / name)
            values = values.get(key) if key else values
            if isinstance(values, dict):
                return _parse(values, vision)
    return Processor(vision)


def _parse(values: Mapping[str, Any], vision: VisionConfig) -> Processor:
    for key, accepted in _REQUIRED.items():
        if values.get(key, accepted[0]) not in accepted:
            raise UnsupportedModelError(
                f"`{key}` of the checkpoint's image processor is `{values[key]}`, which the reference "
                "executor does not support",
                "use another checkpoint, or the tensorrt_llm executor",
            )
    for key, own in (
        ("patch_size", vision.patch_size),
        ("temporal_patch_size", vision.frames),
        ("merge_size", vision.merge_size),
    ):
        if values.get(key, own) != own:
            raise bad_value(key, values[key], f"that of `vision_config` ({own})")
    size = values.get("size")
    if not isinstance(size, dict):
        size = {}
    # transformers 5 has edges that are numbers of pixels; before, each had a name.
    smallest = integer(size, "shortest_edge", integer(size, "min_pixels", _MIN_PIXELS))
    largest = integer(size, "longest_edge", integer(size, "max_pixels", _MAX_PIXELS))
    smallest, largest = integer(values, "min_pixels", smallest), integer(values, "max_pixels", largest)
    if largest < max(smallest, vision.factor**2):
        raise bad_value("max_pixels", largest, f"at least {max(smallest, vision.factor**2)}")
    return Processor(
        vision,
        smallest,
        largest,
        _channels(values, "image_mean", _MEAN),
        _channels(values, "image_std", _STD),
    )


def _channels(values: Mapping[str, Any], key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    listed = values.get(key)
    if listed is None:
        return default
    numbers = isinstance(listed, list) and all(isinstance(one, (int, float)) for one in listed)
    if not numbers or len(listed) != len(default) or (key == "image_std" and min(listed) <= 0):
        raise bad_value(key, listed, "three numbers, those of `image_std` positive")
    return tuple(float(one) for one in listed)
