"""`--llm-args`: the arguments in a file become values of the options that exist for them, so that every check
of a plan sees them; the others go to the result as they are. What is given on the command line wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inflight.build.options import OPTIONS, Values
from inflight.model.llm_args import read_arguments
from inflight.model.speculation import DECODING_TYPES

_DRAFTER = "speculative_config"


def read_values(given: Mapping[str, Any]) -> Values:
    """The values of a command line, completed from its file. Errors: `UserMistake`."""
    if not given.get("llm_args"):
        return Values(given)
    arguments = read_arguments(Path(given["llm_args"]))
    completed = dict(given)
    modes = {kind: mode for mode, kind in DECODING_TYPES.items()}
    drafter = arguments.get(_DRAFTER)
    knows_drafter = isinstance(drafter, Mapping) and drafter.get("decoding_type") in modes
    for option in OPTIONS:
        if option.llm_args is None or (option.llm_args.startswith(_DRAFTER) and not knows_drafter):
            continue
        found, value = _take(arguments, option.llm_args.split("."))
        if not found or value is None:
            continue
        if option.name == "speculative_decoding_mode":
            value = modes[value]
        if completed.get(option.name) in (None, False, ()):
            completed[option.name] = option.parse(value)
    return Values(completed, {name: value for name, value in arguments.items() if value != {}})


def _take(arguments: dict[str, Any], path: list[str]) -> tuple[bool, Any]:
    """Takes the value at the path out of the arguments; whether it was there."""
    *outer, leaf = path
    held: Any = arguments
    for name in outer:
        held = held.get(name)
        if not isinstance(held, dict):
            return False, None
    return (True, held.pop(leaf)) if leaf in held else (False, None)
