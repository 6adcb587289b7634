"""Endpoints other than generation: embeddings, tokens, health, metrics."""

from __future__ import annotations

import base64
import struct
from typing import Any
from urllib.parse import quote

from inflight.conformance.check import Absent, check, expect, expect_equal
from inflight.conformance.target import Target

TOPIC = "Other than generation"


@check(TOPIC, "embeds texts", optional=True)
def embeddings(target: Target) -> None:
    answer = target.openai.embeddings.create(model=target.model, input=["a cat", "a dog"])
    expect_equal("the vectors' indices", [one.index for one in answer.data], [0, 1])
    expect_equal("the number of lengths", len({len(one.embedding) for one in answer.data}), 1)
    expect(answer.usage.prompt_tokens > 0, "no tokens are counted")


@check(TOPIC, "writes embeddings as numbers and as base64, alike", optional=True)
def embedding_formats(target: Target) -> None:
    def first(form: str) -> Any:
        body = {"model": target.model, "input": "a cat", "encoding_format": form}
        answer = target.request("POST", "/v1/embeddings", body)
        if answer.status == 404:
            raise Absent("404")
        return answer.json()["data"][0]["embedding"]

    numbers, text = first("float"), first("base64")
    packed = base64.b64decode(text)
    decoded = struct.unpack(f"<{len(packed) // 4}f", packed)
    expect_equal("the number of values", len(decoded), len(numbers))
    apart = max(abs(one - other) for one, other in zip(decoded, numbers, strict=True))
    expect(apart < 1e-4, f"the values are {apart} apart")


@check(TOPIC, "embeds token ids as it embeds their text", optional=True)
def embedded_ids(target: Target) -> None:
    told = target.request("POST", "/tokenize", {"model": target.model, "prompt": "a cat"})
    if told.status == 404:
        raise Absent("404 for /tokenize")
    ids = told.json()["tokens"]
    answer = target.openai.embeddings.create(model=target.model, input=[ids])
    text = target.openai.embeddings.create(model=target.model, input="a cat")
    pairs = zip(answer.data[0].embedding, text.data[0].embedding, strict=True)
    expect(max(abs(one - other) for one, other in pairs) < 1e-4, "the values differ")


@check(TOPIC, "names the field of an embedding that is wrong", optional=True)
def wrong_embeddings(target: Target) -> None:
    fields: dict[str, Any] = {"encoding_format": "int8", "dimensions": -1, "input": []}
    for field, value in fields.items():
        body = {"model": target.model, "input": "a", field: value}
        answer = target.request("POST", "/v1/embeddings", body)
        if answer.status == 404:
            raise Absent("404")
        expect_equal(f"the status for `{field}`", answer.status, 400)
        expect_equal("`param`", answer.json()["error"]["param"], field)


@check(TOPIC, "ranks documents by a query", optional=True)
def ranking(target: Target) -> None:
    documents = ["a cat", "a dog", "three birds"]
    body = {"model": target.model, "query": "a dog", "documents": documents, "top_n": 2}
    answer = target.request("POST", "/v1/rerank", body)
    if answer.status == 404:
        raise Absent("404")
    results = answer.json()["results"]
    expect_equal("the number of results", len(results), 2)
    expect_equal("the index of the query's own text", results[0]["index"], 1)
    scores = [one["relevance_score"] for one in results]
    expect(scores[0] >= scores[1], f"the scores are {scores}")


@check(TOPIC, "turns text into tokens and back", optional=True)
def tokenize(target: Target) -> None:
    answer = target.request("POST", "/tokenize", {"model": target.model, "prompt": "Hello there."})
    if answer.status == 404:
        raise Absent("404")
    tokens = answer.json()["tokens"]
    answer = target.request("POST", "/detokenize", {"model": target.model, "tokens": tokens})
    expect("Hello there." in answer.json()["prompt"], f"the text is {answer.json()['prompt']!r}")


@check(TOPIC, "reports the tokenizer's class and chat template", optional=True)
def tokenizer_info(target: Target) -> None:
    path = f"/tokenizer_info?model={quote(target.model, safe='')}"
    answer = target.request("GET", path)
    if answer.status == 404:
        raise Absent("404")
    told = answer.json()
    expect(isinstance(told["tokenizer_class"], str), "`tokenizer_class` is not a string")
    expect(told.get("chat_template"), "there is no chat template")


@check(TOPIC, "says on `/health` that it serves", optional=True)
def health(target: Target) -> None:
    answer = target.request("GET", "/health")
    if answer.status == 404:
        raise Absent("404")
    expect_equal("the status", answer.status, 200)


@check(TOPIC, "refuses what it does not generate", optional=True)
def images(target: Target) -> None:
    import openai

    try:
        target.openai.images.generate(model=target.model, prompt="a cat")
    except openai.APIStatusError as error:
        expect(error.status_code in (404, 501), f"the status is {error.status_code}")
        return
    raise AssertionError("an image was generated")
