"""How the help shows an option: what its value is called, its bounds and its default, in one form for all.

Every option is an `Option`. Owns the words; the style is in docs/STYLE.md, and clap's help has it as well.
Does not know any option by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

#: Units, wherever an option's name has them: `max_body_bytes`, `tokens_per_block`.
UNITS = {
    "s": "SECONDS",
    "ms": "MILLISECONDS",
    "us": "MICROSECONDS",
    "bytes": "BYTES",
    "tokens": "TOKENS",
}
#: What a value is, where an option's name ends with it.
KINDS = {
    "port": "PORT",
    "host": "HOST",
    "url": "URL",
    "name": "NAME",
    "model": "NAME",
    "key": "KEY",
    "dir": "DIRECTORY",
    "len": "TOKENS",
    "length": "TOKENS",
}
#: All ports: the word says it.
PORTS = (0, 65535)
#: A default in words, behind a help.
DEFAULT = re.compile(r"\s+\[default: (?P<words>[^\]]+)\]$")


class Option(click.Option):
    """An option whose help is in the style of all. A default that is not a value is written behind the help,
    as `[default: the directory's name]`.
    """

    def __init__(self, names: Sequence[str], help: str | None = None, **more: Any) -> None:
        found = DEFAULT.search(help or "")
        if help is not None and found is not None:
            help, more["show_default"] = help[: found.start()], found["words"]
        super().__init__(names, help=help, **more)

    def make_metavar(self, ctx: click.Context) -> str:
        """The unit or the kind of its value in capitals, or the values that it may have."""
        if self.metavar is not None or isinstance(self.type, click.Choice):
            return super().make_metavar(ctx)
        return value_name(str(self.name), self.type)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Says bounds and defaults in words."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default
        extra.pop("range", None)
        bounds = bounds_of(self.type)
        if bounds:
            extra["range"] = bounds
        return extra


#: Declares an option of a command, as `click.option`.
option = partial(click.option, cls=Option)


def value_name(name: str, kind: click.ParamType[Any]) -> str:
    """What the help calls the value of an option of this name."""
    if isinstance(kind, click.types.BoolParamType):
        return "[true|false]"
    if isinstance(kind, click.Path):
        return "PATH" if kind.file_okay and kind.dir_okay else "FILE" if kind.file_okay else "DIRECTORY"
    words = name.replace("-", "_").split("_")
    unit = next((UNITS[word] for word in words if word in UNITS), None)
    if unit is not None:
        return unit
    if words[-1] in KINDS:
        return KINDS[words[-1]]
    if isinstance(kind, click.types.IntParamType):
        return "N"
    return "NUMBER" if isinstance(kind, click.types.FloatParamType) else "TEXT"


def bounds_of(kind: click.ParamType[Any]) -> str:
    """What numbers an option may have; empty: all of its kind, or it is not a number."""
    if not isinstance(kind, (click.IntRange, click.FloatRange)):
        return ""
    low, high = kind.min, kind.max
    if (low, high) == PORTS:
        return ""
    least = "" if low is None else f"above {low}" if kind.min_open else f"at least {low}"
    most = "" if high is None else f"below {high}" if kind.max_open else f"at most {high}"
    if least and most and not kind.min_open and not kind.max_open:
        return f"{low} to {high}"
    return " and ".join(part for part in (least, most) if part)
