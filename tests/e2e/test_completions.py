"""Completions on the real model: prompt forms, echo, log probabilities, usage against the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Completion
from tokenizers import Tokenizer

from support.servers import Server

TEXT = "Machine learning is"


@pytest.fixture(scope="module")
def tokenizer(model_directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_directory / "tokenizer.json"))


def greedy(client: openai.OpenAI, server: Server, prompt: Any, **fields: Any) -> Completion:
    fields.setdefault("max_tokens", 6)
    answer: Any = client.completions.create(model=server.model, prompt=prompt, temperature=0, **fields)
    assert isinstance(answer, Completion)
    return answer


def test_the_four_prompt_forms_agree(client: openai.OpenAI, server: Server, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT).ids
    other = tokenizer.encode("Hello").ids
    text = greedy(client, server, TEXT)
    assert text.object == "text_completion"
    assert text.id.startswith("cmpl-")
    assert text.usage is not None
    assert text.usage.prompt_tokens == len(ids)
    assert greedy(client, server, ids).choices == text.choices
    for prompts in ([TEXT, "Hello"], [ids, other]):
        both = greedy(client, server, prompts)
        assert [choice.index for choice in both.choices] == [0, 1]
        assert both.choices[0].text == text.choices[0].text
        assert both.choices[1].text == greedy(client, server, "Hello").choices[0].text
        assert both.usage is not None
        assert both.usage.prompt_tokens == len(ids) + len(other)


def test_a_stream_of_several_prompts_keeps_them_apart(client: openai.OpenAI, server: Server) -> None:
    prompts = [TEXT, "Hello", "The"]
    whole = greedy(client, server, prompts, n=2)
    streamed = [""] * 6
    for chunk in client.completions.create(
        model=server.model, prompt=prompts, n=2, temperature=0, max_tokens=6, stream=True
    ):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in whole.choices]
    # Greedy: the choices of one prompt are alike, those of different prompts are where they belong.
    assert streamed[0] == streamed[1]
    assert streamed[2] == greedy(client, server, "Hello").choices[0].text


def test_absent_max_tokens_is_sixteen(client: openai.OpenAI, server: Server) -> None:
    answer = client.completions.create(
        model=server.model, prompt=TEXT, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


def test_echo_puts_the_prompt_first(client: openai.OpenAI, server: Server, tokenizer: Tokenizer) -> None:
    plain = greedy(client, server, TEXT)
    echoed = greedy(client, server, TEXT, echo=True)
    assert echoed.choices[0].text == TEXT + plain.choices[0].text
    assert echoed.usage == plain.usage
    from_ids = greedy(client, server, tokenizer.encode(TEXT, add_special_tokens=False).ids, echo=True)
    assert from_ids.choices[0].text.startswith(TEXT)
    streamed = "".join(
        choice.text
        for chunk in client.completions.create(
            model=server.model, prompt=TEXT, temperature=0, max_tokens=6, echo=True, stream=True
        )
        for choice in chunk.choices
    )
    assert streamed == echoed.choices[0].text


def test_log_probabilities_are_columns(client: openai.OpenAI, server: Server) -> None:
    choice = greedy(client, server, TEXT, logprobs=3, extra_body={"ignore_eos": True}).choices[0]
    columns = choice.logprobs
    assert columns is not None
    assert columns.tokens is not None
    assert columns.token_logprobs is not None
    assert columns.top_logprobs is not None
    assert columns.text_offset is not None
    assert len(columns.tokens) == len(columns.token_logprobs) == len(columns.top_logprobs) == 6
    assert columns.text_offset[0] == 0
    assert columns.text_offset == sorted(columns.text_offset)
    for token, value, top in zip(columns.tokens, columns.token_logprobs, columns.top_logprobs, strict=True):
        assert 1 <= len(top) <= 4
        assert top[token] == pytest.approx(value, abs=1e-4)
        assert max(top.values()) == pytest.approx(value, abs=1e-4)


def test_echoed_log_probabilities_cover_the_prompt(
    client: openai.OpenAI, server: Server, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(TEXT).ids
    choice = greedy(client, server, TEXT, logprobs=2, echo=True, max_tokens=2).choices[0]
    columns = choice.logprobs
    assert columns is not None
    assert columns.token_logprobs is not None
    assert columns.tokens is not None
    assert len(columns.tokens) >= len(ids)
    # Nothing precedes the first token.
    assert columns.token_logprobs[0] is None
    assert all(value <= 0 for value in columns.token_logprobs[1:])
    assert columns.top_logprobs is not None
    assert columns.top_logprobs[0] is None
    for token, value, top in list(
        zip(columns.tokens, columns.token_logprobs, columns.top_logprobs, strict=True)
    )[1:]:
        assert top[token] == pytest.approx(value, abs=1e-4)
    # Each token stands where its offset says; special ones have no text there.
    assert columns.text_offset is not None
    assert columns.text_offset == sorted(columns.text_offset)
    special = set(tokenizer.get_added_tokens_decoder())
    for token, offset in zip(columns.tokens, columns.text_offset, strict=True):
        if tokenizer.token_to_id(token) not in special:
            assert choice.text[offset:].startswith(token)


def test_a_stop_token_id_ends_it(client: openai.OpenAI, server: Server, tokenizer: Tokenizer) -> None:
    full = greedy(client, server, TEXT, logprobs=0, extra_body={"ignore_eos": True}).choices[0]
    assert full.logprobs is not None
    assert full.logprobs.tokens is not None
    third = full.logprobs.tokens[2]
    ids = [id for token, id in tokenizer.get_vocab().items() if tokenizer.decode([id]) == third]
    stopped = greedy(client, server, TEXT, extra_body={"stop_token_ids": ids}).choices[0]
    assert stopped.finish_reason == "stop"
    assert full.text.startswith(stopped.text)
    assert len(stopped.text) < len(full.text)


def test_characters_of_several_tokens_are_never_cut(
    client: openai.OpenAI, server: Server, tokenizer: Tokenizer
) -> None:
    # One byte of a character, again and again: what cannot be a character becomes U+FFFD, exactly as
    # the tokenizer decodes all of it at once.
    vocabulary = tokenizer.get_vocab()
    half = next(vocabulary[token] for token in ("Ã", "Â", "â", "ð") if token in vocabulary)
    for max_tokens in (1, 2, 5):
        fields: dict[str, Any] = {
            "logit_bias": {str(half): 100},
            "max_tokens": max_tokens,
            "extra_body": {"ignore_eos": True},
        }
        whole = greedy(client, server, TEXT, **fields).choices[0].text
        assert whole == tokenizer.decode([half] * max_tokens)
        streamed = "".join(
            choice.text
            for chunk in client.completions.create(
                model=server.model,
                prompt=TEXT,
                temperature=0,
                stream=True,
                **fields,
            )
            for choice in chunk.choices
        )
        assert streamed == whole
