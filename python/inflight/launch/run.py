"""Gives the supervisor real processes, the real clock, HTTP probes and this process's signals."""

from __future__ import annotations

import http.client
import queue
import signal
import time
from collections.abc import Sequence
from types import FrameType

from inflight.launch.plan import LaunchPlan, ProcessSpec
from inflight.launch.process import ChildProcess, command
from inflight.launch.supervisor import Child, Event, Line, Report, StopRequested, Supervisor

#: A probe that hangs must not keep the supervisor from hearing its children for long.
PROBE_TIMEOUT_S = 1.0
#: Log lines that may wait for a terminal that does not keep up; more are dropped, because neither
#: memory nor the servers' own writes may depend on it.
MOST_WAITING_LINES = 10_000
#: A signal that comes just before a wait begins does not end it; its handler runs after the wait.
LONGEST_WAIT_S = 0.5
#: Ctrl-C, a polite kill, and a terminal that was closed.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EventQueue:
    """Events from threads and signal handlers to the one loop."""

    def __init__(self, most_waiting: int = MOST_WAITING_LINES) -> None:
        # SimpleQueue: its put may interrupt its get in the same thread, as signal handlers do.
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._most_waiting = most_waiting
        self._dropped: dict[str, int] = {}

    def put(self, event: Event) -> None:
        """Never blocks. A line that finds too many waiting is dropped and counted."""
        if isinstance(event, Line):
            if self._events.qsize() >= self._most_waiting:
                # One thread per name writes here.
                self._dropped[event.name] = self._dropped.get(event.name, 0) + 1
                return
            dropped = self._dropped.pop(event.name, 0)
            if dropped:
                self._events.put(Line(event.name, f"({dropped} lines dropped: they came too fast)"))
        self._events.put(event)

    def next(self, timeout_s: float) -> Event | None:
        """The next event, or `None` when that many seconds have passed, or `LONGEST_WAIT_S`."""
        try:
            return self._events.get(timeout=min(timeout_s, LONGEST_WAIT_S))
        except queue.Empty:
            return None


def supervise(plan: LaunchPlan, report: Report) -> int:
    """Runs `plan` until a signal or a child's end; returns the exit code. Main thread only."""
    events = EventQueue()

    def start(spec: ProcessSpec, arguments: Sequence[str]) -> Child:
        return ChildProcess(spec.name, command(spec.launcher, arguments), spec.environment, events.put)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        events.put(StopRequested(number))

    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    try:
        return Supervisor(
            plan,
            start=start,
            next_event=events.next,
            clock=time.monotonic,
            probe=answers_ok,
            report=report,
        ).run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def answers_ok(address: str, path: str) -> bool:
    """Whether a GET of `path` at `address` (``host:port``) answers 200."""
    connection = http.client.HTTPConnection(address, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
