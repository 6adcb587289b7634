"""Which options a repository is created with, their defaults, and whether their values are valid. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from inflight.errors import UserMistake
from inflight.options import instance_lists
from inflight.triton.repository import executor_options
from inflight.triton.repository.parameters import PARAMETERS, REFUSED, SHAPE, Parameter

#: Parameters of the core model that only Inflight's class for it reads.
INFLIGHTS = frozenset({"executor", "device"})

#: Of the KV cache for cross attention, where an encoder is given.
CROSS_KV_CACHE_FRACTION = "0.5"

BOOLEANS = {"true": "true", "1": "true", "yes": "true", "false": "false", "0": "false", "no": "false"}


def options() -> dict[str, Parameter]:
    """Every option by name; `engine_dir` and `tokenizer_dir` apply to all models that have them."""
    found = {parameter.option: parameter for parameter in SHAPE}
    for parameters in (*PARAMETERS.values(), executor_options.parameters()):
        for parameter in parameters:
            found.setdefault(parameter.option, parameter)
    return found


def parameters(model: str, backend: str) -> tuple[Parameter, ...]:
    """The parameters of a model's config.pbtxt."""
    if model != "tensorrt_llm":
        return PARAMETERS[model]
    if backend == "python":
        return PARAMETERS[model] + executor_options.parameters()
    return tuple(parameter for parameter in PARAMETERS[model] if parameter.key not in INFLIGHTS)


def validated(parameter: Parameter, value: str) -> str:
    """The value as it is written. Raises `ValueError` with what is wanted instead."""
    kind, text = parameter.kind, value.strip()
    if kind == "bool":
        if text.lower() not in BOOLEANS:
            raise ValueError("true or false")
        return BOOLEANS[text.lower()]
    if kind == "int":
        if not text.isdecimal():
            raise ValueError("a whole number, 0 or more")
        return str(int(text))
    if kind == "count":
        # Triton counts in 32 bits; none at all is not a model.
        if not text.isdecimal() or not 1 <= int(text) < 2**31:
            raise ValueError("a whole number from 1 to 2147483647")
        return str(int(text))
    if kind == "ints":
        if not all(part.strip().isdecimal() for part in text.split(",")):
            raise ValueError("whole numbers separated by commas")
        return text
    if kind == "instances":
        try:
            instance_lists(text)
        except ValueError:
            raise ValueError("whole numbers separated by commas, with `;` between instances") from None
        return text
    if kind in ("float", "fraction"):
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number <= (1 if kind == "fraction" else math.inf):
            raise ValueError("a number from 0 to 1" if kind == "fraction" else "a number of at least 0")
        return text
    if kind in ("text", "path"):
        if not text:
            raise ValueError("a non-empty text")
        return text
    allowed = kind.split("|")
    if text not in allowed:
        raise ValueError("one of " + ", ".join(f"`{one}`" for one in allowed))
    return text


def settings(given: Mapping[str, str], backend: str) -> dict[str, str | None]:
    """Defaults and what was given, validated. Raises `UserMistake` naming every problem."""
    known = options()
    core = {parameter.option: parameter.key for parameter in parameters("tensorrt_llm", backend)}
    problems = [f"unknown option `{name}`" for name in given if name not in known]
    problems += [
        f"Inflight's model `{model}` does not support `{key}`; leave it out"
        for model, keys in REFUSED.items()
        for key in keys
        if given.get(key)
    ]
    values: dict[str, str | None] = {}
    for name, parameter in known.items():
        values[name] = parameter.default
        if name in given:
            try:
                values[name] = validated(parameter, given[name])
            except ValueError as error:
                problems.append(f"`{name}` is `{given[name]}`, but must be {error}")
        elif backend == "python" and core.get(name, "") not in ("", *executor_options.OWN):
            # An executor has its own defaults; what the file says, it must apply.
            values[name] = None
    if backend == "python":
        written = {core[name]: value for name, value in values.items() if name in core and value is not None}
        executor = str(values["executor"])
        runtime = executor_options.runtime(executor, values.get("engine_dir") or "")
        problems += executor_options.choose(executor, written, runtime=runtime).problems
    else:
        ours = {parameter.option for parameter in executor_options.parameters()} | INFLIGHTS
        problems += [
            f"`{name}` is not an option of the C++ backend; it needs `--backend python`"
            for name in given
            if name in ours
        ]
    if values["encoder_engine_dir"] is not None and values["cross_kv_cache_fraction"] is None:
        # An encoder-decoder does not load without one.
        values["cross_kv_cache_fraction"] = CROSS_KV_CACHE_FRACTION
    lookahead = [name for name in known if name.startswith("lookahead_")]
    if values["decoding_mode"] == "lookahead" and any(values[name] is None for name in lookahead):
        problems.append(
            "`decoding_mode` is `lookahead`, which needs " + ", ".join(f"`{n}`" for n in lookahead)
        )
    if problems:
        raise UserMistake("; ".join(problems), "`inflight repository options` lists the options and defaults")
    return values
