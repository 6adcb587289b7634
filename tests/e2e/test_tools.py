"""Tools on the real model, through the real OpenAI client: calls, results, streams and demanded calls."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from support.servers import MODEL, Server

pytestmark = pytest.mark.skipif(MODEL is not None, reason="only the embedded model is known to call tools")

QUESTION: Any = {"role": "user", "content": "What is the weather in Paris?"}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 24}},
    "required": ["city"],
    "additionalProperties": False,
}


def tool(name: str, description: str, **more: Any) -> Any:
    function = {"name": name, "description": description, "parameters": PARAMETERS, **more}
    return {"type": "function", "function": function}


WEATHER = tool("get_weather", "Get the weather for a city")
TIME = tool("get_time", "Get the current time in a city")


def ask(client: openai.OpenAI, server: Server, **fields: Any) -> Any:
    fields = {"messages": [QUESTION], "tools": [WEATHER], "temperature": 0, "max_tokens": 64, **fields}
    return client.chat.completions.create(model=server.model, **fields)


def test_a_call_and_its_result_make_two_turns(client: openai.OpenAI, server: Server) -> None:
    [choice] = ask(client, server).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert call.id.startswith("call_")
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = '{"city": "Paris", "temperature": 21, "unit": "celsius", "condition": "sunny"}'
    answer = {"role": "tool", "tool_call_id": call.id, "content": result}
    [choice] = ask(client, server, messages=[QUESTION, choice.message, answer]).choices
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert "sunny" in choice.message.content


def test_a_stream_adds_up_to_the_whole_answer(client: openai.OpenAI, server: Server) -> None:
    whole = ask(client, server).choices[0].message.tool_calls[0].function
    with client.chat.completions.stream(
        model=server.model, messages=[QUESTION], tools=[WEATHER], temperature=0, max_tokens=64
    ) as stream:
        kinds = [event.type for event in stream]
        [choice] = stream.get_final_completion().choices
    assert kinds.count("tool_calls.function.arguments.delta") > 2
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or []
    assert (call.function.name, call.function.arguments) == (whole.name, whole.arguments)


@pytest.mark.parametrize("stream", [False, True])
def test_a_demanded_call_comes_and_fits(client: openai.OpenAI, server: Server, stream: bool) -> None:
    named = {"type": "function", "function": {"name": "get_time"}}
    schema = {
        "type": "object",
        "$defs": {"Level": {"enum": [3, 4]}},
        "properties": {
            "level": {"$ref": "#/$defs/Level"},
            "tags": {"type": "array", "items": {"const": "a"}, "maxItems": 2},
        },
        "required": ["level", "tags"],
        "additionalProperties": False,
    }
    odd = {"type": "function", "function": {"name": "odd", "parameters": schema}}
    # What it is asked has nothing to do with the tools.
    unrelated = [{"role": "user", "content": "Hello"}]
    for tools, choice, names, finish in [
        # As in OpenAI's API: `tool_calls` tells of calls that the model chose.
        ([WEATHER, TIME], named, {"get_time"}, "stop"),
        ([WEATHER, TIME, odd], "required", {"get_weather", "get_time", "odd"}, "tool_calls"),
        ([odd], "required", {"odd"}, "tool_calls"),
    ]:
        answer = ask(client, server, messages=unrelated, tools=tools, tool_choice=choice, stream=stream)
        if stream:
            chunks = [chunk.choices[0] for chunk in answer]
            assert chunks[-1].finish_reason == finish
            deltas = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
            name = deltas[0].function.name
            arguments = "".join(delta.function.arguments for delta in deltas)
        else:
            assert answer.choices[0].finish_reason == finish
            [call] = answer.choices[0].message.tool_calls
            name, arguments = call.function.name, call.function.arguments
        assert name in names
        values = json.loads(arguments)
        if name == "odd":
            assert values["level"] in (3, 4)
            assert set(values["tags"]) <= {"a"}
        else:
            assert list(values) == ["city"]
            assert isinstance(values["city"], str)


class GetWeather(BaseModel):
    """Get the weather for a city"""

    city: str


def test_parse_gives_arguments_of_the_tools_own_type(client: openai.OpenAI, server: Server) -> None:
    strict: Any = openai.pydantic_function_tool(GetWeather, name="get_weather")
    answer = client.chat.completions.parse(
        model=server.model, messages=[QUESTION], tools=[strict], temperature=0, max_tokens=64
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == GetWeather(city="Paris")


def test_an_answer_without_a_call_has_the_form_that_was_asked_for(
    client: openai.OpenAI, server: Server
) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    [choice] = ask(client, server, response_format=form).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.name == "get_weather"
    unrelated = [{"role": "user", "content": "Hello"}]
    [choice] = ask(client, server, messages=unrelated, response_format=form).choices
    if choice.finish_reason == "stop":
        assert json.loads(choice.message.content)["n"] in (1, 2)
    else:
        assert choice.finish_reason == "tool_calls"


def test_none_shows_no_tool_and_what_is_wrong_is_named(client: openai.OpenAI, server: Server) -> None:
    without = ask(client, server, tools=openai.omit, max_tokens=1)
    none = ask(client, server, tool_choice="none", max_tokens=1)
    assert none.usage.prompt_tokens == without.usage.prompt_tokens
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tools": [{"type": "custom", "custom": {"name": "x y"}}]}, "tools[0].custom.name"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [tool("f", "", strict=True) | {"type": "web_search"}]}, "tools[0].type"),
    ]
    for fields, param in cases:
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, server, **fields)
        assert caught.value.param == param
