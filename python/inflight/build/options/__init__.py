"""Every option of `inflight build`, declared once, and the values that a user gave.

Owns no command and no plan: `inflight.cli.build` makes its flags from `OPTIONS`, the planners read where a
value goes (a flag of `trtllm-build`, a field of `BuildConfig` or `PluginConfig`, a field of the PyTorch
runtime's arguments). Flags may be spelled with `-` or with TensorRT-LLM's `_`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.build.options.declaration import EARLIER, BuildOption
from inflight.build.options.engine import ENGINE_OPTIONS
from inflight.build.options.model import MODEL_OPTIONS

OPTIONS: tuple[BuildOption, ...] = (*MODEL_OPTIONS, *ENGINE_OPTIONS)

BY_NAME: Mapping[str, BuildOption] = {option.name: option for option in OPTIONS}

#: Options that steer this command or locate its tools, and do not change what is built.
COMMAND_ONLY = frozenset(
    {"output", "runtime", "examples_dir", "dry_run", "force", "json", "workers"}
    | {option.name for option in OPTIONS if option.group == EARLIER}
)


class Values:
    """Option values: what the user gave, over the defaults. Raises `KeyError` for a name not declared."""

    def __init__(self, given: Mapping[str, Any], arguments: Mapping[str, Any] | None = None) -> None:
        """`arguments`: those of the PyTorch runtime that have no option, from the file of `llm_args`."""
        self.arguments: dict[str, Any] = dict(arguments or {})
        self.given: dict[str, Any] = {
            name: value
            for name, value in given.items()
            if BY_NAME[name] and value is not None and value is not False and value != ()
        }
        world = self.given.get("world_size")
        if world is not None and "tp_size" not in self.given:
            # As in the examples' own builders; a size that does not divide is reported later.
            self.given["tp_size"] = max(1, world // (self["pp_size"] * self["cp_size"]))

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name, BY_NAME[name].default)

    def is_given(self, name: str) -> bool:
        """Whether the user said anything about it."""
        return name in self.given

    def record(self) -> dict[str, Any]:
        """What the manifest keeps: the given options that shape the result, sorted."""
        kept = {name: _plain(self.given[name]) for name in sorted(self.given) if name not in COMMAND_ONLY}
        # What the file contains, not where it was.
        return {name: self.arguments if name == "llm_args" else value for name, value in kept.items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
