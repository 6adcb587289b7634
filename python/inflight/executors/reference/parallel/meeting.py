"""How the ranks of a job first meet: through MPI, or through the store that torchrun runs.

Owns the import of mpi4py, its errors in one sentence each, and the end of MPI. Used while ranks start.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
from typing import Any, Protocol

from inflight.executors.ranks import Job
from inflight.executors.reference.errors import OptionError

#: Where ranks of one machine find each other.
LOOPBACK = "127.0.0.1"


class Meeting(Protocol):
    """What ranks exchange before they compute: values of JSON."""

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value, in order of rank."""

    def leader_host(self) -> str:
        """Where this rank finds rank 0."""


class MpiMeeting:
    """The ranks that `mpirun` or `srun` started. Errors: `OptionError`."""

    def __init__(self, job: Job) -> None:
        self.world = _import_mpi(job).COMM_WORLD
        if self.world.size != job.size:
            raise OptionError(
                f"the launcher started `{job.size}` ranks, and mpi4py finds `{self.world.size}`: it has"
                " loaded another MPI than the launcher's",
                "set `MPI4PY_MPIABI=mpich` or `openmpi` to name the launcher's; if this is meant to be a"
                " separate worker, pass the option `tensor_parallel_size=1`",
            )

    def exchange(self, value: Any) -> list[Any]:
        gathered: list[Any] = self.world.allgather(value)
        return gathered

    def leader_host(self) -> str:
        return _leader_host(self)


class StoreMeeting:
    """The ranks that torchrun started: they meet in its `torch.distributed.Store`.

    The store asks for no secret, so that nothing from it is unpickled.
    """

    def __init__(self, job: Job) -> None:
        from torch import distributed

        self.store, _, _ = next(iter(distributed.rendezvous("env://")))
        self._job = job
        self._exchanged = 0

    def exchange(self, value: Any) -> list[Any]:
        name = f"inflight/{self._exchanged}"
        self._exchanged += 1
        self.store.set(f"{name}/{self._job.rank}", json.dumps(value))
        return [json.loads(self.store.get(f"{name}/{rank}")) for rank in range(self._job.size)]

    def leader_host(self) -> str:
        # Not rank 0's own name: other pods of Kubernetes cannot resolve that.
        return _leader_host(self, os.environ.get("MASTER_ADDR"))


def _leader_host(meeting: Meeting, known: str | None = None) -> str:
    """On one machine the loopback address; on several where rank 0 is ``known`` to be, or its host's name."""
    hosts = meeting.exchange(socket.gethostname())
    return LOOPBACK if len(set(hosts)) == 1 else known or str(hosts[0])


def _import_mpi(job: Job) -> Any:
    remedy = (
        "install it with `pip install 'inflight-llm[mpi]'`, and an MPI library (Debian: `openmpi-bin`); if"
        " this is meant to be a separate worker, pass the option `tensor_parallel_size=1`"
    )
    try:
        import mpi4py
    except ImportError as error:
        raise OptionError(
            f"a job of `{job.size}` ranks needs mpi4py, which is not installed", remedy
        ) from error
    # Its own would wait for ranks that are gone, whatever this one ends with: see `finalize_at_exit`.
    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise OptionError(f"mpi4py cannot load an MPI library: {first}", remedy) from error
    return MPI


def finalize_at_exit() -> None:
    """Ends MPI when the process ends, from its main thread; for ranks that end together, without an error."""
    from mpi4py import MPI

    atexit.register(MPI.Finalize)
