"""Which rank of an MPI job this process is, from what the launchers set, and what starts further ones.

Imports no MPI.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from inflight.errors import UserMistake

#: Open MPI, MPICH and Intel MPI, Slurm under PMIx or PMI2.
_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


#: Below the package: the program that an orchestrator starts as each rank.
_WORKER = Path("bin/executorWorker")


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


def require_leader(environment: Mapping[str, str] = os.environ) -> None:
    """Refuses to be one of several ranks that would each serve: the PyTorch runtime starts its own.

    `trtllm-llmapi-launch` takes the launcher's variables away from the one process that serves.
    """
    rank = _first(_RANK, environment) or 0
    if rank > 0:
        raise UserMistake(
            f"this is rank `{rank}` of an MPI job, and the PyTorch runtime starts its ranks itself",
            "start one `inflight worker`; over several machines, `mpirun -n N trtllm-llmapi-launch inflight "
            "worker ...`",
        )


def find_worker(package: Iterable[str]) -> str:
    """The program of an orchestrator's ranks in the installed package, whose directories are given."""
    for directory in package:
        path = Path(directory) / _WORKER
        if path.is_file():
            return str(path)
    raise UserMistake(
        f"the installed TensorRT-LLM has no `{_WORKER}`, which an orchestrator starts its ranks with",
        "say where it is: `executor_worker_path=...`",
    )
