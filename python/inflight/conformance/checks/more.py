"""What stands beside generation: embeddings, tokens, health, metrics."""

from __future__ import annotations

from inflight.conformance.check import Absent, check, expect, expect_equal
from inflight.conformance.target import Target

TOPIC = "Beside generation"


@check(TOPIC, "embeds texts", optional=True)
def embeddings(target: Target) -> None:
    answer = target.openai.embeddings.create(
        model=target.model, input=["a cat", "a dog"], encoding_format="float"
    )
    expect_equal("the vectors' indices", [one.index for one in answer.data], [0, 1])
    expect_equal("the number of lengths", len({len(one.embedding) for one in answer.data}), 1)


@check(TOPIC, "turns text into tokens and back", optional=True)
def tokenize(target: Target) -> None:
    answer = target.request("POST", "/tokenize", {"model": target.model, "prompt": "Hello there."})
    if answer.status == 404:
        raise Absent("404")
    tokens = answer.json()["tokens"]
    answer = target.request("POST", "/detokenize", {"model": target.model, "tokens": tokens})
    expect("Hello there." in answer.json()["prompt"], f"the text is {answer.json()['prompt']!r}")


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
