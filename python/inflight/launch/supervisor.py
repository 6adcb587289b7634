"""The loop over child processes: starts them in order, waits until they are ready, stops them in the
reverse order, starts those again that may be restarted, and ends when another one dies.

Owns the states of a child and every decision. Clock, processes, probes and output come from outside, so
that tests replay histories without any.

A child's states: waiting (for those before it) -> starting (runs, silent) -> probing (has announced its
address) -> ready -> gone. One that may be restarted and dies once all were ready goes from there through
resting (until its wait is over) back to starting. Stopping is a state of the whole: those that no running
one was started after are asked to end, then those before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from inflight.errors import UserMistake
from inflight.launch.plan import LaunchPlan, ProcessSpec, announced_address

#: How often readiness is asked for; its cost is one local request.
PROBE_EVERY_S = 0.1
#: An event ends every wait; this only bounds what a lost one could cost.
LONGEST_WAIT_S = 60.0
#: Exit code where a child's own says nothing (it ended with 0, or never became ready).
EXIT_CHILD_ENDED = 1
#: Characters of a dead child's last line that are repeated.
LAST_LINE_CHARACTERS = 200


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

    def restarting(self, sentence: str) -> None:
        """A child died and is started again."""

    def failed(self, sentence: str) -> None:
        """Why everything ends."""


class State(Enum):
    """See the module's text."""

    WAITING = "waiting"
    STARTING = "starting"
    PROBING = "probing"
    READY = "ready"
    RESTING = "resting"
    GONE = "gone"


class Supervisor:
    """Carries out one plan. `run` is called once."""

    def __init__(
        self,
        plan: LaunchPlan,
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
        self._last_lines: dict[str, str] = {}
        #: When a child became ready, or is killed or started if it does not or is not yet.
        self._ready_since: dict[str, float] = {}
        self._give_up_at: dict[str, float] = {}
        self._restart_at: dict[str, float] = {}
        self._restarts = dict.fromkeys(self._specs, 0)
        self._announced_ready = False
        self._stopping = False
        #: The children that were asked to end, and when each is killed.
        self._leaving: dict[str, float] = {}
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
                    self._restart_rested()
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
            self._last_lines[event.name] = event.text.strip() or self._last_lines.get(event.name, "")
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
        self._leaving.pop(event.name, None)
        if self._stopping:
            return
        how = f"was ended by signal {-event.code}" if event.code < 0 else f"ended with code {event.code}"
        when = "" if was_ready else " before it was ready"
        code = 128 - event.code if event.code < 0 else event.code or EXIT_CHILD_ENDED
        if self._may_restart(event):
            self._rest(event.name, how + when, code)
            return
        self._fail(f"the {event.name} {how}{when}; see its last lines above", code)

    def _may_restart(self, event: Exited) -> bool:
        # What fails at the first start fails again, and so does a mistake of the user.
        permitted = self._specs[event.name].restart_port is not None
        return permitted and self._announced_ready and event.code != UserMistake.exit_code

    def _rest(self, name: str, how: str, code: int) -> None:
        policy = self._plan.restart
        ready_since = self._ready_since.pop(name, None)
        if ready_since is not None and self._clock() - ready_since >= policy.forgiven_after_s:
            self._restarts[name] = 0
        if self._restarts[name] >= policy.most:
            after = f" after {policy.most} restarts" if policy.most else ""
            self._fail(f"the {name} {how}{after}; see its last lines above", code)
            return
        wait_s = policy.first_wait_s * 2 ** self._restarts[name]
        self._restarts[name] += 1
        self._restart_at[name] = self._clock() + wait_s
        self._states[name] = State.RESTING
        self._report.restarting(
            f"the {name} {how}, last line `{_shortened(self._last_lines.get(name, ''))}`; restarting it in "
            f"{wait_s:g} s ({self._restarts[name]} of {policy.most})"
        )

    def _restart_rested(self) -> None:
        for name, spec in self._specs.items():
            state = self._states[name]
            if state is State.RESTING and self._clock() >= self._restart_at[name]:
                self._children[name] = self._start(spec, spec.resolve_again(self._addresses))
                self._states[name] = State.STARTING
                self._give_up_at[name] = self._clock() + self._plan.ready_within_s
            starts = state in (State.STARTING, State.PROBING)
            if starts and self._clock() >= self._give_up_at.get(name, float("inf")):
                # It counts as dead once it is heard to be gone.
                self._children[name].kill()
                self._give_up_at[name] = float("inf")

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
                self._ready_since[name] = self._clock()
                self._give_up_at.pop(name, None)
        # Those that waited for a process that became ready just now.
        self._start_next()
        if not self._announced_ready and all(s is State.READY for s in self._states.values()):
            self._announced_ready = True
            self._report.ready(dict(self._addresses))

    def _stop_next(self) -> None:
        running = self._running()
        needed = {before for name in running for before in self._specs[name].after}
        for name in running:
            if name in self._leaving:
                if self._clock() >= self._leaving[name]:
                    self._children[name].kill()
                    # Killed once; what remains is to hear that it is gone.
                    self._leaving[name] = float("inf")
            elif name not in needed:
                self._leaving[name] = self._clock() + self._specs[name].stop_grace_s
                self._children[name].terminate()

    def _running(self) -> list[str]:
        without_process = (State.WAITING, State.RESTING, State.GONE)
        return [name for name, state in self._states.items() if state not in without_process]

    def _wait_s(self, give_up_at: float) -> float:
        now = self._clock()
        if self._stopping:
            return min([LONGEST_WAIT_S, *(max(at - now, 0.0) for at in self._leaving.values())])
        if State.PROBING in self._states.values():
            return PROBE_EVERY_S
        if not self._announced_ready:
            return max(give_up_at - now, 0.0)
        resting = [at for name, at in self._restart_at.items() if self._states[name] is State.RESTING]
        times = [*resting, *self._give_up_at.values()]
        return min([LONGEST_WAIT_S, *(max(at - now, 0.0) for at in times)])


def _shortened(line: str) -> str:
    return line if len(line) <= LAST_LINE_CHARACTERS else f"{line[:LAST_LINE_CHARACTERS]}…"
