"""instructor: structured answers by each of its modes."""

from __future__ import annotations

from typing import Any, Literal

import anthropic
import instructor
import openai
from asked import FORM, KEY, LIMIT, MODEL, OPENAI, URL, Row, check, check_form, run
from pydantic import BaseModel, Field


class Weather(BaseModel):
    """The weather in a city"""

    city: str = Field(max_length=24)
    unit: Literal["celsius", "fahrenheit"]


ASKED: Any = {"role": "user", "content": FORM}


def openai_client(mode: instructor.Mode) -> tuple[Any, dict[str, Any]]:
    client = openai.OpenAI(base_url=OPENAI, api_key=KEY, max_retries=0)
    return instructor.from_openai(client, mode=mode), {"temperature": 0}


def anthropic_client(mode: instructor.Mode) -> tuple[Any, dict[str, Any]]:
    client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
    return instructor.from_anthropic(client, mode=mode), {}


def row(mode: instructor.Mode, make: Any) -> Row:
    client, settings = make(mode)
    settings.update(model=MODEL, max_tokens=LIMIT, messages=[ASKED], response_model=Weather, max_retries=0)

    def structured() -> None:
        check_form(client.create(**settings))

    def streamed() -> None:
        pieces = list(client.create_partial(**settings))
        check(len(pieces) > 2, "not in pieces")
        check_form(pieces[-1])

    return {"structured": structured, "structured streamed": streamed}


if __name__ == "__main__":
    Mode = instructor.Mode
    rows: Any = {}
    for mode in [
        Mode.TOOLS,
        Mode.TOOLS_STRICT,
        Mode.JSON_SCHEMA,
        Mode.RESPONSES_TOOLS,
        Mode.JSON,
        Mode.MD_JSON,
    ]:
        rows[f"instructor, {mode.name}"] = row(mode, openai_client)
    for mode in [Mode.ANTHROPIC_TOOLS, Mode.ANTHROPIC_JSON]:
        rows[f"instructor, {mode.name}"] = row(mode, anthropic_client)
    run(rows)
