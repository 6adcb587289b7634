"""The executors by name. Owns the registry; imports an executor only when it is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.model.runtimes import EXECUTORS

if TYPE_CHECKING:
    from collections.abc import Callable

    from inflight.executors.base import Executor
    from inflight.options import Option


@dataclass(frozen=True)
class ExecutorOptions:
    """What an executor may need to know; each takes what concerns it."""

    #: A checkpoint in Hugging Face layout.
    model_dir: Path
    #: ``auto``, ``cpu`` or ``cuda``.
    device: str = "auto"
    #: The tokenizer's, where there is no model to ask.
    vocab_size: int | None = None
    #: The executor's own options by name; those left out take its defaults.
    values: Mapping[str, Any] = field(default_factory=dict)


#: As people choose them. `scripted` has nothing behind it: it is for measurements of the step interface.
NAMES = ("reference", "simulated", "tensorrt_llm")
HIDDEN = ("scripted",)
#: Executors that read weights; the others need a tokenizer only.
NEED_WEIGHTS = frozenset(EXECUTORS.values())
#: Where the reference executor computes.
DEVICES = ("auto", "cpu", "cuda")


def require(name: str) -> None:
    """Raises `UserMistake` where the executor `name` cannot work here; loads nothing."""
    if name == "tensorrt_llm":
        from inflight.executors.tensorrt_llm import require as require_tensorrt_llm

        require_tensorrt_llm()


def options_of(name: str) -> Mapping[str, Option]:
    """The options that the executor `name` declares in Python; the simulated one's are Rust's."""
    if name == "tensorrt_llm":
        from inflight.executors.tensorrt_llm.options import OPTIONS

        return OPTIONS
    if name == "reference":
        from inflight.executors.reference.core.options import OPTIONS as REFERENCE_OPTIONS

        return REFERENCE_OPTIONS
    if name == "scripted":
        from inflight.executors.scripted import OPTIONS as SCRIPTED_OPTIONS

        return SCRIPTED_OPTIONS
    return {}


def create(name: str, options: ExecutorOptions) -> Executor:
    """Builds the executor `name`, ready to serve."""
    require(name)
    return _FACTORIES[name](options)


def _reference(options: ExecutorOptions) -> Executor:
    from inflight.executors.reference import create as create_reference

    return create_reference(options.model_dir, options.device, **options.values)


def _scripted(options: ExecutorOptions) -> Executor:
    from inflight.executors.scripted import ScriptedExecutor

    return ScriptedExecutor(vocab_size=options.vocab_size or 256, **options.values)


def _tensorrt_llm(options: ExecutorOptions) -> Executor:
    from inflight.executors.tensorrt_llm import create as create_tensorrt_llm

    return create_tensorrt_llm(options.model_dir, options.device, **options.values)


_FACTORIES: dict[str, Callable[[ExecutorOptions], Executor]] = {
    "reference": _reference,
    "scripted": _scripted,
    "tensorrt_llm": _tensorrt_llm,
}
