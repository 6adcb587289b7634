"""What may come of a check, and how a check says so. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: `note`: it does not hold, as the documentation says. `skipped`: it was not tried.
State = Literal["held", "note", "failed", "skipped"]

#: The load with the options as they were given.
AS_GIVEN = "as given"

#: Figures of a check, for the report.
Facts = Mapping[str, Any]


class Skipped(Exception):
    """The check cannot be tried here; the text says why."""


class Known(Exception):
    """What was asked for does not hold, and the documentation says so."""


@dataclass(frozen=True)
class Outcome:
    """What came of a check. `reason` is one line; `trace` is what a defect left behind."""

    check: str
    state: State
    reason: str = ""
    load: str = AS_GIVEN
    seconds: float = 0.0
    facts: Facts = field(default_factory=dict)
    trace: str = ""


def expect(holds: object, otherwise: str) -> None:
    """Fails the check with `otherwise` unless `holds`."""
    if not holds:
        raise AssertionError(otherwise)


def expect_equal(what: str, actual: object, expected: object) -> None:
    """Fails the check unless `actual` is `expected`."""
    expect(actual == expected, f"{what}: got {actual!r}, expected {expected!r}")
