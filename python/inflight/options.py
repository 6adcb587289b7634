"""What an option is: name, kind, default, meaning. One declaration for `inflight build`, the executors and
the parameters of a Triton repository, which each add what only they need.

Owns how text becomes a value: a command line, a YAML file and a config.pbtxt all contain text. Declares none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from inflight.errors import OptionError

Kind = Literal[
    "bool",
    "int",
    "float",
    "fraction",
    "text",
    "texts",
    "ints",
    "instances",
    "choice",
    "path",
    "token_paths",
    "mapping",
]

_BOOLS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Option:
    """One option. `default` None: not set, or derived as `meaning` says."""

    name: str
    kind: Kind
    #: What it does, and why the default is what it is.
    meaning: str
    default: Any = None
    #: All allowed values; empty: the kind decides.
    choices: tuple[str, ...] = ()
    #: Of an `int` or `float`.
    minimum: int | None = None

    @property
    def flag(self) -> str:
        """As people type it."""
        return "--" + self.name.replace("_", "-")

    def parse(self, value: Any) -> Any:
        """The value of the kind, from text or from such a value. Raises `OptionError`."""
        expected = f"one of {', '.join(self.choices)}" if self.choices else _EXPECTED[self.kind]
        if self.minimum is not None:
            expected += f" of at least {self.minimum}"
        try:
            parsed = _PARSERS[self.kind](value)
            if (self.choices and parsed not in self.choices) or (
                self.minimum is not None and parsed < self.minimum
            ):
                raise ValueError(value)
        except (ValueError, TypeError, RecursionError):
            raise OptionError(
                f"option `{self.name}` must be {expected}, got `{value}`", f"pass {expected}"
            ) from None
        return parsed


def option(kind: Kind, meaning: str, *, of: type[Option] = Option, **more: Any) -> Any:
    """A dataclass field that is an option of the field's name; `more` are other fields of the class `of`."""
    made = of("", kind, meaning, **more)
    return field(default=made.default, metadata={"option": made})


def declared(options: type) -> dict[str, Any]:
    """The options of a dataclass whose fields are `option`s, by name."""
    return {
        one.name: replace(one.metadata["option"], name=one.name)
        for one in fields(options)
        if "option" in one.metadata
    }


def parse_values(
    known: Mapping[str, Option], values: Mapping[str, Any], owner: str, help_text: str | None = None
) -> dict[str, Any]:
    """Values by name; those that are None are left out. Raises `OptionError`."""
    parsed = {}
    for name, value in values.items():
        if name not in known:
            raise OptionError(
                f"`{name}` is not an option of {owner}", help_text or f"use one of {', '.join(known)}"
            )
        if value is not None:
            parsed[name] = known[name].parse(value)
    return parsed


def _bool(value: Any) -> bool:
    spelled = str(value).lower()
    if spelled not in _BOOLS:
        raise ValueError(value)
    return _BOOLS[spelled]


def _int(value: Any) -> int:
    if isinstance(value, (bool, float)):
        raise ValueError(value)
    return int(value)


def _fraction(value: Any) -> float:
    number = float(value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(value)
    return number


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else str(value).split(",")


def instance_lists(value: Any) -> list[list[int]]:
    """Numbers for each instance of a model: `0,1;2,3` is for two. Raises `ValueError` for anything else."""
    parts = [value] if isinstance(value, (list, tuple)) else str(value).split(";")
    lists = [[int(item) for item in _items(part)] for part in parts]
    if any(number < 0 for one in lists for number in one):
        raise ValueError(value)
    return lists


def _texts(value: Any) -> list[str]:
    names = [str(item).strip() for item in _items(value)]
    if not all(names):
        raise ValueError(value)
    return names


def _token_paths(value: Any) -> list[list[int]]:
    """Triton's brace lists, also without the outer braces (`{0}, {0, 1}`), JSON, or lists."""
    if isinstance(value, str):
        text = value.replace("{", "[").replace("}", "]")
        try:
            value = json.loads(text)
        except ValueError:
            if not text.lstrip().startswith("["):
                raise
            value = json.loads(f"[{text}]")
        if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
            value = [value]
    return [[int(node) for node in path] for path in value]


def _mapping(value: Any) -> dict[str, str]:
    """Names and single values; true and false as other commands spell them."""
    if not isinstance(value, Mapping) or any(isinstance(one, (dict, list)) for one in value.values()):
        raise ValueError(value)
    return {str(name): str(one).lower() if isinstance(one, bool) else str(one) for name, one in value.items()}


_PARSERS: Mapping[Kind, Callable[[Any], Any]] = {
    "bool": _bool,
    "int": _int,
    "float": float,
    "fraction": _fraction,
    "text": str,
    "texts": _texts,
    "ints": lambda value: [int(item) for item in _items(value)],
    "instances": instance_lists,
    "choice": str,
    "path": str,
    "token_paths": _token_paths,
    "mapping": _mapping,
}
_EXPECTED: Mapping[Kind, str] = {
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "fraction": "a number from 0 to 1",
    "text": "text",
    "texts": "names separated by commas",
    "ints": "integers separated by commas",
    "instances": "integers from 0 on separated by commas, with `;` between instances",
    "choice": "text",
    "path": "a path",
    "token_paths": "paths like `{{0}, {0, 0}, {1}}`",
    "mapping": "names with one value each",
}
