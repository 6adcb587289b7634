"""Reasoning: how much is asked for, and where it is returned."""

from __future__ import annotations

from inflight.conformance.check import check, expect
from inflight.conformance.checks.chat import ask
from inflight.conformance.target import Target

TOPIC = "Reasoning"


@check(TOPIC, "keeps the tags of reasoning out of the answer", optional=True)
def no_tags(target: Target) -> None:
    answer = ask(target, reasoning_effort="low", max_tokens=400)
    content = answer.choices[0].message.content or ""
    for tag in ("<think>", "</think>", "<|channel|>", "[THINK]"):
        expect(tag not in content, f"the answer holds {tag!r}")


@check(TOPIC, "counts reasoning within the answer's tokens", optional=True)
def counts(target: Target) -> None:
    usage = ask(target, reasoning_effort="low", max_tokens=400).usage
    details = usage.completion_tokens_details
    told = (details and details.reasoning_tokens) or 0
    expect(told <= usage.completion_tokens, f"{told} of {usage.completion_tokens} tokens are reasoning")


@check(TOPIC, "passes `chat_template_kwargs` on to the template", optional=True)
def template_arguments(target: Target) -> None:
    answer = ask(target, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    expect(answer.choices[0].message.content, "`content` is empty")
