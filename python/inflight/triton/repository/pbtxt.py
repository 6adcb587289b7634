"""Protobuf's text format as config.pbtxt uses it: read into plain messages, and values quoted for writing.

A message is a dict from field name to the list of its values (str, int, float, bool or a message), so that
a repeated and a single field look alike. Any text either parses or raises `PbtxtError` with its line.

Why not `google.protobuf.text_format`: it needs the descriptors of `ModelConfig`, and with them it stops at
the first unknown field, repeated single field or value of another type. The check reports all of these at
once, and reads templates, where a number may still be a placeholder. Protobuf would also become a dependency
of the wheel, in Triton's containers next to their own. Tests compare this parser with protobuf's.
"""

from __future__ import annotations

import re
from typing import Any

Message = dict[str, list[Any]]

#: Deeper than any config; nesting must not exhaust the stack.
MAX_DEPTH = 32

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\n\f\v]+|\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?f?))
    |(?P<name>[A-Za-z_][A-Za-z0-9_.]*)
    |(?P<placeholder>\$\{[^}\n]*\})
    |(?P<mark>[{}\[\]:,;<>])""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)")


class PbtxtError(ValueError):
    """Text that is not a config.pbtxt, with the line."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line


def quote(text: str) -> str:
    """A string value, quoted and escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def parse(text: str) -> Message:
    """The message that the text holds. Raises `PbtxtError`."""
    return _Parser(_tokens(text)).fields(None, 0)


def _tokens(text: str) -> list[tuple[str, str, int]]:
    found, at, line = [], 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise PbtxtError(line, f"unexpected `{text[at]}`")
        kind = str(match.lastgroup)
        if kind != "skip":
            found.append((kind, match[0], line))
        line += match[0].count("\n")
        at = match.end()
    found.append(("end", "the end of the file", line))
    return found


class _Parser:
    def __init__(self, tokens: list[tuple[str, str, int]]) -> None:
        self._tokens = tokens
        self._at = 0

    def _peek(self) -> str:
        return self._tokens[self._at][1]

    def _next(self) -> tuple[str, str, int]:
        token = self._tokens[self._at]
        # The end stays where it is, however often it is asked for.
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def fields(self, closing: str | None, depth: int) -> Message:
        message: Message = {}
        while True:
            kind, text, line = self._next()
            if kind == "end" and closing is None:
                return message
            if text == closing and kind == "mark":
                return message
            if depth > MAX_DEPTH:
                raise PbtxtError(line, "messages are nested too deeply")
            if kind != "name":
                wanted = f"a field name or `{closing}`" if closing else "a field name"
                raise PbtxtError(line, f"expected {wanted}, found `{text}`")
            colon = self._peek() == ":"
            if colon:
                self._next()
            values = message.setdefault(text, [])
            if self._peek() == "[":
                self._next()
                self._list(values, colon, depth)
            else:
                values.append(self._value(colon, depth))
            if self._peek() in (",", ";") and self._tokens[self._at][0] == "mark":
                self._next()

    def _list(self, values: list[Any], colon: bool, depth: int) -> None:
        if self._peek() == "]":
            self._next()
            return
        while True:
            values.append(self._value(colon, depth))
            kind, text, line = self._next()
            if kind == "mark" and text == "]":
                return
            if kind != "mark" or text != ",":
                raise PbtxtError(line, f"expected `,` or `]`, found `{text}`")

    def _value(self, colon: bool, depth: int) -> Any:
        kind, text, line = self._next()
        if kind == "mark" and text in "{<":
            return self.fields("}" if text == "{" else ">", depth + 1)
        if not colon:
            raise PbtxtError(line, f"expected `:` or a message, found `{text}`")
        if kind == "string":
            value = _unquote(text)
            while self._tokens[self._at][0] == "string":
                value += _unquote(self._next()[1])
            return value
        if kind == "number":
            return _number(text)
        if kind == "name":
            return {"true": True, "false": False}.get(text, text)
        if kind == "placeholder":
            raise PbtxtError(line, f"the placeholder `{text}` has no value")
        raise PbtxtError(line, f"expected a value, found `{text}`")


def _number(text: str) -> int | float:
    if text.lower().lstrip("+-").startswith("0x"):
        return int(text, 16)
    try:
        return int(text)
    except ValueError:
        return float(text.rstrip("fF"))


def _unquote(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        body = match[1]
        if body[0] == "x" and len(body) > 1:
            return chr(int(body[1:], 16))
        if body[0] in "01234567":
            return chr(int(body, 8))
        return _ESCAPES.get(body, body)

    return _ESCAPE.sub(one, text[1:-1])
