"""A rank's place among the others, from the launch to the end.

Owns how rank 0 leads and the others follow, what ends them all, and the last line that each then writes.
Knows nothing of what is computed: a subject is any object whose methods all ranks call alike.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from inflight.executors.ranks import Job
from inflight.executors.reference.errors import OptionError
from inflight.executors.reference.interpreter import settle
from inflight.executors.reference.model.config import ModelConfig
from inflight.executors.reference.model.split import require_splittable

from . import meeting
from .channel import Address, Door, FollowerChannel, LeaderChannel
from .meeting import LOOPBACK, Meeting, MpiMeeting, StoreMeeting

#: The exit code of a worker whose executor failed.
EXIT_FAILED = 3

#: What a rank 0 that lost a rank gets to answer its clients; then the kernel ends it (SIGALRM).
_LAST_S = 4

#: How long the other ranks have to close once they are asked to stop.
_STOP_TIMEOUT_S = 10.0


class RanksLost(RuntimeError):
    """A rank is gone, and nothing more can be computed."""


@dataclass(frozen=True, slots=True)
class Team:
    """All ranks, connected; `leader` on rank 0, `follower` on the others."""

    job: Job
    meeting: Meeting
    leader: Leader | None
    follower: Follower | None


def assemble(job: Job, tensor_parallel_size: int | None, config: ModelConfig) -> Team | None:
    """Connects the ranks of the job that a model is to be split over; None where one rank holds it whole. All
    ranks call it. Errors: `OptionError`, `UnsupportedModelError`; `TimeoutError` where a rank does not come.
    """
    ranks = tensor_parallel_size or job.size
    if ranks == 1:
        return None
    if ranks != job.size:
        raise OptionError(
            f"the model must be split over `{ranks}` ranks, and this job has `{job.size}`",
            f"start it with `mpirun -n {ranks} inflight worker ...`",
        )
    require_splittable(config, ranks)
    return _join(job, StoreMeeting(job) if job.by_torchrun else MpiMeeting(job))


def _join(job: Job, met: Meeting) -> Team:
    host = met.leader_host()
    if job.rank == 0:
        door = Door(host if host == LOOPBACK else "")
        met.exchange(door.address.to_json())
        return Team(job, met, Leader(job, door.admit(job.size), isinstance(met, MpiMeeting)), None)
    address = Address.from_json(met.exchange(None)[0])
    channel = FollowerChannel(host, address, job.rank)
    return Team(job, met, None, Follower(job, channel, isinstance(met, MpiMeeting)))


class Leader:
    """Rank 0: its calls go to all, and the first rank that is gone ends it."""

    def __init__(self, job: Job, channel: LeaderChannel, by_mpi: bool) -> None:
        self._job = job
        self._channel = channel
        self._by_mpi = by_mpi
        self._lost = threading.Event()
        self._reason = ""
        self._on_lost: Callable[[BaseException], None] = lambda _: None
        channel.watch(self._gone)

    def call(self, name: str, *arguments: Any) -> None:
        """Has the other ranks call the method ``name`` of their subject. Errors: `RanksLost`."""
        try:
            self._channel.send((name, arguments))
        except OSError as error:
            raise self.explain(error) from error

    def on_lost(self, tell: Callable[[BaseException], None]) -> None:
        """Sets what is called, from another thread, when a rank is gone; at once if one is already."""
        self._on_lost = tell
        if self._lost.is_set():
            tell(RanksLost(self._reason))

    def explain(self, error: BaseException) -> BaseException:
        """Why a computation failed: because a rank is gone, if one is, else ``error`` itself."""
        if self._lost.wait(1.0):
            return RanksLost(self._reason)
        self.abandon(f"rank 0 failed: {_describe(error)}")
        return error

    def dismiss(self) -> None:
        """Ends the other ranks in good order."""
        if self._lost.is_set():
            return
        if self._channel.close(None, _STOP_TIMEOUT_S) and self._by_mpi:
            meeting.finalize_at_exit()

    def abandon(self, reason: str) -> None:
        """Ends the other ranks, and this process with an exit code of 3 as soon as it wants to end."""
        self._reason = self._reason or reason
        self._channel.drop()
        atexit.register(_exit, f"{self._reason}; all {self._job.size} ranks end")

    def _gone(self, rank: int, words: str | None) -> None:
        # Whatever hangs from here on, the process does not outlive it.
        signal.alarm(_LAST_S)
        if words is None:
            reason = f"rank {rank} of {self._job.size} is gone: it was killed or it crashed"
        else:
            reason = f"rank {rank} of {self._job.size} failed: {words}"
        self.abandon(reason)
        self._lost.set()
        self._on_lost(RanksLost(reason))


class Follower:
    """A rank above 0: it makes the calls that rank 0 makes, and ends when rank 0 does."""

    def __init__(self, job: Job, channel: FollowerChannel, by_mpi: bool) -> None:
        self._job = job
        self._channel = channel
        self._by_mpi = by_mpi
        # Rank 0 drains and then says so; a signal to the whole job must not end the others before.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        channel.watch(self._leader_gone)

    def follow(self, subject: Any) -> NoReturn:
        """Calls ``subject`` as rank 0 says, until it says stop: then raises `SystemExit`. Any other end of
        rank 0, and any exception, ends the process at once with the exit code 3."""
        settle()
        try:
            while (message := self._channel.receive()) is not None:
                name, arguments = message
                getattr(subject, name)(*arguments)
        except (EOFError, ConnectionError):
            self._leader_gone()
        except BaseException as error:
            traceback.print_exc()
            self._channel.fail(_describe(error))
            _exit(f"rank {self._job.rank} of {self._job.size} failed: {_describe(error)}")
        if self._by_mpi:
            meeting.finalize_at_exit()
        self._channel.close()
        raise SystemExit(0)

    def _leader_gone(self) -> NoReturn:
        _exit(f"rank 0 is gone; rank {self._job.rank} of {self._job.size} ends too")


def _describe(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _exit(line: str) -> NoReturn:
    """Writes the last line and ends the process without waiting for libraries, which wait for other ranks."""
    sys.stdout.flush()
    print(f"inflight worker: {line}", file=sys.stderr, flush=True)
    os._exit(EXIT_FAILED)
