"""Guides of requests: the types of the wire, what is checked of each, and the form of structural tags.

Knows nothing of grammars: whether one compiles is `guide_check`'s question.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from inflight._native import Capability
from inflight.executors.tensorrt_llm.convert import Refused

#: Guide types of the wire (Triton's, and `structural_tag`, which Triton has not).
GUIDE_TYPES = {
    "json": "JSON",
    "json_schema": "JSON_SCHEMA",
    "regex": "REGEX",
    "ebnf_grammar": "EBNF_GRAMMAR",
    "structural_tag": "STRUCTURAL_TAG",
}
#: Back end -> the types that it takes in the notation of the wire. llguidance has no structural tags, and its
#: grammars are Lark's.
TYPES_OF: dict[str, Collection[str]] = {
    "xgrammar": GUIDE_TYPES.keys(),
    "llguidance": ("json", "json_schema", "regex"),
}
#: The capability of back ends that take the later form of structural tags.
FORMATS = Capability.STRUCTURAL_FORMATS


def check_guide(
    kind: str, guide: str | None, *, backend: str = "xgrammar", takes_formats: bool = False
) -> str | None:
    """The guide as the back end takes it. Refuses a type that nobody knows, which Triton's backend would let
    pass unconstrained. `takes_formats`: whether the back end has the later form of structural tags, and no
    other."""
    if kind not in GUIDE_TYPES:
        raise Refused(f"`guided_decoding_guide_type` is `{kind}`; send one of {', '.join(GUIDE_TYPES)}")
    if kind not in TYPES_OF[backend]:
        raise Refused(
            f"`guided_decoding_guide_type` is `{kind}`, which `{backend}` does not take; send one of "
            f"{', '.join(TYPES_OF[backend])}, or start the worker with `guided_decoding_backend=xgrammar`"
        )
    if kind != "json" and not guide:
        raise Refused(f"the guide type `{kind}` needs `guided_decoding_guide`")
    if kind == "structural_tag" and guide and takes_formats:
        return _in_later_form(guide)
    return guide


def _in_later_form(guide: str) -> str:
    """Structural tags as `format`; the older form has `structures` and `triggers` instead."""
    try:
        given = json.loads(guide)
    except (ValueError, RecursionError) as error:
        raise Refused(f"`guided_decoding_guide` is not the JSON of a structural tag: {error}") from error
    if not isinstance(given, dict) or "structures" not in given:
        return guide
    try:
        tags = [_tag(structure) for structure in given["structures"]]
        triggers = [str(trigger) for trigger in given["triggers"]]
    except (KeyError, TypeError) as error:
        raise Refused(
            "`guided_decoding_guide` is not a structural tag: it needs `triggers`, and each of `structures` "
            "needs `begin`, `schema` and `end`"
        ) from error
    content = {"type": "triggered_tags", "triggers": triggers, "tags": tags}
    return json.dumps({"type": "structural_tag", "format": content})


def _tag(structure: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "tag",
        "begin": structure["begin"],
        "content": {"type": "json_schema", "json_schema": structure["schema"]},
        "end": structure["end"],
    }
