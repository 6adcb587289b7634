"""Sums and gathers over the ranks: all that a split model asks of the others while it computes.

Owns the seam alone; `numpy.communicator` and `pytorch.communicator` implement it.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

ArrayT = TypeVar("ArrayT")


class Communicator(Protocol[ArrayT]):
    """The collective operations of one model; all ranks call them in the same order."""

    rank: int
    size: int

    def all_reduce(self, array: ArrayT) -> ArrayT:
        """The sum of all ranks' arrays, written over ``array``."""

    def all_gather(self, part: ArrayT) -> ArrayT:
        """All ranks' ``part [rows, columns]`` side by side: ``[rows, ranks x columns]``."""


class Alone(Generic[ArrayT]):
    """A model that one rank holds whole."""

    rank = 0
    size = 1

    def all_reduce(self, array: ArrayT) -> ArrayT:
        return array

    def all_gather(self, part: ArrayT) -> ArrayT:
        return part
