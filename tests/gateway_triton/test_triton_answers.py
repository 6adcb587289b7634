"""In every dialect an answer is what `inflight serve` gives.

Where a dialect promises less (docs/guides/triton-gateway.md), less is compared.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from support.fronted import CHAT, CHATS, COMPLETIONS, DIALECTS, EMOJI, PROMPTS, ask, served, shown
from support.http import post
from support.servers import Server


@pytest.mark.migrates(
    "openai_trtllm",
    "`openai_trtllm` in front of Triton, for chats and completions",
    "inflight gateway --worker HOST:PORT --tokenizer MODEL=DIR",
)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("model", DIALECTS)
@pytest.mark.parametrize("questions", [PROMPTS, CHATS], ids=["completions", "chats"])
def test_answers_are_those_of_serve(
    gateway: Server, server: Server, questions: tuple[dict[str, Any], ...], model: str, streaming: bool
) -> None:
    reasons = set()
    for fields in questions:
        expected = served(server, **fields)
        assert ask(gateway, model, streaming, **fields) == shown(model, expected), fields
        reasons.add(expected.choices[0][1])
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("model", DIALECTS)
def test_stop_strings_end_as_with_serve(gateway: Server, server: Server, model: str, streaming: bool) -> None:
    fields: dict[str, Any] = {"prompt": "Machine learning is", "max_tokens": 20}
    whole = served(server, **fields).text
    words = whole.split(" ")
    for stop in (
        # A token, a part of one, the end of one with the begin of the next, and one of two.
        [f" {words[5]}"],
        [words[5][2:6]],
        [f"{words[4][-2:]} {words[5][:3]}"],
        ["never said", words[7]],
    ):
        expected = served(server, **fields, stop=stop)
        assert expected.choices[0][1] == "stop"
        assert len(expected.text) < len(whole)
        told = ask(gateway, model, streaming, **fields, stop=stop)
        assert told.choices == expected.choices, stop
        # An ensemble's answer in one piece is counted by the server, which may have gone on.
        if streaming or model != "ensemble":
            assert told.usage == expected.usage, stop


@pytest.mark.parametrize("model", DIALECTS)
def test_choices_are_those_of_consecutive_seeds(gateway: Server, server: Server, model: str) -> None:
    fields = {"prompt": "Once upon a time there was a", "max_tokens": 12, "temperature": 1.5}
    both = ask(gateway, model, False, **fields, n=2, seed=7)
    assert both.choices[0] != both.choices[1]
    for streaming in (False, True):
        assert ask(gateway, model, streaming, **fields, n=2, seed=7) == both
    alone = [ask(gateway, model, False, **fields, seed=seed).choices[0] for seed in (7, 8)]
    assert both.choices == alone
    assert served(server, **fields, seed=7).choices == alone[:1]


@pytest.mark.parametrize(
    ("model", "streaming"),
    # Of an ensemble's answer the server decodes the pieces one by one.
    [pair for pair in itertools.product(DIALECTS, (False, True)) if pair != ("ensemble", True)],
)
def test_characters_of_several_tokens_are_whole(
    gateway: Server, server: Server, model: str, streaming: bool
) -> None:
    expected = served(server, **EMOJI)
    assert "😀" in expected.text
    assert ask(gateway, model, streaming, **EMOJI) == shown(model, expected)


def test_token_ids_have_what_serve_has(gateway: Server, server: Server, model_directory: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_directory / "tokenizer.json"))
    plain = {"prompt": "Hello! My favourite", "max_tokens": 8}
    [unlikely] = tokenizer.encode(" gateway", add_special_tokens=False).ids
    [likely] = tokenizer.encode(" is", add_special_tokens=False).ids
    for fields in (
        {"logit_bias": {str(unlikely): 100}},
        {"logit_bias": {str(likely): -100}},
        {"ignore_eos": True},
        {"ignore_eos": True, "skip_special_tokens": False},
        {"temperature": 1.5, "seed": 7, "min_p": 0.2},
        {"echo": True},
        {"prompt": [*tokenizer.encode(str(plain["prompt"])).ids[1:], unlikely]},
        {"prompt": [plain["prompt"], "The"]},
    ):
        asked = {**plain, **fields}
        expected = served(server, **asked)
        assert expected.choices != served(server, **plain).choices, fields
        assert ask(gateway, "tensorrt_llm", False, **asked) == expected, fields


def test_token_ids_tell_the_log_probabilities_of_serve(gateway: Server, server: Server) -> None:
    def told(at: Server, model: str, path: str, body: dict[str, Any]) -> Any:
        answer = post(at.http, path, {"model": model, "temperature": 0, "max_tokens": 6, **body})
        assert answer.status == 200, answer.body
        return answer.json()["choices"][0]["logprobs"]

    for path, body in (
        (COMPLETIONS, {"prompt": "Once upon a time", "logprobs": 0}),
        (CHAT, {**CHATS[0], "logprobs": True}),
    ):
        expected = told(server, server.model, path, body)
        found = told(gateway, "tensorrt_llm", path, body)
        if path == CHAT:
            columns = [
                ([each["token"] for each in one["content"]], [each["logprob"] for each in one["content"]])
                for one in (found, expected)
            ]
        else:
            columns = [(one["tokens"], one["token_logprobs"]) for one in (found, expected)]
        assert columns[0][0] == columns[1][0]
        assert columns[0][1] == pytest.approx(columns[1][1], abs=1e-4)
        assert len(columns[0][1]) > 3
