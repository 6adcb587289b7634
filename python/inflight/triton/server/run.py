"""Runs what a `ServerPlan` says until it ends or is stopped, and leaves nothing behind. Owns the order of an
end: rank 0 first, which drains, then the other ranks.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from inflight.launch.events import Event, Exited, Line, StopRequested
from inflight.launch.process import GUARD, RANK_VARIABLES, ChildProcess, find_descendants
from inflight.launch.run import answers_ok
from inflight.triton.server.plan import ServerPlan

NAME = "tritonserver"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: How often readiness and ranks are looked at.
LOOK_S = 0.25


def running() -> list[int]:
    """The tritonservers of this machine, by process id."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        # One may end meanwhile.
        with contextlib.suppress(OSError):
            if path.read_text().strip() == NAME:
                found.append(int(path.parent.name))
    return sorted(found)


def serve(plan: ServerPlan, report: Callable[[str], None], drain_s: float) -> int:
    """Starts the servers and watches them. The exit status: 0 after a stop that was asked for and did not
    need to kill, else that of tritonserver, or 1 where a signal ended it.
    """
    events: queue.Queue[Event] = queue.Queue()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        events.put(StopRequested(number))

    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    isolated = ["-P"] if sys.version_info >= (3, 11) else []
    command = [sys.executable, *isolated, "-m", GUARD, *plan.command]
    try:
        child = ChildProcess(NAME, command, plan.environment, events.put)
        return _Watch(child, events, plan, report, drain_s).run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Watch:
    def __init__(
        self,
        child: ChildProcess,
        events: queue.Queue[Event],
        plan: ServerPlan,
        report: Callable[[str], None],
        drain_s: float,
    ) -> None:
        self._child = child
        self._events = events
        self._plan = plan
        self._report = report
        self._drain_s = drain_s
        self._ready = False
        self._ranks: set[_Process] = set()
        self._leader: _Process | None = None
        self._asked = False
        self._killed = False
        self._deadline: float | None = None

    def run(self) -> int:
        next_look = 0.0
        while True:
            with contextlib.suppress(queue.Empty):
                match self._events.get(timeout=LOOK_S):
                    case Line(_, text):
                        self._report(text)
                    case Exited(_, code):
                        self._kill_ranks()
                        return self._end(code)
                    case StopRequested():
                        self._stop()
            # Not for every line of a verbose log.
            if time.monotonic() >= next_look:
                self._look()
                next_look = time.monotonic() + LOOK_S

    def _find(self) -> None:
        """What was started so far, and rank 0 where it is not all there is."""
        for pid in find_descendants(self._child.pid):
            found = _Process.find(pid)
            if found is not None:
                self._ranks.add(found)
        if self._has_leader and self._leader is None:
            self._leader = next(filter(self._is_leader, self._ranks), None)

    def _look(self) -> None:
        self._find()
        if not self._ready and self._deadline is None and answers_ok(self._plan.http, "/v2/health/ready"):
            self._ready = True
            ranks = f"{self._plan.ranks} rank{'s' * (self._plan.ranks > 1)}"
            self._report(f"ready: http://{self._plan.http}, {ranks}")
        if self._leader is not None and not self._leader.is_alive():
            # It has ended, well or not: the others have nobody to compute for.
            for one in self._ranks:
                if one.name == NAME:
                    one.send(signal.SIGTERM)
            self._deadline = self._deadline or time.monotonic() + self._drain_s
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._report(f"not ended after {self._drain_s:g} s: killed")
            self._killed = True
            self._deadline = time.monotonic() + self._drain_s
            self._child.kill()
            self._kill_ranks()

    @property
    def _has_leader(self) -> bool:
        return self._plan.ranks > 1 or self._plan.is_launched

    def _is_leader(self, one: _Process) -> bool:
        # A launcher hides the rank of what it starts, which is the only server then.
        return one.name == NAME if self._plan.is_launched else one.is_leader()

    def _stop(self) -> None:
        if self._asked:
            self._report("stopping at once")
            self._killed = True
            self._child.kill()
            self._kill_ranks()
            return
        self._find()
        self._asked = True
        self._deadline = time.monotonic() + self._drain_s
        self._report("stopping; a second signal stops at once")
        if self._leader is None:
            self._child.terminate()
        else:
            self._leader.send(signal.SIGTERM)

    def _end(self, code: int) -> int:
        if self._killed:
            return 1
        if self._asked:
            self._report("stopped")
            return 0
        self._report(f"tritonserver ended with the status {code}")
        return code if code > 0 else 1

    def _kill_ranks(self) -> None:
        """What is left: the processes of models outlive a server that was killed."""
        for one in self._ranks:
            one.send(signal.SIGKILL)


@dataclass(frozen=True)
class _Process:
    """A process, distinguished from a later one with the same number by when it started."""

    pid: int
    started: str
    name: str

    @classmethod
    def find(cls, pid: int) -> _Process | None:
        """The process that has this number now."""
        try:
            head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            return None
        fields = tail.split()
        # The state, and when it started in ticks since the machine did.
        return None if fields[0] == "Z" else cls(pid, fields[19], head.partition("(")[2])

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        now = _Process.find(self.pid)
        return now is not None and now.started == self.started

    def is_leader(self) -> bool:
        """Whether it is the tritonserver of rank 0."""
        if self.name != NAME:
            return False
        try:
            variables = Path(f"/proc/{self.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return any(name + b"0" in variables for name in RANK_VARIABLES)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if it is there still."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)
