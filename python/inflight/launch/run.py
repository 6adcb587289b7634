"""Provides the supervisor with real processes, the real clock, HTTP probes and this process's signals."""

from __future__ import annotations

import http.client
import json
import os
import queue
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from inflight.errors import UserMistake
from inflight.launch.child import Process
from inflight.launch.control import ControlSocket
from inflight.launch.events import Event, Line, ReloadRequested, Report, StopRequested
from inflight.launch.plan import LaunchPlan, ProcessSpec
from inflight.launch.ports import Listeners
from inflight.launch.process import ChildProcess, command
from inflight.launch.supervisor import Supervisor

#: A probe that hangs must not keep the supervisor from hearing its children for long.
PROBE_TIMEOUT_S = 1.0
#: Log lines that may wait for a terminal that does not keep up; more are dropped, because neither
#: memory nor the servers' own writes may depend on it.
MOST_WAITING_LINES = 10_000
#: An answer of a gateway about its workers; more is a mistake.
LARGEST_ANSWER = 1 << 20
#: A signal that comes just before a wait begins does not end it; its handler runs after the wait.
LONGEST_WAIT_S = 0.5
#: What starts the ranks of a worker -> what to install for it.
PACKAGES = {
    "mpirun": "Open MPI: `apt-get install openmpi-bin`",
    "mpiexec.hydra": "MPICH: `apt-get install mpich`",
}
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


def require_launchers(plan: LaunchPlan) -> None:
    """Raises `UserMistake` where this machine lacks a program that starts the ranks of a worker."""
    for spec in plan.processes:
        if spec.launcher and shutil.which(spec.launcher[0]) is None:
            program = spec.launcher[0]
            raise UserMistake(
                f"`{spec.name}` has several ranks, and `{program}`, which starts them, is not installed",
                f"install {PACKAGES[program]}" if program in PACKAGES else None,
            )


def supervise(
    plan: LaunchPlan,
    report: Report,
    *,
    control: Path | None = None,
    again: Callable[[], LaunchPlan] | None = None,
    api_key: Callable[[], str | None] | None = None,
) -> int:
    """Runs `plan` until a signal or a child's end; returns the exit code. Main thread only.

    With `control` and `again` it can be asked there to replace its processes by those of the plan that
    `again` returns. `api_key` returns one that the gateways accept now, where they ask for keys.
    """
    events = EventQueue()
    listeners = Listeners()

    def reload(tell: Callable[[str], None], done: Callable[[str], None]) -> None:
        assert again is not None
        try:
            wanted = again()
            require_launchers(wanted)
            for spec in wanted.processes:
                listeners.check(spec)
            events.put(ReloadRequested(wanted, tell, done))
        except (UserMistake, OSError) as error:
            done(f"{error.what}; {error.remedy}" if isinstance(error, UserMistake) else str(error))

    def publish(addresses: Sequence[str]) -> None:
        if plan.worker_file is not None:
            write_workers(Path(plan.worker_file), addresses)

    def start(spec: ProcessSpec, arguments: Sequence[str]) -> Process:
        return ChildProcess(
            spec.name,
            command(spec.launcher, arguments),
            spec.environment,
            events.put,
            listeners=listeners.of(spec),
        )

    def look(address: str) -> dict[str, bool] | None:
        key = None if api_key is None else api_key()
        # Without one, a gateway that asks for keys would show no worker, as if it had none.
        return None if api_key is not None and key is None else workers_of(address, key)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        events.put(StopRequested(number))

    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    try:
        with ExitStack() as stack:
            stack.callback(listeners.keep, ())
            if control is not None and again is not None:
                stack.enter_context(ControlSocket(control, reload))
            return Supervisor(
                plan,
                start=start,
                next_event=events.next,
                clock=time.monotonic,
                probe=answers_ok,
                report=report,
                publish=publish,
                look=look,
                keep_listening=listeners.keep,
            ).run()
    finally:
        if plan.worker_file is not None:
            Path(plan.worker_file).unlink(missing_ok=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def connection_to(address: str) -> http.client.HTTPConnection:
    """A connection to a child's `address`: ``host:port``, or ``https://host:port``. Its certificate is not
    checked: it need not name this machine, and the child is our own.
    """
    scheme, _, bare = address.rpartition("://")
    if scheme != "https":
        return http.client.HTTPConnection(bare, timeout=PROBE_TIMEOUT_S)
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(bare, timeout=PROBE_TIMEOUT_S, context=context)


def answers_ok(address: str, path: str) -> bool:
    """Whether a GET of `path` at `address` answers 200."""
    connection = connection_to(address)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def write_workers(path: Path, addresses: Sequence[str]) -> None:
    """Writes the file that gateways follow; nobody reads a half of it. The comment says that it means what it
    says, also where it lists none: gateways doubt a file without any text.
    """
    draft = path.with_suffix(".draft")
    lines = ["# Written by `inflight launch`.", *addresses]
    draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.replace(draft, path)


def workers_of(address: str, api_key: str | None) -> dict[str, bool] | None:
    """The workers that the gateway at `address` has, and whether each is ready; `None` without an answer."""
    connection = connection_to(address)
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    try:
        connection.request("GET", "/health/ready", headers=headers)
        response = connection.getresponse()
        if response.status not in (http.client.OK, http.client.SERVICE_UNAVAILABLE):
            return None
        health = json.loads(response.read(LARGEST_ANSWER))
        return {worker["address"]: worker["ready"] for worker in health.get("workers", [])}
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
