"""Whether the ranks of this job can run an engine, and what starts further ones. Imports no MPI."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from inflight.errors import UserMistake
from inflight.executors import ranks

#: Below the package: the program that an orchestrator starts as each rank.
_WORKER = Path("bin/executorWorker")


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
    job = ranks.find(environment)
    size, rank = job.size, job.rank
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
    rank = ranks.find(environment).rank
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
