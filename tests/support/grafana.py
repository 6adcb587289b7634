"""Grafana's schema of dashboards, by its foundation SDK. Owns how a dashboard is held to it; no registry
has Grafana itself, which is never started.

The SDK reads the fields that it knows and forgets the others, and takes values as they come: what is lost on
the way through it, and what has another type than its classes say, is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard


def complaints(dashboard: dict[str, Any]) -> list[str]:
    """What Grafana's schema does not have, each with its place."""
    plugins.register_default_plugins()
    read = Dashboard.from_json(dashboard)
    again = json.loads(JSONEncoder().encode(read))
    return [*_lost(dashboard, again, ""), *_mistyped(read, Dashboard, "")]


def _lost(given: Any, kept: Any, place: str) -> Iterator[str]:
    """Fields that did not come through."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            if name not in kept:
                yield f"{place}/{name} is unknown"
            else:
                yield from _lost(value, kept[name], f"{place}/{name}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from _lost(one, other, f"{place}/{index}")
    elif given != kept:
        yield f"{place} is `{given}`, and becomes `{kept}`"


def _mistyped(value: Any, hint: Any, place: str) -> Iterator[str]:
    """Values that have another type than the schema's, or are none of its names."""
    if not _fits(value, hint):
        yield f"{place} is `{value}`, and not a {hint}"
        return
    for one in get_args(hint) if get_origin(hint) is Union else (hint,):
        if get_origin(one) is list and isinstance(value, list):
            for index, element in enumerate(value):
                yield from _mistyped(element, get_args(one)[0], f"{place}/{index}")
    if hasattr(value, "from_json"):
        for name, inner in get_type_hints(type(value)).items():
            yield from _mistyped(getattr(value, name), inner, f"{place}/{name}")


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if hint is Any or hint is object:
        return True
    if origin is Union:
        return any(_fits(value, one) for one in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin is not None:
        return isinstance(value, origin)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return value in {one.value for one in hint} or isinstance(value, hint)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)
