"""`/v1/responses`."""

from __future__ import annotations

import json
from typing import Any

from inflight.conformance import weather
from inflight.conformance.check import check, expect, expect_equal
from inflight.conformance.checks.structured import SCHEMA
from inflight.conformance.target import Target

TOPIC = "Responses"

WEATHER: dict[str, Any] = {"type": "function", **weather.TOOL, "parameters": weather.INPUT, "strict": True}


def ask(target: Target, **fields: Any) -> Any:
    """A short answer, unless `fields` say otherwise."""
    asked = {"input": "What is machine learning?", "max_output_tokens": 24, "store": False, **fields}
    return target.openai.responses.create(model=target.model, **asked)


@check(TOPIC, "answers with a message and a usage that adds up", optional=True)
def whole(target: Target) -> None:
    answer = ask(target)
    expect_equal("`object`", answer.object, "response")
    expect(answer.status in ("completed", "incomplete"), f"`status` is {answer.status!r}")
    expect(answer.output_text, "`output_text` is empty")
    usage = answer.usage
    expect_equal("`total_tokens`", usage.total_tokens, usage.input_tokens + usage.output_tokens)


@check(TOPIC, "says `incomplete` at `max_output_tokens`", optional=True)
def incomplete(target: Target) -> None:
    answer = ask(target, max_output_tokens=16, instructions="Write a very long answer.")
    if answer.usage.output_tokens >= 16:
        expect_equal("`status`", answer.status, "incomplete")
        expect_equal("the reason", answer.incomplete_details.reason, "max_output_tokens")


@check(TOPIC, "reads items for input", optional=True)
def items(target: Target) -> None:
    answer = ask(
        target,
        instructions="You are brief.",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "Hello."}]},
            {"role": "assistant", "content": "Hello."},
            {"type": "message", "role": "user", "content": "What is machine learning?"},
        ],
    )
    expect(answer.output_text, "`output_text` is empty")


@check(TOPIC, "streams its events in order", optional=True)
def streams(target: Target) -> None:
    events = list(ask(target, stream=True))
    types = [event.type for event in events]
    expect_equal("the numbers", [event.sequence_number for event in events], list(range(len(events))))
    expect_equal("the first events", types[:2], ["response.created", "response.in_progress"])
    order = [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    places = [types.index(one) for one in order]
    expect_equal("the events' order", places, sorted(places))
    expect(types[-1] in ("response.completed", "response.incomplete"), f"the last event is {types[-1]!r}")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    expect_equal("the text of the last event", events[-1].response.output_text, text)


@check(TOPIC, "answers by a schema", optional=True)
def structured(target: Target) -> None:
    schema = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
    answer = ask(target, text={"format": schema}, max_output_tokens=200)
    expect_equal("the keys", sorted(json.loads(answer.output_text)), sorted(SCHEMA["required"]))


@check(TOPIC, "calls a function", optional=True)
def calls(target: Target) -> None:
    choice = {"type": "function", "name": "get_weather"}
    answer = ask(target, tools=[WEATHER], tool_choice=choice, max_output_tokens=200)
    found = [item for item in answer.output if item.type == "function_call"]
    expect(found, "there is no call")
    expect_equal("the function", found[0].name, "get_weather")
    expect("city" in json.loads(found[0].arguments), f"the arguments are {found[0].arguments!r}")
    again = ask(
        target,
        tools=[WEATHER],
        input=[
            {"role": "user", "content": "What is the weather in Paris?"},
            *[item.model_dump(exclude_none=True) for item in found],
            {"type": "function_call_output", "call_id": found[0].call_id, "output": "Sunny."},
        ],
    )
    expect(again.output, "the answer to the result is empty")


@check(TOPIC, "streams a function call", optional=True)
def streams_calls(target: Target) -> None:
    choice = {"type": "function", "name": "get_weather"}
    events = list(ask(target, tools=[WEATHER], tool_choice=choice, max_output_tokens=200, stream=True))
    kind = "response.function_call_arguments"
    streamed = "".join(event.delta for event in events if event.type == f"{kind}.delta")
    [done] = [event.arguments for event in events if event.type == f"{kind}.done"]
    expect_equal("the streamed arguments", streamed, done)


@check(TOPIC, "keeps a response, continues from it, and deletes it", optional=True)
def stored(target: Target) -> None:
    import openai

    first = ask(target, store=True)
    again = target.openai.responses.retrieve(first.id)
    expect_equal("the stored text", again.output_text, first.output_text)
    second = ask(target, previous_response_id=first.id, input="Continue.", store=True)
    expect(
        second.usage.input_tokens > first.usage.input_tokens, "the first turn is not in the second's prompt"
    )
    for one in (first, second):
        target.openai.responses.delete(one.id)
    try:
        target.openai.responses.retrieve(first.id)
    except openai.NotFoundError:
        return
    raise AssertionError("a deleted response is still there")


@check(TOPIC, "refuses an unknown `previous_response_id`", optional=True)
def unknown(target: Target) -> None:
    import openai

    try:
        ask(target, previous_response_id="resp_unknown")
    except (openai.BadRequestError, openai.NotFoundError) as error:
        if error.param is None and "previous_response" not in str(error.code):
            raise
        return
    raise AssertionError("the id was accepted")
