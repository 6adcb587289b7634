"""What a supervisor hears, and what it reports to people. Knows nothing of what it decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from inflight.launch.plan import LaunchPlan


@dataclass(frozen=True)
class Line:
    """A child wrote a line."""

    name: str
    text: str


@dataclass(frozen=True)
class Exited:
    """A child ended; a negative code is the signal that ended it."""

    name: str
    code: int


@dataclass(frozen=True)
class StopRequested:
    """The supervisor got a signal."""

    signal_number: int


@dataclass(frozen=True)
class ReloadRequested:
    """The processes are to be replaced by those of another plan."""

    plan: LaunchPlan
    #: Takes progress for the one who asked.
    tell: Callable[[str], None]
    #: Takes the end: an empty text for success, else a sentence. Called once.
    done: Callable[[str], None]


Event = Line | Exited | StopRequested | ReloadRequested


class Report(Protocol):
    """Where people read what happens."""

    def line(self, name: str, text: str) -> None:
        """A child's log line."""

    def ready(self, addresses: Mapping[str, str]) -> None:
        """Everything is ready; `addresses` by process name."""

    def stopping(self) -> None:
        """The stop was asked for and has begun."""

    def restarting(self, sentence: str) -> None:
        """A child died and is started again."""

    def reloading(self, sentence: str) -> None:
        """How the replacement of processes goes."""

    def failed(self, sentence: str) -> None:
        """Why everything ends."""
