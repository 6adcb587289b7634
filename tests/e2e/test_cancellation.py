"""A client that leaves frees its work: the executor's active count falls to zero."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from support.http import get, post, stream
from support.metrics import active_requests, total
from support.processes import wait_until
from support.servers import Server

LONG = {"max_tokens": 1500, "ignore_eos": True}


@pytest.fixture(autouse=True)
def _idle_before(paced: Server) -> None:
    wait_until("the worker is idle", lambda: active_requests(paced.metrics) == 0)


@pytest.mark.parametrize("leave", ["close", "reset"])
@pytest.mark.parametrize("n", [1, 3])
def test_leaving_a_stream_cancels_its_request(paced: Server, leave: str, n: int) -> None:
    cancelled = total(paced.metrics, "nv_inference_request_failure", 'reason="CANCELED"')
    answer = stream(paced.http, "/v1/completions", {"model": paced.model, "prompt": "Hi", "n": n, **LONG})
    events = answer.events()
    for _ in range(3):
        next(events)
    assert active_requests(paced.metrics) == 1
    getattr(answer, leave)()
    wait_until("the executor is idle", lambda: active_requests(paced.metrics) == 0, 5)
    assert total(paced.metrics, "nv_inference_request_failure", 'reason="CANCELED"') == cancelled + 1


def test_leaving_while_a_whole_answer_is_made_cancels_it(paced: Server) -> None:
    import http.client
    import json

    connection = http.client.HTTPConnection(paced.http, timeout=30)
    body = json.dumps({"model": paced.model, "prompt": ["Hi", "Ho"], **LONG})
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    wait_until("both prompts run", lambda: active_requests(paced.metrics) == 2)
    connection.close()
    wait_until("the executor is idle", lambda: active_requests(paced.metrics) == 0, 5)


def test_a_stop_string_ends_the_executor_s_work(paced: Server) -> None:
    # The simulated executor does not know stop strings: that it ends is the gateway's doing.
    body: dict[str, Any] = {"model": paced.model, "prompt": "Hi", **LONG}
    first = post(paced.http, "/v1/completions", {**body, "max_tokens": 3}).json()["choices"][0]["text"]
    answer = post(paced.http, "/v1/completions", {**body, "stop": first[-1]}).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["text"] == first[: first.index(first[-1])]
    wait_until("the executor is idle", lambda: active_requests(paced.metrics) == 0, 5)


def test_others_go_on_when_one_leaves(paced: Server) -> None:
    results: list[dict[str, Any]] = []
    body = {"model": paced.model, "prompt": "Hi", "max_tokens": 40, "ignore_eos": True}

    def whole() -> None:
        results.append(post(paced.http, "/v1/completions", body).json())

    threads = [threading.Thread(target=whole) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        answer = stream(paced.http, "/v1/completions", {**body, "max_tokens": 1500})
        next(answer.events())
        answer.close()
    for thread in threads:
        thread.join(30)
    assert [result["usage"]["completion_tokens"] for result in results] == [40] * 4
    wait_until("the executor is idle", lambda: active_requests(paced.metrics) == 0, 5)


def test_the_gateway_counts_no_one_after_all_have_left(paced: Server) -> None:
    assert get(paced.http, "/health/ready").status == 200
    wait_until("the gateway is idle", lambda: total(paced.http, "inflight_gateway_active_requests") == 0, 5)
