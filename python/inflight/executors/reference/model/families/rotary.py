"""How a config states a rotary embedding for each type of layer. Pure; `config` reads what they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inflight.model.values import bad_value, number

from .windows import FULL, SLIDING

#: The config's values as layers without a window read them, and as those with one do.
Ropes = Callable[[Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]


def ropes_by_type(theta: float, sliding_key: str, sliding_theta: float) -> Ropes:
    """transformers 5 keeps ``rope_parameters`` of each layer type. In 4, the usual keys are those of
    layers that see all, and ``sliding_key`` has the base of the others, which are never scaled."""

    def read(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        by_type = values.get("rope_parameters") or {}
        if not isinstance(by_type, dict) or not all(
            layer_type in (FULL, SLIDING) and isinstance(stated, (dict, type(None)))
            for layer_type, stated in by_type.items()
        ):
            raise bad_value("rope_parameters", by_type, f"an object with `{FULL}` and `{SLIDING}`")
        scaling = values.get("rope_scaling")
        full = {
            "rope_theta": number(values, "rope_theta", theta),
            **(scaling if isinstance(scaling, dict) else {}),
            **(by_type.get(FULL) or {}),
        }
        sliding = {
            "rope_theta": number(values, sliding_key, sliding_theta),
            **(by_type.get(SLIDING) or {}),
        }
        return {**values, "rope_parameters": full}, {**values, "rope_parameters": sliding}

    return read
