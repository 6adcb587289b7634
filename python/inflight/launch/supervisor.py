"""The loop over child processes: starts them in order, waits until they are ready, stops them in the
reverse order, and ends when one dies.

Owns the states of a child and every decision. Clock, processes, probes and output come from outside, so
that tests replay histories without any.

A child's states: waiting (for those before it) -> starting (runs, silent) -> probing (has announced its
address) -> ready -> gone. Stopping is a state of the whole: the last one that still runs is asked to
end, then the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from inflight.launch.plan import ProcessSpec, ServePlan, announced_address

#: How often readiness is asked for; its cost is one local request.
PROBE_EVERY_S = 0.1
#: An event ends every wait; this only bounds what a lost one could cost.
LONGEST_WAIT_S = 60.0
#: Exit code where a child's own says nothing (it ended with 0, or never became ready).
EXIT_CHILD_ENDED = 1


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


Event = Line | Exited | StopRequested


class Child(Protocol):
    """A running process."""

    def terminate(self) -> None:
        """Asks it to end."""

    def kill(self) -> None:
        """Ends it."""


class Report(Protocol):
    """Where people read what happens."""

    def line(self, name: str, text: str) -> None:
        """A child's log line."""

    def ready(self, addresses: Mapping[str, str]) -> None:
        """Everything is ready; `addresses` by process name."""

    def stopping(self) -> None:
        """The stop was asked for and has begun."""

    def failed(self, sentence: str) -> None:
        """Why everything ends."""


class State(Enum):
    """See the module's text."""

    WAITING = "waiting"
    STARTING = "starting"
    PROBING = "probing"
    READY = "ready"
    GONE = "gone"


class Supervisor:
    """Carries out one plan. `run` is called once."""

    def __init__(
        self,
        plan: ServePlan,
        *,
        start: Callable[[ProcessSpec, Sequence[str]], Child],
        next_event: Callable[[float], Event | None],
        clock: Callable[[], float],
        probe: Callable[[str, str], bool],
        report: Report,
    ) -> None:
        """`start` takes a process and its resolved arguments; `next_event` waits that many seconds at
        most; `probe` asks an address and a path for readiness.
        """
        self._plan = plan
        self._start = start
        self._next_event = next_event
        self._clock = clock
        self._probe = probe
        self._report = report
        self._specs = {spec.name: spec for spec in plan.processes}
        self._states = dict.fromkeys(self._specs, State.WAITING)
        self._children: dict[str, Child] = {}
        self._addresses: dict[str, str] = {}
        self._announced_ready = False
        self._stopping = False
        #: The child that was asked to end, and when it is killed.
        self._leaving: str | None = None
        self._kill_at = 0.0
        self._exit_code = 0

    def run(self) -> int:
        """Runs until every child is gone; returns the exit code: 0 after a stop that was asked for."""
        give_up_at = self._clock() + self._plan.ready_within_s
        try:
            while True:
                if self._stopping:
                    self._stop_next()
                    if not self._running():
                        return self._exit_code
                else:
                    self._start_next()
                    self._probe_all()
                    if not self._announced_ready and self._clock() >= give_up_at:
                        self._fail("nothing was ready in time", EXIT_CHILD_ENDED)
                        continue
                event = self._next_event(self._wait_s(give_up_at))
                if event is not None:
                    self._handle(event)
        finally:
            # Whatever went wrong in here, nothing is left behind.
            for name in self._running():
                self._children[name].kill()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Line):
            self._report.line(event.name, event.text)
            address = announced_address(event.text)
            if address is not None and self._states[event.name] is State.STARTING:
                self._addresses[event.name] = address
                self._states[event.name] = State.PROBING
        elif isinstance(event, Exited):
            self._gone(event)
        elif self._stopping:
            # Whoever asks twice does not want to wait.
            self._exit_code = self._exit_code or 128 + event.signal_number
            for name in self._running():
                self._children[name].kill()
        else:
            self._stopping = True
            self._report.stopping()

    def _gone(self, event: Exited) -> None:
        was_ready = self._states[event.name] is State.READY
        self._states[event.name] = State.GONE
        if self._leaving == event.name:
            self._leaving = None
        if self._stopping:
            return
        how = f"was ended by signal {-event.code}" if event.code < 0 else f"ended with code {event.code}"
        when = "" if was_ready else " before it was ready"
        code = 128 - event.code if event.code < 0 else event.code or EXIT_CHILD_ENDED
        self._fail(f"the {event.name} {how}{when}; see its last lines above", code)

    def _fail(self, sentence: str, code: int) -> None:
        self._report.failed(sentence)
        self._exit_code = code
        self._stopping = True

    def _start_next(self) -> None:
        for spec in self._plan.processes:
            waits = self._states[spec.name] is State.WAITING
            if waits and all(self._states[name] is State.READY for name in spec.after):
                self._children[spec.name] = self._start(spec, spec.resolve(self._addresses))
                self._states[spec.name] = State.STARTING

    def _probe_all(self) -> None:
        for name, state in self._states.items():
            if state is not State.PROBING:
                continue
            path = self._specs[name].ready_path
            if path is None or self._probe(self._addresses[name], path):
                self._states[name] = State.READY
        # Those that waited for a process that became ready just now.
        self._start_next()
        if not self._announced_ready and all(s is State.READY for s in self._states.values()):
            self._announced_ready = True
            self._report.ready(dict(self._addresses))

    def _stop_next(self) -> None:
        if self._leaving is not None:
            if self._clock() >= self._kill_at:
                self._children[self._leaving].kill()
                # Killed once; what remains is to hear that it is gone.
                self._kill_at = float("inf")
            return
        running = self._running()
        if running:
            self._leaving = running[-1]
            self._kill_at = self._clock() + self._specs[self._leaving].stop_grace_s
            self._children[self._leaving].terminate()

    def _running(self) -> list[str]:
        return [name for name, state in self._states.items() if state not in (State.WAITING, State.GONE)]

    def _wait_s(self, give_up_at: float) -> float:
        now = self._clock()
        if self._stopping:
            return min(max(self._kill_at - now, 0.0), LONGEST_WAIT_S)
        if State.PROBING in self._states.values():
            return PROBE_EVERY_S
        if self._announced_ready:
            return LONGEST_WAIT_S
        return max(give_up_at - now, 0.0)
