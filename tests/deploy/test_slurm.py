"""The rendered batch script on a real Slurm: submitted, asked, cancelled, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from inflight.launch.render import render
from inflight.launch.topology_file import parse
from support.http import get, post, stream
from support.metrics import total
from support.processes import INFLIGHT, START_S, exists, wait_until
from support.servers import Start, wait_ready
from support.slurm import Slurm, missing

REASON = missing()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(300)]

TOPOLOGY = """
models:
  - {{executor: simulated, replicas: 2, grpc_port: {0}, metrics_port: {1}}}
gateways: {{port: {2}}}
drain: {{gateway_s: 3, worker_s: 3}}
deploy: {{executable: {3}}}
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm")) as started:
        yield started


def first_free(count: int) -> int:
    """A port whose next ones are free as well."""
    for first in range(20000, 30000, 16):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


RANKS = """
models:
  - executor: reference
    tp_size: 2
    grpc_port: {0}
    metrics_port: {1}
    environment: {{OMP_NUM_THREADS: 1}}
gateways: {{port: {2}}}
drain: {{gateway_s: 3, worker_s: 3}}
deploy: {{executable: {3}}}
"""
PMIX = Path("/usr/lib/x86_64-linux-gnu/libpmix.so")


def written(directory: Path, topology: str = TOPOLOGY) -> tuple[Path, str]:
    """The script, and where its gateway listens."""
    port = first_free(5)
    text = topology.format(port, port + 1, port + 4, INFLIGHT)
    path = directory / "inflight.sbatch"
    path.write_text(render(parse(text, directory), "slurm")["inflight.sbatch"])
    return path, f"127.0.0.1:{port + 4}"


def is_ready(address: str) -> bool:
    try:
        return get(address, "/health/ready").status == 200
    except OSError:
        return False


def processes(directory: Path) -> dict[int, str]:
    """Ours of the job, by process id, with what they run."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            cwd = os.readlink(path / "cwd")
        except OSError:
            continue
        if cwd == str(directory) and f"{INFLIGHT} " in command and "srun" not in command:
            found[int(path.name)] = command
    return found


def serve(slurm: Slurm, topology: str = TOPOLOGY) -> tuple[str, str]:
    """A job that is ready, and its gateway's address."""
    path, address = written(slurm.directory, topology)
    job = slurm.submit(path)
    log = slurm.directory / f"inflight-{job}.log"
    try:
        wait_until("the gateway is ready", lambda: is_ready(address), START_S)
    except AssertionError as error:
        raise AssertionError(
            f"{error}: {slurm.state(job)}\n{log.read_text() if log.exists() else ''}"
        ) from None
    return job, address


def ask(address: str) -> int:
    return post(
        address, "/v1/completions", {"model": "inflight-demo", "prompt": "Hi", "max_tokens": 2}
    ).status


def test_a_job_serves_restarts_a_worker_and_is_cancelled_without_a_trace(slurm: Slurm) -> None:
    job, address = serve(slurm)
    assert ask(address) == 200
    log = slurm.directory / f"inflight-{job}.log"
    # The gateway is ready with the first; the other is to answer when that is killed.
    both = "inflight_upstream::inflight: worker ready"
    wait_until("both workers are ready", lambda: log.read_text().count(both) == 2)
    ours = processes(slurm.directory)
    worker = next(pid for pid, command in ours.items() if " worker " in command)
    os.kill(worker, signal.SIGKILL)
    wait_until("the worker is restarted", lambda: "restarting it in 1 s" in log.read_text())
    assert ask(address) == 200
    wait_until("both are there again", lambda: len(processes(slurm.directory)) == 3)
    ours = processes(slurm.directory)
    # Slurm sends TERM to the script, as it does before the time limit; what has begun is finished.
    body = {"model": "inflight-demo", "prompt": "Hi", "max_tokens": 150, "ignore_eos": True}
    with closing(stream(address, "/v1/completions", body)) as begun:
        events = begun.events()
        next(events)
        slurm.run("scancel", "--batch", "--signal=TERM", job)
        *_, last, done = events
    assert done == "[DONE]"
    assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    wait_until("the job is done", lambda: slurm.state(job) == "COMPLETED", 60)
    text = log.read_text()
    assert "inflight: stopping" in text
    # The gateway has drained, and is gone, before the workers are asked; nobody starts one again.
    assert text.index("inflight_gateway::cli: shutting down") < text.index("inflight: the gateways are gone")
    assert text.count("restarting it") == 1
    wait_until("none is left", lambda: not any(map(exists, ours)))


