"""`_native.pyi` says what the extension has: the same names, the same signatures."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

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
    if constructor is None or not name.endswith("Options"):
        return
    # What can be given can be read back, `assets` apart: they are bytes that only the worker needs.
    assert {name for name, _, _ in parameters(constructor, skip=1)} - attributes <= {"assets"}


@pytest.mark.parametrize("name", [name for name in CLASSES if name.endswith("Options")])
def test_every_option_is_read_back_as_given(name: str) -> None:
    real = getattr(_native, name)
    default = real()
    for attribute in (attribute for attribute in vars(real) if not attribute.startswith("__")):
        value = getattr(default, attribute)
        other: object
        if isinstance(value, bool):
            other = not value
        elif attribute == "answer":
            other = [1]
        elif attribute == "otlp_endpoint":
            other = "http://x"
        elif attribute == "trace_sampling_ratio":
            other = 0.5
        elif attribute.endswith("_port"):
            other = (value or 0) + 1
        elif value is None or isinstance(value, str):
            other = (value or "") + "x"
        else:
            other = value + 1
        # The share of what is traced means nothing where nothing is.
        more = {"otlp_endpoint": "http://x"} if attribute == "trace_sampling_ratio" else {}
        assert getattr(real(**{attribute: other, **more}), attribute) == other
        assert getattr(real(**{attribute: None}), attribute) == value


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (_native.WorkerOptions, "drain_timeout_s", -1.0),
        (_native.WorkerOptions, "canary_timeout_s", float("nan")),
        (_native.WorkerOptions, "progress_timeout_s", float("inf")),
        (_native.SimulatedOptions, "step_us", -0.5),
        (_native.SimulatedOptions, "prefill_us_per_token", float("nan")),
        (_native.SimulatedOptions, "max_batch_size", 0),
    ],
)
def test_an_option_out_of_range_is_named(make: type, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        make(**{name: value})
