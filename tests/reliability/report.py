"""What a scenario tried, what was lost that may be lost, and which promises broke. Prints nothing itself."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

#: Lines of one broken promise that are kept; a thousand equal ones say no more.
KEPT = 20


@dataclass(frozen=True)
class Scale:
    """How much to try. A scenario derives everything random from `seed`."""

    seed: int
    is_short: bool
    #: The long form does its rounds so many times.
    times: int = 1

    def of(self, short: int, long: int) -> int:
        """A number for the form that runs."""
        return short if self.is_short else long

    def rounds(self, short: int, long: int) -> int:
        """How often to do harm, in the form that runs."""
        return short if self.is_short else long * self.times


class Report:
    """Counters that any thread of a scenario may write to."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.measured: dict[str, str] = {}
        self.broken: list[str] = []
        #: Seconds of a bystander's slowest answer; 0 without a bystander.
        self.slowest_s = 0.0
        self._lock = threading.Lock()

    def attempt(self, what: str, count: int = 1) -> None:
        """Something was tried."""
        with self._lock:
            self.tried[what] += count

    def lose(self, what: str, count: int = 1) -> None:
        """Something was lost that the promises allow to be lost."""
        with self._lock:
            self.lost[what] += count

    def measure(self, what: str, value: str) -> None:
        """A figure for the end of the report."""
        with self._lock:
            self.measured[what] = value

    def note_bystander(self, slowest_s: float) -> None:
        """How long a bystander's slowest answer took."""
        with self._lock:
            self.slowest_s = max(self.slowest_s, slowest_s)

    def breaks(self, promise: str) -> None:
        """A promise did not hold."""
        with self._lock:
            if len(self.broken) < KEPT:
                self.broken.append(promise)

    def expect(self, promise: str, held: bool, found: object = "") -> None:
        """Notes `promise` as broken unless it `held`."""
        if not held:
            self.breaks(f"{promise}: {found}" if found != "" else promise)

    def lines(self) -> list[str]:
        """The report as text."""
        found = [f"  tried    {count:6d}  {what}" for what, count in self.tried.items()]
        found += [f"  lost     {count:6d}  {what}" for what, count in self.lost.items()]
        found += [f"  measured         {what}: {value}" for what, value in self.measured.items()]
        if self.slowest_s:
            found.append(f"  measured         a bystander's slowest answer: {self.slowest_s:.2f} s")
        found += [f"  BROKEN           {promise}" for promise in self.broken]
        return found


#: A scenario fills in the report; what it raises is a broken promise as well.
Scenario = Callable[[Scale, Report], None]
