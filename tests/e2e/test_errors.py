"""Every error of the contract: the status, OpenAI's words, the class that the client raises; and the
server goes on.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any

import openai
import pytest

from support.http import get, post, request
from support.metrics import total
from support.servers import MODEL_NAME, Server, Start, start_gateway, start_worker, wait_ready

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"


def chat(server: Server, **fields: Any) -> Any:
    return post(server.http, CHAT, {"model": server.model, "messages": MESSAGES, "max_tokens": 2, **fields})


@pytest.fixture(autouse=True)
def _nothing_else_is_disturbed(server: Server) -> Any:
    yield
    assert chat(server).status == 200


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": 3}, "temperature", "decimal_above_max_value"),
        ({"top_p": -1}, "top_p", "decimal_below_min_value"),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"n": 10**9}, "n", "integer_above_max_value"),
        ({"n": 10**400}, "n", "integer_above_max_value"),
        ({"max_tokens": -5}, "max_tokens", "integer_below_min_value"),
        ({"max_tokens": 10**18}, "max_tokens", "integer_above_max_value"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": {"a": 1}}, "stop", "invalid_type"),
        ({"seed": "x"}, "seed", "invalid_type"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"2000000000": 1}}, "logit_bias", None),
        ({"stop_token_ids": [2_000_000_000]}, "stop_token_ids", None),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": {"role": "user"}}, "messages", "invalid_type"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "a robot", "content": ""}]}, "messages[0].role", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
            "unsupported_parameter",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", None),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"messages": None}, "messages", "missing_required_parameter"),
    ],
)
def test_a_bad_field_is_400_with_its_name(
    server: Server, fields: dict[str, Any], param: str, code: str | None
) -> None:
    response = chat(server, **fields)
    assert response.status == 400, response
    error = response.error
    assert error["type"] == "invalid_request_error"
    assert error["param"] is not None
    assert error["param"].startswith(param)
    if code is not None:
        assert error["code"] == code
    assert "retry-after" not in response.headers


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b'{"model": "m", \'single\': 1}',
        b'{"model": NaN}',
        b"\xff\xfe",
        b'{"model": "\xc3\x28"}',
        b'{"model": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\x00" * 100,
        b'{"model": "m", "messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_malformed_body_is_400(server: Server, path: str, body: bytes) -> None:
    response = post(server.http, path, body)
    assert response.status == 400, response
    assert response.error["type"] == "invalid_request_error"


def test_an_unknown_model_is_404_and_says_what_there_is(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "Hi"}])
    assert raised.value.code == "model_not_found"
    assert raised.value.type == "invalid_request_error"
    assert f"`{server.model}`" in raised.value.message


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_is_400_before_the_stream(
    client: openai.OpenAI, server: Server, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(
            model=server.model, messages=[{"role": "user", "content": "word " * 60_000}], stream=stream
        )
    assert raised.value.code == "context_length_exceeded"
    assert raised.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=server.model, prompt=[5] * 50_000, stream=stream)
    assert raised.value.code == "context_length_exceeded"
    assert raised.value.param == "prompt"


def test_more_tokens_than_the_context_has_left_are_refused(server: Server) -> None:
    response = chat(server, max_tokens=1_000_000)
    assert response.status == 400
    assert response.error["code"] == "context_length_exceeded"
    assert response.error["param"] in ("max_tokens", "messages")


def test_token_ids_outside_the_vocabulary_are_refused(server: Server) -> None:
    body = {"model": server.model, "prompt": [5, 2_000_000_000]}
    response = post(server.http, "/v1/completions", body)
    assert response.status == 400
    assert response.error["param"].startswith("prompt")


def test_a_ten_megabyte_prompt_is_refused_by_its_length(server: Server) -> None:
    response = chat(server, messages=[{"role": "user", "content": "word " * 2_000_000}])
    assert response.status == 400
    assert response.error["code"] == "context_length_exceeded"


def test_a_body_over_the_limit_is_413(server: Server) -> None:
    body = b'{"model": "' + b"x" * (33 << 20) + b'"}'
    response = post(server.http, CHAT, body)
    assert response.status == 413
    assert response.error["type"] == "invalid_request_error"
    assert "33554432" in response.error["message"]


def test_a_chunked_body_over_the_limit_is_413(server: Server) -> None:
    host, port = server.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}transfer-encoding: chunked\r\nconnection: close\r\n\r\n".encode())
        piece = b"x" * (1 << 20)
        for _ in range(33):
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        connection.sendall(b"0\r\n\r\n")
        answer = b""
        while received := connection.recv(65536):
            answer += received
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_body_that_is_cut_off_harms_no_one(server: Server) -> None:
    host, port = server.http.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        connection.sendall(f'{head}content-length: 1000\r\n\r\n{{"model":'.encode())


def test_bytes_that_are_no_http_harm_no_one(server: Server) -> None:
    host, port = server.http.rsplit(":", 1)
    for sent in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\x00" * 64, b"POST / HTTP/9.9\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            # Refused with an answer or without one, perhaps before all was sent.
            with suppress(OSError):
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError):
                connection.recv(4096)


def test_unknown_routes_and_methods_have_the_envelope(server: Server) -> None:
    missing = get(server.http, "/v1/nothing")
    assert (missing.status, missing.error["code"]) == (404, "unknown_url")
    wrong = get(server.http, CHAT)
    assert (wrong.status, wrong.error["code"]) == (405, "method_not_supported")
    assert "POST" in wrong.headers["allow"]


def test_the_request_id_is_the_client_s_or_a_new_one(server: Server) -> None:
    given = request(server.http, "GET", "/v1/models", None, {"x-request-id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    made = get(server.http, "/v1/models")
    assert made.headers["x-request-id"]
    failed = post(server.http, CHAT, b"{")
    assert failed.headers["x-request-id"]


def test_ignored_fields_are_named_in_a_header_and_counted(server: Server) -> None:
    def counted() -> str:
        return get(server.http, "/metrics").body.decode()

    response = chat(server, store=True, metadata={"a": "b"}, surprise=1, service_tier="auto")
    assert response.status == 200
    assert response.headers["x-inflight-ignored-fields"] == "store, metadata, surprise"
    text = counted()
    assert 'field="store"' in text
    assert 'field="other"' in text
    assert "surprise" not in text
    many = chat(server, **{f"unknown_{index}": 1 for index in range(40)})
    assert many.headers["x-inflight-ignored-fields"].endswith(", +24-more")
    assert len(many.headers["x-inflight-ignored-fields"]) <= 512
    assert "x-inflight-ignored-fields" not in chat(server, tools=[], tool_choice="none").headers


def test_a_key_is_asked_for_and_never_shown(start: Start) -> None:
    worker = start_worker(start)
    gateway = start_gateway(start, [worker], "--api-key=sesame-key-1")
    address = wait_ready(gateway)
    server = Server(address, "", "", MODEL_NAME)
    for key in ("wrong", "sesame-key-", "sesame-key-11", "x" * 10_000):
        with server.client(api_key=key) as client, pytest.raises(openai.AuthenticationError) as raised:
            client.models.list()
        assert raised.value.code == "invalid_api_key"
        assert raised.value.type == "invalid_request_error"
    assert get(address, "/v1/models").status == 401
    assert post(address, CHAT, b"{").status == 401
    with server.client(api_key="sesame-key-1") as client:
        assert client.models.list().data
    # Probes have no key.
    assert get(address, "/health/live").status == 200
    assert "sesame" not in gateway.log.partition("\n")[2]


def test_errors_of_the_client_are_not_retried(server: Server) -> None:
    # The default client retries what may succeed; one attempt each means one count each.
    before = _count(server, 400)
    with server.client(max_retries=2) as client, pytest.raises(openai.BadRequestError):
        client.completions.create(model=server.model, prompt="Hi", temperature=9)
    assert _count(server, 400) == before + 1


def _count(server: Server, status: int) -> float:
    return total(server.http, "inflight_gateway_requests_total", f'status="{status}"')


def test_json_with_duplicate_and_escaped_names_is_read(server: Server) -> None:
    body = json.dumps({"model": server.model, "messages": MESSAGES, "max_tokens": 1})
    body = body[:-1] + ', "max_tokens": 2, "\\u006e": 2}'
    response = post(server.http, CHAT, body.encode())
    assert response.status == 200
    assert len(response.json()["choices"]) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -0.5}, "frequency_penalty"),
        ({"repetition_penalty": 1.5}, "repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"min_p": 0.5, "temperature": 1}, "min_p"),
    ],
)
def test_what_the_executor_cannot_do_is_refused_by_name(
    fast: Server, fields: dict[str, Any], param: str
) -> None:
    refused = chat(fast, **fields)
    assert refused.status == 400, refused
    assert refused.error["param"] == param
    neutral = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "logit_bias": {}}
    assert chat(fast, **neutral).status == 200
