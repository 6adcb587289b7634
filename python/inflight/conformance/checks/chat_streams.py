"""`/v1/chat/completions` as server-sent events: what the SDK reads, and the bytes themselves."""

from __future__ import annotations

import json
from typing import Any

from inflight.conformance.check import check, expect, expect_equal
from inflight.conformance.checks.chat import ASK, SHORT, ask
from inflight.conformance.target import Target

TOPIC = "Chat streams"


@check(TOPIC, "has one role, text, then one reason, all under one id")
def order(target: Target) -> None:
    chunks = list(ask(target, stream=True))
    expect_equal("`object`", {chunk.object for chunk in chunks}, {"chat.completion.chunk"})
    expect_equal("the number of ids", len({(chunk.id, chunk.created) for chunk in chunks}), 1)
    roles = [chunk.choices[0].delta.role for chunk in chunks if chunk.choices]
    expect_equal("the roles", [role for role in roles if role], ["assistant"])
    expect(roles[0], "the role is not in the first event")
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    expect(reasons[-1] in ("stop", "length"), f"the last `finish_reason` is {reasons[-1]!r}")
    expect_equal("the reasons before it", set(reasons[:-1]) - {None}, set())


@check(TOPIC, "streams the text of the whole answer")
def same_text(target: Target) -> None:
    whole = ask(target).choices[0].message.content
    chunks = ask(target, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    expect_equal("the streamed text", text, whole)


@check(TOPIC, "comes in several events")
def several_events(target: Target) -> None:
    chunks = [chunk for chunk in ask(target, stream=True) if chunk.choices]
    texts = sum(bool(chunk.choices[0].delta.content) for chunk in chunks)
    expect(texts > 1, f"`{SHORT}` tokens came in {texts} event")


@check(TOPIC, "ends with the usage if asked to")
def usage(target: Target) -> None:
    chunks = list(ask(target, stream=True, stream_options={"include_usage": True}))
    last = chunks[-1]
    expect_equal("`choices` of the last event", last.choices, [])
    expect(last.usage is not None, "the last event has no `usage`")
    expect_equal("`usage` before it", [chunk.usage for chunk in chunks[:-1] if chunk.usage], [])
    expect_equal("`usage`", last.usage, ask(target).usage)


@check(TOPIC, "streams `n` choices side by side")
def several_choices(target: Target) -> None:
    texts = {0: "", 1: ""}
    for chunk in ask(target, stream=True, n=2, temperature=1):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    expect(all(texts.values()), f"the texts are {texts!r}")


@check(TOPIC, "adds up in the SDK's stream helper")
def helper(target: Target) -> None:
    with target.openai.chat.completions.stream(
        model=target.model, messages=ASK, max_completion_tokens=1000, temperature=0
    ) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    expect_equal("`role`", final.choices[0].message.role, "assistant")
    expect_equal("`content`", final.choices[0].message.content, streamed)


@check(TOPIC, "carries log probabilities with their text")
def log_probs(target: Target) -> None:
    whole = ask(target, logprobs=True).choices[0].logprobs.content
    streamed: list[Any] = []
    for chunk in ask(target, stream=True, logprobs=True):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content or []
    expect_equal("the tokens", [one.token for one in streamed], [one.token for one in whole])


@check(TOPIC, "is framed as server-sent events, up to `[DONE]`")
def framing(target: Target) -> None:
    body = {"model": target.model, "messages": ASK, "max_tokens": SHORT, "stream": True}
    answer = target.request("POST", "/v1/chat/completions", body)
    expect_equal("the status", answer.status, 200)
    expect(
        answer.headers.get("content-type", "").startswith("text/event-stream"),
        f"`content-type` is {answer.headers.get('content-type')!r}",
    )
    events = [event for event in answer.body.decode().split("\n\n") if event]
    expect_equal("the last event", events[-1], "data: [DONE]")
    for event in events[:-1]:
        lines = [line for line in event.split("\n") if not line.startswith(":")]
        expect(len(lines) == 1 and lines[0].startswith("data: "), f"an event is {event!r}")
        json.loads(lines[0].removeprefix("data: "))


@check(TOPIC, "survives a client that leaves in mid-stream")
def leaves(target: Target) -> None:
    for _ in range(4):
        stream = ask(target, stream=True, max_tokens=200)
        next(iter(stream))
        stream.close()
    expect(ask(target).choices[0].message.content, "the request after it has no text")


@check(TOPIC, "refuses before the stream with a status")
def refused(target: Target) -> None:
    body = {"model": target.model, "messages": ASK, "temperature": "hot", "stream": True}
    answer = target.request("POST", "/v1/chat/completions", body)
    expect_equal("the status", answer.status, 400)
    expect_equal("`param`", answer.json()["error"]["param"], "temperature")
