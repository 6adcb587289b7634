"""vLLM's `/tokenize`, `/detokenize` and `/tokenizer_info`, with OpenAI's client on `inflight serve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

import inflight
from support import http
from support.servers import MODEL_NAME, Server

MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Grüße, 🦀!"}]


@pytest.fixture(scope="module")
def post(server: Server, client: openai.OpenAI) -> Any:
    """Posts to a path that is not below `/v1`."""

    def post(path: str, **body: Any) -> Any:
        return client.post(f"http://{server.http}/{path}", body=body, cast_to=object)

    return post


def test_a_text_is_tokenized_as_its_tokenizer_does(post: Any, client: openai.OpenAI) -> None:
    tokenizer = Tokenizer.from_file(str(Path(inflight.__file__).parent / "demo/tokenizer.json"))
    for text in ("Hello, world!", "Grüße, 🦀!", "  a\n\tb ", ""):
        for add in (True, False):
            told = post("tokenize", prompt=text, add_special_tokens=add, return_token_strs=True)
            expected = tokenizer.encode(text, add_special_tokens=add)
            assert told["tokens"] == expected.ids
            assert told["token_strs"] == expected.tokens
            assert told["count"] == len(expected.ids)
    told = post("tokenize", model=MODEL_NAME, prompt="Hello")
    assert told["token_strs"] is None
    assert told["max_model_len"] == client.models.retrieve(MODEL_NAME).max_model_len  # type: ignore[attr-defined]


def test_messages_are_the_tokens_that_a_chat_is_answered_from(post: Any, client: openai.OpenAI) -> None:
    for options in ({}, {"add_generation_prompt": False}, {"chat_template_kwargs": {"a": "b"}}):
        body = {"model": MODEL_NAME, "messages": MESSAGES, **options}
        told = post("tokenize", **body)
        extra = {**options, "return_token_ids": True}
        chat = client.chat.completions.create(
            model=MODEL_NAME,
            messages=MESSAGES,  # type: ignore[arg-type]
            max_tokens=1,
            extra_body=extra,
        )
        assert told["tokens"] == chat.prompt_token_ids  # type: ignore[attr-defined]


def test_tokens_become_text_again(post: Any) -> None:
    for text in ("Grüße, 🦀!", "  a\n\tb ", ""):
        tokens = post("tokenize", prompt=text, add_special_tokens=False)["tokens"]
        assert post("detokenize", model=MODEL_NAME, tokens=tokens) == {"prompt": text}
    # Special tokens are text too: what a template writes is told in full.
    rendered = post("detokenize", tokens=post("tokenize", messages=MESSAGES)["tokens"])["prompt"]
    assert "Be short." in rendered
    again = post("tokenize", prompt=rendered, add_special_tokens=False)
    assert again["tokens"] == post("tokenize", messages=MESSAGES)["tokens"]


def test_the_tokenizer_is_told_as_its_files_have_it(client: openai.OpenAI, server: Server) -> None:
    directory = Path(inflight.__file__).parent / "demo"
    told: Any = client.get(
        f"http://{server.http}/tokenizer_info",
        cast_to=object,
        options={"params": {"model": MODEL_NAME}},
    )
    config = json.loads((directory / "tokenizer_config.json").read_text())
    template = config.pop("chat_template", None)
    file = directory / "chat_template.jinja"
    assert told.pop("chat_template") == (file.read_text() if file.exists() else template)
    config.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    assert told == config


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("tokenize", {}, 400, "prompt"),
        ("tokenize", {"prompt": "a", "messages": MESSAGES}, 400, "messages"),
        ("tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("tokenize", {"prompt": "a " * 1_000_000}, 400, "prompt"),
        ("tokenize", {"messages": MESSAGES, "tools": [{"type": "function"}]}, 400, "tools[0].function"),
        ("detokenize", {}, 400, "tokens"),
        ("detokenize", {"tokens": [1 << 30]}, 400, "tokens"),
        ("detokenize", {"tokens": ["a"]}, 400, "tokens"),
    ],
)
def test_what_cannot_be_done_is_named(post: Any, path: str, body: Any, status: int, param: str) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        post(path, **body)
    assert (refused.value.status_code, refused.value.param) == (status, param)


def test_fields_without_an_effect_are_reported(server: Server) -> None:
    body = {"messages": MESSAGES, "temperature": 0.5, "metadata": {"a": "b"}}
    answer = http.post(server.http, "/tokenize", body)
    assert answer.headers["x-inflight-ignored-fields"] == "temperature, metadata"
