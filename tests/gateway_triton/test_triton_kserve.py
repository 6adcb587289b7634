"""The gateway's `/v2` beside the HTTP port of the Triton behind it: the same question, the same answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.fronted import TAKE_TEXT, Hosted
from support.http import get, post, stream
from support.servers import Server

#: As the guides of Triton's TensorRT-LLM backend ask.
QUESTION = {"text_input": "What is machine learning?", "max_tokens": 20, "bad_words": "", "stop_words": ""}
WORDS = {**QUESTION, "bad_words": ["intelligence", "model"], "stop_words": ["focuses", "learn"]}


def same(gateway: Server, triton: Hosted, path: str, body: dict[str, Any]) -> Any:
    ours = post(gateway.http, path, body)
    theirs = post(triton.server.http, path, body)
    assert ours.status == theirs.status, (ours.body, theirs.body)
    assert ours.headers["content-type"] == theirs.headers["content-type"]
    assert ours.json() == theirs.json()
    return ours.json()


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize("question", [QUESTION, WORDS], ids=["plain", "words"])
def test_generate_answers_as_triton(
    gateway: Server, triton: Hosted, model: str, question: dict[str, Any]
) -> None:
    answer = same(gateway, triton, f"/v2/models/{model}/generate", question)
    assert answer["model_name"] == model
    assert isinstance(answer["text_output"], str)


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_generate_stream_answers_as_triton(gateway: Server, triton: Hosted, model: str) -> None:
    body = {**QUESTION, "max_tokens": 8}
    texts = []
    for address in (gateway.http, triton.server.http):
        opened = stream(address, f"/v2/models/{model}/generate_stream", body)
        assert opened.headers["content-type"] == "text/event-stream; charset=utf-8"
        texts.append([json.loads(event) for event in opened.events()])
        opened.close()
    # Triton may lose the end of a stream; what it did send is the same.
    ours, theirs = texts
    assert theirs
    assert ours[: len(theirs)] == theirs


def without_new(ours: Any, theirs: Any) -> Any:
    """Without the fields that this Triton does not know, which are at their defaults."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        added = {name for name in ours if name not in theirs}
        assert not any(ours[name] for name in added), added
        return {name: without_new(value, theirs[name]) for name, value in ours.items() if name in theirs}
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [without_new(*pair) for pair in zip(ours, theirs, strict=True)]
    return ours


@pytest.mark.parametrize("model", [*TAKE_TEXT, "tensorrt_llm", "preprocessing", "postprocessing"])
def test_models_describe_themselves_as_at_triton(gateway: Server, triton: Hosted, model: str) -> None:
    for path in ("", "/versions/1", "/config"):
        ours = get(gateway.http, f"/v2/models/{model}{path}").json()
        theirs = get(triton.server.http, f"/v2/models/{model}{path}").json()
        assert without_new(ours, theirs) == theirs, path
    assert get(gateway.http, f"/v2/models/{model}/ready").status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/models/nothing"),
        ("GET", "/v2/models/nothing/ready"),
        ("GET", "/v2/models/ensemble/versions/7"),
        ("GET", "/v2/nothing"),
        ("GET", "/v2/models/ensemble/generate"),
        ("POST", "/v2/models/nothing/generate"),
        ("POST", "/v2/models/ensemble/config"),
    ],
)
def test_errors_are_triton_s(gateway: Server, triton: Hosted, method: str, path: str) -> None:
    ask = get if method == "GET" else lambda address, path: post(address, path, {})
    ours, theirs = ask(gateway.http, path), ask(triton.server.http, path)
    assert (ours.status, ours.json()) == (theirs.status, theirs.json())


def test_a_model_that_is_not_ours_is_served(gateway: Server, triton: Hosted) -> None:
    """Word by word, as for any other model: `preprocessing` takes texts and gives token ids."""
    text = {"name": "QUERY", "datatype": "BYTES", "shape": [1, 1], "data": ["Hello there"]}
    length = {"name": "REQUEST_OUTPUT_LEN", "datatype": "INT32", "shape": [1, 1], "data": [5]}
    body = {"id": "7", "inputs": [text, length]}
    answer = same(gateway, triton, "/v2/models/preprocessing/infer", body)
    assert answer["id"] == "7"
    names = {output["name"] for output in answer["outputs"]}
    assert "INPUT_ID" in names
