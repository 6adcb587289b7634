"""outlines: its OpenAI client."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import outlines
from asked import FORM, KEY, LIMIT, MODEL, OPENAI, PLAIN, check, check_form, check_pieces, check_text, run
from pydantic import BaseModel, Field

SETTINGS: Any = {"max_tokens": LIMIT, "temperature": 0}


class Weather(BaseModel):
    city: str = Field(max_length=24)
    unit: Literal["celsius", "fahrenheit"]


model: Any = outlines.from_openai(openai.OpenAI(base_url=OPENAI, api_key=KEY, max_retries=0), MODEL)


def text() -> None:
    check_text(model(PLAIN, **SETTINGS))


def stream() -> None:
    check_pieces(list(model.stream(PLAIN, **SETTINGS)))


def structured() -> None:
    check_form(json.loads(model(FORM, Weather, **SETTINGS)))


def structured_streamed() -> None:
    pieces = list(model.stream(FORM, Weather, **SETTINGS))
    check(len(pieces) > 2, "not in pieces")
    check_form(json.loads("".join(pieces)))


if __name__ == "__main__":
    run(
        {
            "outlines": {
                "text": text,
                "stream": stream,
                "structured": structured,
                "structured streamed": structured_streamed,
            }
        }
    )
