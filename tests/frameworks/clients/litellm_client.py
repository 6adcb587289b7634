"""LiteLLM: completions through its providers for OpenAI-compatible servers and for Anthropic."""

from __future__ import annotations

import json
from typing import Any, Literal

import litellm
from asked import (
    FORM,
    KEY,
    LIMIT,
    MODEL,
    OPENAI,
    PLAIN,
    TOOL,
    URL,
    Calls,
    Row,
    check_form,
    check_pieces,
    check_text,
    check_told,
    run,
)
from pydantic import BaseModel, Field


class Weather(BaseModel):
    city: str = Field(max_length=24)
    unit: Literal["celsius", "fahrenheit"]


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def row(**settings: Any) -> Row:
    def ask(messages: list[Any], **fields: Any) -> Any:
        fields = {"temperature": 0, "max_tokens": LIMIT, "num_retries": 0, **settings, **fields}
        return litellm.completion(messages=messages, **fields)

    def whole(messages: list[Any], **fields: Any) -> Any:
        return ask(messages, **fields).choices[0].message

    def summed(messages: list[Any], **fields: Any) -> Any:
        chunks = list(ask(messages, stream=True, **fields))
        answer: Any = litellm.stream_chunk_builder(chunks)
        return answer.choices[0].message

    def turns(ask: Any) -> None:
        calls = Calls()
        messages: list[Any] = [user(TOOL)]
        message = ask(messages, tools=[WEATHER])
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or []:
            result = calls.get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        calls.check()
        check_told(ask(messages, tools=[WEATHER]).content)

    def stream() -> None:
        chunks = ask([user(PLAIN)], stream=True)
        check_pieces([chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices])

    def form(ask: Any) -> None:
        check_form(json.loads(ask([user(FORM)], response_format=Weather).content))

    return {
        "text": lambda: check_text(whole([user(PLAIN)]).content),
        "stream": stream,
        "tools": lambda: turns(whole),
        "tools streamed": lambda: turns(summed),
        "structured": lambda: form(whole),
        "structured streamed": lambda: form(summed),
    }


if __name__ == "__main__":
    run(
        {
            "LiteLLM, openai": row(model=f"openai/{MODEL}", api_base=OPENAI, api_key=KEY),
            "LiteLLM, anthropic": row(model=f"anthropic/{MODEL}", api_base=URL, api_key=KEY),
        }
    )
