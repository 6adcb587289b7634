"""`/v1/completions`."""

from __future__ import annotations

from typing import Any

from inflight.conformance.check import check, expect, expect_equal
from inflight.conformance.target import Target

TOPIC = "Completions"

PROMPT = "Machine learning is"


def ask(target: Target, **fields: Any) -> Any:
    """A short, greedy continuation of `PROMPT`, unless `fields` say otherwise."""
    asked: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, **fields}
    return target.openai.completions.create(model=target.model, **asked)


@check(TOPIC, "answers with text, a reason and a usage that adds up")
def whole(target: Target) -> None:
    answer = ask(target)
    expect_equal("`object`", answer.object, "text_completion")
    [choice] = answer.choices
    expect(choice.text, "`text` is empty")
    expect(choice.finish_reason in ("stop", "length"), f"`finish_reason` is {choice.finish_reason!r}")
    usage = answer.usage
    expect_equal("`total_tokens`", usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)


@check(TOPIC, "answers a list of prompts in its order")
def several_prompts(target: Target) -> None:
    prompts = [PROMPT, "The capital of France is"]
    answer = ask(target, prompt=prompts, n=2)
    expect_equal("the choices' indices", [choice.index for choice in answer.choices], [0, 1, 2, 3])


@check(TOPIC, "takes token ids for a prompt", optional=True)
def token_ids(target: Target) -> None:
    one = ask(target, prompt=[1, 2, 3, 4]).choices
    two = ask(target, prompt=[[1, 2, 3, 4], [5, 6]]).choices
    expect_equal("the numbers of choices", (len(one), len(two)), (1, 2))


@check(TOPIC, "repeats the prompt with `echo`", optional=True)
def echo(target: Target) -> None:
    text = ask(target, echo=True).choices[0].text
    expect(text.startswith(PROMPT), f"the text begins with {text[: len(PROMPT)]!r}")


@check(TOPIC, "reports log probabilities with offsets", optional=True)
def log_probs(target: Target) -> None:
    [choice] = ask(target, logprobs=2).choices
    told = choice.logprobs
    expect(told, "`logprobs` is missing")
    lengths = {len(told.tokens), len(told.token_logprobs), len(told.text_offset), len(told.top_logprobs)}
    expect_equal("the number of different list lengths", len(lengths), 1)
    expect_equal("the first offset", told.text_offset[0], 0)


@check(TOPIC, "streams the text of the whole answer")
def streams(target: Target) -> None:
    whole = ask(target).choices[0].text
    chunks = list(ask(target, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    expect_equal("the streamed text", text, whole)
    expect(chunks[-1].usage, "the last event has no `usage`")
