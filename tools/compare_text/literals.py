"""Reads values out of Python's source without running it: constants, names of the module, and what is plainly
made of them.

Owns which expressions are read. A call of a class is a dict of its keyword arguments; a function of the
module is followed if it only returns an expression. Everything else raises `Unreadable`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any

#: Functions within functions, and lists within lists.
MAX_DEPTH = 40


class Unreadable(Exception):
    """An expression whose value only running it would give."""


#: By the expression that is called.
_KNOWN: dict[str, Callable[..., Any]] = {
    "pytest.param": lambda *arguments, **_: arguments,
    "json.dumps": json.dumps,
}


class Source:
    """One file's source."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self._names: dict[str, ast.expr] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._names[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                self._names[node.target.id] = node.value
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                before = self._names.get(node.target.id)
                if before is not None:
                    self._names[node.target.id] = ast.BinOp(before, node.op, node.value)
            elif isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node

    def name(self, name: str) -> Any:
        """The value of a name of the module."""
        return self.value(ast.Name(name))

    def value(self, node: ast.expr, local: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
        """The value of an expression; `local`: the arguments of the function that it is in."""
        if depth > MAX_DEPTH:
            raise Unreadable("too deep")

        def read(inner: ast.expr) -> Any:
            return self.value(inner, local, depth + 1)

        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                if local is not None and node.id in local:
                    return local[node.id]
                if node.id not in self._names:
                    raise Unreadable(f"the name {node.id}")
                return self.value(self._names[node.id], None, depth + 1)
            case ast.JoinedStr():
                return "".join(str(read(part)) for part in node.values)
            case ast.FormattedValue(conversion=-1, format_spec=None):
                return read(node.value)
            case ast.List() | ast.Tuple():
                items = [read(item) for item in node.elts]
                return items if isinstance(node, ast.List) else tuple(items)
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                return {read(_key(key)): read(value) for key, value in pairs}
            case ast.UnaryOp(op=ast.USub()):
                return -read(node.operand)
            case ast.BinOp(op=ast.Add()):
                return read(node.left) + read(node.right)
            case ast.BinOp(op=ast.Mult()):
                return _times(read(node.left), read(node.right))
            case ast.Call():
                return self._call(node, local, depth)
        raise Unreadable(ast.unparse(node)[:80])

    def _call(self, node: ast.Call, local: Mapping[str, Any] | None, depth: int) -> Any:
        if any(isinstance(one, ast.Starred) for one in node.args):
            raise Unreadable("arguments with a star")
        arguments = [self.value(one, local, depth + 1) for one in node.args]
        named = {_word(one): self.value(one.value, local, depth + 1) for one in node.keywords}
        called = ast.unparse(node.func)
        if called in _KNOWN:
            return _KNOWN[called](*arguments, **named)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "join":
            return self.value(node.func.value, local, depth + 1).join(*arguments)
        function = self.functions.get(called)
        if function is not None:
            return self.value(returned(function), _bound(function, arguments, named), depth + 1)
        if called.rpartition(".")[2][:1].isupper() and not arguments:
            return named
        raise Unreadable(called)


def returned(function: ast.FunctionDef) -> ast.expr:
    """The first expression that a function returns, where it needs no statement before it."""
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            return node.value
    raise Unreadable(f"{function.name} returns nothing")


def _bound(function: ast.FunctionDef, arguments: list[Any], named: dict[str, Any]) -> dict[str, Any]:
    places = [one.arg for one in function.args.args]
    bound = {**dict(zip(places, arguments, strict=False)), **named}
    if function.args.vararg is not None:
        bound[function.args.vararg.arg] = tuple(arguments[len(places) :])
    return bound


def _key(key: ast.expr | None) -> ast.expr:
    if key is None:
        raise Unreadable("a dict with stars")
    return key


def _word(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise Unreadable("arguments with stars")
    return keyword.arg


def _times(one: Any, other: Any) -> Any:
    product = 1
    for value in (one, other):
        product *= len(value) if isinstance(value, (str, list, tuple)) else abs(int(value))
    if product > 1_000_000:
        raise Unreadable("a long repetition")
    return one * other
