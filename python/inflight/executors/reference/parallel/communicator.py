"""Sums and gathers over the ranks: all that a split model asks of the others while it computes.

Owns the seam and its MPI implementation; PyTorch's is `pytorch.communicator`. Knows nothing of models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from inflight.executors.reference.arrays import Float32

ArrayT = TypeVar("ArrayT")


class Communicator(Protocol[ArrayT]):
    """The collective operations of one model; all ranks call them in the same order."""

    rank: int
    size: int

    def all_reduce(self, array: ArrayT) -> ArrayT:
        """The sum of all ranks' arrays, written over ``array``."""

    def all_gather(self, part: ArrayT) -> ArrayT:
        """All ranks' ``part [rows, columns]`` beside each other: ``[rows, ranks x columns]``."""


class Alone(Generic[ArrayT]):
    """A model that one rank holds whole."""

    rank = 0
    size = 1

    def all_reduce(self, array: ArrayT) -> ArrayT:
        return array

    def all_gather(self, part: ArrayT) -> ArrayT:
        return part


class MpiCommunicator:
    """NumPy arrays over MPI."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.rank: int = world.rank
        self.size: int = world.size

    def all_reduce(self, array: Float32) -> Float32:
        from mpi4py import MPI

        self._world.Allreduce(MPI.IN_PLACE, array, MPI.SUM)
        return array

    def all_gather(self, part: Float32) -> Float32:
        import numpy as np

        gathered = np.empty((self.size, *part.shape), dtype=part.dtype)
        self._world.Allgather(part, gathered)
        beside: Float32 = gathered.transpose(1, 0, 2).reshape(len(part), -1)
        return beside
