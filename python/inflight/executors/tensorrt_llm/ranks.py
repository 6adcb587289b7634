"""Which rank of an MPI job this process is, from what the launchers set, and what starts further ones.

Imports no MPI.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
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


def check(
    world_size: int,
    orchestrator: bool,
    environment: Mapping[str, str] = os.environ,
    participants: Sequence[int] | None = None,
) -> int:
    """This process's rank; 0 outside of MPI.

    An orchestrator is rank 0. It starts the ranks of the engine itself, or, where `participants` are given,
    they are the ranks of this job that run it. Raises `UserMistake` where the ranks of the job cannot run an
    engine of `world_size` ranks.
    """
    size, rank = _first(_SIZE, environment) or 1, _first(_RANK, environment) or 0
    if not orchestrator:
        if world_size > 1 and size != world_size:
            raise UserMistake(
                f"the engine is split over `{world_size}` ranks, and this job has `{size}`",
                f"start it with `mpirun -n {world_size} inflight worker ...`, or with "
                "`communication_mode=orchestrator`",
            )
        return rank if world_size > 1 else 0
    if participants is None:
        if size > 1:
            raise UserMistake(
                f"an orchestrator starts the ranks of its engine itself, and this job has `{size}` ranks",
                "start one process, or pass `spawn_processes=false` and `participant_ids`",
            )
        return 0
    if len(participants) != world_size:
        raise UserMistake(
            f"the engine is split over `{world_size}` ranks, and `participant_ids` names "
            f"`{len(participants)}`",
            f"name `{world_size}` ranks",
        )
    if max(participants) >= size:
        raise UserMistake(
            f"`participant_ids` names the rank `{max(participants)}`, and this job has `{size}` ranks",
            f"start it with `mpirun -n {max(participants) + 1} inflight worker ...`",
        )
    return rank


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
