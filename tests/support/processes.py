"""Real `inflight` processes: started, read, stopped, and shown in full when a test fails.

Owns output and bounded waiting; every wait polls for what is meant and none sleeps a fixed time. Knows
addresses only as processes announce them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

#: The command that a user types, of the environment that runs the tests.
INFLIGHT = Path(sys.executable).parent / "inflight"
#: Reading the model and proving readiness, on a busy machine.
START_S = 60.0
#: Everything else that a test waits for.
PATIENCE_S = 30.0
POLL_S = 0.02

ADDRESS = {
    "http": re.compile(r"listening on https?://(\S+)"),
    "grpc": re.compile(r"listening on grpcs?://(\S+)"),
    "metrics": re.compile(r"metrics on http://(\S+?)/metrics"),
    "picker": re.compile(r"picking endpoints on (\S+)"),
    "kv_events": re.compile(r"KV cache events on tcp://(\S+)"),
    "kv_events_replay": re.compile(r"missed events on tcp://(\S+)"),
}


class WaitedTooLong(AssertionError):
    """What was waited for did not come."""


def wait_until(what: str, is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Polls until `is_so()`; fails with `what` after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > deadline:
            raise WaitedTooLong(f"waited {patience_s:g} s until {what}")
        time.sleep(POLL_S)


class InflightProcess:
    """`inflight ARGUMENTS`, with all that it writes kept; a `launcher` is the command that starts it."""

    def __init__(
        self, *arguments: str, environment: dict[str, str] | None = None, launcher: Sequence[str] = ()
    ) -> None:
        self.arguments = arguments
        self._command = " ".join([*launcher, "inflight", *arguments])
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            [*launcher, str(INFLIGHT), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A group of its own, so that a test's Ctrl-C reaches nothing else.
            start_new_session=True,
            env={**os.environ, "NO_COLOR": "1", **(environment or {})},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for line in pipe:
                self._lines.append(line.decode("utf-8", "replace").rstrip("\n"))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """The command line, everything written so far, and the exit status once there is one."""
        code = self._process.poll()
        end = [] if code is None else [f"[exit status {code}]"]
        return "\n".join([f"$ {self._command}", *self._lines, *end])

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def address(self, scheme: str) -> str:
        """`host:port` of `http`, `grpc` or `metrics`, once the process has announced it."""
        pattern = ADDRESS[scheme]

        def found() -> str | None:
            matches = (pattern.search(line) for line in list(self._lines))
            return next((match[1] for match in matches if match), None)

        self.wait_until(f"it announces its {scheme} address", lambda: found() is not None, START_S)
        address = found()
        assert address is not None
        return address

    def wait_until(self, what: str, is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """As `wait_until`, but ends at once, with the log, when the process does."""

        def so_or_dead() -> bool:
            if is_so():
                return True
            if not self.is_running:
                self._reader.join(PATIENCE_S)
                if is_so():
                    return True
                raise AssertionError(f"ended with {self._process.returncode} before {what}\n{self.log}")
            return False

        try:
            wait_until(what, so_or_dead, patience_s)
        except WaitedTooLong as error:
            raise WaitedTooLong(f"{error}\n{self.log}") from None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """The exit status."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise WaitedTooLong(f"waited {patience_s:g} s for the end of\n{self.log}") from None
        self._reader.join(PATIENCE_S)
        return code

    def stop(self) -> int:
        """Asks it to end and waits until it has."""
        if self.is_running:
            self.send(signal.SIGTERM)
        try:
            return self.wait()
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends it without asking, as a machine that fails would; returns once it is gone."""
        if self.is_running:
            self._process.kill()
        self._process.wait(PATIENCE_S)

    def descendants(self) -> list[int]:
        """Processes below this one."""
        parents = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            fields = _after_name(path)
            if fields is not None:
                parents[int(path.parent.name)] = int(fields[1])
        found: list[int] = []
        todo = [self.pid]
        while todo:
            ancestor = todo.pop()
            children = [pid for pid, parent in parents.items() if parent == ancestor]
            found += children
            todo += children
        return found


def _after_name(stat: Path) -> list[str] | None:
    """The fields of `/proc/PID/stat` behind the name, which may hold anything: state, parent, ..."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None


def exists(pid: int) -> bool:
    """Whether a process with this id is there, zombies not counted."""
    fields = _after_name(Path(f"/proc/{pid}/stat"))
    return fields is not None and fields[0] != "Z"
