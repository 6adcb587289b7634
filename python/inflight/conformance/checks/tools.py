"""Tool calls, in one piece and streamed."""

from __future__ import annotations

import json
import re
from typing import Any

from inflight.conformance import weather
from inflight.conformance.check import check, expect, expect_equal
from inflight.conformance.checks.chat import ask
from inflight.conformance.target import Target

TOPIC = "Tools"

QUESTION: dict[str, Any] = {"role": "user", "content": "What is the weather in Paris?"}
WEATHER: dict[str, Any] = {"type": "function", "function": {**weather.TOOL, "parameters": weather.INPUT}}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time",
        "parameters": {"type": "object", "properties": {}},
    },
}
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "get_weather"}}


def _call(target: Target, **fields: Any) -> Any:
    asked = {"messages": [QUESTION], "tools": [WEATHER, TIME], "tool_choice": NAMED, "max_tokens": 200}
    return ask(target, **{**asked, **fields})


def _fits(name: str, arguments: str) -> None:
    expect_equal("the function", name, "get_weather")
    expect(isinstance(json.loads(arguments).get("city"), str), f"the arguments are {arguments!r}")


@check(TOPIC, "calls the function that `tool_choice` names", optional=True)
def named(target: Target) -> None:
    [choice] = _call(target).choices
    expect(choice.message.tool_calls, "there is no call")
    [call] = choice.message.tool_calls
    expect(call.id, "the call has no `id`")
    expect_equal("`type`", call.type, "function")
    # OpenAI's API says `tool_calls` where the model chose to call, also with `required`.
    expect_equal("`finish_reason`", choice.finish_reason, "stop")
    _fits(call.function.name, call.function.arguments)


@check(TOPIC, "calls some function with `required`", optional=True)
def required(target: Target) -> None:
    [choice] = _call(target, tool_choice="required").choices
    expect(choice.message.tool_calls, "there is no call")
    expect_equal("`finish_reason`", choice.finish_reason, "tool_calls")
    for call in choice.message.tool_calls:
        expect(call.function.name in ("get_weather", "get_time"), f"the function is {call.function.name!r}")
        json.loads(call.function.arguments)


@check(TOPIC, "calls none with `none`")
def none(target: Target) -> None:
    [choice] = _call(target, tool_choice="none").choices
    expect_equal("`tool_calls`", choice.message.tool_calls or [], [])


@check(TOPIC, "decides by itself with `auto`", optional=True)
def auto(target: Target) -> None:
    [choice] = _call(target, tool_choice="auto").choices
    calls = choice.message.tool_calls or []
    expect(calls or choice.message.content, "there is neither a call nor text")
    expect_equal("`finish_reason` says call", choice.finish_reason == "tool_calls", bool(calls))


@check(TOPIC, "streams a call: its name first, then its arguments", optional=True)
def streams(target: Target) -> None:
    name, arguments, identity, order = "", "", "", []
    for chunk in _call(target, stream=True):
        for delta in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            expect_equal("`index`", delta.index, 0)
            identity += delta.id or ""
            name += delta.function.name or ""
            arguments += delta.function.arguments or ""
            order.append(bool(delta.function.name))
    expect(order, "there is no call")
    expect_equal("the events with a name", [at for at, has in enumerate(order) if has], [0])
    expect(identity, "the call has no `id`")
    _fits(name, arguments)


@check(TOPIC, "adds up in the SDK's stream helper", optional=True)
def helper(target: Target) -> None:
    with target.openai.chat.completions.stream(
        model=target.model,
        messages=[QUESTION],  # type: ignore[list-item]
        tools=[WEATHER],  # type: ignore[list-item]
        tool_choice=NAMED,  # type: ignore[arg-type]
        max_completion_tokens=200,
    ) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    expect(calls, "there is no call")
    _fits(calls[0].function.name, calls[0].function.arguments)  # type: ignore[index]


@check(TOPIC, "reads the result of a call", optional=True)
def result(target: Target) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    messages = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 21 degrees."},
    ]
    [choice] = _call(target, messages=messages, tool_choice="auto").choices
    expect(choice.message.content or choice.message.tool_calls, "the answer is empty")


@check(TOPIC, "calls a custom tool with a text that matches its expression", optional=True)
def custom(target: Target) -> None:
    grammar = {"syntax": "regex", "definition": "[a-z]{2,8}"}
    tool = {"name": "note", "format": {"type": "grammar", "grammar": grammar}}
    offered = [{"type": "custom", "custom": tool}]
    chosen = {"type": "custom", "custom": {"name": "note"}}
    [choice] = _call(target, tools=offered, tool_choice=chosen).choices
    expect(choice.message.tool_calls, "there is no call")
    [call] = choice.message.tool_calls
    expect_equal("`type` and `name`", (call.type, call.custom.name), ("custom", "note"))
    expect(re.fullmatch("[a-z]{2,8}", call.custom.input), f"the text is {call.custom.input!r}")


@check(TOPIC, "refuses a `tool_choice` that is not among the tools")
def unknown(target: Target) -> None:
    import openai

    try:
        _call(target, tool_choice={"type": "function", "function": {"name": "no_such_function"}})
    except openai.BadRequestError:
        return
    raise AssertionError("the choice was accepted")
