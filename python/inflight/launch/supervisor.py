"""The loop over child processes: starts them in order, waits until they are ready, stops them in the
reverse order, starts those again that may be restarted, and ends when another one dies.

Owns every decision but one: `rollout` decides who is replaced while all run, and in which steps. What is
remembered of a child is in `child`; `children` are all of them. Clock, processes, probes and output come from
outside, so that tests replay histories without any.

Stopping is a state of the whole: those that no running one was started after are asked to end, then those
before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from inflight.errors import UserMistake
from inflight.launch.child import Child, Process, State
from inflight.launch.children import Children
from inflight.launch.events import Event, Exited, Line, ReloadRequested, Report
from inflight.launch.plan import LaunchPlan, ProcessSpec
from inflight.launch.rollout import Rollout, swaps

#: How often readiness is asked for; its cost is one local request.
PROBE_EVERY_S = 0.1
#: An event ends every wait; this only bounds what a lost one could cost.
LONGEST_WAIT_S = 60.0
#: Exit code where a child's own says nothing (it ended with 0, or never became ready).
EXIT_CHILD_ENDED = 1


class Supervisor:
    """Carries out one plan. `run` is called once."""

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        start: Callable[[ProcessSpec, Sequence[str]], Process],
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
        self._next_event = next_event
        self._clock = clock
        self._probe = probe
        self._report = report
        self._children = Children(
            plan, start=start, clock=clock, publish=publish, look=look, keep_listening=keep_listening
        )
        self._announced_ready = False
        self._stopping = False
        self._exit_code = 0
        #: Those that gateways are to have.
        self._workers = [one.spec.name for one in self._children if not one.is_gateway]
        self._rollout: tuple[Rollout, ReloadRequested] | None = None

    def run(self) -> int:
        """Runs until every child is gone; returns the exit code: 0 after a stop that was asked for."""
        give_up_at = self._clock() + self._plan.ready_within_s
        try:
            while True:
                if self._stopping:
                    self._stop_next()
                    if not self._children.running():
                        return self._exit_code
                else:
                    self._start_next()
                    self._restart_rested()
                    self._kill_late()
                    self._probe_all()
                    self._advance_rollout()
                    self._children.forget_gone()
                    if not self._announced_ready and self._clock() >= give_up_at:
                        self._fail("nothing was ready in time", EXIT_CHILD_ENDED)
                        continue
                event = self._next_event(self._wait_s(give_up_at))
                if event is not None:
                    self._handle(event)
        finally:
            self._end_rollout("everything ends")
            # Whatever went wrong in here, nothing is left behind.
            self._kill_all()

    def _handle(self, event: Event) -> None:
        if isinstance(event, ReloadRequested):
            self._begin_rollout(event)
        elif isinstance(event, Line):
            self._report.line(event.name, event.text)
            # The last lines of one that is forgotten may come after its end.
            if event.name in self._children.by_name:
                self._children.by_name[event.name].hear(event.text)
        elif isinstance(event, Exited):
            self._gone(self._children.by_name[event.name], event.code)
        elif self._stopping:
            # A user who asks twice does not want to wait.
            self._exit_code = self._exit_code or 128 + event.signal_number
            self._kill_all()
        else:
            self._stopping = True
            self._report.stopping()

    def _gone(self, child: Child, code: int) -> None:
        was_ready = child.state is State.READY
        child.end()
        if self._stopping or child.is_dispensable:
            return
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        how += "" if was_ready else " before it was ready"
        exit_code = 128 - code if code < 0 else code or EXIT_CHILD_ENDED
        # What fails at the first start fails again, and so does a mistake of the user.
        permitted = child.spec.restart_port is not None and code != UserMistake.exit_code
        if permitted and self._announced_ready:
            self._rest(child, how, exit_code)
            return
        self._fail(f"the {child.spec.name} {how}; see its last lines above", exit_code)

    def _rest(self, child: Child, how: str, exit_code: int) -> None:
        policy, name, now = self._plan.restart, child.spec.name, self._clock()
        if child.ready_since is not None and now - child.ready_since >= policy.forgiven_after_s:
            child.restarts = 0
        if child.restarts >= policy.most:
            after = f" after {policy.most} restarts" if policy.most else ""
            self._fail(f"the {name} {how}{after}; see its last lines above", exit_code)
            return
        wait_s = policy.first_wait_s * 2**child.restarts
        child.rest(now + wait_s)
        self._report.restarting(
            f"the {name} {how}, last line `{child.last_line}`; restarting it in "
            f"{wait_s:g} s ({child.restarts} of {policy.most})"
        )

    def _restart_rested(self) -> None:
        for one in self._children:
            if one.state is State.RESTING and self._clock() >= one.restart_at:
                self._children.start_again(one)

    def _fail(self, sentence: str, code: int) -> None:
        self._report.failed(sentence)
        self._exit_code = code
        self._stopping = True

    def _start_next(self) -> None:
        for one in self._children:
            waits = one.state is State.WAITING
            if waits and all(self._children.is_ready(name) for name in one.spec.after):
                self._children.start(one)

    def _probe_all(self) -> None:
        for name, one in self._children.by_name.items():
            if one.state is not State.PROBING:
                continue
            path = one.spec.ready_path
            if path is None or self._probe(self._children.address(name), path):
                one.become_ready(self._clock())
                if name in self._workers:
                    self._children.publish(self._workers)
        # Those that waited for a process that became ready just now.
        self._start_next()
        if not self._announced_ready and all(one.state is State.READY for one in self._children):
            self._announced_ready = True
            self._report.ready(self._children.addresses())

    def _stop_next(self) -> None:
        running = self._children.running()
        needed = {before for one in running for before in one.spec.after}
        for one in running:
            if one.kill_at is None and one.spec.name not in needed:
                one.terminate(self._clock())
        self._kill_late()

    def _kill_late(self) -> None:
        for one in self._children:
            one.kill_if_late(self._clock())

    def _kill_all(self) -> None:
        for one in self._children.running():
            one.kill()

    def _begin_rollout(self, asked: ReloadRequested) -> None:
        if self._stopping or not self._announced_ready or self._rollout is not None:
            busy = "another reload is under way" if self._rollout else "not everything is ready"
            asked.done(f"{busy}; nothing was replaced")
            return
        # The last reload may have given up one that is still ending.
        staying = {name: one for name, one in self._children.by_name.items() if not one.is_dispensable}
        running = [one.spec for name, one in staying.items() if one.is_gateway or name in self._workers]
        ending = self._children.by_name.keys() - staying.keys()
        todo = swaps(running, asked.plan, asked.plan.reload, ending)

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
        end = rollout.advance(self._children)
        self._workers = rollout.workers
        for one in self._children:
            if one.is_gateway:
                # Gateways end before the workers that they have.
                one.spec = replace(one.spec, after=tuple(self._workers))
        if end is not None:
            self._end_rollout(end)

    def _end_rollout(self, end: str) -> None:
        if self._rollout is not None:
            _, asked = self._rollout
            self._rollout = None
            self._report.reloading(f"reload failed: {end}" if end else "reload done")
            asked.done(end)

    def _wait_s(self, give_up_at: float) -> float:
        now, children = self._clock(), self._children
        times = [one.kill_at for one in children if one.kill_at is not None]
        if not self._stopping:
            if self._rollout is not None or any(one.state is State.PROBING for one in children):
                return PROBE_EVERY_S
            if not self._announced_ready:
                return max(give_up_at - now, 0.0)
            times += [one.restart_at for one in children if one.state is State.RESTING]
            times += [one.give_up_at for one in children]
        return min([LONGEST_WAIT_S, *(max(at - now, 0.0) for at in times)])