def test_a_worker_that_cannot_start_ends_the_job_and_nothing_is_left(slurm: Slurm) -> None:
    broken = TOPOLOGY.replace("replicas: 2,", "worker_options: {{max_batch_size: 0}},")
    path, _ = written(slurm.directory, broken)
    job = slurm.submit(path)
    log = slurm.directory / f"inflight-{job}.log"
    wait_until("the job has failed", lambda: slurm.state(job) == "FAILED", START_S)
    wait_until("none is left", lambda: not processes(slurm.directory))
    text = log.read_text()
    assert "inflight: worker ended with code 2 after 0 restarts" in text
    assert "the gateways are gone" in text
    assert "restarting it" not in text


def test_a_job_that_is_cancelled_leaves_nothing(slurm: Slurm) -> None:
    job, _ = serve(slurm)
    ours = processes(slurm.directory)
    assert len(ours) == 3
    slurm.run("scancel", job)
    wait_until("the job is gone", lambda: slurm.state(job) == "CANCELLED", 60)
    wait_until("none is left", lambda: not any(map(exists, ours)))


@pytest.mark.skipif(not PMIX.exists(), reason="`libpmix.so` is not there: apt-get install libpmix-dev")
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_ranks_under_pmix_serve_together_end_together_and_come_back(slurm: Slurm) -> None:
    job, address = serve(slurm, RANKS)
    assert ask(address) == 200
    ours = processes(slurm.directory)
    ranks = sorted(pid for pid, command in ours.items() if " worker " in command)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    log = slurm.directory / f"inflight-{job}.log"
    wait_until("both ranks are gone", lambda: not any(map(exists, ranks)))
    wait_until("the worker is restarted", lambda: "restarting it in 1 s" in log.read_text())
    wait_until("it serves again", lambda: ask(address) == 200, START_S)
    ours = processes(slurm.directory)
    slurm.run("scancel", job)
    wait_until("the job is gone", lambda: slurm.state(job) == "CANCELLED", 60)
    wait_until("none is left", lambda: not any(map(exists, ours)))


def test_the_time_limit_is_heard_in_time(slurm: Slurm) -> None:
    path, address = written(slurm.directory)
    text = path.read_text()
    # Slurm counts in minutes; the drains' time is taken from the front.
    path.write_text(text.replace("#SBATCH --requeue", "#SBATCH --requeue\n#SBATCH --time=1"))
    job = slurm.submit(path)
    log = slurm.directory / f"inflight-{job}.log"
    wait_until("the gateway is ready", lambda: is_ready(address), START_S)
    ours = processes(slurm.directory)
    wait_until("the limit is heard", lambda: "inflight: stopping" in log.read_text(), 90)
    wait_until("the job is done", lambda: slurm.state(job) == "COMPLETED", 60)
    wait_until("none is left", lambda: not any(map(exists, ours)))


ONE = TOPOLOGY.replace("replicas: 2, ", "")


def test_the_streams_of_a_job_that_ends_continue_in_another(slurm: Slurm, start: Start) -> None:
    ending, *gateways = serve(slurm, ONE)
    other, address = serve(slurm, ONE)
    gateways.append(address)
    # Its worker's port is the first of the job's.
    hosts = (address.rpartition(":") for address in gateways)
    workers = [f"--worker={host}:{int(port) - 4}" for host, _, port in hosts]
    gateway = start("gateway", "--port=0", *workers)
    address = wait_ready(gateway)
    gateway.wait_until("both are up", lambda: total(address, "inflight_gateway_worker_up") == 2)
    body = {"model": "inflight-demo", "prompt": "Hi", "max_tokens": 1000, "ignore_eos": True}
    opened = [stream(address, "/v1/completions", body) for _ in range(8)]
    readers = [one.events() for one in opened]
    for reader in readers:
        next(reader)
    slurm.run("scancel", "--batch", "--signal=TERM", ending)
    wait_until("the job is done", lambda: slurm.state(ending) == "COMPLETED", 60)
    assert total(address, "inflight_gateway_resumes_total") == 4
    texts = set()
    for one, reader in zip(opened, readers, strict=True):
        *events, done = reader
        one.close()
        assert done == "[DONE]"
        texts.add("".join(json.loads(event)["choices"][0]["text"] for event in events))
    assert len(texts) == 1
    slurm.run("scancel", other)
    wait_until("the other job is gone", lambda: not processes(slurm.directory), 60)


def test_a_job_that_is_requeued_serves_again(slurm: Slurm) -> None:
    job, address = serve(slurm)
    before = set(processes(slurm.directory))
    slurm.run("scontrol", "requeue", job)
    wait_until("its processes are gone", lambda: not before & set(processes(slurm.directory)), START_S)
    # Slurm lets two minutes pass, unless it is told to begin.
    wait_until("it waits", lambda: slurm.state(job) == "PENDING", START_S)
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_until("the gateway is ready again", lambda: is_ready(address), START_S)
    assert ask(address) == 200
    slurm.run("scancel", "--batch", "--signal=TERM", job)
    wait_until("nothing is left", lambda: not processes(slurm.directory), START_S)
