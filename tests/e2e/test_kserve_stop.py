"""A request with `stop` ends the request of its id, whichever connection and protocol it comes on."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from support.http import Response, get, post, stream
from support.metrics import active_requests
from support.processes import wait_until
from support.servers import Start, start_gateway, start_worker, wait_ready
from support.triton import MODEL, TritonStream, inputs, is_final, tokens

PROMPT = [40, 41, 42, 43]
#: Twenty seconds of tokens.
LONG = 1000
TOKENS = {"input_ids": PROMPT, "input_lengths": len(PROMPT), "request_output_len": LONG}
TEXT = {"text_input": "Hi", "max_tokens": LONG}
HEADER = {"triton-request-id": "h"}


@dataclass(frozen=True)
class Port:
    """Where requests go, and the metrics of the worker that answers."""

    http: str
    grpc: str
    metrics: str

    def wait_until_active(self, requests: int) -> None:
        wait_until(f"{requests} run", lambda: active_requests(self.metrics) == requests, 10)
        # Until there are tokens.
        time.sleep(0.2)

    def generate(self, model: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
        return post(self.http, f"/v2/models/{model}/generate", body, headers)


def start_port(start: Start, kind: str, *gateway_options: str) -> Port:
    worker = start_worker(start, "--http-port=0", "--step-us=20000", "--prefill-us-per-token=0")
    metrics = worker.address("metrics")
    if kind == "worker":
        port = Port(worker.address("http"), worker.address("grpc"), metrics)
        worker.wait_until("it is ready", lambda: get(port.http, "/v2/health/ready").status == 200)
        return port
    gateway = start_gateway(start, [worker], "--grpc-port=0", *gateway_options)
    return Port(wait_ready(gateway), gateway.address("grpc"), metrics)


@pytest.fixture(scope="module", params=["worker", "gateway"])
def port(start_for_session: Start, request: pytest.FixtureRequest) -> Port:
    return start_port(start_for_session, request.param)


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.mark.migrates(
    "Triton",
    "`curl -H 'triton-request-id: h'` with `\"stop\": true`",
    "`curl -H 'triton-request-id: h'` with `\"stop\": true`",
)
@pytest.mark.parametrize(
    ("model", "body", "output"), [(MODEL, TOKENS, "output_ids"), ("ensemble", TEXT, "text_output")]
)
@pytest.mark.parametrize("headers", [HEADER, None])
def test_over_http(
    port: Port,
    pool: ThreadPoolExecutor,
    model: str,
    body: dict[str, Any],
    output: str,
    headers: dict[str, str] | None,
) -> None:
    own = {} if headers else {"id": "i"}
    asked: Future[Response] = pool.submit(port.generate, model, {**body, **own}, headers)
    port.wait_until_active(1)
    stopped = port.generate(model, {"stop": True, **own}, headers)
    assert stopped.status == 200, stopped.body
    assert output not in stopped.json()
    answer = asked.result(10)
    assert answer.status == 200, answer.body
    assert np.size(answer.json()[output]) < LONG


def test_a_stream_over_http(port: Port) -> None:
    opened = stream(port.http, f"/v2/models/{MODEL}/generate_stream", {**TOKENS, "streaming": True}, HEADER)
    events = opened.events()
    next(events)
    assert port.generate(MODEL, {"stop": True}, HEADER).status == 200
    rest = [json.loads(event) for event in events]
    opened.close()
    assert len(rest) < LONG - 1
    assert not any("error" in event for event in rest)


@pytest.mark.parametrize("streaming", [True, False])
def test_over_another_grpc_connection(port: Port, streaming: bool) -> None:
    opened = TritonStream(port.grpc)
    opened.send("g", inputs(PROMPT, LONG, streaming=streaming, exclude_input_in_output=True))
    port.wait_until_active(1)
    with tritonclient.grpc.InferenceServerClient(port.grpc) as client:
        stopped = client.infer(MODEL, inputs([0], 0, stop=True), request_id="g")
    assert is_final(stopped)
    count = sum(len(tokens(result)) for result in opened.until_final())
    opened.close()
    # Stopped, the simulated executor keeps what a whole answer would have had.
    assert count < LONG
    assert count > 0 or not streaming


def test_on_its_own_stream_at_once(port: Port) -> None:
    opened = TritonStream(port.grpc)
    opened.send("o", inputs(PROMPT, LONG))
    opened.send("o", inputs([0], 0, stop=True))
    port.wait_until_active(0)
    finals = 0
    while finals < 2:
        result, error = opened.next()
        assert error is None, error
        finals += is_final(result)
    opened.close()


def test_an_unknown_id_may_have_finished(port: Port) -> None:
    assert port.generate(MODEL, {"stop": True, "id": "gone"}).status == 200
    for model in (MODEL, "ensemble"):
        nameless = port.generate(model, {"stop": True})
        assert (nameless.status, "request id" in nameless.json()["error"]) == (400, True), nameless.body


def test_a_key_stops_its_own_requests(start: Start, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\nother\n")
    port = start_port(start, "gateway", f"--api-key-file={keys}")
    one, other = ({"authorization": f"Bearer {key}"} for key in ("one", "other"))
    asked = pool.submit(port.generate, MODEL, {**TOKENS, "id": "k"}, one)
    port.wait_until_active(1)
    # Another key has no request of this id, which may have finished.
    assert port.generate(MODEL, {"stop": True, "id": "k"}, other).status == 200
    assert active_requests(port.metrics) == 1
    assert port.generate(MODEL, {"stop": True, "id": "k"}, one).status == 200
    answer = asked.result(10)
    assert (answer.status, np.size(answer.json()["output_ids"]) < LONG) == (200, True)
