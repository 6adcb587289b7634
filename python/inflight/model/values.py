"""Values of a `config.json` by key, checked. Every error names the key and the value.

Owns what a sound value is; what keys mean is `config`'s.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from inflight.errors import CheckpointError

#: Checkpoints are damaged by copying, and configs by editing.
REMEDY = "restore the checkpoint's original `config.json`"

#: Sizes are 32-bit integers wherever they go: in tensors, in engines and on the wire.
MAXIMUM = 2**31 - 1
#: Of a value in an error.
SHOWN_CHARACTERS = 100


def bad_value(key: str, value: object, expected: str) -> CheckpointError:
    """The error for a key with an impossible value; `expected` follows "must be"."""
    try:
        shown = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        shown = f"a value of type {type(value).__name__}"
    if len(shown) > SHOWN_CHARACTERS:
        shown = f"{shown[:SHOWN_CHARACTERS]}…"
    return CheckpointError(f"`{key}` in `config.json` must be {expected}, got `{shown}`", REMEDY)


def missing_key(*keys: str) -> CheckpointError:
    """The error for a fact that none of the `keys` states."""
    return CheckpointError(f"{' or '.join(f'`{key}`' for key in keys)} is missing from `config.json`", REMEDY)


def integer(
    values: Mapping[str, Any],
    key: str,
    default: int | None = None,
    minimum: int = 1,
    maximum: int = MAXIMUM,
) -> int:
    """An integer from `minimum` to `maximum`; `default` where the key is absent, None: it must be there."""
    value = values.get(key)
    if value is None:
        if default is None:
            raise missing_key(key)
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise bad_value(key, value, "a positive integer" if minimum == 1 else f"an integer from {minimum}")
    if value > maximum:
        raise bad_value(key, value, f"at most {maximum}")
    return value


def number(values: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A positive, finite number."""
    value = values.get(key)
    if value is None:
        if default is None:
            raise missing_key(key)
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
        raise bad_value(key, value, "a positive number")
    return float(value)


def flag(values: Mapping[str, Any], key: str, default: bool) -> bool:
    """A switch."""
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad_value(key, value, "true or false")
    return value
