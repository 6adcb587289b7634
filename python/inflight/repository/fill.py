"""Fills `${placeholders}`, as NVIDIA's fill_template does, but refuses unknown and missing keys.

Owns the syntax of substitutions: `key:value,key:value`, with a backslash before a comma or colon that
belongs to a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from inflight.errors import UserMistake

PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: What fill_template sets by itself.
PRESET = {"max_queue_size": "0", "max_queue_delay_microseconds": "0"}


def substitutions(text: str) -> dict[str, str]:
    """The pairs of `key:value,key:value`. Raises `UserMistake` for a pair that is none."""
    pairs: dict[str, str] = {}
    for part in re.split(r"(?<!\\),", text) if text else []:
        key, colon, value = [*re.split(r"(?<!\\)(:)", part, maxsplit=1), "", ""][:3]
        if not colon or not key.strip():
            raise UserMistake(
                f"`{part}` is no substitution",
                "write `key:value,key:value`, with a backslash before a comma or colon within a value",
            )
        if key.strip() in pairs:
            raise UserMistake(f"`{key.strip()}` is given twice", "give each key once")
        pairs[key.strip()] = re.sub(r"\\([,:\\])", r"\1", value)
    return pairs


def fill(template: str, pairs: Mapping[str, str]) -> str:
    """The template with every placeholder filled. Raises `UserMistake` naming unknown and missing keys."""
    wanted = dict.fromkeys(PLACEHOLDER.findall(template))
    values = {**PRESET, **pairs}
    unknown = [f"`{key}` is no placeholder of the file" for key in pairs if key not in wanted]
    missing = [f"`{key}` has no value" for key in wanted if key not in values]
    if unknown or missing:
        listed = ", ".join(f"`{key}`" for key in wanted) or "none"
        raise UserMistake("; ".join(unknown + missing), f"the file's placeholders are: {listed}")
    # A function, so that a backslash in a value stays one.
    return PLACEHOLDER.sub(lambda match: values[match[1]], template)
