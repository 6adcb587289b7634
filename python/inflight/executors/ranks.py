"""Which rank of a job this process is, from what the launchers set. Imports no MPI."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

#: Open MPI, MPICH and Intel MPI, Slurm under PMIx or PMI2.
_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_LOCAL = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
#: torchrun's own, whose names for the rest mean something else elsewhere.
_TORCHRUN = "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True, slots=True)
class Job:
    """This process's rank among those that its launcher started; rank 0 of 1 without a launcher."""

    rank: int = 0
    size: int = 1
    #: Among the ranks of this machine: which of its GPUs is this rank's.
    local_rank: int = 0
    #: Whether torchrun started it, whose ranks meet at ``MASTER_ADDR``; otherwise MPI did.
    by_torchrun: bool = False


def find(environment: Mapping[str, str] = os.environ) -> Job:
    """The job that the environment describes."""
    if _TORCHRUN in environment:
        rank, size, local = (_first((name,), environment) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    else:
        rank, size, local = (_first(names, environment) for names in (_RANK, _SIZE, _LOCAL))
    rank = rank or 0
    return Job(rank, size or 1, rank if local is None else local, _TORCHRUN in environment)


def _first(names: tuple[str, ...], environment: Mapping[str, str]) -> int | None:
    for name in names:
        value = environment.get(name, "")
        if value.isdecimal():
            return int(value)
    return None
