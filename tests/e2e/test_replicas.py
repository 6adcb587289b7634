"""Two replicas under `inflight serve`, and what a kill -9 of each process costs clients.

Measures who notices and when, checks bounds, and with `UPDATE_SNAPSHOTS=1` writes the table of
docs/OPERATIONS.md from this machine's figures.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.http import get, post, stream
from support.metrics import total
from support.processes import START_S, InflightProcess, exists, wait_until
from support.servers import MODEL_NAME, Start

PAGE = Path(__file__).parents[2] / "docs" / "OPERATIONS.md"
#: What is killed, in the table's order, with its row once it was measured.
ROWS: dict[str, str] = {}
ORDER = ("a worker", "a rank", "the gateway", "the supervisor")

HEAD = (
    "| kill -9 of | who notices | when | begun streams | other requests | whole again |\n"
    "|---|---|---|---|---|---|\n"
)

#: Requests that keep coming, of about 0.1 s each, and streams of about 3 s.
ASKING, STREAMS = 4, 8
SHORT = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 10, "ignore_eos": True}
#: Of both APIs in turn.
LONG: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 300, "ignore_eos": True}),
    ("/v2/models/ensemble/generate_stream", {"text_input": "Hi", "max_tokens": 300, "stream": True}),
)


class Clients:
    """Threads that ask without end, and streams that have begun; what became of each, and when."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        #: Of the requests: when each ended, and its status or `refused` or `aborted`.
        self.answers: list[tuple[float, str]] = []
        #: Of the streams: `finished`, `error frame` or `aborted`.
        self.streams: Counter[str] = Counter()
        path, body = LONG[0]
        #: What every stream says that nothing has disturbed.
        self._whole = post(address, path, body).json()["choices"][0]["text"]
        begun = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(ASKING)]
        self._readers = [
            threading.Thread(target=self._read, args=(begun, *LONG[place % 2]), daemon=True)
            for place in range(STREAMS)
        ]
        # First alone, so that each worker has half of them.
        for reader in self._readers:
            reader.start()
        for _ in range(STREAMS):
            assert begun.acquire(timeout=START_S)
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._stop.is_set():
            try:
                outcome = str(post(self._address, "/v1/completions", SHORT).status)
            except ConnectionRefusedError:
                outcome = "refused"
                # A client that is refused waits before it tries again.
                self._stop.wait(0.02)
            except (OSError, http.client.HTTPException):
                outcome = "aborted"
            self.answers.append((time.monotonic(), outcome))

    def _read(self, begun: threading.Semaphore, path: str, body: dict[str, Any]) -> None:
        said = ""
        try:
            with closing(stream(self._address, path, body)) as opened:
                for data in opened.events():
                    if data == "[DONE]":
                        break
                    event = json.loads(data)
                    if "error" in event:
                        self.streams["error frame"] += 1
                        return
                    if not said:
                        begun.release()
                    said += event["text_output"] if "text_output" in event else event["choices"][0]["text"]
        except (OSError, http.client.HTTPException):
            pass
        self.streams["finished" if said == self._whole else "aborted"] += 1

    def finish(self) -> None:
        """Ends the asking, and waits for the streams' ends."""
        self._stop.set()
        for thread in (*self._threads, *self._readers):
            thread.join(60)
        assert sum(self.streams.values()) == STREAMS

    def failures(self) -> Counter[str]:
        return Counter(outcome for _, outcome in self.answers if outcome != "200")

    def outage(self, since: float) -> float:
        """Seconds from `since` to the first success behind the last failure; 0 without a failure."""
        failed = [at for at, outcome in self.answers if outcome != "200"]
        if not failed:
            return 0.0
        return min(at for at, outcome in self.answers if outcome == "200" and at > failed[-1]) - since


@pytest.fixture
def serve(start: Start) -> InflightProcess:
    ports = ("--port=0", "--grpc-port=0", "--metrics-port=0")
    serving = start("serve", "--executor=simulated", "--replicas=2", *ports)
    serving.wait_until("all are ready", lambda: "Press Ctrl-C" in serving.log, START_S)
    gateway = address(serving)
    serving.wait_until("both are up", lambda: up(gateway) == 2)
    return serving


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    yield
    if os.environ.get("UPDATE_SNAPSHOTS") and len(ROWS) == len(ORDER):
        rows = HEAD + "".join(ROWS[name] for name in ORDER)
        page = PAGE.read_text(encoding="utf-8")
        made = re.sub(r"\| kill -9 of \|.*?\n(?=\n)", lambda _: rows, page, flags=re.DOTALL)
        PAGE.write_text(made, encoding="utf-8")


def address(serving: InflightProcess) -> str:
    return serving.address("http")


def up(gateway: str) -> float:
    return total(gateway, "inflight_gateway_worker_up")


def child(serving: InflightProcess, words: str) -> int:
    """The child that runs `inflight WORDS`; workers are started before gateways."""
    for pid in sorted(serving.descendants()):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if f"inflight {words} " in command:
            return pid
    raise AssertionError(f"no child runs `inflight {words}`")


def kill(pid: int) -> float:
    """When it was killed."""
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def since(killed: float) -> float:
    return time.monotonic() - killed


