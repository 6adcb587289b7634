"""Checks the names that the adapter will use against the installed TensorRT-LLM, before a model is loaded.

Missing and always needed: a refusal that names it. Missing and optional: the capability is off, and the
log says so. Additions are ignored. Reads signatures (`inspect`, nanobind's
`__nb_signature__`, the text of pybind11's functions); calls nothing.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight._native import Capability
from inflight.errors import UserMistake
from inflight.executors.tensorrt_llm.fields import Runtime
from inflight.executors.tensorrt_llm.promises import keywords

LOG = logging.getLogger("inflight.tensorrt_llm")

#: Methods and attributes of objects that come back, by runtime and class.
MEMBERS: dict[Runtime, dict[str, tuple[str, ...]]] = {
    "engines": {
        "Executor": (
            "enqueue_request",
            "enqueue_requests",
            "await_responses",
            "cancel_request",
            "get_latest_iteration_stats",
            "can_enqueue_requests",
            "shutdown",
        ),
        "Response": ("has_error", "error_msg", "client_id", "request_id", "result"),
        "Result": ("is_final", "output_token_ids", "finish_reasons", "sequence_index", "is_sequence_final"),
        "IterationStats": ("to_json_str",),
    },
    "pytorch": {
        "LLM": ("generate_async", "get_stats_async", "shutdown", "_check_health"),
        # What a result raises where its request alone failed.
        "RequestError": (),
    },
}

#: (class, member, capability): what only some requests read or need.
OPTIONAL_MEMBERS: dict[Runtime, tuple[tuple[str, str, str], ...]] = {
    "engines": (
        ("Result", "log_probs", Capability.LOG_PROBS),
        ("Result", "cum_log_probs", Capability.LOG_PROBS),
        ("Result", "context_logits", Capability.CONTEXT_LOGITS),
        ("Result", "context_logits", Capability.PROMPT_LOG_PROBS),
        ("Result", "generation_logits", Capability.GENERATION_LOGITS),
        ("Result", "generation_logits", Capability.TOP_LOG_PROBS),
        ("Result", "request_perf_metrics", Capability.PERF_METRICS),
        ("Result", "context_phase_params", Capability.CONTEXT_PHASE),
        ("RequestType", "REQUEST_TYPE_CONTEXT_ONLY", Capability.CONTEXT_PHASE),
        ("RequestType", "REQUEST_TYPE_GENERATION_ONLY", Capability.CONTEXT_PHASE),
        ("RequestType", "REQUEST_TYPE_CONTEXT_AND_GENERATION", Capability.CONTEXT_PHASE),
        ("GuidedDecodingParams.GuideType", "JSON_SCHEMA", Capability.GUIDED_DECODING),
    ),
    "pytorch": (
        ("RequestOutput", "context_logits", Capability.CONTEXT_LOGITS),
        ("RequestOutput", "context_logits", Capability.PROMPT_LOG_PROBS),
    ),
}


#: (class, field, capability) of what results hold; None: every request reads it.
RESULT_FIELDS: dict[Runtime, tuple[tuple[str, str, str | None], ...]] = {
    # The bindings' results have attributes, above.
    "engines": (),
    "pytorch": (
        ("CompletionOutput", "index", None),
        ("CompletionOutput", "token_ids", None),
        ("CompletionOutput", "finish_reason", None),
        ("CompletionOutput", "stop_reason", None),
        ("CompletionOutput", "logprobs", Capability.LOG_PROBS),
        ("CompletionOutput", "logprobs", Capability.TOP_LOG_PROBS),
        ("CompletionOutput", "generation_logits", Capability.GENERATION_LOGITS),
        ("CompletionOutput", "request_perf_metrics", Capability.PERF_METRICS),
        ("CompletionOutput", "disaggregated_params", Capability.CONTEXT_PHASE),
    ),
}


@dataclass
class Verified:
    """What the installed version has not."""

    version: str
    #: Capability -> what is missing for it.
    off: dict[str, list[str]] = field(default_factory=dict)


def parameters(function: Any) -> set[str] | None:
    """The parameter names that a class or function takes, all overloads together; None: it does not say.

    A `**kwargs` of a Python function takes any name: then None too.
    """
    candidates = [function]
    if isinstance(function, type):
        candidates.insert(0, getattr(function, "__init__", None))
    for candidate in candidates:
        found = _native_parameters(candidate)
        if found is not None:
            # Some constructors name no parameter; those are called by position.
            return None if any(_UNNAMED.fullmatch(name) for name in found) else found
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return None
    # Fields that only a validator reads are no parameters, and are taken all the same.
    fields = getattr(function, "model_fields", None)
    return (set(signature.parameters) - {"self"}) | set(fields if isinstance(fields, Mapping) else ())


#: What both binding libraries call a parameter that has no name.
_UNNAMED = re.compile(r"arg_?\d*")
#: A constructor in pybind11's text: alone, or numbered as one of several.
_PYBIND = re.compile(r"^(?:\d+\. )?(__init__\(self: .*)$", re.MULTILINE)


def _native_parameters(function: Any) -> set[str] | None:
    """The names of all overloads, as bindings by nanobind or by pybind11 list them."""
    overloads = getattr(function, "__nb_signature__", None)
    if overloads:
        signatures = [overload[0] for overload in overloads]
    else:
        text = getattr(function, "__doc__", None)
        signatures = _PYBIND.findall(text) if isinstance(text, str) else []
    if not signatures:
        return None
    found = {name for signature in signatures for name in _parameter_names(signature)}
    return found - {"self"}


def _parameter_names(signature: str) -> set[str]:
    """The names in `def f(self, a: int = \\0, *, b: dict[str, int] | None = \\1) -> None`."""
    start = signature.find("(") + 1
    depth, part, parts = 0, "", []
    for character in signature[start:]:
        if character in "([{":
            depth += 1
        elif character in ")]}":
            if depth == 0:
                break
            depth -= 1
        if character == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    parts.append(part)
    names = (part.split(":")[0].split("=")[0].strip().lstrip("*") for part in parts)
    return {name for name in names if name and name != "/"}


def verify(
    runtime: Runtime,
    version: str,
    find: Callable[[str], Any],
    extra: Iterable[tuple[str, str, str | None]] = (),
) -> Verified:
    """Checks everything that `runtime` uses. `find` gives a class or function by its name in the table, None
    where it does not exist. `extra`: further (class, keyword, capability).

    Raises `UserMistake` for what is always needed; all that is missing is named at once.
    """
    verified = Verified(version)
    refused: list[str] = []
    objects: dict[str, Any] = {}
    names: dict[str, set[str] | None] = {}

    def miss(what: str, capability: str | None) -> None:
        if capability is None:
            if what not in refused:
                refused.append(what)
        elif what not in verified.off.setdefault(capability, []):
            verified.off[capability].append(what)

    for owner, keyword, capability in (*keywords(runtime), *RESULT_FIELDS[runtime], *extra):
        if owner not in objects:
            objects[owner] = find(owner)
            names[owner] = None if objects[owner] is None else parameters(objects[owner])
        if objects[owner] is None:
            miss(f"`{owner}`", capability)
            continue
        taken = names[owner]
        if taken is not None and keyword not in taken:
            miss(f"`{owner}({keyword})`", capability)
    for owner, members in MEMBERS[runtime].items():
        found = find(owner)
        if found is None:
            miss(f"`{owner}`", None)
            continue
        for member in members:
            if not hasattr(found, member):
                miss(f"`{owner}.{member}`", None)
    for owner, member, capability in OPTIONAL_MEMBERS[runtime]:
        found = find(owner)
        if found is None or not hasattr(found, member):
            miss(f"`{owner}.{member}`", capability)
    if refused:
        raise UserMistake(
            f"TensorRT-LLM `{version}` lacks what every request needs: {', '.join(refused)}",
            "install one that `docs/guides/tensorrt-llm.md` lists; this adapter was written against 1.2.1",
        )
    for capability, missing in sorted(verified.off.items()):
        LOG.warning("TensorRT-LLM %s has no %s: `%s` is off", version, ", ".join(missing), capability)
    return verified
