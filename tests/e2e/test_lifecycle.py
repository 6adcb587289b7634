"""Start and end: one Ctrl-C stops everything, mistakes are told in two lines, nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

import pytest

from inflight.launch.model import DEMO_DIRECTORY
from support.http import get, stream
from support.metrics import active_requests
from support.processes import InflightProcess, exists, wait_until
from support.servers import MODEL_ARGUMENTS, MODEL_NAME, Start, start_gateway, start_worker, wait_ready

SERVE = ("serve", *MODEL_ARGUMENTS, f"--served-model-name={MODEL_NAME}", "--executor=simulated")
ANY_PORTS = ("--port=0", "--grpc-port=0", "--metrics-port=0")


def assert_gone(pids: list[int], addresses: list[str]) -> None:
    for pid in pids:
        wait_until(f"process {pid} is gone", lambda pid=pid: not exists(pid))  # type: ignore[misc]
    for address in addresses:
        host, port = address.rsplit(":", 1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_leaves_no_process_behind(start: Start, number: signal.Signals) -> None:
    process = start(*SERVE, *ANY_PORTS)
    http = wait_ready(process)
    addresses = [http, process.address("grpc"), process.address("metrics")]
    children = process.descendants()
    assert len(children) >= 2
    process.send(number)
    assert process.wait() in (0, 128 + number)
    assert_gone(children, addresses)
    assert "Traceback" not in process.log


def test_ctrl_c_lets_a_stream_finish(start: Start) -> None:
    worker = start_worker(start, "--step-us=20000")
    gateway = start_gateway(start, [worker])
    address = wait_ready(gateway)
    body = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 100, "ignore_eos": True}
    answer = stream(address, "/v1/completions", body)
    chunks = answer.chunks()
    next(chunks)
    gateway.send(signal.SIGINT)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    answer.close()
    assert gateway.wait() in (0, 128 + signal.SIGINT)
    assert worker.is_running
    assert active_requests(worker.address("metrics")) == 0


def test_a_second_ctrl_c_does_not_wait(start: Start) -> None:
    process = start(*SERVE, *ANY_PORTS)
    address = wait_ready(process)
    children = process.descendants()
    assert get(address, "/health/ready").status == 200
    process.send(signal.SIGINT)
    process.send(signal.SIGINT)
    process.wait()
    assert_gone(children, [address])


def test_children_end_when_their_parent_is_killed(start: Start) -> None:
    process = start(*SERVE, *ANY_PORTS)
    address = wait_ready(process)
    children = process.descendants()
    process.kill()
    assert_gone(children, [address])


def test_a_lost_worker_is_replaced(start: Start) -> None:
    process = start(*SERVE, *ANY_PORTS)
    address = wait_ready(process)
    grpc = process.address("grpc")
    [worker, *_] = [pid for pid in process.descendants() if _listens(pid, grpc)]
    os.kill(worker, signal.SIGKILL)

    def is_replaced() -> bool:
        workers = [pid for pid in process.descendants() if _listens(pid, grpc)]
        return bool(workers) and worker not in workers and get(address, "/health/ready").status == 200

    process.wait_until("another worker serves", is_replaced)
    assert "restarting it" in process.log
    assert not exists(worker)


def _listens(pid: int, address: str) -> bool:
    """Whether the process's command line is the worker's; it alone was told the gRPC port."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False  # it ended since it was listed
    return b"worker" in arguments and address != ""


def fails(start: Start, *arguments: str) -> str:
    process = start(*arguments)
    assert process.wait() not in (0, 1), process.log
    assert "Traceback" not in process.log, process.log
    return process.log


def test_mistakes_are_told_in_words(start: Start, tmp_path: Path) -> None:
    log = fails(start, "serve", str(tmp_path / "nothing"), *ANY_PORTS)
    assert f"`{tmp_path / 'nothing'}` does not exist" in log
    log = fails(start, "serve", str(tmp_path), *ANY_PORTS)
    assert "tokenizer.json" in log
    assert "--worker" in fails(start, "gateway", "--port=0")
    assert "bogus" in fails(start, "serve", "--executor=bogus")


@pytest.mark.parametrize(
    ("name", "content"), [("tokenizer.json", "{}"), ("generation_config.json", '{"eos_token_id": "x"}')]
)
def test_files_that_no_gateway_can_use_end_the_start(
    start: Start, tmp_path: Path, name: str, content: str
) -> None:
    shutil.copytree(DEMO_DIRECTORY, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_text(content)
    log = fails(start, "serve", str(tmp_path), "--executor=simulated", *ANY_PORTS)
    assert f"`{tmp_path}` cannot be served" in log
    assert f"`{name}`" in log


def test_a_port_in_use_is_named(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        log = fails(start, *SERVE, f"--port={port}", "--grpc-port=0", "--metrics-port=0")
        assert f"`{port}`" in log
        assert "--port" in log


def test_a_gateway_waits_for_its_worker(start: Start) -> None:
    # The port is free now and the worker's later.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    gateway = start("gateway", "--port=0", f"--worker=127.0.0.1:{port}")
    address = gateway.address("http")
    assert get(address, "/health/live").status == 200
    assert get(address, "/health/ready").status == 503
    start_worker(start, f"--grpc-port={port}")
    assert wait_ready(gateway) == address


def test_accepted_sockets_send_at_once(start: Start) -> None:
    """Without TCP_NODELAY a kept-alive connection's next first event waits 40 ms for an acknowledgement."""
    worker = start_worker(start)
    gateway = start_gateway(start, [worker])
    address = wait_ready(gateway)
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        assert _no_delay(gateway, connection.getsockname()[1])


def _no_delay(process: InflightProcess, peer_port: int) -> bool:
    """Reads the option of the process's end of the connection through a copy of its descriptor."""
    import ctypes

    if not hasattr(os, "pidfd_open"):
        pytest.skip("this Python has no pidfd_open")
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd_getfd = 438
    handle = os.pidfd_open(process.pid)
    try:
        for path in Path(f"/proc/{process.pid}/fd").iterdir():
            if not str(path.readlink()).startswith("socket:"):
                continue
            copy = libc.syscall(pidfd_getfd, handle, int(path.name), 0)
            if copy < 0:
                pytest.skip("this kernel or its rules do not let a process look at another's sockets")
            with socket.socket(fileno=copy) as theirs:
                try:
                    peer = theirs.getpeername()
                except OSError:
                    continue
                if peer and peer[1] == peer_port:
                    return theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    finally:
        os.close(handle)
    raise AssertionError("the process has no such connection")
