"""Overload and bad manners: requests beyond a bound are turned away in words, and nothing is kept of
clients that stall, vanish or talk nonsense.
"""

from __future__ import annotations

import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from support.http import get, post, stream
from support.metrics import active_requests, total
from support.processes import InflightProcess, wait_until
from support.servers import MODEL_NAME, Server, Start, start_gateway, start_worker, wait_ready

BODY = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 1500, "ignore_eos": True}
PATH = "/v1/completions"


def test_requests_beyond_the_gateway_s_bound_are_429(start: Start) -> None:
    worker = start_worker(start, "--step-us=20000")
    address = wait_ready(start_gateway(start, [worker], "--max-concurrent-requests=2"))
    held = [stream(address, PATH, BODY) for _ in range(2)]
    for one in held:
        next(one.events())
    refused = post(address, PATH, BODY)
    assert refused.status == 429
    assert refused.error["code"] == "rate_limit_exceeded"
    assert 0 < float(refused.headers["retry-after"]) <= 120
    with (
        Server(address, "", "", MODEL_NAME).client() as client,
        pytest.raises(openai.RateLimitError),
    ):
        client.completions.create(model=MODEL_NAME, prompt="Hi", max_tokens=1)
    # What needs no worker is answered all the same.
    assert get(address, "/health/ready").status == 200
    assert get(address, "/v1/models").status == 200
    held.pop().close()
    wait_until("a place is free", lambda: post(address, PATH, {**BODY, "max_tokens": 1}).status == 200)
    held.pop().close()


def test_requests_beyond_the_worker_s_bound_are_503(start: Start) -> None:
    worker = start_worker(start, "--step-us=20000", "--max-batch-size=1", "--max-queued-requests=1")
    address = wait_ready(start_gateway(start, [worker]))
    first = stream(address, PATH, BODY)
    next(first.events())
    with ThreadPoolExecutor() as pool:
        queued = pool.submit(post, address, PATH, {**BODY, "max_tokens": 1})
        metrics = worker.address("metrics")
        wait_until("one waits", lambda: active_requests(metrics) == 2)
        refused = post(address, PATH, BODY)
        assert refused.status == 503
        assert 0 < float(refused.headers["retry-after"]) <= 120
        first.close()
        assert queued.result(30).status == 200


def test_a_client_that_reads_nothing_is_given_up(start: Start) -> None:
    worker = start_worker(start, "--step-us=1000")
    gateway = start_gateway(start, [worker], "--slow-client-s=1")
    host, port = wait_ready(gateway).rsplit(":", 1)
    # 64 events an iteration soon fill what the kernel holds of a connection.
    body = json.dumps({**BODY, "n": 64, "max_tokens": 8000, "stream": True}).encode()
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect((host, int(port)))
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        stalled.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        wait_until("it runs", lambda: total(f"{host}:{port}", "inflight_gateway_active_requests") == 1)
        wait_until("it is given up", lambda: total(f"{host}:{port}", "inflight_gateway_active_requests") == 0)
        metrics = worker.address("metrics")
        wait_until("the executor is idle", lambda: active_requests(metrics) == 0)
        assert total(metrics, "nv_inference_request_failure", 'reason="CANCELED"') == 1


def open_files(process: InflightProcess) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def test_clients_that_vanish_leave_nothing_open(start: Start) -> None:
    worker = start_worker(start, "--step-us=5000")
    gateway = start_gateway(start, [worker])
    address = wait_ready(gateway)
    post(address, PATH, {**BODY, "max_tokens": 1})
    before = open_files(gateway), open_files(worker)
    for round_number in range(40):
        streams = [stream(address, PATH, BODY) for _ in range(5)]
        for one in streams:
            next(one.events())
        for one in streams:
            one.reset() if round_number % 2 else one.close()
    metrics = worker.address("metrics")
    wait_until("the executor is idle", lambda: active_requests(metrics) == 0)
    # One connection may be the probe's own, on its way out.
    wait_until("sockets are closed", lambda: open_files(gateway) <= before[0] + 1)
    wait_until("the worker's are as well", lambda: open_files(worker) <= before[1] + 1)


