"""`inflight serve` with real children: readiness, both ways of ending, and nothing left behind."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inflight.launch.events import Line, StopRequested
from inflight.launch.process import command_line
from inflight.launch.run import EventQueue


class Serve:
    """A running `inflight serve` on free ports."""

    def __init__(self, *arguments: str) -> None:
        ports = ("--port=0", "--grpc-port=0", "--metrics-port=0")
        self.process = subprocess.Popen(
            command_line(["serve", *ports, *arguments]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "INFLIGHT_API_KEY"},
        )
        self.lines: list[str] = []

    def read_until(self, pattern: str) -> re.Match[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"no line with `{pattern}` in {self.lines}")

    def children(self) -> list[int]:
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def finish(self) -> tuple[int, str]:
        rest, _ = self.process.communicate(timeout=60)
        return self.process.returncode, "".join(self.lines) + rest


@contextmanager
def serving(*arguments: str) -> Iterator[Serve]:
    serve = Serve(*arguments)
    try:
        yield serve
    finally:
        serve.process.kill()
        serve.process.communicate(timeout=60)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie that nobody has collected yet runs no more.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_one_interrupt_stops_both_and_leaves_nothing() -> None:
    with serving("--executor=simulated") as serve:
        url = serve.read_until(r"serves `inflight-demo` at (\S+)")[1]
        models = json.load(urllib.request.urlopen(f"{url}/models", timeout=30))
        assert [model["id"] for model in models["data"]] == ["inflight-demo"]
        children = serve.children()
        assert len(children) == 2
        serve.process.send_signal(signal.SIGINT)
        code, output = serve.finish()
    assert code == 0, output
    assert "stopping" in output
    assert all(gone(pid) for pid in children)


def test_a_stop_is_heard_while_nobody_reads_the_output() -> None:
    with serving("--executor=simulated") as serve:
        address = serve.read_until(r"serves `inflight-demo` at http://(\S+)/v1")[1]
        connection = http.client.HTTPConnection(address, timeout=30)
        # A log line each: more than the pipe holds.
        for _ in range(1000):
            connection.request("GET", "/v1/models")
            connection.getresponse().read()
        connection.close()
        serve.process.send_signal(signal.SIGTERM)
        assert serve.process.wait(30) == 0


def test_a_killed_supervisor_takes_its_children_along() -> None:
    with serving("--executor=simulated") as serve:
        serve.read_until("Ctrl-C")
        children = serve.children()
        # A pidfd becomes readable when its process has ended, whoever's child that is by then.
        handles = [os.pidfd_open(pid) for pid in children]
        serve.process.kill()
        serve.finish()
        assert len(children) == 2
        for handle in handles:
            assert select.select([handle], [], [], 60)[0], "a process was left behind"
            os.close(handle)


def kill_worker(serve: Serve) -> None:
    # The worker starts first.
    os.kill(min(serve.children()), signal.SIGKILL)


def test_a_dead_worker_is_restarted_behind_a_gateway_that_stays() -> None:
    with serving("--executor=simulated") as serve:
        url = serve.read_until(r"serves `inflight-demo` at (\S+)")[1]
        serve.read_until("Ctrl-C")
        gateway = max(serve.children())
        kill_worker(serve)
        found = serve.read_until(r"the worker was ended by signal 9, last line `(.*)`; restarting it in 1 s")
        assert "ready" in found[1]
        body = {"model": "inflight-demo", "prompt": "a", "max_tokens": 1}
        request = urllib.request.Request(
            f"{url}/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        with refused.value as answer:
            assert (answer.code, answer.headers["retry-after"]) == (503, "1")
        serve.read_until(r"gateway \|.* worker ready")
        assert urllib.request.urlopen(request, timeout=30).status == 200
        children = serve.children()
        assert len(children) == 2
        assert gateway in children
        # The restarted worker ends with its supervisor too.
        handles = [os.pidfd_open(pid) for pid in children]
        serve.process.kill()
        serve.finish()
        for handle in handles:
            assert select.select([handle], [], [], 60)[0], "a process was left behind"
            os.close(handle)


def test_an_interrupt_during_a_restart_ends_all() -> None:
    with serving("--executor=simulated") as serve:
        serve.read_until("Ctrl-C")
        children = serve.children()
        kill_worker(serve)
        serve.read_until("restarting it")
        serve.process.send_signal(signal.SIGINT)
        code, output = serve.finish()
    assert code == 0, output
    assert all(gone(pid) for pid in children)


def test_the_key_is_asked_for_and_shown_in_the_example() -> None:
    with serving("--executor=simulated", "--api-key=secret") as serve:
        url = serve.read_until(r"serves `inflight-demo` at (\S+)")[1]
        serve.read_until(r"authorization: Bearer \$INFLIGHT_API_KEY")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/models", timeout=30)
        assert refused.value.code == 401
        refused.value.close()
        request = urllib.request.Request(f"{url}/models", headers={"authorization": "Bearer secret"})
        assert urllib.request.urlopen(request, timeout=30).status == 200
    assert "secret" not in "".join(serve.lines)


def test_lines_beyond_the_bound_are_dropped_and_counted() -> None:
    events = EventQueue(most_waiting=2)
    for number in range(5):
        events.put(Line("worker", str(number)))
    # Signals and exits are never dropped.
    events.put(StopRequested(2))
    assert [events.next(0), events.next(0)] == [Line("worker", "0"), Line("worker", "1")]
    assert events.next(0) == StopRequested(2)
    events.put(Line("worker", "5"))
    assert events.next(0) == Line("worker", "(3 lines dropped: they came too fast)")
    assert events.next(0) == Line("worker", "5")
    assert events.next(0) is None


def test_no_wait_is_so_long_that_a_signal_goes_unheard() -> None:
    """A handler runs only once the wait has ended, if its signal comes just before that begins."""
    began = time.monotonic()
    assert EventQueue().next(3600) is None
    assert time.monotonic() - began < 30
