"""Gateways that find their workers in a file or by a DNS name, and follow what changes there."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from support.http import get, post, stream
from support.processes import wait_until
from support.servers import MODEL_NAME, Server, Start

ASKED = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 2}
#: About 2 s at a token each 20 ms.
LONG = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 100, "ignore_eos": True}


def workers(gateway: str) -> dict[str, bool]:
    health = get(gateway, "/health/ready").json()
    return {worker["address"]: worker["ready"] for worker in health.get("workers", [])}


def test_a_file_is_followed_and_a_worker_that_is_taken_out_finishes(
    start: Start, tmp_path: Path, paced: Server
) -> None:
    file = tmp_path / "workers"
    file.write_text("# none yet\n")

    def write(text: str) -> None:
        draft = tmp_path / "draft"
        draft.write_text(text)
        os.replace(draft, file)

    gateway = start("gateway", f"--worker-file={file}", "--port=0")
    address = gateway.address("http")
    assert (workers(address), post(address, "/v1/completions", ASKED).status) == ({}, 503)
    write(f"{paced.grpc}\n")
    wait_until("the worker is ready", lambda: workers(address) == {paced.grpc: True})
    with closing(stream(address, "/v1/completions", LONG)) as begun:
        events = begun.events()
        next(events)
        write("not an address\n")
        wait_until("the mistake is told", lambda: "cannot use the worker file" in gateway.log)
        assert workers(address) == {paced.grpc: True}
        write("")
        wait_until("it is taken out", lambda: workers(address) == {paced.grpc: False})
        assert post(address, "/v1/completions", ASKED).status == 503
        *_, last, done = events
    assert (done, "error" in last) == ("[DONE]", False)
    wait_until("it is forgotten", lambda: workers(address) == {})
    write(f"{paced.grpc}\n")
    wait_until("it is ready again", lambda: workers(address) == {paced.grpc: True})
    assert post(address, "/v1/completions", ASKED).status == 200


def test_every_address_of_a_name_is_a_worker(start: Start, fast: Server) -> None:
    port = fast.grpc.rpartition(":")[2]
    address = start("gateway", f"--worker-dns=localhost:{port}", "--port=0").address("http")
    # localhost may be ::1 as well, where no worker listens.
    wait_until("the worker is ready", lambda: workers(address).get(fast.grpc) is True)
    assert post(address, "/v1/completions", ASKED).status == 200


def test_a_gateway_needs_to_be_told_of_workers_and_a_file_that_is_there(start: Start, tmp_path: Path) -> None:
    nothing = start("gateway", "--port=0")
    assert nothing.wait() == 2
    assert "--worker" in nothing.log
    missing = start("gateway", "--port=0", f"--worker-file={tmp_path / 'none'}")
    assert missing.wait() == 2
    assert "cannot read the file" in missing.log
