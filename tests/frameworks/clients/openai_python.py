"""openai-python: chat and responses, `.parse`, the stream helpers."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
from asked import (
    FORM,
    KEY,
    LIMIT,
    MODEL,
    OPENAI,
    PLAIN,
    TOOL,
    Calls,
    check,
    check_form,
    check_pieces,
    check_text,
    check_told,
    run,
)
from pydantic import BaseModel, Field

client = openai.OpenAI(base_url=OPENAI, api_key=KEY, max_retries=0)


class Weather(BaseModel):
    city: str = Field(max_length=24)
    unit: Literal["celsius", "fahrenheit"]


class GetWeather(BaseModel):
    """Get the weather for a city"""

    city: str


STRICT: Any = openai.pydantic_function_tool(GetWeather, name="get_weather")
FLAT: Any = {"type": "function", **STRICT["function"]}


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def settings(**fields: Any) -> Any:
    return {"model": MODEL, "temperature": 0, "max_tokens": LIMIT, **fields}


def text() -> None:
    answer = client.chat.completions.create(messages=[user(PLAIN)], **settings())
    check_text(answer.choices[0].message.content)


def stream() -> None:
    with client.chat.completions.stream(messages=[user(PLAIN)], **settings()) as events:
        pieces = [event.delta for event in events if event.type == "content.delta"]
    check_pieces(pieces)


def turns(ask: Any) -> None:
    calls = Calls()
    messages: list[Any] = [user(TOOL)]
    message = ask(messages)
    for call in message.tool_calls or []:
        arguments = call.function.parsed_arguments
        check(isinstance(arguments, GetWeather), f"not parsed: {arguments!r}")
        result = calls.get_weather(arguments.city)
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    calls.check()
    check_told(ask(messages).content)


def tools() -> None:
    def ask(messages: list[Any]) -> Any:
        answer = client.chat.completions.parse(messages=messages, tools=[STRICT], **settings())
        return answer.choices[0].message

    turns(ask)


def tools_streamed() -> None:
    def ask(messages: list[Any]) -> Any:
        fields = settings(messages=messages, tools=[STRICT])
        with client.chat.completions.stream(**fields) as events:
            return events.get_final_completion().choices[0].message

    turns(ask)


def structured() -> None:
    fields = settings(messages=[user(FORM)], response_format=Weather)
    check_form(client.chat.completions.parse(**fields).choices[0].message.parsed)


def structured_streamed() -> None:
    fields = settings(messages=[user(FORM)], response_format=Weather)
    with client.chat.completions.stream(**fields) as events:
        check_form(events.get_final_completion().choices[0].message.parsed)


def flat(**fields: Any) -> Any:
    return {"model": MODEL, "temperature": 0, "max_output_tokens": LIMIT, **fields}


def response_text() -> None:
    check_text(client.responses.create(**flat(input=PLAIN)).output_text)


def response_stream() -> None:
    with client.responses.stream(**flat(input=PLAIN)) as events:
        pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    check_pieces(pieces)


def response_turns(ask: Any) -> None:
    calls = Calls()
    items: list[Any] = [user(TOOL)]
    answer = ask(items)
    for item in answer.output:
        if item.type == "function_call":
            result = calls.get_weather(json.loads(item.arguments)["city"])
            items += [item, {"type": "function_call_output", "call_id": item.call_id, "output": result}]
    calls.check()
    check_told(ask(items).output_text)


def response_tools() -> None:
    response_turns(lambda items: client.responses.parse(**flat(input=items, tools=[FLAT])))


def response_tools_streamed() -> None:
    def ask(items: list[Any]) -> Any:
        with client.responses.stream(**flat(input=items, tools=[FLAT])) as events:
            return events.get_final_response()

    response_turns(ask)


def response_structured() -> None:
    check_form(client.responses.parse(**flat(input=FORM, text_format=Weather)).output_parsed)


def response_structured_streamed() -> None:
    with client.responses.stream(**flat(input=FORM, text_format=Weather)) as events:
        check_form(events.get_final_response().output_parsed)


if __name__ == "__main__":
    run(
        {
            "openai-python, chat": {
                "text": text,
                "stream": stream,
                "tools": tools,
                "tools streamed": tools_streamed,
                "structured": structured,
                "structured streamed": structured_streamed,
            },
            "openai-python, responses": {
                "text": response_text,
                "stream": response_stream,
                "tools": response_tools,
                "tools streamed": response_tools_streamed,
                "structured": response_structured,
                "structured streamed": response_structured_streamed,
            },
        }
    )
