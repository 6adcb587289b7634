"""What Triton's own tests expect of `generate` and `generate_stream`, from a gateway and from a worker.

Also the bodies of health that KServe's SDK reads. The words of errors are ours where they name more.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.http import Response, get, post
from support.servers import Server, Start, start_worker

MODEL = "/v2/models/ensemble"
TEXT: dict[str, Any] = {"text_input": "hello world", "max_tokens": 3}
ROUTES = ["generate", "generate_stream"]


@pytest.fixture(scope="module", params=["gateway", "worker"])
def address(request: pytest.FixtureRequest, server: Server, start_for_session: Start) -> str:
    if request.param == "gateway":
        return server.http
    worker = start_worker(start_for_session, "--http-port=0")
    http = worker.address("http")
    worker.wait_until("it is ready", lambda: get(http, "/v2/health/ready").status == 200)
    return http


def ask(address: str, route: str, body: Any) -> Response:
    return post(address, f"{MODEL}/{route}", body)


def events(answer: Response) -> list[dict[str, Any]]:
    """The events of a stream that is over; checks how they are framed."""
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body.endswith(b"\n\n")
    lines = answer.body.decode().removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") and "\n" not in line for line in lines), answer.body
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_one_response(address: str) -> None:
    answer = ask(address, "generate", TEXT)
    assert answer.headers["content-type"].startswith("application/json")
    text = answer.json()["text_output"]
    assert text
    [event] = events(ask(address, "generate_stream", {**TEXT, "stream": False}))
    assert event["text_output"] == text
    assert ask(address, "generate", {**TEXT, "stream": False}).json()["text_output"] == text


def test_several_responses_are_a_stream_s(address: str) -> None:
    # Tokens that are ready together are written together, so only a long answer surely has several events.
    long = {**TEXT, "max_tokens": 300, "min_tokens": 300, "exclude_input_in_output": True}
    whole = ask(address, "generate", long).json()["text_output"]
    for text in ("hello world", ["hello world"]):
        streamed = events(ask(address, "generate_stream", {**long, "text_input": text, "stream": True}))
        assert len(streamed) > 1
        assert "".join(event["text_output"] for event in streamed) == whole
    refused = ask(address, "generate", {**long, "stream": True})
    assert refused.status == 400
    assert "generate expects model to produce exactly 1 response" in refused.json()["error"]


@pytest.mark.parametrize("route", ROUTES)
def test_inputs_may_be_among_the_parameters(address: str, route: str) -> None:
    body = {"text_input": "hello world", "parameters": {"max_tokens": 3}}
    assert ask(address, route, body).body == ask(address, route, TEXT).body


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("body", "said"),
    [
        # What is missing.
        ({}, "the required input `text_input` is missing"),
        ({"abc": 123}, "the required input `text_input` is missing"),
        ({"text_input": "hello"}, "the required input `max_tokens` is missing"),
        ({"max_tokens": 3, "other": "parameter"}, "the required input `text_input` is missing"),
        # The wrong type; the first one in the request is named.
        ({**TEXT, "text_input": 123}, "`text_input`: `123` is not a value of BYTES"),
        ({**TEXT, "stream": "false"}, "`stream`: a string is not a value of BOOL"),
        ({"text_input": True, "stream": 123, "max_tokens": 3}, "`text_input`: "),
        ({"stream": 123, "text_input": True, "max_tokens": 3}, "`stream`: "),
        # Names that appear twice; the first one that repeats is named.
        (b'{"text_input": "a", "stream": false, "text_input": "b"}', "`text_input` is given twice"),
        (b'{"text_input": "a", "stream": false, "stream": false}', "`stream` is given twice"),
        (
            b'{"text_input": "a", "stream": false, "text_input": "b", "stream": true}',
            "`text_input` is given twice",
        ),
        (
            b'{"text_input": "a", "stream": false, "stream": true, "text_input": "b"}',
            "`stream` is given twice",
        ),
        ({**TEXT, "parameters": {"max_tokens": 3}}, "`max_tokens` is given twice"),
        # Objects.
        ({**TEXT, "PARAMS": {"PARAM_0": 0, "PARAM_1": True}}, "`PARAMS` must be a number, a string, true or"),
        ({**TEXT, "text_input": {"USER": "hello", "BOT": "world"}}, "`text_input`: "),
    ],
)
def test_what_is_wrong_is_refused_by_name(address: str, route: str, body: Any, said: str) -> None:
    answer = ask(address, route, body)
    assert answer.status == 400, answer.body
    assert said in answer.json()["error"]


def test_many_clients_at_once(address: str) -> None:
    bodies = [{**TEXT, "stream": bool(number % 2), "param": "unknown"} for number in range(100)]
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda body: ask(address, "generate_stream", body), bodies))
    texts = {"".join(event["text_output"] for event in events(answer)) for answer in answers[1::2]}
    assert len(texts) == 1
    assert {len(events(answer)) for answer in answers[::2]} == {1}


def test_health_has_the_bodies_that_kserve_s_sdk_reads(address: str) -> None:
    for path, body in (
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        (f"{MODEL}/ready", {"name": "ensemble", "ready": True}),
    ):
        answer = get(address, path)
        assert answer.status == 200, path
        assert answer.json() == body
        assert answer.headers["content-type"].startswith("application/json")
