"""A prompt with images: where they are in it, at which positions, and as what its cached blocks know them.

Owns the way from one placeholder an image, as clients send them, to one for each token of it. Pixels are
made by `model.processor`, embeddings by a runner's tower. Knows nothing of requests' other fields.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from inflight.executors import images
from inflight.executors.base import NamedTensor
from inflight.executors.images import ImageError, OpenedImage
from inflight.executors.reference.model.array_types import Int
from inflight.executors.reference.model.processor import Pixels, Processor
from inflight.executors.reference.model.vision_layout import token_positions

from .image_cache import ImageCache
from .refusal import invalid
from .reuse import Retention, RetentionPlan, with_extra_ids

#: Of an image's name: nobody finds another image with the same one.
_NAME_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One image, ready for the tower."""

    #: Made of its file, and of what keeps the tenant apart.
    name: bytes
    pixels: Pixels
    #: Patches along each side.
    height: int
    width: int
    tokens: int

    @property
    def nbytes(self) -> int:
        return int(self.pixels.nbytes)


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of one picture, from its token ``begin`` on, at ``rows`` of a chunk."""

    picture: Picture
    rows: range
    begin: int


@dataclass(frozen=True, eq=False)
class ImagePrompt:
    """Where the pictures of a prompt are; without slots, so that it can be watched while it is in use."""

    pictures: tuple[Picture, ...]
    #: The position of each picture's first token, ascending, in the prompt that has them all.
    starts: tuple[int, ...]
    #: What turns the rotary embedding ``[3, prompt]``.
    positions: Int
    #: What is added to a position after the prompt: 0 or less, since an image is wide, not long.
    offset: int
    #: The prompt as cached blocks know it: with the pictures' names.
    known_as: list[int]

    @property
    def tokens(self) -> int:
        """Tokens of all pictures."""
        return sum(picture.tokens for picture in self.pictures)

    @property
    def memory_bytes(self) -> int:
        return sum(int(picture.pixels.nbytes) for picture in self.pictures)

    def turned(self, first: int, stop: int) -> Int:
        """What turns the tokens at these positions ``[3, tokens]``; behind the prompt, all is text."""
        prompt = self.positions[:, first:stop]
        behind = np.arange(max(first, len(self.known_as)), stop) + self.offset
        return np.concatenate((prompt, np.broadcast_to(behind, (3, len(behind)))), axis=1)

    def pieces(self, first: int, stop: int) -> Iterator[Piece]:
        """The pictures' tokens among those at these positions."""
        for start, picture in zip(self.starts, self.pictures, strict=True):
            begin, end = max(start, first), min(start + picture.tokens, stop)
            if begin < end:
                yield Piece(picture, range(begin - first, end - first), begin - start)

    def marked(self, tokens: Sequence[int]) -> Sequence[int]:
        """The first tokens of a sequence as cached blocks know them."""
        return [*self.known_as[: len(tokens)], *tokens[len(self.known_as) :]]

    def sent(self, count: int) -> int:
        """How many of the tokens that the client sent are whole among the first ``count``: its placeholder is
        the last token of a picture."""
        whole = 0
        for start, picture in zip(self.starts, self.pictures, strict=True):
            if count <= start:
                break
            whole += min(picture.tokens, count - start) - (count >= start + picture.tokens)
        return count - whole

    def moved(self, plan: RetentionPlan) -> RetentionPlan:
        """A client's ranges of the prompt, which count a picture once."""
        ranges: list[tuple[int, int | None, Retention]] = [
            (self._moved(start), None if end is None else self._moved(end), worth)
            for start, end, worth in plan.ranges
        ]
        return RetentionPlan(tuple(ranges), plan.decode)

    def _moved(self, position: int) -> int:
        """Where the client's token at this position begins."""
        added, own = 0, []
        for start, picture in zip(self.starts, self.pictures, strict=True):
            own.append((start - added, picture.tokens - 1))
            added += picture.tokens - 1
        before = bisect.bisect_left(own, (position, 0))
        return position + sum(more for _, more in own[:before])


def read_pictures(
    value: NamedTensor, processor: Processor, salt: bytes, known: ImageCache[Picture]
) -> list[Picture]:
    """The images of a request's tensor; those that are ``known`` are not decoded. Errors: `Refused`."""
    try:
        files = images.elements(value)
        pictures = []
        for file, image in zip(files, images.opened(value.name, files), strict=True):
            digest = hashlib.blake2b(len(salt).to_bytes(8, "little") + salt, digest_size=_NAME_BYTES)
            digest.update(file)
            name = digest.digest()
            pictures.append(known.get(name, partial(_read, name, image, processor)))
    except ImageError as error:
        raise invalid(str(error)) from error
    return pictures


def _read(name: bytes, image: OpenedImage, processor: Processor) -> Picture:
    pixels = processor.resized(image.place, image.in_rgb(upright=True))
    height, width = processor.grid(pixels)
    return Picture(name, pixels, height, width, processor.tokens(pixels))


def expand(
    prompt: Sequence[int], pictures: Sequence[Picture], processor: Processor
) -> tuple[list[int], ImagePrompt]:
    """The prompt with as many placeholders as its pictures have tokens. Errors: `Refused` where it has not
    one for each."""
    vision = processor.vision
    placeholder = vision.image_token_id
    places = [place for place, token in enumerate(prompt) if token == placeholder]
    if len(places) != len(pictures):
        raise invalid(
            f"the prompt has {len(places)} placeholders (token `{placeholder}`) for {len(pictures)} images; "
            "send one for each image"
        )
    tokens: list[int] = []
    extra_ids: list[int] = []
    starts: list[int] = []
    positions: list[Int] = []
    done = following = 0
    for place, picture in zip([*places, len(prompt)], [*pictures, None], strict=True):
        text = prompt[done:place]
        tokens += text
        extra_ids += [0] * len(text)
        positions.append(np.tile(np.arange(following, following + len(text)), (3, 1)))
        following += len(text)
        done = place + 1
        if picture is None:
            break
        starts.append(len(tokens))
        tokens += [placeholder] * picture.tokens
        extra_ids += [int.from_bytes(picture.name, "little")] * picture.tokens
        positions.append(token_positions(vision, picture.height, picture.width) + following)
        following = int(positions[-1].max()) + 1
    return tokens, ImagePrompt(
        tuple(pictures),
        tuple(starts),
        np.concatenate(positions, axis=1),
        following - len(tokens),
        list(with_extra_ids(tokens, extra_ids)),
    )
