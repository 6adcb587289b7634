"""Image files of requests: read out of their tensor, checked, decoded, in RGB.

Owns the limits on what is decoded: a small file can declare a huge image. Needs Pillow, which the first image
imports. Knows nothing of models, nor of what an executor makes of pixels.
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .base import NamedTensor

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


class ImageError(Exception):
    """A request's images cannot be taken; the text says which one and why."""


def are_decodable() -> bool:
    """Whether Pillow is installed."""
    return find_spec("PIL") is not None


def decode(name: str, files: list[bytes], *, upright: bool = False) -> list[Image.Image]:
    """The images of the files in the tensor ``name``, in RGB; ``upright``: turned as their files say that
    they were taken. Errors: `ImageError`, which names the image at fault."""
    return [image.in_rgb(upright=upright) for image in opened(name, files)]


@dataclass(frozen=True)
class OpenedImage:
    """An image whose size is known, and no pixel yet."""

    #: What errors call it.
    place: str
    _image: Image.Image

    def in_rgb(self, *, upright: bool) -> Image.Image:
        """Decodes it. Errors: `ImageError`."""
        return _in_rgb(self.place, self._image, upright)


def opened(name: str, files: list[bytes]) -> Iterator[OpenedImage]:
    """The images of the files in the tensor ``name``, one after the other, as far as their sizes may be taken
    together. Errors: `ImageError`."""
    if len(files) > MAX_IMAGES:
        raise ImageError(f"`{name}` has `{len(files)}` images; send at most {MAX_IMAGES}")
    pixels = 0
    for number, file in enumerate(files):
        place = f"{name}[{number}]"
        image = _open(place, file)
        pixels += image.width * image.height
        if pixels > MAX_PIXELS:
            raise _too_large(f"`{place}` has `{image.width}` x `{image.height}` pixels")
        yield OpenedImage(place, image)


def elements(value: NamedTensor) -> list[bytes]:
    """The elements of a BYTES tensor: each four bytes of length, then that many bytes."""
    found, at = [], 0
    while at < len(value.data):
        if len(value.data) < at + 4:
            raise ImageError(f"`{value.name}` ends within an element; send BYTES")
        (length,) = struct.unpack_from("<I", value.data, at)
        at += 4 + length
        if len(value.data) < at:
            raise ImageError(f"`{value.name}` ends within an element; send BYTES")
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
            raise ImageError(
                f"`{what}` begins like an image and cannot be read; it may have been cut"
            ) from error
        raise ImageError(f"`{what}` is not an image; send {', '.join(FORMATS)}") from error
    except Exception as error:
        raise _unreadable(what, error) from error


def _in_rgb(what: str, image: Image.Image, upright: bool) -> Image.Image:
    """Decodes the first frame. What is transparent becomes white, as paper is."""
    from PIL import Image, ImageOps

    try:
        image.load()
        if upright:
            image = ImageOps.exif_transpose(image)
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


def _too_large(what: str) -> ImageError:
    return ImageError(f"{what}; the images of a request may have {MAX_PIXELS} together")


def _unreadable(what: str, error: Exception) -> ImageError:
    # Pillow's decoders raise nearly everything.
    return ImageError(f"`{what}` cannot be decoded: {str(error) or type(error).__name__}")
