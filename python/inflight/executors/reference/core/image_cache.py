"""What was made of images, by their names, within a bound: a conversation sends its images with every turn.

Owns which are kept: the latest used, and at least the latest, so that a prompt in chunks computes an image
once.
Knows nothing of what that is: pixels of files, and embeddings of pixels.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

ArrayT = TypeVar("ArrayT")


class ImageCache(Generic[ArrayT]):
    """Arrays of NumPy or PyTorch, or what else has `nbytes`. One thread owns it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held: OrderedDict[bytes, ArrayT] = OrderedDict()

    def get(self, name: bytes, compute: Callable[[], ArrayT]) -> ArrayT:
        """What is kept under a name, or what is computed for it now."""
        found = self._held.get(name)
        if found is not None:
            self._held.move_to_end(name)
            return found
        made = compute()
        self._held[name] = made
        self._bytes += _size(made)
        while self._bytes > self._max_bytes and len(self._held) > 1:
            _, oldest = self._held.popitem(last=False)
            self._bytes -= _size(oldest)
        return made


def _size(array: Any) -> int:
    return int(array.nbytes)
