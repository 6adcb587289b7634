"""One child process: started by exec, watched by two threads that turn its life into events.

Owns pipes, sessions and the parent's death. Knows nothing of plans, order or readiness.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from inflight.launch.events import Event, Exited, Line

#: Holds the supervisor's process id in a child's environment; who finds it has a supervisor.
PARENT_VARIABLE = "INFLIGHT_PARENT_PID"
#: Descriptors of listening sockets that a gateway takes; see `listeners.rs` of the gateway.
LISTENERS_VARIABLE = "INFLIGHT_LISTENERS"
#: A log line longer than this is cut into several.
LONGEST_LINE = 64 * 1024
#: After a child has ended, its pipe may still be held open by a process that it left behind.
LAST_LINES_S = 1.0
PR_SET_PDEATHSIG = 1
#: Longer than anything drains by default. Nobody is left who knows what was asked for.
ORPHAN_LIFE_S = 120.0
#: The module that a launcher such as mpirun is started by.
GUARD = "inflight.launch.guard"
#: What Open MPI, PMIx and MPICH set for a process with its rank.
RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK=", b"PMIX_RANK=", b"PMI_RANK=")


def die_with_parent() -> None:
    """Asks Linux for SIGTERM when the supervisor dies, however it dies; ends now if it already has.

    For programs that only get started here, such as mpirun. Linux sends the signal again for each thread of
    the supervisor that ends, so a program for which a second one means haste needs `end_with_parent`.

    Called by the child itself, first of all: nothing runs between fork and exec in the parent.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if str(os.getppid()) != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def end_with_parent() -> None:
    """Sends this process one SIGTERM when the supervisor dies, however it dies, so that it drains; and kills
    it if it is still there long after.

    Its standard input is a pipe that nobody writes to and whose other end only the supervisor has: it ends
    with it. Called by the child itself, first of all.
    """
    os.environ.pop(PARENT_VARIABLE, None)

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_LIFE_S)
        # Leader of a new session; whatever it has started goes with it.
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def command_line(arguments: Sequence[str]) -> list[str]:
    """`inflight ARGUMENTS` as this interpreter runs it; the working directory hides no module."""
    isolated = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *isolated, "-m", "inflight", *arguments]


def command(launcher: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The same behind a launcher such as mpirun, which ends with the supervisor as an `inflight` would."""
    if not launcher:
        return command_line(arguments)
    isolated = ["-P"] if sys.version_info >= (3, 11) else []
    guard = [sys.executable, *isolated, "-m", GUARD]
    return [*guard, *launcher, *command_line(arguments)]


def find_descendants(ancestor: int) -> list[int]:
    """Processes below `ancestor` on this machine, parents before their children."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # One may end meanwhile.
        with contextlib.suppress(OSError):
            # Behind the name, which may hold anything: the state, the parent.
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found: list[int] = []
    todo = [ancestor]
    while todo:
        below = children.get(todo.pop(0), [])
        found += below
        todo += below
    return found


def find_leader(launcher: int) -> int | None:
    """The process of rank 0 below `launcher` on this machine, where there is one."""
    for pid in find_descendants(launcher):
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if any(name + b"0" in variables for name in RANK_VARIABLES):
                return pid
    return None


class ChildProcess:
    """A running child; implements `inflight.launch.child.Process`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        put: Callable[[Event], None],
        listeners: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._put = put
        self._is_launched = GUARD in command
        self._process = subprocess.Popen(
            command,
            # See `end_with_parent`; mpirun would read it.
            stdin=subprocess.DEVNULL if self._is_launched else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A separate session: the terminal's Ctrl-C reaches the supervisor only, which stops
            # the gateway before the worker.
            start_new_session=True,
            pass_fds=listeners,
            env={
                **os.environ,
                **environment,
                PARENT_VARIABLE: str(os.getpid()),
                "PYTHONUNBUFFERED": "1",
                **({LISTENERS_VARIABLE: ",".join(map(str, listeners))} if listeners else {}),
            },
        )
        assert self._process.stdout is not None
        reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name=f"{name}-log", daemon=True
        )
        reader.start()
        threading.Thread(target=self._wait, args=(reader,), name=f"{name}-exit", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def terminate(self) -> None:
        """Asks it to end (SIGTERM). Behind a launcher, rank 0, which drains and then ends the others: mpirun
        would give them a second.
        """
        leader = find_leader(self._process.pid) if self._is_launched else None
        if leader is None:
            self._process.terminate()
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(leader, signal.SIGTERM)

    def finish(self) -> None:
        """Asks a gateway to stop accepting and to end with its last request (SIGUSR1)."""
        self._process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        """Ends it and what it started (SIGKILL to its session's group, and to a launcher's ranks)."""
        ranks = find_descendants(self._process.pid) if self._is_launched else []
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pid in ranks:
            # mpirun gives each rank a separate group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in iter(lambda: pipe.readline(LONGEST_LINE), b""):
                self._put(Line(self.name, line.decode("utf-8", "replace").rstrip("\r\n")))

    def _wait(self, reader: threading.Thread) -> None:
        code = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        # The last lines say why it ended; they come before the news that it did.
        reader.join(LAST_LINES_S)
        self._put(Exited(self.name, code))
