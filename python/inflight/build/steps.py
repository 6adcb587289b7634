"""What a plan is made of: steps as data, that print as what they do and hash to what they depend on.

Three kinds: a command by its argv, calls of TensorRT-LLM's Python API that a child process makes, and
functions of this package. Pure; `run` executes them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, TypeAlias

from inflight.errors import Problem

#: The directory of the build's logs: in the output, but not part of the manifest.
LOGS = "build-logs"


@dataclass(frozen=True)
class Call:
    """A call by dotted name; an argument may be another call, made first.

    `result` names what it returns, so that a later call's target may begin with that name.
    """

    target: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    result: str | None = None

    def text(self) -> str:
        """As Python would write it."""
        arguments = [_text(value) for value in self.args]
        arguments += [f"{name}={_text(value)}" for name, value in self.kwargs.items()]
        made = f"{self.target}({', '.join(arguments)})"
        return f"{self.result} = {made}" if self.result else made

    def data(self) -> dict[str, Any]:
        """As JSON, for the child that makes it."""
        return {
            "call": self.target,
            "args": [_data(value) for value in self.args],
            "kwargs": {name: _data(value) for name, value in self.kwargs.items()},
            "result": self.result,
        }


def _text(value: Any) -> str:
    return value.text() if isinstance(value, Call) else repr(value)


def _data(value: Any) -> Any:
    return value.data() if isinstance(value, Call) else value


@dataclass(frozen=True)
class Command:
    """A program; no shell sees it."""

    argv: tuple[str, ...]

    def lines(self) -> list[str]:
        return [shlex.join(self.argv)]

    def data(self) -> dict[str, Any]:
        return {"argv": list(self.argv)}


@dataclass(frozen=True)
class ApiCalls:
    """Calls of TensorRT-LLM, made in order by one child process."""

    calls: tuple[Call, ...]

    def lines(self) -> list[str]:
        return [call.text() for call in self.calls]

    def data(self) -> dict[str, Any]:
        return {"calls": [call.data() for call in self.calls]}


@dataclass(frozen=True)
class Own:
    """A function of `inflight.build`, as `module.function`."""

    function: str
    kwargs: Mapping[str, Any]

    def lines(self) -> list[str]:
        return [Call(f"inflight.build.{self.function}", kwargs=self.kwargs).text()]

    def data(self) -> dict[str, Any]:
        return {"own": self.function, "kwargs": dict(self.kwargs)}


Action: TypeAlias = Command | ApiCalls | Own


@dataclass(frozen=True)
class Step:
    """One step. `outputs` exist once it is done; steps of one `stage` that follow each other may overlap."""

    name: str
    title: str
    action: Action
    outputs: tuple[str, ...] = ()
    stage: str = ""

    def data(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            **self.action.data(),
            "outputs": list(self.outputs),
        }

    def key(self) -> str:
        """Identifies this version of the step."""
        return json.dumps(self.data(), sort_keys=True)


@dataclass(frozen=True)
class Layout:
    """Where a build keeps its files, relative as the user gave it. The staging directory is next to the
    output, on the same file system, so that the last rename is atomic."""

    output: str

    @property
    def staging(self) -> str:
        path = PurePath(self.output)
        return str(path.parent / f".{path.name}.building")

    @property
    def checkpoint(self) -> str:
        """The converted checkpoint, gone after the build."""
        return f"{self.staging}/checkpoint"

    @property
    def result(self) -> str:
        """What becomes the output."""
        return f"{self.staging}/result"


@dataclass(frozen=True)
class Mapping4D:
    """How ranks share a model."""

    tp_size: int = 1
    pp_size: int = 1
    cp_size: int = 1
    moe_tp_size: int | None = None
    moe_ep_size: int | None = None

    @property
    def world_size(self) -> int:
        return self.tp_size * self.pp_size * self.cp_size

    def record(self) -> dict[str, int]:
        """As the manifest and `tensorrt_llm.mapping.Mapping` name them."""
        values = {
            "world_size": self.world_size,
            "tp_size": self.tp_size,
            "pp_size": self.pp_size,
            "cp_size": self.cp_size if self.cp_size > 1 else None,
            "moe_tp_size": self.moe_tp_size,
            "moe_ep_size": self.moe_ep_size,
        }
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class BuildPlan:
    """What to do, decided. `blockers` stop a real run and only it."""

    runtime: str
    why: str
    layout: Layout
    mapping: Mapping4D
    #: What was decided for options that the user left open, and for those given.
    settings: Mapping[str, Any]
    steps: tuple[Step, ...]
    #: Files of the result, relative to it, that must exist at the end.
    expected: tuple[str, ...]
    notes: tuple[str, ...] = ()
    blockers: tuple[Problem, ...] = ()
