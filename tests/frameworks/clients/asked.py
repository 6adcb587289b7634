"""What every framework is asked, and how its answers are told: one line of JSON for each cell of the table.

Runs in a framework's own environment, so it imports nothing but the standard library. A client's file defines
`ROWS`: a row's name, and a function for each case that the framework has.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import traceback
from collections.abc import Callable
from typing import Any

#: The server's address without a path.
URL = os.environ.get("INFLIGHT_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("INFLIGHT_MODEL", "inflight-demo")
#: The server asks for none; clients want one.
KEY = "unused"
OPENAI = f"{URL}/v1"

PLAIN = "What is machine learning?"
TOOL = "What is the weather in Paris?"
#: What the function answers, which the last turn tells.
RESULT = '{"city": "Paris", "temperature": 21, "unit": "celsius", "condition": "sunny"}'
FORM = "Describe the weather in Paris as JSON."
LIMIT = 96

CASES = ("text", "stream", "tools", "tools streamed", "structured", "structured streamed")

Case = Callable[[], Any]
#: `None` for a case that the framework does not offer.
Row = dict[str, Case | None]


class Wrong(Exception):
    """An answer that is not what the framework promises."""


def check(holds: Any, otherwise: object) -> None:
    """Ends the case unless `holds`."""
    if not holds:
        raise Wrong(str(otherwise))


def check_text(text: Any) -> None:
    """An answer in words."""
    check(isinstance(text, str) and len(text.split()) > 2, f"no text: {text!r}")


def check_pieces(pieces: list[str]) -> None:
    """A streamed answer came in pieces."""
    check(len([piece for piece in pieces if piece]) > 2, f"not in pieces: {pieces!r}")
    check_text("".join(pieces))


def check_told(text: Any) -> None:
    """The last turn tells what the function answered."""
    check(isinstance(text, str) and "sunny" in text, f"the result is not told: {text!r}")


def check_form(value: Any) -> None:
    """A structured answer has the fields of the schema."""
    fields = value if isinstance(value, dict) else vars(value)
    check(isinstance(fields.get("city"), str), f"no city: {value!r}")
    check(fields.get("unit") in ("celsius", "fahrenheit"), f"no unit: {value!r}")


class Calls:
    """The function that the model calls, and the calls that came."""

    def __init__(self) -> None:
        self.cities: list[str] = []

    def get_weather(self, city: str) -> str:
        """Get the weather for a city"""
        self.cities.append(city)
        return RESULT

    def check(self) -> None:
        check(self.cities == ["Paris"], f"called with {self.cities!r}")


def run(rows: dict[str, Row]) -> None:
    """Runs every case of every row."""
    for name, row in rows.items():
        for case in CASES:
            function = row.get(case)
            cell = {"row": name, "case": case, **(_outcome(function) if function else {"state": "absent"})}
            print(json.dumps(cell), flush=True)


def _outcome(function: Case) -> dict[str, str]:
    try:
        answer = function()
        if inspect.isawaitable(answer):
            asyncio.run(_awaited(answer))
    except Exception as error:
        if os.environ.get("TRACEBACK"):
            traceback.print_exc()
        return {"state": "no", "reason": f"{type(error).__name__}: {error}"}
    return {"state": "yes"}


async def _awaited(answer: Any) -> None:
    await answer
