"""The tool that checks offer to models, for the three APIs that each write it differently. Data only."""

from __future__ import annotations

from typing import Any

TOOL = {"name": "get_weather", "description": "The weather in a city"}
#: The schema of its arguments.
INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}},
    "required": ["city"],
    "additionalProperties": False,
}
