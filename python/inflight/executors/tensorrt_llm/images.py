"""Image files of requests as the images that `LLM` takes, and what keeps their cache blocks apart.

Decoding is `inflight.executors.images`'. Pillow comes with TensorRT-LLM.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from inflight.executors import images
from inflight.executors.base import NamedTensor
from inflight.executors.images import IMAGES, ImageError, are_decodable
from inflight.executors.tensorrt_llm.convert import Refused

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["IMAGES", "are_decodable", "decode", "elements", "salt"]


def decode(value: NamedTensor, torch: Any = None) -> list[Image.Image]:  # noqa: ARG001 -- a converter
    """The images of a BYTES tensor of files, in RGB. Errors: `Refused`, which names the image at fault."""
    try:
        return images.decode(value.name, images.elements(value))
    except ImageError as error:
        raise Refused(str(error)) from error


def elements(value: NamedTensor) -> list[bytes]:
    """The elements of a BYTES tensor. Errors: `Refused`."""
    try:
        return images.elements(value)
    except ImageError as error:
        raise Refused(str(error)) from error


def salt(value: NamedTensor) -> str:
    """What distinguishes the images of one request from those of another, for the keys of cache blocks."""
    return hashlib.sha256(value.data).hexdigest()
