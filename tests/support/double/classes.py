"""A `tensorrt_llm` generated from the recorded signatures: classes that take the recorded keywords and have
the recorded attributes, and raise on any other. What they do is in `behavior` and `builder`.
"""

from __future__ import annotations

import ast
import copy
import enum
import inspect
import json
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from support.double import behavior, builder, engine, grammar, newer, torch

DATA = Path(__file__).parent / "data"
RECORD: dict[str, Any] = json.loads((DATA / "tensorrt_llm_api.json").read_text(encoding="utf-8"))
#: What the line of 1.3 changed.
NEWER: dict[str, Any] = json.loads((DATA / "tensorrt_llm_api_1.3.json").read_text(encoding="utf-8"))
SYMBOLS: dict[str, Any] = RECORD["symbols"]
BINDINGS = "tensorrt_llm.bindings.executor."

#: The lines of releases: version -> symbols, and what classes do by their full names.
_OLD, _NEW = str(RECORD["version"]), str(NEWER["version"])
LINES: dict[str, tuple[dict[str, Any], dict[str, type]]] = {
    _OLD: (SYMBOLS, behavior.BEHAVIOR | builder.BEHAVIOR),
    _NEW: (
        {name: held for name, held in SYMBOLS.items() if name not in NEWER["removed"]} | NEWER["symbols"],
        behavior.BEHAVIOR | newer.BEHAVIOR,
    ),
}
#: The line of which doubles are made; `line` chooses another for a while.
_current = _OLD


def version() -> str:
    """The version that the double passes for."""
    return _current


@contextmanager
def line(chosen: str) -> Iterator[None]:
    """Doubles are of this line within."""
    global _current
    before, _current = _current, chosen
    try:
        yield
    finally:
        _current = before


#: `enum.Enum` by its functional form, with names that only the table knows.
_enumeration: Any = enum.Enum


class Default:
    """A default that only the C++ source knows."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"<default {self.text}>"


#: Parsed once, while classes are made: Python 3.11 does not parse in several threads at a time.
@cache
def _parsed(text: str | None) -> Any:
    try:
        return ast.literal_eval(text) if text is not None else None
    except (ValueError, SyntaxError):
        return [] if text == "list()" else Default(str(text))


def _default(text: str | None) -> Any:
    return copy.copy(_parsed(text))


def _names(params: list[dict[str, Any]]) -> list[str]:
    return [param["name"] for param in params]


def bind(
    what: str, overloads: list[list[dict[str, Any]]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The values by parameter name of the overload that fits; TypeError where none does."""
    for params in overloads:
        names = _names(params)
        if len(args) > len(names) or not set(kwargs) <= set(names[len(args) :]):
            continue
        values = dict(zip(names, args, strict=False)) | kwargs
        if all(param["name"] in values for param in params if param.get("required")):
            return {param["name"]: _default(param.get("default")) for param in params} | values
    raise TypeError(f"{what}: no overload takes {len(args)} positions and {sorted(kwargs)}")


class Double:
    """Base of the generated classes; `values` is what the constructor got, defaults included."""

    _recorded: frozenset[str] = frozenset()
    _read_only: frozenset[str] = frozenset()
    _given: dict[str, Any]
    values: dict[str, Any]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_sim") or name in ("values", "_given"):
            object.__setattr__(self, name, value)
        elif name in self._recorded and name not in self._read_only:
            self.values[name] = value
        else:
            raise AttributeError(
                f"{type(self).__name__}.{name} cannot be set: it is not recorded as writable"
            )

    def dump(self) -> dict[str, Any]:
        """What was given to the constructor, nested, for comparison."""
        return {name: _dump(value) for name, value in self._given.items()}


def _dump(value: Any) -> Any:
    if isinstance(value, Double):
        return {"class": type(value).__name__, **value.dump()}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [_dump(item) for item in value]
    if isinstance(value, torch.Tensor):
        return {"dtype": value.dtype, "shape": list(value.shape), "values": value.array.tolist()}
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "total_seconds"):
        return {"ms": value.total_seconds() * 1000}
    return value


