"""Answers by a schema: `response_format` and the SDK's `.parse`."""

from __future__ import annotations

import json
from typing import Any, Literal

from inflight.conformance.check import check, expect, expect_equal
from inflight.conformance.checks.chat import ask
from inflight.conformance.target import Target

TOPIC = "Structured output"

CITY: list[Any] = [{"role": "user", "content": "Describe the city of Paris as JSON."}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "size": {"type": "string", "enum": ["small", "large"]},
        "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
    },
    "required": ["name", "size", "population"],
    "additionalProperties": False,
}


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}


def _fits(text: str) -> None:
    value = json.loads(text)
    expect_equal("the keys", sorted(value), ["name", "population", "size"])
    expect(value["size"] in ("small", "large"), f"`size` is {value['size']!r}")
    expect(isinstance(value["population"], int), f"`population` is {value['population']!r}")


@check(TOPIC, "answers JSON for `json_object`", optional=True)
def json_object(target: Target) -> None:
    answer = ask(target, messages=CITY, response_format={"type": "json_object"}, max_tokens=400)
    [choice] = answer.choices
    if choice.finish_reason == "stop":
        expect(isinstance(json.loads(choice.message.content), dict), "the answer is not an object")


@check(TOPIC, "answers by a schema", optional=True)
def json_schema(target: Target) -> None:
    answer = ask(target, messages=CITY, response_format=_format(SCHEMA), max_tokens=200)
    expect_equal("`finish_reason`", answer.choices[0].finish_reason, "stop")
    _fits(answer.choices[0].message.content)


@check(TOPIC, "streams by a schema", optional=True)
def streams(target: Target) -> None:
    chunks = ask(target, messages=CITY, response_format=_format(SCHEMA), max_tokens=200, stream=True)
    _fits("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))


@check(TOPIC, "is parsed by the SDK's `.parse`", optional=True)
def parses(target: Target) -> None:
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        size: Literal["small", "large"]

    answer = target.openai.chat.completions.parse(
        model=target.model, messages=CITY, response_format=City, max_tokens=300, temperature=0
    )
    choice = answer.choices[0]
    expect(isinstance(choice.message.parsed, City), f"`parsed` is {choice.message.parsed!r}")


@check(TOPIC, "refuses an invalid schema")
def wrong_schema(target: Target) -> None:
    import openai

    try:
        ask(target, messages=CITY, response_format=_format({"type": "no-such-type"}))
    except openai.BadRequestError:
        return
    raise AssertionError("the schema was accepted")
