"""The child process that calls TensorRT-LLM: `python -m inflight.build.api_call STEP.json`.

Owns how a call written as data is made. A separate process, because a fault in TensorRT-LLM's C++ ends the
process, and because what it allocated goes with it. Keywords are checked against the installed signature
before anything is called: another release's spelling is one sentence and no crash.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from inflight.model.llm_args import suggest


class CallError(Exception):
    """A call that cannot be made as written."""


def resolve(target: str, results: Mapping[str, Any]) -> Any:
    """The object of a dotted name: below a named result, or below the longest module that imports."""
    first, *rest = target.split(".")
    if first in results:
        return _walk(results[first], rest, target)
    parts = target.split(".")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            # Only the name itself being no module is a reason to look one level up.
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise
            if length == 1:
                raise CallError(f"`{target}`: the package `{name}` is not installed") from error
            continue
        return _walk(module, parts[length:], target)
    raise CallError(f"`{target}` is not a dotted name")


def _walk(value: Any, names: list[str], target: str) -> Any:
    for name in names:
        if not hasattr(value, name):
            raise CallError(f"`{target}` is not in the installed TensorRT-LLM: it has no `{name}`")
        value = getattr(value, name)
    return value


def check_arguments(
    target: str, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> None:
    """Raises `CallError` where the installed signature does not take the arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # A class of C++ without one: it refuses by itself.
    # Fields of pydantic's models that only a validator reads are taken, and are in no signature.
    fields = getattr(function, "model_fields", None)
    read_later = set(fields if isinstance(fields, Mapping) else ()) - set(signature.parameters)
    try:
        signature.bind(*args, **{name: value for name, value in kwargs.items() if name not in read_later})
    except TypeError as error:
        raise CallError(
            f"`{target}` of the installed TensorRT-LLM takes different arguments: {error}"
            f"{_meant(kwargs, {*signature.parameters, *read_later})}"
        ) from error


def _meant(kwargs: Mapping[str, Any], known: set[str]) -> str:
    """What the first unknown name was probably meant to be."""
    for name in kwargs:
        near = None if name in known else suggest(name, known)
        if near is not None:
            return f"; did you mean `{near}`?"
    return ""


def make(call: Mapping[str, Any], results: dict[str, Any]) -> Any:
    """Makes a call, those in its arguments first."""
    args = [_value(value, results) for value in call["args"]]
    kwargs = {name: _value(value, results) for name, value in call["kwargs"].items()}
    function = resolve(call["call"], results)
    check_arguments(call["call"], function, args, kwargs)
    print(f"calling {call['call']}", flush=True)
    made = function(*args, **kwargs)
    if call.get("result"):
        results[call["result"]] = made
    return made


def _value(value: Any, results: dict[str, Any]) -> Any:
    return make(value, results) if isinstance(value, dict) and "call" in value else value


def main(path: str) -> int:
    """Makes the calls in the file; 2 where one cannot be made, and whatever TensorRT-LLM raises raised."""
    with open(path, encoding="utf-8") as file:
        calls = json.load(file)["calls"]
    results: dict[str, Any] = {}
    try:
        for call in calls:
            make(call, results)
    except CallError as error:
        print(f"error: {error}", flush=True)
        return 2
    return 0


if __name__ == "__main__":
    # The guard matters: TensorRT-LLM starts MPI children that import this module again.
    sys.exit(main(sys.argv[1]))