def _class(full: str, symbol: dict[str, Any], without: Collection[str]) -> type:
    symbols, behaviors = LINES[_current]
    short = full.rpartition(".")[2]
    params = [param for param in symbol.get("params", []) if f"{short}({param['name']})" not in without]
    inherited = [param for base in _bases(symbol, symbols) for param in symbols[base].get("params", [])]
    every = list({param["name"]: param for param in inherited + params}.values())
    overloads = symbol.get("overloads") or [every]
    for parsed in [param for overload in overloads for param in overload] + params:
        _parsed(parsed.get("default"))
    attributes = {
        attribute["name"]: attribute
        for attribute in symbol.get("attributes", [])
        if f"{short}.{attribute['name']}" not in without
    }
    native = full.startswith(BINDINGS)
    if not native:
        # Fields of dataclasses and of argument classes.
        attributes |= {name: {} for name in _names(every) if not name.startswith("*")}

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        if any(name.startswith("**") for name in _names(params)):
            known = [param for param in params if not param["name"].startswith("**")]
            extra = {name: value for name, value in kwargs.items() if name not in _names(known)}
            known_by = [symbols[name] for name in EXTRA_KEYWORDS if name in symbols]
            allowed = {param["name"] for found in known_by for param in found["params"]}
            if not set(extra) <= allowed:
                raise ValueError(f"{short}: unknown arguments {sorted(set(extra) - allowed)}")
            values = bind(short, [known], args, {k: v for k, v in kwargs.items() if k not in extra}) | extra
        else:
            values = bind(short, overloads, args, kwargs)
        builder.log(full, args, kwargs)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "_given", {k: v for k, v in values.items() if k in kwargs or args})
        begin = getattr(self, "_sim_begin", None)
        if begin is not None:
            begin()

    members: dict[str, Any] = {
        "__init__": initialize,
        "_recorded": frozenset(attributes),
        "_read_only": frozenset(n for n, a in attributes.items() if a.get("read_only")),
        "__module__": full.rpartition(".")[0],
    }
    for name in attributes:
        if not hasattr(behaviors.get(full), name):
            members[name] = _field(name)
    if symbol.get("source", "").endswith("llm_args.py"):
        # As pydantic's models show their fields.
        members["model_fields"] = {
            param["name"]: SimpleNamespace(description=param.get("description")) for param in every
        }
    if native:
        initialize.__nb_signature__ = tuple(  # type: ignore[attr-defined]
            (f"def __init__({', '.join(['self', *(f'{name}: object = ...' for name in names)])})", None)
            for names in map(_names, overloads)
        )
    does = behaviors.get(full)
    if does is not None:
        # One line's behavior may be made of another's.
        held = {name: value for kind in reversed(does.__mro__[:-1]) for name, value in vars(kind).items()}
        kept = {name: value for name, value in held.items() if f"{short}.{name}" not in without}
        does = type(
            does.__name__, (), {k: v for k, v in kept.items() if k not in ("__dict__", "__weakref__")}
        )
    for name, method in symbol.get("methods", {}).items():
        if f"{short}.{name}" in without:
            continue
        if method.get("static"):
            members[name] = staticmethod(lambda name=name: f"{short}.{name}")
        elif does is None or not hasattr(does, name):
            members[name] = _silent(f"{short}.{name}")
    bases: tuple[type, ...] = (Double,) if does is None else (does, Double)
    made = type(short, bases, members)
    if does is not None:
        public = {name for name in vars(does) if not name.startswith("_")}
        # The engines' LLM is a class of its own, with the methods of the other.
        inherited_methods = symbols["tensorrt_llm.llmapi.LLM"]["methods"] if short == "LLM" else {}
        unknown = public - {*symbol.get("methods", {}), *inherited_methods} - set(attributes)
        assert not unknown, f"the behavior of {full} has {unknown}, which the table has not"
        for name, method in symbol.get("methods", {}).items():
            if name in vars(does) and not native and not name.startswith("__"):
                had = set(inspect.signature(getattr(does, name)).parameters) - {"self"}
                assert had == {one.lstrip("*") for one in _names(method["params"])}, (
                    f"{full}.{name} of the double takes {had}"
                )
    if not native and not any(name.startswith("**") for name in _names(params)):
        taken = [param for param in every if f"{short}({param['name']})" not in without]
        # What only a validator reads is no parameter.
        made.__signature__ = signature([param for param in taken if param.get("init", True)])  # type: ignore[attr-defined]
    return made


