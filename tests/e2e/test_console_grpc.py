"""Requests on the gateway's gRPC port, as the console lists them: tritonclient sends them."""

from __future__ import annotations

from typing import Any

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from support.http import get
from support.processes import wait_until
from support.servers import Server, Start, start_gateway, start_worker, wait_ready
from support.triton import MODEL, TritonStream, inputs


@pytest.fixture
def slow(start: Start) -> Server:
    """A token every 20 ms, and one place."""
    worker = start_worker(start, "--step-us=20000")
    gateway = start_gateway(start, [worker], "--grpc-port=0", "--max-concurrent-requests=1")
    http = wait_ready(gateway)
    return Server(http, gateway.address("grpc"), worker.address("metrics"), MODEL)


def ended(server: Server) -> list[tuple[Any, ...]]:
    """The latest requests: route, model, end and status."""
    requests = get(server.http, "/console/requests").json()["requests"]
    return [tuple(one[field] for field in ("route", "model", "finish", "status")) for one in requests]


def test_streams_and_calls_are_listed_while_they_are_open_and_afterwards(slow: Server) -> None:
    stream = TritonStream(slow.grpc)
    stream.send("one", inputs([5, 6, 7], 400, streaming=True))
    assert stream.next()[1] is None
    status = get(slow.http, "/console/status").json()
    [one] = status["open"]["requests"]
    assert (one["route"], one["model"]) == ("ModelStreamInfer", MODEL)
    assert one["first_token_ms"] is not None
    assert one["completion_tokens"] >= 1
    assert one["worker"] == status["workers"][0]["address"]
    # There is no place for another one, on the same stream or as a call.
    stream.send("two", inputs([5, 6, 7], 2, streaming=True))
    wait_until("the other is refused", lambda: len(ended(slow)) == 1)
    with triton.InferenceServerClient(slow.grpc) as client:
        with pytest.raises(InferenceServerException, match="too many open requests"):
            client.infer(MODEL, inputs([5], 2))
        assert ended(slow) == [
            ("ModelInfer", MODEL, "refused", 429),
            ("ModelStreamInfer", MODEL, "refused", 429),
        ]
        stream.close(cancel=True)
        wait_until("the first has left", lambda: len(ended(slow)) == 3)
        assert ended(slow)[0] == ("ModelStreamInfer", MODEL, "cancelled", None)
        wait_until(
            "its place is free", lambda: get(slow.http, "/console/status").json()["open"]["count"] == 0
        )
        client.infer(MODEL, inputs([5, 6], 2))
        assert ended(slow)[0] == ("ModelInfer", MODEL, "answered", None)
        with pytest.raises(InferenceServerException, match="unknown model"):
            client.infer("nobody", inputs([5], 2))
        assert ended(slow)[0] == ("ModelInfer", "nobody", "refused", 404)
        # Questions about models make none work.
        client.is_model_ready(MODEL)
        assert len(ended(slow)) == 5


def test_a_stream_that_ends_is_answered(slow: Server) -> None:
    stream = TritonStream(slow.grpc)
    stream.send("one", inputs([5, 6, 7], 3, streaming=True))
    assert list(stream.until_final())
    wait_until("it is listed", lambda: ended(slow) == [("ModelStreamInfer", MODEL, "answered", None)])
    [cache] = [model["cache"] for model in get(slow.http, "/console/status").json()["workers"][0]["models"]]
    assert cache == {"blocks": 16384, "used": 0}
    stream.close()
