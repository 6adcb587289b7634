"""Replaces running workers and gateways by others, one after the other, without losing a request. Pure:
decides what happens next; processes, gateways and the clock are the supervisor's.

A swap, start first: the new worker starts and loads -> joins (gateways get its address, and all count it as
ready) -> the old one is taken out (gateways send it nothing new, and let go of it once its requests have
ended) -> ends. Stop first: the same with the last two before the others.

Gateways come last and always start first: the new one takes the old one's sockets and accepts once its
workers are ready; the old one then stops accepting and ends with its last request.

What fails leaves the swaps before it as they are. Its new worker ends; its old one continues, or is
restarted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from inflight.launch.placing import WORKER_PORTS
from inflight.launch.plan import LaunchPlan, ProcessSpec
from inflight.launch.topology import Reload

#: A gateway fetches a model's files and asks for a token; it looks for new workers four times a second.
JOIN_WITHIN_S = 120.0
#: The same for a gateway, whose workers are ready. Before a gateway would accept without any (`run.rs` of the
#: gateway: 30 s).
GATEWAY_WITHIN_S = 25.0
#: Separates a worker's name from the number of its successor; part of no name in a plan.
GENERATION = "."
#: The options of a worker with its ports.
PORTS = tuple(f"{option}=" for option in WORKER_PORTS.values())


class Crew(Protocol):
    """What a rollout needs of the supervisor."""

    def add(self, spec: ProcessSpec) -> None:
        """Starts a worker that nobody misses if it ends."""

    def keep(self, name: str) -> None:
        """From now on its end is an accident."""

    def finish(self, name: str) -> None:
        """Asks a gateway to end with its last request; nobody misses it."""

    def dismiss(self, name: str) -> None:
        """Asks it to end; nobody misses it."""

    def is_ready(self, name: str) -> bool:
        """Whether it listens."""

    def is_gone(self, name: str) -> bool:
        """Whether it has ended."""

    def address(self, name: str) -> str:
        """Where it listens."""

    def last_line(self, name: str) -> str:
        """What it wrote last."""

    def publish(self, names: Sequence[str]) -> None:
        """Sends the gateways the addresses of the workers."""

    def known(self) -> list[Mapping[str, bool] | None]:
        """For each gateway, the workers that it has, by address, and whether they are ready; `None` where it
        does not answer.
        """


@dataclass(frozen=True)
class Swap:
    """One of the two may be missing."""

    old: ProcessSpec | None
    new: ProcessSpec | None

    @property
    def is_gateway(self) -> bool:
        """Whether it is one of gateways; otherwise, of workers."""
        one = self.new or self.old
        return one is not None and _is_gateway(one)


class Phase(Enum):
    """Of one swap."""

    START = "starting"
    JOIN = "joining"
    RETIRE = "finishing"
    END = "ending"


def base_name(name: str) -> str:
    """The name in the plan, whatever the generation."""
    return name.partition(GENERATION)[0]


def swaps(
    running: Sequence[ProcessSpec], plan: LaunchPlan, reload: Reload, ending: Iterable[str] = ()
) -> tuple[Swap, ...]:
    """How the `running` processes become those of `plan`; no new one gets the name of one that is `ending`.

    First workers, then gateways; of each, what is new first and what is no longer wanted last. What would be
    the same stays, unless `reload` wants all replaced; where no worker would change, all are replaced: that
    is what a reload is asked for then.
    """
    taken = {*ending, *(spec.name for spec in running)}
    workers = _pairs(running, plan, taken, is_gateway=False, has_old_ports=reload.order == "stop-first")
    changed = workers if reload.workers == "always" else [pair for pair in workers if not _is_same(pair)]
    gateways = _pairs(running, plan, taken, is_gateway=True, has_old_ports=True)
    replaces_all = reload.gateways == "always"
    return (*(changed or workers), *(pair for pair in gateways if replaces_all or not _is_same(pair)))


def _pairs(
    running: Sequence[ProcessSpec],
    plan: LaunchPlan,
    taken: set[str],
    *,
    is_gateway: bool,
    has_old_ports: bool,
) -> list[Swap]:
    old = {_place(spec): spec for spec in running if _is_gateway(spec) == is_gateway}
    new = {_place(spec): spec for spec in plan.processes if _is_gateway(spec) == is_gateway}
    added = []
    for place, spec in new.items():
        if place not in old:
            name = _free_name(spec.name, 1, taken)
            taken.add(name)
            added.append(Swap(None, replace(_with_free_ports(spec, running), name=name)))
    kept = [
        Swap(old[place], _successor(spec, old[place], taken, has_old_ports=has_old_ports))
        for place, spec in new.items()
        if place in old
    ]
    return [*added, *kept, *(Swap(spec, None) for place, spec in old.items() if place not in new)]


def _place(spec: ProcessSpec) -> str:
    return spec.place or base_name(spec.name)


def _free_name(name: str, generation: int, taken: set[str]) -> str:
    """A name that no process has: one that runs may have got it when the topology had other models."""
    while True:
        found = name if generation == 1 else f"{name}{GENERATION}{generation}"
        if found not in taken:
            return found
        generation += 1


def _with_free_ports(spec: ProcessSpec, running: Sequence[ProcessSpec]) -> ProcessSpec:
    """A number that the topology leaves open may be one that another worker was started with."""
    used = {argument for one in running for argument in one.arguments if argument.startswith(PORTS)}
    numbers = {argument.partition("=")[2] for argument in used}
    return replace(
        spec,
        arguments=tuple(
            f"{argument.partition('=')[0]}=0"
            if argument.startswith(PORTS)
            and argument not in (spec.asked or spec.arguments)
            and argument.partition("=")[2] in numbers
            else argument
            for argument in spec.arguments
        ),
    )


def _is_same(pair: Swap) -> bool:
    old, new = pair.old, pair.new
    if old is None or new is None or dict(old.environment) != dict(new.environment):
        return False
    if pair.is_gateway:
        return old.arguments == new.arguments
    return bool(new.asked) and old.asked == new.asked and old.launcher == new.launcher


def _is_gateway(spec: ProcessSpec) -> bool:
    return spec.ready_path is not None


def _successor(spec: ProcessSpec, old: ProcessSpec, taken: set[str], *, has_old_ports: bool) -> ProcessSpec:
    generation = int(old.name.partition(GENERATION)[2] or 1) + 1
    # Those that the topology leaves open stay as they are; the old one has the numbers of the plan.
    had = {argument.partition("=")[0]: argument for argument in old.arguments if argument.startswith(PORTS)}
    arguments = []
    for argument in spec.arguments:
        option = argument.partition("=")[0]
        if not argument.startswith(PORTS) or _is_gateway(spec):
            arguments.append(argument)
        elif not has_old_ports:
            arguments.append(f"{option}=0")
        else:
            is_open = argument not in (spec.asked or spec.arguments)
            arguments.append(had.get(option, argument) if is_open else argument)
    return replace(spec, name=_free_name(spec.name, generation, taken), arguments=tuple(arguments))


class Rollout:
    """Carries out one reload; `advance` is called until it says how it ended."""

    def __init__(
        self,
        todo: Sequence[Swap],
        workers: Sequence[str],
        reload: Reload,
        *,
        clock: Callable[[], float],
        tell: Callable[[str], None],
    ) -> None:
        """`workers` are the names that gateways have now; `tell` reports to people."""
        self._todo = list(todo)
        self._workers = list(workers)
        self._reload = reload
        self._clock = clock
        self._tell = tell
        self._phases: Iterator[Phase] = iter(())
        self._phase: Phase | None = None
        self._since = 0.0

    @property
    def workers(self) -> list[str]:
        """The names that gateways are to have."""
        return list(self._workers)

    def advance(self, crew: Crew) -> str | None:
        """Does what can be done now. Returns how all of it ended, and `None` until then: an empty text for
        success, else a sentence.
        """
        while self._todo:
            swap = self._todo[0]
            if self._phase is None:
                self._phases = self._order(swap)
                self._enter(crew, swap, next(self._phases))
            problem = self._problem(crew, swap)
            if problem is not None:
                self._give_up(crew, swap)
                return problem
            if not self._is_over(crew, swap):
                return None
            following = next(self._phases, None)
            if following is None:
                self._todo.pop(0)
                self._phase = None
                self._tell(self._outcome(swap))
            else:
                self._enter(crew, swap, following)
        return ""

    def _order(self, swap: Swap) -> Iterator[Phase]:
        if swap.is_gateway:
            return iter(
                [*([Phase.START] if swap.new else []), *([Phase.RETIRE, Phase.END] if swap.old else [])]
            )
        join = [Phase.START, Phase.JOIN] if swap.new else []
        leave = [Phase.RETIRE, Phase.END] if swap.old else []
        return iter(join + leave if self._reload.order == "start-first" else leave + join)

    def _enter(self, crew: Crew, swap: Swap, phase: Phase) -> None:
        self._phase, self._since = phase, self._clock()
        if phase is Phase.START and swap.new:
            crew.add(swap.new)
        elif phase is Phase.JOIN and swap.new:
            self._workers.append(swap.new.name)
            crew.publish(self._workers)
        elif phase is Phase.RETIRE and swap.old and swap.is_gateway:
            crew.finish(swap.old.name)
        elif phase is Phase.RETIRE and swap.old:
            self._workers.remove(swap.old.name)
            crew.publish(self._workers)
        elif phase is Phase.END and swap.old:
            crew.dismiss(swap.old.name)

    def _is_over(self, crew: Crew, swap: Swap) -> bool:
        if self._phase is Phase.START and swap.new:
            is_ready = crew.is_ready(swap.new.name)
            if is_ready and swap.is_gateway:
                crew.keep(swap.new.name)
            return is_ready
        if self._phase is Phase.JOIN and swap.new:
            address = crew.address(swap.new.name)
            if all(known is not None and known.get(address) for known in crew.known()):
                crew.keep(swap.new.name)
                return True
            return False
        assert swap.old is not None
        name = swap.old.name
        if crew.is_gone(name):
            return True
        if self._phase is Phase.END:
            return False
        if self._clock() - self._since >= self._reload.finish_s:
            return True
        # A gateway ends by itself.
        address = "" if swap.is_gateway else crew.address(name)
        return not swap.is_gateway and all(
            known is not None and address not in known for known in crew.known()
        )

    def _problem(self, crew: Crew, swap: Swap) -> str | None:
        if swap.new is None or self._phase not in (Phase.START, Phase.JOIN):
            return None
        name = swap.new.name
        goes_on = "" if swap.old is None else f"; {swap.old.name} keeps running"
        if crew.is_gone(name):
            when = "before it was ready" if self._phase is Phase.START else "before gateways had it"
            return f"{name} ended {when}, last line `{crew.last_line(name)}`{goes_on}"
        waited = self._clock() - self._since
        if self._phase is Phase.JOIN and waited >= JOIN_WITHIN_S:
            return f"no token came from {name} within {JOIN_WITHIN_S:g} s{goes_on}"
        if swap.is_gateway and waited >= GATEWAY_WITHIN_S and not crew.is_ready(name):
            return f"{name} had no ready worker within {GATEWAY_WITHIN_S:g} s{goes_on}"
        return None

    def _give_up(self, crew: Crew, swap: Swap) -> None:
        assert swap.new is not None
        if swap.new.name in self._workers:
            self._workers.remove(swap.new.name)
        if not crew.is_gone(swap.new.name):
            crew.dismiss(swap.new.name)
        if swap.old is not None and not swap.is_gateway and swap.old.name not in self._workers:
            # It has ended already; gateways hear of it once it listens.
            crew.add(swap.old)
            crew.keep(swap.old.name)
            self._workers.append(swap.old.name)
        crew.publish(self._workers)

    def _outcome(self, swap: Swap) -> str:
        if swap.old is None or swap.new is None:
            return f"{swap.new.name} joined" if swap.new else f"{swap.old.name} ended" if swap.old else ""
        return f"{swap.new.name} replaced {swap.old.name}"
