"""How people write GPUs: `0,1;2,3`, UUIDs, lists. Pure; whether a machine has them is not known here."""

from __future__ import annotations

import re
from typing import Any

#: One group of GPUs for each replica, by index or UUID as CUDA_VISIBLE_DEVICES takes them.
Groups = tuple[tuple[str, ...], ...]

_GPU = re.compile(r"\d{1,3}|(GPU|MIG)-[0-9A-Za-z/-]{1,80}")


def parse_groups(value: Any) -> Groups:
    """Groups from `0,1;2,3`, from a number, from a list of GPUs or a list of such lists.

    Raises `ValueError` that says what is wrong.
    """
    if isinstance(value, bool) or value is None or isinstance(value, (float, dict)):
        raise ValueError("that is not a list of GPUs")
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, list):
        nested = any(isinstance(item, (list, tuple)) or "," in str(item) for item in value)
        groups = [_group(item) for item in value] if nested else [_group(value)]
    else:
        groups = [_group(part) for part in str(value).split(";")]
    return tuple(groups)


def _group(value: Any) -> tuple[str, ...]:
    items = list(value) if isinstance(value, (list, tuple)) else str(value).split(",")
    gpus = tuple(str(item).strip() for item in items)
    if not gpus:
        raise ValueError("that is not a list of GPUs")
    for gpu in gpus:
        if not _GPU.fullmatch(gpu):
            raise ValueError(f"`{gpu}` is not an index or a UUID such as `GPU-…` or `MIG-…`")
    return gpus
