"""A log that nobody takes (a full disk, a pipe whose reader left) costs its lines and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from support.http import post
from support.processes import ADDRESS, INFLIGHT, PATIENCE_S
from support.servers import MODEL_ARGUMENTS, MODEL_NAME, Start, start_worker

BODY = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 2}


@contextmanager
def read_until(ready: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`inflight ARGUMENTS` and its HTTP address; its output is closed once a line holds `ready`."""
    process = subprocess.Popen(
        [str(INFLIGHT), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        address = ""
        assert process.stdout is not None
        with process.stdout as pipe:
            for line in pipe:
                found = ADDRESS["http"].search(line.decode())
                address = found[1] if found else address
                if ready in line.decode():
                    break
        yield process, address
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def assert_serves(process: subprocess.Popen[bytes], address: str) -> None:
    # Each of them logs a line.
    for _ in range(3):
        assert post(address, "/v1/completions", BODY).status == 200
    process.terminate()
    # 120 is Python's word for a standard output that could not be flushed at its end.
    assert process.wait(PATIENCE_S) in (0, 120)


def test_a_gateway_serves_on(start: Start) -> None:
    worker = start_worker(start)
    options = ("--port=0", f"--worker={worker.address('grpc')}")
    with read_until("worker ready", "gateway", *options) as (gateway, address):
        assert_serves(gateway, address)


def test_a_server_serves_on() -> None:
    options = (f"--served-model-name={MODEL_NAME}", "--port=0", "--grpc-port=0", "--metrics-port=0")
    command = ("serve", *MODEL_ARGUMENTS, *options, "--executor=simulated")
    with read_until("Ctrl-C to stop", *command) as (server, address):
        assert_serves(server, address)
