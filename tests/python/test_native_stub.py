"""`_native.pyi` says what the extension has: the same names, the same signatures."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import inflight
from inflight import _native

STUB = ast.parse(Path(inflight.__file__).with_name("_native.pyi").read_text(encoding="utf-8"))
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
VALUES = {
    node.target.id
    for node in STUB.body
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
}


def parameters(function: ast.FunctionDef, *, skip: int = 0) -> list[tuple[str, bool, str | None]]:
    """Each parameter's name, whether it is keyword-only, and its default as text."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args][skip:]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults += arguments.defaults
    pairs = [(a, d, False) for a, d in zip(plain, defaults, strict=True)]
    pairs += [(a, d, True) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return [(a.arg, keyword, None if d is None else ast.unparse(d)) for a, d, keyword in pairs]


def real_parameters(thing: object) -> list[tuple[str, bool, str | None]]:
    """The same, of the extension's object, from its text signature."""
    assert callable(thing)
    return [
        (p.name, p.kind is p.KEYWORD_ONLY, None if p.default is p.empty else repr(p.default))
        for p in inspect.signature(thing).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    ]


def test_the_names_are_the_same() -> None:
    public = {name for name in dir(_native) if not name.startswith("__")} | {"__version__"}
    assert public == FUNCTIONS.keys() | CLASSES.keys() | VALUES


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_what_the_stub_says(name: str) -> None:
    assert real_parameters(getattr(_native, name)) == parameters(FUNCTIONS[name])


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_takes_and_has_what_the_stub_says(name: str) -> None:
    methods = {node.name: node for node in CLASSES[name].body if isinstance(node, ast.FunctionDef)}
    methods.pop("__getattr__", None)
    constructor = methods.pop("__new__", None)
    real = getattr(_native, name)
    if constructor is None:
        with pytest.raises(TypeError):
            real()
    else:
        assert real_parameters(real) == parameters(constructor, skip=1)
    attributes = {attribute for attribute in vars(real) if not attribute.startswith("__")}
    values = {
        node.target.id
        for node in CLASSES[name].body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert attributes == methods.keys() | values


#: Of a kind, another value than the default.
OTHERS: dict[str, Callable[[Any], object]] = {
    "switch": lambda value: not value,
    "integer": lambda value: (value or 0) + 1,
    "number": lambda value: value / 2,
    "text": lambda value: (value or "http://") + "x",
    "file": lambda _: "file",
    "directory": lambda _: "directory",
    "ids": lambda _: [1],
}
#: Of options whose text has a form, by what its help shows.
FORMED = {"http://HOST:PORT/PREFIX": "http://etcd:2379/workers/"}
OPTIONS: list[tuple[Any, _native.WorkerOption]] = [
    *((_native.WorkerOptions, one) for one in _native.worker_options()),
    *((_native.SimulatedOptions, one) for one in _native.simulated_options()),
]


@pytest.mark.parametrize(("make", "option"), OPTIONS, ids=[option.name for _, option in OPTIONS])
def test_every_option_is_read_back_as_given(make: Any, option: _native.WorkerOption) -> None:
    default = option.default
    assert getattr(make(), option.name) == default
    assert getattr(make(**{option.name: None}), option.name) == default
    *_, last = [None, *option.choices]
    other = last or FORMED.get(option.value_name or "") or OTHERS[option.kind](default)
    assert getattr(make(**{option.name: other}), option.name) == other


def test_what_is_not_an_option_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match="unknown option `port`"):
        _native.WorkerOptions(port=1)
    with pytest.raises(TypeError, match="option `grpc_port`: 'str' object"):
        _native.WorkerOptions(grpc_port="1")
    with pytest.raises(AttributeError, match="unknown option `port`"):
        _ = _native.WorkerOptions().port


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (_native.WorkerOptions, "drain_timeout_s", -1.0),
        (_native.WorkerOptions, "canary_timeout_s", float("nan")),
        (_native.WorkerOptions, "progress_timeout_s", float("inf")),
        (_native.SimulatedOptions, "step_us", -0.5),
        (_native.SimulatedOptions, "prefill_us_per_token", float("nan")),
        (_native.SimulatedOptions, "max_batch_size", 0),
        (_native.WorkerOptions, "grpc_port", 65536),
        (_native.WorkerOptions, "max_message_bytes", -1),
        (_native.WorkerOptions, "max_concurrent_streams", 2**32),
        (_native.WorkerOptions, "trace_sampling_ratio", 1.5),
        (_native.WorkerOptions, "otlp_endpoint", "grpc://x:1"),
    ],
)
def test_an_option_out_of_range_is_named(make: type, name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        make(**{name: value})
