"""The loop over child processes: starts them in order, waits until they are ready, stops them in the
reverse order, starts those again that may be restarted, and ends when another one dies.

Owns the states of a child and every decision. Clock, processes, probes and output come from outside, so
that tests replay histories without any.

`rollout` decides who is replaced while all run, and in which steps.

A child's states: waiting (for those before it) -> starting (runs, silent) -> probing (has announced its
address) -> ready -> gone. One that may be restarted and dies once all were ready goes from there through
resting (until its wait is over) back to starting. Stopping is a state of the whole: those that no running
one was started after are asked to end, then those before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from inflight.errors import UserMistake
from inflight.launch.plan import LaunchPlan, ProcessSpec, announced_address
from inflight.launch.rollout import Rollout, swaps

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


@dataclass(frozen=True)
class ReloadRequested:
    """The processes are to be replaced by those of another plan."""

    plan: LaunchPlan
    #: Takes progress for the one who asked.
    tell: Callable[[str], None]
    #: Takes the end: an empty text for success, else a sentence. Called once.
    done: Callable[[str], None]


Event = Line | Exited | StopRequested | ReloadRequested


class Child(Protocol):
    """A running process."""

    def terminate(self) -> None:
        """Asks it to end."""

    def finish(self) -> None:
        """Asks a gateway to end with its last request."""

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

    def reloading(self, sentence: str) -> None:
        """How the replacement of processes goes."""

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
        publish: Callable[[Sequence[str]], None] = lambda _: None,
        look: Callable[[str], Mapping[str, bool] | None] = lambda _: None,
        keep_listening: Callable[[Sequence[ProcessSpec]], None] = lambda _: None,
    ) -> None:
        """`start` takes a process and its resolved arguments; `next_event` waits that many seconds at
        most; `probe` asks an address and a path for readiness; `publish` sends gateways the workers'
        addresses; `look` asks a gateway which workers it has, and which are ready; `keep_listening` takes
        those that there still are, when one is gone for good.
        """
        self._plan = plan
        self._start = start
        self._next_event = next_event
        self._clock = clock
        self._probe = probe
        self._report = report
        self._publish = publish
        self._look = look
        self._keep_listening = keep_listening
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
        #: Those that gateways are to have.
        self._workers = [spec.name for spec in plan.processes if spec.ready_path is None]
        #: Those whose end is not an accident.
        self._dispensable: set[str] = set()
        self._rollout: tuple[Rollout, ReloadRequested] | None = None

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
                    self._end_dismissed()
                    self._probe_all()
                    self._advance_rollout()
                    if not self._announced_ready and self._clock() >= give_up_at:
                        self._fail("nothing was ready in time", EXIT_CHILD_ENDED)
                        continue
                event = self._next_event(self._wait_s(give_up_at))
                if event is not None:
                    self._handle(event)
        finally:
            self._end_rollout("everything ends")
            # Whatever went wrong in here, nothing is left behind.
            for name in self._running():
                self._children[name].kill()

    def _handle(self, event: Event) -> None:
        if isinstance(event, ReloadRequested):
            self._begin_rollout(event)
        elif isinstance(event, Line):
            self._report.line(event.name, event.text)
            self._last_lines[event.name] = event.text.strip() or self._last_lines.get(event.name, "")
            address = announced_address(event.text)
            if address is not None and self._states.get(event.name) is State.STARTING:
                self._addresses[event.name] = address
                self._states[event.name] = State.PROBING
        elif isinstance(event, Exited):
            self._gone(event)
        elif self._stopping:
            # A user who asks twice does not want to wait.
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
        self._give_up_at.pop(event.name, None)
        if self._stopping or event.name in self._dispensable:
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
        for spec in self._specs.values():
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
                if name in self._workers:
                    self.publish(self._workers)
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

    def _end_dismissed(self) -> None:
        for name, at in self._leaving.items():
            if self._clock() >= at:
                self._children[name].kill()
                self._leaving[name] = float("inf")

    def _begin_rollout(self, asked: ReloadRequested) -> None:
        if self._stopping or not self._announced_ready or self._rollout is not None:
            busy = "another reload is under way" if self._rollout else "not everything is ready"
            asked.done(f"{busy}; nothing was replaced")
            return
        running = [spec for spec in self._specs.values() if spec.ready_path or spec.name in self._workers]
        todo = swaps(running, asked.plan, asked.plan.reload)

        def tell(sentence: str) -> None:
            self._report.reloading(sentence)
            asked.tell(sentence)

        self._rollout = (
            Rollout(todo, self._workers, asked.plan.reload, clock=self._clock, tell=tell),
            asked,
        )

    def _advance_rollout(self) -> None:
        if self._rollout is None:
            return
        rollout, _ = self._rollout
        end = rollout.advance(self)
        self._workers = rollout.workers
        for name, spec in self._specs.items():
            if spec.ready_path is not None:
                # Gateways end before the workers that they have.
                self._specs[name] = replace(spec, after=tuple(self._workers))
        if end is not None:
            self._end_rollout(end)
        for name in [name for name in self._dispensable if self.is_gone(name)]:
            self._forget(name)

    def _end_rollout(self, end: str) -> None:
        if self._rollout is not None:
            _, asked = self._rollout
            self._rollout = None
            self._report.reloading(f"reload failed: {end}" if end else "reload done")
            asked.done(end)

    def _forget(self, name: str) -> None:
        self._dispensable.discard(name)
        for known in (self._specs, self._states, self._children, self._addresses, self._restarts):
            known.pop(name, None)
        self._keep_listening(list(self._specs.values()))

    # What `rollout.Crew` asks for.

    def add(self, spec: ProcessSpec) -> None:
        """Starts a process that nobody misses if it ends."""
        address = self._addresses.get(spec.name)
        arguments = spec.resolve({}) if address is None else spec.resolve_again(self._addresses)
        self._specs[spec.name] = spec
        self._restarts.setdefault(spec.name, 0)
        self._dispensable.add(spec.name)
        self._children[spec.name] = self._start(spec, arguments)
        self._states[spec.name] = State.STARTING
        self._give_up_at[spec.name] = self._clock() + self._plan.ready_within_s

    def keep(self, name: str) -> None:
        """From now on its end is an accident."""
        self._dispensable.discard(name)

    def finish(self, name: str) -> None:
        """Asks a gateway to end with its last request; nobody misses it."""
        self._dispensable.add(name)
        self._give_up_at.pop(name, None)
        # Nobody accepts at an address that no gateway has any more.
        self._keep_listening([spec for other, spec in self._specs.items() if other != name])
        if self.is_ready(name):
            self._children[name].finish()
        else:
            self.dismiss(name)

    def dismiss(self, name: str) -> None:
        """Asks it to end; nobody misses it."""
        self._dispensable.add(name)
        self._give_up_at.pop(name, None)
        if name in self._running():
            self._leaving[name] = self._clock() + self._specs[name].stop_grace_s
            self._children[name].terminate()
        else:
            self._states[name] = State.GONE

    def is_ready(self, name: str) -> bool:
        """Whether it listens."""
        return self._states.get(name) is State.READY

    def is_gone(self, name: str) -> bool:
        """Whether it has ended."""
        # One that is forgotten has.
        return self._states.get(name, State.GONE) is State.GONE

    def address(self, name: str) -> str:
        """Where it listens."""
        return self._addresses[name]

    def last_line(self, name: str) -> str:
        """What it wrote last."""
        return _shortened(self._last_lines.get(name, ""))

    def publish(self, names: Sequence[str]) -> None:
        """Sends the gateways the addresses of the workers."""
        self._publish([self._addresses[name] for name in names if name in self._addresses])

    def known(self) -> list[Mapping[str, bool] | None]:
        """The workers of each gateway."""
        gateways = [spec.name for spec in self._specs.values() if spec.ready_path is not None]
        return [self._look(self._addresses[name]) for name in gateways]

    def _running(self) -> list[str]:
        without_process = (State.WAITING, State.RESTING, State.GONE)
        return [name for name, state in self._states.items() if state not in without_process]

    def _wait_s(self, give_up_at: float) -> float:
        now = self._clock()
        if self._stopping:
            return min([LONGEST_WAIT_S, *(max(at - now, 0.0) for at in self._leaving.values())])
        if self._rollout is not None or State.PROBING in self._states.values():
            return PROBE_EVERY_S
        if not self._announced_ready:
            return max(give_up_at - now, 0.0)
        resting = [at for name, at in self._restart_at.items() if self._states[name] is State.RESTING]
        times = [*resting, *self._give_up_at.values()]
        return min([LONGEST_WAIT_S, *(max(at - now, 0.0) for at in times)])


def _shortened(line: str) -> str:
    return line if len(line) <= LAST_LINE_CHARACTERS else f"{line[:LAST_LINE_CHARACTERS]}…"
