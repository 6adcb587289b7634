"""Which layers of a family have a sliding window, by the config's values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inflight.executors.reference.errors import UnsupportedModelError
from inflight.model.values import bad_value, flag, integer

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


def alternating_windows(values: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """The layers slide that the config names; every second one from the first on where it names none."""
    window = integer(values, "sliding_window")
    if values.get("layer_types") is None:
        return tuple(None if layer % 2 else window for layer in range(num_layers))
    return _named(values["layer_types"], window, num_layers)


def chosen_windows(values: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """The layers slide that the config names."""
    if values.get("sliding_window") is None or not flag(values, "use_sliding_window", False):
        return (None,) * num_layers
    window = integer(values, "sliding_window")
    layer_types = values.get("layer_types")
    if layer_types is None:
        first = integer(values, "max_window_layers", 28, minimum=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    return _named(layer_types, window, num_layers)


def _named(layer_types: Any, window: int, num_layers: int) -> tuple[int | None, ...]:
    """The window of each layer by the name of its type."""
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise bad_value("layer_types", layer_types, f"a list of {num_layers} names")
    for layer_type in layer_types:
        if layer_type not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(
                f"layer type `{layer_type}` is not supported by the reference executor",
                "use a checkpoint whose layers are `full_attention` or `sliding_attention`",
            )
    return tuple(window if layer_type == "sliding_attention" else None for layer_type in layer_types)
