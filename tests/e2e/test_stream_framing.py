"""The bytes of a stream, event by event, against what OpenAI sends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.http import Stream, stream
from support.servers import Server

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "ignore_eos": True}
COMPLETION = {"prompt": "Hi", "max_tokens": 5, "ignore_eos": True}


def events(server: Server, path: str, **body: Any) -> tuple[Stream, list[dict[str, Any]]]:
    answer = stream(server.http, path, {"model": server.model, **body})
    assert answer.status == 200
    chunks = list(answer.chunks())
    answer.close()
    return answer, chunks


def test_headers_say_that_it_is_a_stream(fast: Server) -> None:
    answer, _ = events(fast, "/v1/chat/completions", **CHAT)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert "x-request-id" in answer.headers


def test_chat_is_role_content_finish_done(fast: Server) -> None:
    _, chunks = events(fast, "/v1/chat/completions", **CHAT)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)
    choices = [chunk["choices"] for chunk in chunks]
    assert all(len(choice) == 1 for choice in choices)
    first, *middle, last = [choice[0] for choice in choices]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert first["finish_reason"] is None
    assert middle
    for choice in middle:
        assert set(choice["delta"]) == {"content"}
        assert choice["finish_reason"] is None
    assert last["delta"] == {}
    assert last["finish_reason"] == "length"


def test_completions_are_text_finish_done(fast: Server) -> None:
    _, chunks = events(fast, "/v1/completions", **COMPLETION)
    assert all(chunk["object"] == "text_completion" for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert all(set(choice) == {"index", "text", "logprobs", "finish_reason"} for choice in choices)
    assert "".join(choice["text"] for choice in choices)
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
def test_usage_comes_last_and_once(fast: Server, path: str, body: dict[str, Any]) -> None:
    _, chunks = events(fast, path, **body, n=2, stream_options={"include_usage": True})
    *others, last = chunks
    assert all(chunk["usage"] is None for chunk in others)
    assert all(chunk["choices"] for chunk in others)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 10
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 10
    assert last["usage"]["prompt_tokens_details"].keys() == {"cached_tokens"}
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_each_choice_has_one_role_and_one_end(fast: Server) -> None:
    _, chunks = events(fast, "/v1/chat/completions", **{**CHAT, "n": 3})
    for index in range(3):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert [c["delta"].get("role") for c in mine].count("assistant") == 1
        assert mine[0]["delta"].get("role") == "assistant"
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["length"]
        assert mine[-1]["finish_reason"] == "length"


def test_events_are_plain_lines(fast: Server) -> None:
    answer = stream(fast.http, "/v1/chat/completions", {"model": fast.model, **CHAT})
    body = answer.rest()
    answer.close()
    assert body.endswith(b"\n\ndata: [DONE]\n\n")
    for event in body[:-2].split(b"\n\n"):
        assert event.startswith(b"data: ")
        assert b"\n" not in event
        assert b"\r" not in event
        assert event == b"data: [DONE]" or json.loads(event[len(b"data: ") :])


def test_tokens_arrive_one_by_one(paced: Server) -> None:
    # 20 ms apart at the worker: had anything on the way waited for more, events would hold several.
    _, chunks = events(paced, "/v1/completions", prompt="Hi", max_tokens=20, ignore_eos=True)
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert len([text for text in texts if text]) >= 10
