"""Fills `${placeholders}`, as NVIDIA's fill_template does, but reports unknown keys, and refuses missing ones
without which Triton cannot read the file. Values of parameters may be missing: the backend has defaults.

Owns the syntax of substitutions: `key:value,key:value`, with a backslash before a comma or colon that
belongs to a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from inflight.errors import UserMistake

PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: What fill_template sets by itself.
PRESET = {"max_queue_size": "0", "max_queue_delay_microseconds": "0"}


def substitutions(text: str) -> dict[str, str]:
    """The pairs of `key:value,key:value`. Raises `UserMistake` for a malformed pair."""
    pairs: dict[str, str] = {}
    for part in re.split(r"(?<!\\),", text) if text else []:
        key, colon, value = [*re.split(r"(?<!\\)(:)", part, maxsplit=1), "", ""][:3]
        if not colon or not key.strip():
            raise UserMistake(
                f"`{part}` is not a substitution",
                "write `key:value,key:value`, with a backslash before a comma or colon within a value",
            )
        if key.strip() in pairs:
            raise UserMistake(f"`{key.strip()}` appears twice", "pass each key once")
        pairs[key.strip()] = re.sub(r"\\([,:\\])", r"\1", value)
    return pairs


def is_optional(text: str, match: re.Match[str]) -> bool:
    """Whether a placeholder may stay: it is a whole quoted value, which backends then treat as not set, or in
    a comment.
    """
    if "#" in text[text.rfind("\n", 0, match.start()) + 1 : match.start()]:
        return True
    return text[match.start() - 1 : match.start()] == text[match.end() : match.end() + 1] == '"'


@dataclass(frozen=True)
class Filled:
    """A filled template, and what the caller should know of it."""

    text: str
    #: Placeholders without a value.
    unset: list[str]
    #: Keys that the file does not have.
    unused: list[str]


def fill(template: str, pairs: Mapping[str, str], *, strict: bool = False) -> Filled:
    """Fills what has a value. Raises `UserMistake` naming keys that must have a value and, with `strict`,
    unknown ones."""
    found = list(PLACEHOLDER.finditer(template))
    wanted = dict.fromkeys(match[1] for match in found)
    needed = {match[1] for match in found if not is_optional(template, match)}
    values = {**PRESET, **pairs}
    absent = [key for key in pairs if key not in wanted]
    unknown = [f"`{key}` is not a placeholder of the file" for key in absent if strict and key not in PRESET]
    unset = [key for key in wanted if key not in values]
    missing = [f"`{key}` has no value" for key in unset if key in needed]
    if unknown or missing:
        listed = ", ".join(f"`{key}`" for key in wanted) or "none"
        raise UserMistake("; ".join(unknown + missing), f"the file's placeholders are: {listed}")
    # A function, so that a backslash in a value stays one.
    text = PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)
    return Filled(text, unset, absent)
