"""Which rank of an MPI job this process is, from what the launchers set. Imports no MPI."""

from __future__ import annotations

import os
from collections.abc import Mapping

from inflight.errors import UserMistake

#: Open MPI, MPICH and Intel MPI, Slurm under PMIx or PMI2.
_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def _first(names: tuple[str, ...], environment: Mapping[str, str]) -> int | None:
    for name in names:
        value = environment.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def check(world_size: int, orchestrator: bool, environment: Mapping[str, str] = os.environ) -> int:
    """This process's rank; 0 outside of MPI.

    Raises `UserMistake` where the number of ranks cannot run an engine of `world_size` ranks. As
    orchestrator, one process starts the others itself.
    """
    if orchestrator:
        return _first(_RANK, environment) or 0
    size = _first(_SIZE, environment) or 1
    if world_size > 1 and size != world_size:
        raise UserMistake(
            f"the engine is split over `{world_size}` ranks, and this job has `{size}`",
            f"start it with `mpirun -n {world_size} inflight worker ...`, or with "
            "`communication_mode=orchestrator`",
        )
    return (_first(_RANK, environment) or 0) if world_size > 1 else 0
