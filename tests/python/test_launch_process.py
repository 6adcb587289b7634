"""Children behind a launcher: who is asked to end, and what ends with the supervisor."""

from __future__ import annotations

import queue
import shutil
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from inflight.launch.events import Event, Exited, Line
from inflight.launch.process import GUARD, ChildProcess, find_descendants
from support.processes import exists, wait_until

MPIRUN = ("mpirun", "-n", "2", "--bind-to", "none", "--allow-run-as-root", "--oversubscribe")
#: Rank 0 drains for a while and then ends the other, which ignores signals, as workers do.
RANK = """
import os, signal, sys, time
from pathlib import Path
rank, done = os.environ["OMPI_COMM_WORLD_RANK"], Path(sys.argv[1])
asked = []
signal.signal(signal.SIGTERM, (lambda *_: asked.append(1)) if rank == "0" else signal.SIG_IGN)
# At once, so that the ranks' lines do not mix.
os.write(1, f"up {rank}\\n".encode())
while not asked and not done.exists():
    time.sleep(0.02)
if rank == "0":
    # Longer than mpirun would wait for it.
    time.sleep(2.5)
    done.touch()
    os.write(1, b"drained\\n")
"""


def started(*command: str) -> tuple[ChildProcess, queue.Queue[Event]]:
    events: queue.Queue[Event] = queue.Queue()
    guard = [sys.executable, "-m", GUARD, *command]
    return ChildProcess("worker", guard, {}, events.put), events


def read_until(events: queue.Queue[Event], *wanted: str) -> list[str]:
    lines: list[str] = []
    while not set(wanted) <= set(lines):
        event = events.get(timeout=30)
        assert isinstance(event, Line), (event, lines)
        lines.append(event.text)
    return lines


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI's `mpirun` is not installed")
def test_a_job_of_mpirun_gets_its_time_to_drain(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(RANK))
    child, events = started(*MPIRUN, sys.executable, str(script), str(tmp_path / "done"))
    try:
        read_until(events, "up 0", "up 1")
        child.terminate()
        read_until(events, "drained")
        assert events.get(timeout=30) == Exited("worker", 0)
    finally:
        child.kill()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI's `mpirun` is not installed")
def test_a_job_of_mpirun_that_is_killed_leaves_no_rank(tmp_path: Path) -> None:
    child, events = started(
        *MPIRUN, sys.executable, "-c", "import os, time; os.write(1, b'up\\n'); time.sleep(60)"
    )
    read_until(events, "up")
    ranks = find_descendants(child.pid)
    assert len(ranks) == 2
    child.kill()
    assert events.get(timeout=30) in (Line("worker", "up"), Exited("worker", -signal.SIGKILL))
    wait_until("the ranks are gone", lambda: not any(map(exists, ranks)))


def test_a_launcher_without_ranks_is_asked_itself() -> None:
    child, events = started("sh", "-c", "echo up; exec sleep 60")
    read_until(events, "up")
    child.terminate()
    assert events.get(timeout=30) == Exited("worker", -signal.SIGTERM)


def test_a_missing_launcher_is_named() -> None:
    _, events = started("mpirun-of-nobody")
    read_until(
        events, "`mpirun-of-nobody` cannot be started: No such file or directory; install it or correct PATH"
    )
    assert events.get(timeout=30) == Exited("worker", 2)
