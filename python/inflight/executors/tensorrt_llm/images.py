"""Image files of requests as the images that `LLM` takes: checked, decoded, in RGB.

Owns the limits on what is decoded: a small file can declare a huge image. Pillow comes with TensorRT-LLM; the
first image imports it.
"""

from __future__ import annotations

import hashlib
import io
import struct
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from inflight.executors.base import NamedTensor
from inflight.executors.tensorrt_llm.convert import Refused

if TYPE_CHECKING:
    from PIL import Image

#: The input with a request's image files.
IMAGES = "inflight_images"
#: What clients of the OpenAI API send; Pillow reads many more, and has had faults in most of them.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
#: The first bytes of their files.
_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF", b"GIF87a", b"GIF89a")
#: Pixels of a request's images together: 48 MiB of RGB, several times what a vision encoder looks at.
#: It also bounds how long decoding takes.
MAX_PIXELS = 16 << 20
#: Images of a request; each costs a model hundreds of tokens.
MAX_IMAGES = 256


def are_decodable() -> bool:
    """Whether Pillow is installed."""
    return find_spec("PIL") is not None


def decode(value: NamedTensor, torch: Any = None) -> list[Image.Image]:  # noqa: ARG001 -- a converter
    """The images of a BYTES tensor of files, in RGB. Errors: `Refused`, which names the image at fault."""
    files = elements(value)
    if len(files) > MAX_IMAGES:
        raise Refused(f"`{value.name}` has `{len(files)}` images; send at most {MAX_IMAGES}")
    images: list[Image.Image] = []
    pixels = 0
    for place, file in enumerate(files):
        image = _open(f"{value.name}[{place}]", file)
        pixels += image.width * image.height
        if pixels > MAX_PIXELS:
            raise _too_large(f"`{value.name}[{place}]` has `{image.width}` x `{image.height}` pixels")
        images.append(_in_rgb(f"{value.name}[{place}]", image))
    return images


def salt(value: NamedTensor) -> str:
    """What distinguishes the images of one request from those of another, for the keys of cache blocks."""
    return hashlib.sha256(value.data).hexdigest()


def elements(value: NamedTensor) -> list[bytes]:
    """The elements of a BYTES tensor: each four bytes of length, then that many bytes."""
    found, at = [], 0
    while at < len(value.data):
        if len(value.data) < at + 4:
            raise Refused(f"`{value.name}` ends within an element; send BYTES")
        (length,) = struct.unpack_from("<I", value.data, at)
        at += 4 + length
        if len(value.data) < at:
            raise Refused(f"`{value.name}` ends within an element; send BYTES")
        found.append(value.data[at - length : at])
    return found


def _open(what: str, file: bytes) -> Image.Image:
    """Reads the head of a file, which contains its size; no pixel yet."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # The limit on pixels here is below the one that Pillow warns of.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(io.BytesIO(file), formats=FORMATS)
    except Image.DecompressionBombError as error:
        # Above its own limit it reports no size.
        raise _too_large(f"`{what}` has too many pixels") from error
    except UnidentifiedImageError as error:
        if file.startswith(_STARTS):
            raise Refused(
                f"`{what}` begins like an image and cannot be read; it may have been cut"
            ) from error
        raise Refused(f"`{what}` is not an image; send {', '.join(FORMATS)}") from error
    except Exception as error:
        raise _unreadable(what, error) from error


def _in_rgb(what: str, image: Image.Image) -> Image.Image:
    """Decodes the first frame. What is transparent becomes white, as paper is."""
    from PIL import Image

    try:
        image.load()
        if image.mode.startswith("I"):
            image = _in_eight_bits(image)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            paper = Image.new("RGB", image.size, (255, 255, 255))
            paper.paste(image, mask=image.getchannel("A"))
            return paper
        # A copy in any case, which no longer holds the file.
        return image.convert("RGB")
    except Exception as error:
        raise _unreadable(what, error) from error


def _in_eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits, which Pillow would cut at 255: nearly all of it would be white."""
    grey = image.point(lambda level: level * (1 / 257) + 0.5).convert("L")
    level = image.info.get("transparency")
    if isinstance(level, int):
        grey.info["transparency"] = round(level / 257)
    return grey


def _too_large(what: str) -> Refused:
    return Refused(f"{what}; the images of a request may have {MAX_PIXELS} together")


def _unreadable(what: str, error: Exception) -> Refused:
    # Pillow's decoders raise nearly everything.
    return Refused(f"`{what}` cannot be decoded: {str(error) or type(error).__name__}")