def test_a_disconnect_reaches_the_executor_within_an_iteration(start: Start) -> None:
    worker = start_worker(start, "--step-us=2000000")
    address = wait_ready(start_gateway(start, [worker]))
    one = stream(address, PATH, BODY)
    next(one.events())
    one.close()
    # The next iteration ends 2 s after the last: by then nothing may be active.
    wait_until("the executor is idle", lambda: active_requests(worker.address("metrics")) == 0, 2)


def test_a_worker_that_is_asked_to_end_finishes_its_streams(start: Start) -> None:
    worker = start_worker(start, "--step-us=20000")
    gateway = start_gateway(start, [worker])
    address = wait_ready(gateway)
    one = stream(address, PATH, {**BODY, "max_tokens": 60})
    chunks = one.chunks()
    next(chunks)
    worker.send(signal.SIGTERM)
    gateway.wait_until("it is not ready", lambda: get(address, "/health/ready").status == 503)
    refused = post(address, PATH, BODY)
    assert refused.status == 503
    assert "retry-after" in refused.headers
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    one.close()
    assert worker.wait() in (0, 128 + signal.SIGTERM)


def test_headers_without_end_are_refused(fast: Server) -> None:
    host, port = fast.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        try:
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n")
            for _ in range(64):
                connection.sendall(b"x-padding: " + b"x" * 65536 + b"\r\n")
            answer = connection.recv(4096)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert get(fast.http, "/v1/models").status == 200


def test_millions_of_token_ids_are_refused_by_their_number(fast: Server) -> None:
    response = post(fast.http, PATH, {**BODY, "prompt": [5] * 5_000_000})
    assert response.status == 400
    assert response.error["code"] == "context_length_exceeded"
    assert response.error["param"] == "prompt"


def test_a_key_is_no_argument_of_a_child(start: Start) -> None:
    process = start(
        "serve",
        "--executor=simulated",
        "--port=0",
        "--grpc-port=0",
        "--metrics-port=0",
        environment={"INFLIGHT_API_KEY": "sesame-key-2"},
    )
    address = wait_ready(process)
    assert get(address, "/v1/models").status == 401
    assert get(address, "/v1/models", {"authorization": "Bearer sesame-key-2"}).status == 200
    for pid in (process.pid, *process.descendants()):
        assert b"sesame" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert "sesame" not in process.log


@pytest.mark.parametrize("page", ["http", "metrics"])
def test_metrics_are_well_formed(fast: Server, page: str) -> None:
    lines = get(getattr(fast, page), "/metrics").body.decode().splitlines()
    families = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
    assert families
    suffixes = ("", "_total", "_bucket", "_sum", "_count", "_created")
    for line in lines:
        if line.startswith("#"):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        float(line.rpartition(" ")[2])
        assert any(name == family + suffix for family in families for suffix in suffixes), line
    assert len([line for line in lines if line.startswith("# TYPE")]) == len(families)


def test_a_client_waits_as_its_key_s_limit_tells(start: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("free\nsome requests=20 tokens=600\n")
    gateway = start_gateway(start, [start_worker(start)], f"--api-key-file={keys}")
    address = wait_ready(gateway)
    body = {"model": MODEL_NAME, "prompt": "Hi"}
    with openai.OpenAI(base_url=f"http://{address}/v1", api_key="some", max_retries=0) as client:
        client.models.list()
        while True:
            used = post(address, "/tokenize", body, {"authorization": "Bearer some"})
            if used.status == 429:
                break
            assert used.status == 200
            assert used.headers["x-ratelimit-limit-requests"] == "20"
        with pytest.raises(openai.RateLimitError, match="requests per min") as refused:
            client.completions.create(model=MODEL_NAME, prompt="Hi")
        assert refused.value.code == "rate_limit_exceeded"
        patient = client.with_options(max_retries=2)
        raw = patient.completions.with_raw_response.create(model=MODEL_NAME, prompt="Hi", max_tokens=16)
    assert raw.retries_taken == 1
    assert 0 < int(used.headers["retry-after-ms"]) <= 3000
    assert 0 < int(used.headers["retry-after"]) <= 3
    assert used.headers["x-ratelimit-remaining-requests"] == "0"
    usage = raw.parse().usage
    assert usage is not None
    assert 600 - usage.total_tokens <= int(raw.headers["x-ratelimit-remaining-tokens"]) < 600
    assert "upstream;dur=" in raw.headers["server-timing"]
    assert post(address, "/tokenize", body, {"x-api-key": "free"}).status == 200
