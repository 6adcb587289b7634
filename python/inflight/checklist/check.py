"""What a check of an executor is, and the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from inflight.checklist.outcome import AS_GIVEN, Facts
from inflight.checklist.subject import Subject

#: Modules of `inflight.checklist.checks`, in the order in which their checks run and are listed.
TOPICS = ("tokens", "log_probs", "endings", "choices", "limits", "guides", "adapters", "more")

#: Raises `AssertionError` where something does not hold.
Ask = Callable[[Subject], Facts | None]


@dataclass(frozen=True)
class Check:
    """One thing that an executor does."""

    name: str
    what: str
    ask: Ask
    #: Capabilities without which it is skipped.
    needs: tuple[str, ...] = ()
    #: With which options the executor must have been started; a name of `loads`.
    load: str = AS_GIVEN


_CHECKS: list[Check] = []


def check(name: str, what: str, *, needs: tuple[str, ...] = (), load: str = AS_GIVEN) -> Callable[[Ask], Ask]:
    """Registers a function as a check."""

    def register(ask: Ask) -> Ask:
        _CHECKS.append(Check(name, what, ask, needs, load))
        return ask

    return register


def checks() -> tuple[Check, ...]:
    """All of them, in order."""
    for topic in TOPICS:
        import_module(f"inflight.checklist.checks.{topic}")
    return tuple(_CHECKS)