def shown(counts: Counter[str], of: int | None = None) -> str:
    text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "none fails"
    return text if of is None else f"{text} (of {of})"


def test_a_killed_worker_costs_nothing(serve: InflightProcess) -> None:
    gateway = address(serve)
    clients = Clients(gateway)
    killed = kill(child(serve, "worker"))
    serve.wait_until("the gateway notices", lambda: up(gateway) == 1)
    noticed = since(killed)
    serve.wait_until("the supervisor notices", lambda: "was ended by signal 9" in serve.log)
    serve.wait_until("it is back", lambda: up(gateway) == 2, START_S)
    back = since(killed)
    clients.finish()
    assert noticed < 2
    assert back < 30
    # Half of the streams were on it, and continued at the other.
    assert clients.streams == {"finished": STREAMS}
    assert clients.failures() == {}
    ROWS["a worker"] = (
        f"| a worker | gateway, supervisor | {noticed:.1f} s | {shown(clients.streams)} |"
        f" none fails: the other worker answers | {back:.1f} s |\n"
    )


def test_a_killed_rank_ends_its_worker_which_is_restarted(start: Start) -> None:
    if shutil.which("mpirun") is None or find_spec("mpi4py") is None:
        pytest.skip("Open MPI's `mpirun` or mpi4py is not installed")
    ports = ("--port=0", "--grpc-port=0", "--metrics-port=0")
    serving = start("serve", "--tp-size=2", *ports)
    serving.wait_until("all are ready", lambda: "Press Ctrl-C" in serving.log, START_S)
    gateway = address(serving)
    with closing(stream(gateway, *LONG[0])) as begun:
        events = begun.events()
        next(events)
        # Rank 0 is started first.
        rank = max(pid for pid in serving.descendants() if is_rank(pid))
        killed = kill(rank)
        serving.wait_until("the supervisor notices", lambda: "restarting it in 1 s" in serving.log)
        noticed = since(killed)
        assert post(gateway, "/v1/completions", SHORT).status == 503
        serving.wait_until("it is back", lambda: up(gateway) == 1, START_S)
        back = since(killed)
        # The stream has waited for it, and continues.
        *_, last, done = events
        assert (done, "error" in json.loads(last)) == ("[DONE]", False)
    assert post(gateway, "/v1/completions", SHORT).status == 200
    assert noticed < 5
    assert back < 60
    ROWS["a rank"] = (
        f"| a rank of the only worker (`--tp-size 2`) | mpirun, gateway; supervisor | {noticed:.1f} s |"
        f" wait, and continue | 503 with `Retry-After` meanwhile | {back:.1f} s |\n"
    )


def is_rank(pid: int) -> bool:
    return b"OMPI_COMM_WORLD_RANK=" in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_killed_gateway_is_back_on_its_port_and_the_workers_stay(serve: InflightProcess) -> None:
    gateway = address(serve)
    worker = child(serve, "worker")
    clients = Clients(gateway)
    killed = kill(child(serve, "gateway"))
    serve.wait_until("the supervisor notices", lambda: "the gateway was ended by signal 9" in serve.log)
    noticed = since(killed)

    def is_back() -> bool:
        try:
            return up(gateway) == 2
        except (OSError, http.client.HTTPException):
            return False

    serve.wait_until("it is back", is_back, START_S)
    back = since(killed)
    wait_until("clients are answered", lambda: bool(clients.answers) and clients.answers[-1][1] == "200")
    clients.finish()
    assert noticed < 2
    assert back < 30
    # Cut in the middle, so that no client takes it for whole.
    assert clients.streams == {"aborted": STREAMS}
    # The supervisor has the socket: whoever connects meanwhile waits.
    assert set(clients.failures()) <= {"aborted"}
    assert exists(worker), "a worker with its loaded model was lost as well"
    assert clients.outage(killed) < 30
    ROWS["the gateway"] = (
        f"| the gateway | clients; supervisor | {noticed:.1f} s | {shown(clients.streams)} |"
        f" those that it had: aborted; none for later ones, which wait | {back:.1f} s |\n"
    )


def test_a_killed_supervisor_lets_begun_streams_finish_and_leaves_nothing(serve: InflightProcess) -> None:
    gateway = address(serve)
    children = serve.descendants()
    assert len(children) >= 3
    clients = Clients(gateway)
    killed = kill(serve.pid)

    def is_heard() -> bool:
        try:
            return get(gateway, "/health/ready").status == 503
        except OSError:
            return True

    wait_until("the gateway hears it", is_heard)
    noticed = since(killed)
    wait_until("all are gone", lambda: not any(map(exists, children)), START_S)
    gone = since(killed)
    clients.finish()
    assert noticed < 2
    # The gateway's drain and the workers' run at the same time.
    assert gone < 35
    assert clients.streams == {"finished": STREAMS}
    assert set(clients.failures()) <= {"aborted", "refused", "503"}
    ROWS["the supervisor"] = (
        f"| the supervisor | all its children: a pipe from it ends | {noticed:.1f} s |"
        f" {shown(clients.streams)} | 503 or refused from then on |"
        f" never; all are gone after {gone:.1f} s |\n"
    )