def _bases(symbol: dict[str, Any], symbols: dict[str, Any]) -> list[str]:
    """Recorded classes whose parameters a class takes besides its own."""
    name = symbol.get("inherits")
    if not name:
        return []
    found = [full for full in symbols if full.rpartition(".")[2] == str(name).rpartition(".")[2]]
    assert found, f"`{name}` is not recorded"
    return found[:1]


#: What LLM's `**kwargs` are validated against.
EXTRA_KEYWORDS = (
    "tensorrt_llm.llmapi.TorchLlmArgs",
    "tensorrt_llm.llmapi.TrtLlmArgs",
    "tensorrt_llm.llmapi.llm_args.BaseLlmArgs",
)


def _field(name: str) -> Any:
    def get(self: Any) -> Any:
        return self.values.get(name)

    # `Double.__setattr__` is what sets.
    return property(get)


def _silent(name: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"{name} was called, and the double does not do it")

    return call


def build(without: Collection[str] = ()) -> dict[str, ModuleType]:
    """The modules by name. `without`: names to leave out: `Class`, `Class(keyword)` or `Class.member`."""
    symbols, _ = LINES[_current]
    modules: dict[str, ModuleType] = {}

    def module(name: str) -> ModuleType:
        if name not in modules:
            modules[name] = ModuleType(name)
            modules[name].__path__ = []
            parent, _, leaf = name.rpartition(".")
            if parent:
                setattr(module(parent), leaf, modules[name])
        return modules[name]

    aliases = []
    made: Any
    for full in sorted(symbols, key=lambda name: name.count(".")):
        symbol = symbols[full]
        owner, _, short = full.rpartition(".")
        if short in without:
            continue
        if symbol["kind"] == "alias":
            aliases.append((owner, short, symbol["of"]))
            continue
        if symbol["kind"] == "function":
            made = _silent(full)
        elif symbol["kind"] == "typed_dict":
            made = type(short, (dict,), {})
        elif symbol["kind"] == "enum":
            # Those of the LLM API are made from their names.
            by_name = owner == "tensorrt_llm.llmapi"
            members = {member: member if by_name else at for at, member in enumerate(symbol["members"])}
            made = _enumeration(short, members)
        elif full.endswith("RequestError"):
            made = type(short, (RuntimeError,), {})
        else:
            made = _class(full, symbol, without)
        if owner in symbols:
            parent, _, leaf = owner.rpartition(".")
            holder: Any = getattr(module(parent), leaf)
        else:
            holder = module(owner)
        setattr(holder, short, made)
        if owner == "tensorrt_llm.llmapi":
            # What `tensorrt_llm` and its modules export again.
            setattr(module("tensorrt_llm"), short, made)
        if owner == "tensorrt_llm.sampling_params":
            setattr(module("tensorrt_llm"), short, made)
    for owner, short, of in aliases:
        target, _, leaf = of.rpartition(".")
        setattr(module(owner), short, getattr(module(target), leaf))
        if owner == "tensorrt_llm.llmapi":
            setattr(module("tensorrt_llm"), short, getattr(module(target), leaf))
    for full, made in (builder.UNRECORDED if _current == _OLD else {}).items():
        owner, _, short = full.rpartition(".")
        setattr(module(owner), short, made)
    modules["tensorrt_llm"].__version__ = _current  # type: ignore[attr-defined]
    modules["torch"] = torch.make()
    # None: it cannot be imported.
    modules["xgrammar"] = None if "xgrammar" in without else grammar.make()  # type: ignore[assignment]
    engine.connect(modules)
    return modules


@contextmanager
def installed(without: Collection[str] = ()) -> Iterator[ModuleType]:
    """The double in `sys.modules`; yields `tensorrt_llm.bindings.executor`."""
    modules = build(without)
    before = {
        name: value
        for name, value in sys.modules.items()
        if name.partition(".")[0] in ("tensorrt_llm", "torch", "xgrammar")
    }
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    try:
        yield modules["tensorrt_llm.bindings.executor"]
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def signature(params: list[dict[str, Any]]) -> inspect.Signature:
    return inspect.Signature(
        [
            inspect.Parameter(
                param["name"],
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if param.get("required") else param.get("default"),
            )
            for param in params
        ]
    )
