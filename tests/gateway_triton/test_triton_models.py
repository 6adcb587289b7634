"""Which models are served, and what each is refused: with a tokenizer, without, and without decoupling."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.fronted import (
    CHAT,
    CHATS,
    COMPLETIONS,
    CREATED,
    DIALECTS,
    NEIGHBOURS,
    PROMPTS,
    TAKE_TEXT,
    Hosted,
    Told,
    ask,
    names,
    served,
    shown,
)
from support.http import get, post, stream
from support.servers import Server, Start, wait_ready


@pytest.mark.parametrize(
    ("models", "field", "value"),
    [
        (TAKE_TEXT, "min_p", 0.1),
        (DIALECTS, "logprobs", 2),
        (TAKE_TEXT, "logprobs", 0),
        (TAKE_TEXT, "logit_bias", {"40": 1}),
        (TAKE_TEXT, "stop_token_ids", [40]),
        (TAKE_TEXT, "ignore_eos", True),
        (TAKE_TEXT, "skip_special_tokens", False),
        (TAKE_TEXT, "prompt", [40, 41]),
        (["llmapi"], "repetition_penalty", 1.1),
        (["llmapi"], "min_tokens", 2),
    ],
)
def test_what_a_model_lacks_is_refused_by_name(
    gateway: Server, models: list[str], field: str, value: Any
) -> None:
    for model in models:
        body = {"model": model, "prompt": "Hi", "max_tokens": 2, field: value}
        refused = post(gateway.http, COMPLETIONS, body)
        assert refused.status == 400, (model, refused.body)
        assert refused.error["param"] == field
        assert f"`{model}`" in refused.error["message"]


def test_what_is_too_long_is_refused_by_name(gateway: Server) -> None:
    for model in DIALECTS:
        for body in ({"prompt": "Hi", "max_tokens": 50_000}, {"prompt": "word " * 40_000, "max_tokens": 1}):
            refused = post(gateway.http, COMPLETIONS, {"model": model, **body})
            assert refused.status == 400
            assert refused.error["code"] == "context_length_exceeded"


def test_models_are_those_that_generate(gateway: Server, model_directory: Path) -> None:
    context = json.loads((model_directory / "config.json").read_text())["max_position_embeddings"]
    models = get(gateway.http, "/v1/models").json()["data"]
    assert {model["max_model_len"] for model in models} == {context}
    assert names(gateway) == sorted(DIALECTS)
    assert get(gateway.http, "/health/ready").status == 200
    for name in NEIGHBOURS:
        assert post(gateway.http, COMPLETIONS, {"model": name, "prompt": "Hi"}).status == 404


def test_without_a_tokenizer_text_models_complete(start: Start, triton: Hosted, server: Server) -> None:
    process = start("gateway", "--port=0", f"--worker={triton.server.grpc}")
    bare = Server(wait_ready(process), triton.server.grpc, triton.server.metrics, "")
    assert names(bare) == sorted(TAKE_TEXT)
    assert re.search(r"not served: `tensorrt_llm`: .*`--tokenizer DIRECTORY`", process.log)
    for model in TAKE_TEXT:
        # The text models of this repository count; llmapi does not, and so nobody does.
        counts = model != "llmapi"
        for fields in PROMPTS:
            expected = shown(model, served(server, **fields))
            told = ask(bare, model, False, **fields)
            assert told == Told(expected.choices, expected.usage if counts else None)
            answer = stream(bare.http, COMPLETIONS, {"model": model, "temperature": 0, **fields})
            chunks = [chunk["choices"][0] for chunk in answer.chunks()]
            answer.close()
            assert "".join(chunk["text"] for chunk in chunks) == expected.text
            assert chunks[-1]["finish_reason"] == expected.choices[0][1]
        whole = post(bare.http, COMPLETIONS, {"model": model, **PROMPTS[0]}).json()
        assert ("usage" in whole) == counts
        asked = {"model": model, **PROMPTS[0], "stream": True, "stream_options": {"include_usage": True}}
        refused = post(bare.http, COMPLETIONS, asked)
        assert refused.status == (200 if counts else 400)
        if not counts:
            assert refused.error["param"] == "stream_options"
        # Without a template of the model's own, the plain one.
        chat = post(bare.http, CHAT, {"model": model, "temperature": 0, **CHATS[0]}).json()
        prompt = {"prompt": "User: Hello\nASSISTANT:", "max_tokens": CHATS[0]["max_tokens"]}
        same = ask(bare, model, False, **prompt)
        assert same.text.strip()
        assert chat["choices"][0]["message"]["content"].strip() == same.text.strip()


@pytest.mark.parametrize("model", CREATED)
def test_models_that_answer_once_are_served(single: Server, server: Server, model: str) -> None:
    for fields in (*PROMPTS, *CHATS):
        expected = shown(model, served(server, **fields))
        for streaming in (False, True):
            assert ask(single, model, streaming, **fields) == expected
    body = {"model": model, "temperature": 0, **PROMPTS[2], "stream": True}
    curl = [
        "curl",
        "--silent",
        "--no-buffer",
        "--max-time",
        "60",
        "--header",
        "content-type: application/json",
    ]
    url = f"http://{single.http}{COMPLETIONS}"
    done = subprocess.run(
        [*curl, "--data", json.dumps(body), url], capture_output=True, text=True, check=True
    )
    *events, mark = done.stdout.split("\n\n")[:-1]
    assert mark == "data: [DONE]"
    texts = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events]
    whole = served(server, **PROMPTS[2]).text
    assert "".join(texts) == whole
    # Token ids are decoded one by one; a text is what it is.
    assert model == "tensorrt_llm" or [one for one in texts if one] == [whole]


@pytest.mark.parametrize("model", CREATED)
def test_models_that_answer_once_are_cut_at_stop_strings(single: Server, server: Server, model: str) -> None:
    fields: dict[str, Any] = {"prompt": "Machine learning is", "max_tokens": 20}
    fields["stop"] = served(server, **fields).text.split(" ")[5][2:6]
    expected = served(server, **fields)
    assert expected.choices[0][1] == "stop"
    assert ask(single, model, False, **fields).choices == expected.choices
