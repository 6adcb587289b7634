"""What a check is, what may come of it, and the order in which they run. Knows nothing of endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from inflight.conformance.target import Target

#: Modules of `inflight.conformance.checks`, in the order in which their checks run and are listed.
TOPICS = (
    "models",
    "chat",
    "chat_streams",
    "completions",
    "fields",
    "errors",
    "structured",
    "tools",
    "reasoning",
    "responses",
    "messages",
    "batches",
    "more",
)

State = Literal["passed", "absent", "failed"]


@dataclass(frozen=True)
class Check:
    """One behaviour of a server."""

    topic: str
    name: str
    ask: Callable[[Target], None]
    #: A server may lack it, as long as it says so: an error that the SDK shows as such, before anything else.
    is_optional: bool


@dataclass(frozen=True)
class Result:
    """What came of a check. `reason` is one line: why it failed, or what the server said that has it not."""

    topic: str
    name: str
    state: State
    reason: str = ""


#: Every check of the imported topics, in order.
_CHECKS: list[Check] = []


Asks = Callable[["Target"], None]


class Absent(Exception):
    """The server has not what was asked for, and said so."""


def check(topic: str, name: str, *, optional: bool = False) -> Callable[[Asks], Asks]:
    """Registers a function as a check; it raises `AssertionError` where the server is wrong."""

    def register(ask: Asks) -> Asks:
        _CHECKS.append(Check(topic, name, ask, optional))
        return ask

    return register


def checks(matching: str = "") -> list[Check]:
    """All checks whose topic and name hold `matching`, in any case."""
    for topic in TOPICS:
        import_module(f"inflight.conformance.checks.{topic}")
    return [one for one in _CHECKS if matching.casefold() in f"{one.topic}: {one.name}".casefold()]


def run(target: Target, chosen: Iterable[Check]) -> Iterator[Result]:
    """Runs them one after the other; each result comes as soon as it is there."""
    for one in chosen:
        yield _result(target, one)


def _result(target: Target, one: Check) -> Result:
    try:
        one.ask(target)
    except Exception as error:  # what a wrong server makes an SDK raise is without bounds
        refusal = str(error) if isinstance(error, Absent) else target.refusal(error)
        if one.is_optional and refusal is not None:
            return Result(one.topic, one.name, "absent", line(refusal))
        return Result(one.topic, one.name, "failed", line(_told(error)))
    return Result(one.topic, one.name, "passed")


def _told(error: Exception) -> str:
    text = str(error)
    return text if isinstance(error, AssertionError) and text else f"{type(error).__name__}: {text}"


def line(text: str, longest: int = 200) -> str:
    """Text as one line of at most `longest` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else f"{flat[: longest - 1]}…"


def expect(holds: object, otherwise: str) -> None:
    """Fails the check with `otherwise` unless `holds`."""
    if not holds:
        raise AssertionError(otherwise)


def expect_equal(what: str, actual: object, expected: object) -> None:
    """Fails the check unless `actual` is `expected`."""
    expect(actual == expected, f"{what} is {actual!r}, expected {expected!r}")
