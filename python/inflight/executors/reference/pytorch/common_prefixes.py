"""Whether generation rows have so much in common that looking for it on the device pays.

Owns what is known of sequence slots for this. Pure NumPy. What exactly rows have in common is found on the
device, once an iteration (`prefix_kernels`); here a guess is enough, which costs time and never a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray

#: Rows that begin alike, at least: fewer are not read together.
LEAST_ROWS = 4
#: One of so many rows begins like others, at least, where it pays to look.
_ONE_OF = 4

#: Of a context that is shorter, or whose beginning has left the window (`core.blocks.GONE`).
_NOTHING = -1


class CommonPrefixes:
    """Of the sequences in their slots."""

    def __init__(self, slots: int, tokens_per_block: int, keys: int) -> None:
        """``keys`` are those that rows have in common, at least."""
        self._blocks = keys // tokens_per_block
        #: The block that ends the first ``keys`` of each slot.
        self._ends = np.full(slots, _NOTHING, dtype=np.int64)
        #: The latest rows that were asked for, by their slots, and the answer; None once it may be another.
        self._slots: Array = None
        self._answer = False

    def enter(self, slot: int, blocks: Sequence[int]) -> None:
        """Notes the blocks of a context, which grows until it is whole."""
        end = blocks[self._blocks - 1] if len(blocks) >= self._blocks else _NOTHING
        if self._ends[slot] != end:
            self._ends[slot] = end
            self._slots = None

    def are_many(self, slots: Array) -> bool:
        """Whether many of these rows, by their slots, begin alike."""
        if self._slots is None or not np.array_equal(slots, self._slots):
            self._slots, self._answer = slots, _are_many(self._ends[slots])
        return self._answer


def _are_many(ends: Array) -> bool:
    if len(ends) < LEAST_ROWS:
        return False
    _, counts = np.unique(ends[ends != _NOTHING], return_counts=True)
    return bool(counts[counts >= LEAST_ROWS].sum() * _ONE_OF >= len(ends))
