"""Gateways that find their workers in a file, by a DNS name, by a Kubernetes Service or in etcd, and follow
what changes there."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from support import dns
from support.etcd import PROGRAM, Etcd
from support.http import get, post, stream
from support.kubernetes import ApiServer, serving
from support.processes import wait_until
from support.servers import MODEL_NAME, Server, Start, start_worker

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
        wait_until("the mistake is told", lambda: "line 1, `not an address`" in gateway.log)
        assert workers(address) == {paced.grpc: True}
        write("# none\n")
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


@pytest.mark.skipif(dns.MISSING is not None, reason=dns.MISSING or "")
def test_a_name_gets_more_addresses_and_keeps_its_workers_while_its_server_fails(
    start: Start, fast: Server, tmp_path: Path
) -> None:
    port = fast.grpc.rpartition(":")[2]
    names = dns.NameServer("127.0.0.1")
    with dns.serving(names):
        arguments = ("gateway", f"--worker-dns={dns.NAME}:{port}", "--port=0")
        gateway = start(*arguments, launcher=dns.launcher(tmp_path))
        address = gateway.address("http")
        wait_until("the first worker is ready", lambda: workers(address) == {fast.grpc: True})
        second = start_worker(start, "--host=127.0.0.2", f"--grpc-port={port}").address("grpc")
        names.addresses = ("127.0.0.1", "127.0.0.2")
        both = {fast.grpc: True, second: True}
        wait_until("the second is ready", lambda: workers(address) == both)
        names.fault = dns.NAME_ERROR
        wait_until("the log has it", lambda: "the name is not found" in gateway.log)
        assert workers(address) == both
        assert post(address, "/v1/completions", ASKED).status == 200


@contextmanager
def load(gateway: str) -> Iterator[list[int]]:
    """Requests all the time by two clients; what they were answered is in the list."""
    statuses: list[int] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.wait(0.005):
            statuses.append(post(gateway, "/v1/completions", ASKED).status)

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        yield statuses
    finally:
        is_over.set()
        for client in clients:
            client.join()


def test_pods_of_a_service_are_workers_whatever_becomes_of_the_api_server(
    start: Start, fast: Server, paced: Server
) -> None:
    api = ApiServer()
    api.put(fast.grpc)
    both = {fast.grpc: True, paced.grpc: True}
    with serving(api) as url:
        port = int(url.rpartition(":")[2])
        gateway = start("gateway", "--worker-service=ml/llama", f"--kubernetes-api={url}", "--port=0")
        address = gateway.address("http")
        wait_until("the first worker is ready", lambda: workers(address) == {fast.grpc: True})
        api.put(paced.grpc)
        wait_until("the second is ready", lambda: workers(address) == both)
        with load(address) as statuses:
            for fault in (500, 401, 429, "silent"):
                api.fault = fault
                before = len(statuses)
                wait_until("requests were answered meanwhile", lambda: len(statuses) > before + 50)  # noqa: B023
                if fault != "silent":
                    wait_until("the log has it", lambda: f"answered {fault} " in gateway.log)  # noqa: B023
                assert workers(address) == both
            api.fault = None
            wait_until("it is followed again", lambda: "followed again" in gateway.log)
            api.delete()
            wait_until("the log says so", lambda: "not listed any more" in gateway.log)
            assert workers(address) == both
    # It is gone, and comes back at the same port with other news.
    with load(address) as gone:
        wait_until("the log says so", lambda: "cannot connect to the API server" in gateway.log)
        wait_until("requests were answered meanwhile", lambda: len(gone) > 50)
        api.put(fast.grpc)
        api.put(paced.grpc, terminating=True)
        with serving(api, port):
            wait_until(
                "the one that terminates is taken out", lambda: workers(address).get(fast.grpc) is True
            )
            wait_until("it is forgotten", lambda: workers(address) == {fast.grpc: True})
    assert set(statuses + gone) == {200}


@pytest.mark.skipif(PROGRAM is None, reason="`etcd` is not installed: see tools/install-system-packages")
def test_workers_register_themselves_in_etcd(start: Start) -> None:
    with closing(Etcd()) as etcd:
        place = f"http://127.0.0.1:{etcd.port}/inflight/"
        gateway = start("gateway", f"--worker-etcd={place}", "--port=0")
        address = gateway.address("http")
        first, second = (start_worker(start, f"--register-etcd={place}") for _ in range(2))
        both = {first.address("grpc"): True, second.address("grpc"): True}
        wait_until("both workers are ready", lambda: workers(address) == both)
        with load(address) as statuses:
            second.send(signal.SIGTERM)
            wait_until("the other is alone", lambda: workers(address) == {first.address("grpc"): True})
            etcd.kill()
            wait_until("the worker says so", lambda: "not registered in etcd" in first.log)
            etcd.start()
            wait_until("it is there again", lambda: "registered in etcd again" in first.log)
        assert set(statuses) == {200}
    everywhere = start_worker(start, f"--register-etcd={place}", "--host=0.0.0.0")
    assert everywhere.wait() != 0
    assert "cannot be registered in etcd" in everywhere.log


def test_without_kubernetes_a_service_is_refused_with_a_way_out(start: Start) -> None:
    outside = start("gateway", "--port=0", "--worker-service=ml/llama")
    assert outside.wait() == 2
    assert "pass `--kubernetes-api`" in outside.log
    wrong = start("gateway", "--port=0", "--worker-service=ML/llama")
    assert wrong.wait() == 2
    assert "must be [NAMESPACE/]NAME[:PORT]" in wrong.log


def test_a_gateway_needs_to_be_told_of_workers_and_a_file_that_is_there(start: Start, tmp_path: Path) -> None:
    nothing = start("gateway", "--port=0")
    assert nothing.wait() == 2
    assert "--worker" in nothing.log
    missing = start("gateway", "--port=0", f"--worker-file={tmp_path / 'none'}")
    assert missing.wait() == 2
    assert "cannot read the file" in missing.log
