"""The executors' options as parameters of the core model (`--backend python`).

Owns which parameters an executor takes, which the model itself reads, and what happens to the others: a value
that changes nothing passes, every other one is reported. The options are the executors' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.errors import OptionError, UserMistake
from inflight.executors import options_of
from inflight.triton.repository.parameters import PARAMETERS, SHAPE, Parameter

#: What the core model reads itself; `tokenizer_dir` is for an executor without a model to ask.
OWN = frozenset(
    {
        "FORCE_CPU_ONLY_INPUT_TENSORS",
        "cancellation_check_period_ms",
        "device",
        "exclude_input_in_output",
        "executor",
        "gpt_model_path",
        "stats_check_period_ms",
        "tokenizer_dir",
    }
)
_KINDS: dict[str, str] = {"texts": "text", "token_paths": "text"}


@dataclass(frozen=True)
class Chosen:
    """What an executor is created with, and the problems of the parameters that nobody would apply."""

    values: dict[str, Any]
    problems: list[str]


def parameters() -> tuple[Parameter, ...]:
    """The options that are neither parameters of NVIDIA's backend nor set by another field of its config."""
    table = {parameter.key for parameter in PARAMETERS["tensorrt_llm"]} | {one.option for one in SHAPE}
    found: dict[str, tuple[str, list[str]]] = {}
    for executor in ("reference", "tensorrt_llm", "scripted"):
        for name, kind in _kinds(executor, None).items():
            if name not in table:
                found.setdefault(name, (kind, []))[1].append(executor)
    return tuple(
        Parameter(name, name, kind, None, f"option of the executor {' or '.join(executors)}")
        for name, (kind, executors) in found.items()
    )


def choose(
    executor: str,
    given: Mapping[str, str],
    max_queue_size: int = 0,
    runtime: str | None = None,
    instance: int = 0,
) -> Chosen:
    """The executor's options among the parameters `given`; those that are empty or unfilled are not set.

    `max_queue_size` is the bound of Triton's own queue, which holds for the executor's as well, as in
    NVIDIA's backend (0: none). `runtime` is `engines` or `pytorch` for the executor `tensorrt_llm`, where
    known. `instance` is the number of the model's instance, for parameters with a part for each.
    """
    kinds = _kinds(executor, runtime)
    table = {parameter.key: parameter for parameter in PARAMETERS["tensorrt_llm"]}
    values: dict[str, Any] = {}
    problems: list[str] = []
    if max_queue_size > 0 and "max_queue_size" in kinds:
        values["max_queue_size"] = max_queue_size
    for key, text in given.items():
        if key in OWN or not text or text.startswith("${"):
            continue
        if key in kinds:
            try:
                values[key] = _value(executor, key, text, instance)
            except OptionError as error:
                problems.append(error.what)
            except IndexError:
                problems.append(
                    f"the parameter `{key}` is `{text}`, which has nothing for the instance `{instance}`"
                )
        elif key not in table or not is_default(table[key], text):
            problems.append(
                f"the parameter `{key}` is `{text}`, which the executor `{executor}` does not support"
                f"{_words(runtime)}; leave it out"
            )
    return Chosen(values, problems)


def instance_number(name: str, groups: Sequence[Mapping[str, Any]]) -> int:
    """The place of an instance among all of its model's. Triton names an instance after its group, with its
    place in the group behind, such as `tensorrt_llm_0_1`; `groups` are those of the model's config."""
    before = 0
    for group in groups:
        of_group = str(group.get("name", ""))
        place = name.removeprefix(of_group).removeprefix("_") or "0"
        count = int(group.get("count", 1))
        if of_group and name.startswith(of_group) and place.isdecimal() and int(place) < count:
            return before + int(place)
        before += count
    return 0


def runtime(executor: str, directory: str) -> str | None:
    """What the executor `tensorrt_llm` runs the directory with: `engines` or `pytorch`, where it is one."""
    if executor != "tensorrt_llm" or not directory:
        return None
    from inflight.executors.tensorrt_llm import find_runtime

    try:
        return find_runtime(Path(directory))
    except UserMistake:
        return None


def _words(runtime: str | None) -> str:
    return {"engines": " with an engine", "pytorch": " with a checkpoint"}.get(runtime or "", "")


def is_default(parameter: Parameter, text: str) -> bool:
    """Whether the value is what NVIDIA's backend does without it."""
    default = parameter.default
    if default is None:
        return False
    if parameter.key == "gpt_model_type":
        # Two names of the same.
        return text in ("inflight_batching", default)
    try:
        return float(text) == float(default)
    except ValueError:
        return text.lower() == default.lower()


def _kinds(executor: str, runtime: str | None) -> dict[str, str]:
    """The executor's options with their kinds in the words of `tables.Parameter`."""
    return {
        name: "|".join(option.choices) if option.choices else _KINDS.get(option.kind, option.kind)
        for name, option in options_of(executor).items()
        if runtime is None or runtime in getattr(option, "runtimes", (runtime,))
    }


def _value(executor: str, key: str, text: str, instance: int) -> Any:
    option = options_of(executor)[key]
    if option.kind == "instances":
        return ",".join(str(number) for number in option.parse(text)[instance])
    # The tensorrt_llm executor parses its options itself, because what it takes depends on the runtime.
    return text if executor == "tensorrt_llm" else option.parse(text)
