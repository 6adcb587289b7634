"""Gives the supervisor real processes, the real clock, HTTP probes and this process's signals."""

from __future__ import annotations

import http.client
import queue
import signal
import time
from collections.abc import Sequence
from types import FrameType

from inflight.launch.plan import Plan, ProcessSpec
from inflight.launch.process import ChildProcess
from inflight.launch.supervisor import Child, Event, Report, StopRequested, Supervisor

#: A probe that hangs must not keep the supervisor from hearing its children for long.
PROBE_TIMEOUT_S = 1.0
#: Ctrl-C, a polite kill, and a terminal that was closed.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def supervise(plan: Plan, report: Report) -> int:
    """Runs `plan` until a signal or a child's end; returns the exit code. Main thread only."""
    # SimpleQueue: its put may interrupt its get in the same thread, as signal handlers do.
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def start(spec: ProcessSpec, arguments: Sequence[str]) -> Child:
        return ChildProcess(spec.name, arguments, spec.environment, events.put)

    def next_event(timeout_s: float) -> Event | None:
        try:
            return events.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def on_signal(number: int, _frame: FrameType | None) -> None:
        events.put(StopRequested(number))

    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    try:
        return Supervisor(
            plan,
            start=start,
            next_event=next_event,
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
