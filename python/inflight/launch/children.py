"""All children of a supervisor: starts them, asks them to end, and forgets those that nobody misses.

Owns which there are. When one starts or ends is for `supervisor` and `rollout` to say; this is the crew of a
rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from inflight.launch.child import Child, Process, State
from inflight.launch.plan import LaunchPlan, ProcessSpec


class Children:
    """Implements `rollout.Crew`. The functions are those of `supervisor.Supervisor`."""

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        start: Callable[[ProcessSpec, Sequence[str]], Process],
        clock: Callable[[], float],
        publish: Callable[[Sequence[str]], None],
        look: Callable[[str], Mapping[str, bool] | None],
        keep_listening: Callable[[Sequence[ProcessSpec]], None],
    ) -> None:
        self._ready_within_s = plan.ready_within_s
        self._start = start
        self._clock = clock
        self._publish = publish
        self._look = look
        self._keep_listening = keep_listening
        #: In the order of their start.
        self.by_name = {spec.name: Child(spec) for spec in plan.processes}

    def __iter__(self) -> Iterator[Child]:
        return iter(self.by_name.values())

    def start(self, child: Child) -> None:
        """Starts one for the first time; the whole plan has a time within which it is ready."""
        child.start(self._start(child.spec, child.spec.resolve(self.addresses())))

    def start_again(self, child: Child) -> None:
        """Starts one that has an address there."""
        process = self._start(child.spec, child.spec.resolve_again(self.addresses()))
        child.start(process, self._clock() + self._ready_within_s)

    def add(self, spec: ProcessSpec) -> None:
        """Starts a process that nobody misses if it ends."""
        child = self.by_name.setdefault(spec.name, Child(spec))
        child.spec, child.is_dispensable = spec, True
        if child.address is not None:
            self.start_again(child)
        else:
            child.start(self._start(spec, spec.resolve({})), self._clock() + self._ready_within_s)

    def keep(self, name: str) -> None:
        """From now on its end is an accident."""
        self.by_name[name].is_dispensable = False

    def finish(self, name: str) -> None:
        """Asks a gateway to end with its last request; nobody misses it."""
        child = self.by_name[name]
        child.is_dispensable = True
        # Nobody accepts at an address that no gateway has any more.
        self._keep_listening([one.spec for one in self.by_name.values() if one is not child])
        if child.state is State.READY and child.process is not None:
            child.process.finish()
        else:
            self.dismiss(name)

    def dismiss(self, name: str) -> None:
        """Asks it to end; nobody misses it."""
        child = self.by_name[name]
        child.is_dispensable = True
        if child.is_running:
            child.terminate(self._clock())
        else:
            child.end()

    def is_ready(self, name: str) -> bool:
        """Whether it listens."""
        return name in self.by_name and self.by_name[name].state is State.READY

    def is_gone(self, name: str) -> bool:
        """Whether it has ended."""
        # One that is forgotten has.
        return name not in self.by_name or self.by_name[name].state is State.GONE

    def address(self, name: str) -> str:
        """Where it listens."""
        return self.addresses()[name]

    def last_line(self, name: str) -> str:
        """What it wrote last."""
        return self.by_name[name].last_line if name in self.by_name else ""

    def publish(self, names: Sequence[str]) -> None:
        """Sends the gateways the addresses of the workers."""
        addresses = self.addresses()
        self._publish([addresses[name] for name in names if name in addresses])

    def known(self) -> list[Mapping[str, bool] | None]:
        """The workers of each gateway."""
        gateways = [one for one in self.by_name.values() if one.is_gateway and not one.is_dispensable]
        return [self._look(self.address(one.spec.name)) for one in gateways]

    def addresses(self) -> dict[str, str]:
        """Of those that have one, by name."""
        return {name: one.address for name, one in self.by_name.items() if one.address is not None}

    def running(self) -> list[Child]:
        """Those with a process."""
        return [one for one in self.by_name.values() if one.is_running]

    def forget_gone(self) -> None:
        """Forgets those that nobody misses."""
        gone = [name for name, one in self.by_name.items() if one.is_dispensable and self.is_gone(name)]
        for name in gone:
            del self.by_name[name]
            self._keep_listening([one.spec for one in self.by_name.values()])
