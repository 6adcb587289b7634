"""The communicator on NumPy: arrays through MPI, which is imported where there are ranks.

Knows nothing of models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inflight.executors.reference.errors import OptionError
from inflight.executors.reference.model.array_types import Float32
from inflight.executors.reference.parallel.meeting import MpiMeeting
from inflight.executors.reference.parallel.team import Team


class MpiCommunicator:
    """NumPy arrays over MPI."""

    def __init__(self, world: Any, in_order: bool = False) -> None:
        """``in_order``: sums are taken in order of rank. MPI's own order depends on how much there is."""
        self._world = world
        self._in_order = in_order
        self.rank: int = world.rank
        self.size: int = world.size

    def all_reduce(self, array: Float32) -> Float32:
        from mpi4py import MPI

        if not self._in_order:
            self._world.Allreduce(MPI.IN_PLACE, array, MPI.SUM)
            return array
        gathered = np.empty((self.size, *array.shape), dtype=array.dtype)
        self._world.Allgather(np.ascontiguousarray(array), gathered)
        total: Float32 = gathered[0]
        for part in gathered[1:]:
            total += part
        return total

    def all_gather(self, part: Float32) -> Float32:
        gathered = np.empty((self.size, *part.shape), dtype=part.dtype)
        self._world.Allgather(part, gathered)
        beside: Float32 = gathered.transpose(1, 0, 2).reshape(len(part), -1)
        return beside


def mpi_communicator(team: Team, in_order: bool = False) -> MpiCommunicator:
    """What joins NumPy's arrays; ``in_order`` as there. Errors: `OptionError` where the ranks did not meet
    through MPI."""
    if not isinstance(team.meeting, MpiMeeting):
        raise OptionError(
            "NumPy talks to other ranks through MPI, and torchrun started these",
            "start them with `mpirun`, or set the option `backend` to `pytorch`",
        )
    return MpiCommunicator(team.meeting.world, in_order)
