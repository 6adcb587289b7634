"""Which layers of a family have a sliding window, by the config's values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inflight.executors.reference.errors import UnsupportedModelError
from inflight.model.values import bad_value, flag, integer

#: What `layer_types` may name.
FULL, SLIDING = "full_attention", "sliding_attention"

#: By layer, how many of the latest positions a query sees, itself included; None: all. From the config's
#: values and the number of layers.
Windows = Callable[[Mapping[str, Any], int], tuple[int | None, ...]]


def no_windows(_values: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """Every layer sees all."""
    return (None,) * num_layers


def one_window(values: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """Every layer slides if the config has a window."""
    if values.get("sliding_window") is None:
        return (None,) * num_layers
    if values.get("layer_types") is not None:
        raise UnsupportedModelError(
            "`layer_types` in `config.json` is not supported for this architecture",
            "use a checkpoint without it: the reference executor applies the window to every layer",
        )
    return (integer(values, "sliding_window"),) * num_layers


def chosen_windows(values: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """The layers slide that the config names."""
    if values.get("sliding_window") is None or not flag(values, "use_sliding_window", False):
        return (None,) * num_layers
    window = integer(values, "sliding_window")
    layer_types = values.get("layer_types")
    if layer_types is None:
        first = integer(values, "max_window_layers", 28, minimum=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    return _windows_of_types(layer_types, num_layers, window)


def windows_but_each(pattern: int, pattern_key: str | None, window: int) -> Windows:
    """The layers slide that `layer_types` names; without, all but every ``pattern``th, or as
    ``pattern_key`` states. ``window`` is the size where the config states none."""

    def read(values: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
        if "sliding_window" in values and values["sliding_window"] is None:
            raise bad_value("sliding_window", None, "a positive integer")
        size = integer(values, "sliding_window", window)
        if values.get("layer_types") is not None:
            return _windows_of_types(values["layer_types"], num_layers, size)
        each = pattern if pattern_key is None else integer(values, pattern_key, pattern)
        return tuple(size if (layer + 1) % each else None for layer in range(num_layers))

    return read


def _windows_of_types(layer_types: Any, num_layers: int, window: int) -> tuple[int | None, ...]:
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise bad_value("layer_types", layer_types, f"a list of {num_layers} names")
    for layer_type in layer_types:
        if layer_type not in (FULL, SLIDING):
            raise UnsupportedModelError(
                f"layer type `{layer_type}` is not supported by the reference executor",
                f"use a checkpoint whose layers are `{FULL}` or `{SLIDING}`",
            )
    return tuple(window if layer_type == SLIDING else None for layer_type in layer_types)
