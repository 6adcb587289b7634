"""What a test of vLLM's parsers asserts of the calls and the content, as far as it can be read.

Owns the forms of assertions that the tests have. What has another form is not read, so that a case may expect
less than its test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compare_text.literals import Source, Unreadable

_CALLS = r"(?:\w+\.)?tool_calls"
_COUNT = re.compile(rf"len\({_CALLS}\) == (\d+)")
_NONE = re.compile(rf"not \w+\.tools_called|\w+\.tools_called is False|{_CALLS} == \[\]")
_NAME = re.compile(rf"{_CALLS}\[(\d+)\]\.function\.name == (.+)")
_CONTENT = re.compile(r"(?:\w+\.)?content == (.+)")
_WHOLE = re.compile(r"(\w+|json\.loads\(.+\)) == (.+)")
_KEY = re.compile(r"(\w+|json\.loads\(.+\))\[(.+?)\] == (.+)")
_LOADED = re.compile(rf"json\.loads\({_CALLS}\[(\d+)\]\.function\.arguments\)")


@dataclass
class Expected:
    """Of one output."""

    count: int | None = None
    content: str | None = None
    #: By the place of the call.
    names: dict[int, str] = field(default_factory=dict)
    #: Those of a call's arguments that are named.
    arguments: dict[int, dict[str, Any]] = field(default_factory=dict)


def asserted(source: Source, function: ast.FunctionDef, local: Mapping[str, Any]) -> Expected:
    """What `function` asserts; `local` has the values of its names that are known."""
    expected = Expected()
    #: Name -> place of the call whose arguments it has.
    loaded: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and (found := _LOADED.fullmatch(ast.unparse(node.value))):
            name = ast.unparse(node.targets[0])
            # A name that is used again may mean either.
            loaded[name] = -1 if name in loaded else int(found[1])
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            try:
                _read(source, ast.unparse(node.test), local, loaded, expected)
            except (Unreadable, SyntaxError):
                continue
    expected.arguments.pop(-1, None)
    return expected


def _read(
    source: Source, text: str, local: Mapping[str, Any], loaded: Mapping[str, int], expected: Expected
) -> None:
    def value(part: str) -> Any:
        return source.value(ast.parse(part, mode="eval").body, local)

    def place(part: str) -> int:
        found = _LOADED.fullmatch(part)
        return int(found[1]) if found else loaded.get(part, -1)

    if found := _COUNT.fullmatch(text):
        expected.count = int(found[1])
    elif _NONE.fullmatch(text):
        expected.count = 0
    elif found := _NAME.fullmatch(text):
        expected.names[int(found[1])] = value(found[2])
    elif found := _CONTENT.fullmatch(text):
        expected.content = value(found[1])
    elif found := _KEY.fullmatch(text):
        expected.arguments.setdefault(place(found[1]), {})[value(found[2])] = value(found[3])
    elif found := _WHOLE.fullmatch(text):
        arguments = value(found[2])
        if isinstance(arguments, dict):
            expected.arguments.setdefault(place(found[1]), {}).update(arguments)
