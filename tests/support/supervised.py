"""A world without processes, clock and ports, in which the supervisor's histories are replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inflight.launch.events import Event, Exited, Line
from inflight.launch.plan import LaunchPlan, ProcessSpec
from inflight.launch.supervisor import Supervisor

WORKER_UP = Line("worker", "inflight worker: listening on grpc://127.0.0.1:1")
GATEWAY_UP = Line("gateway", "inflight gateway: listening on http://127.0.0.1:2")


class FakeChild:
    """Ends when it is asked to, unless it is `deaf`; always ends when it is killed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name

    def terminate(self) -> None:
        self.world.log.append(f"terminate {self.name}")
        if self.name not in self.world.deaf:
            self.world.arrive(0.5, Exited(self.name, 0))

    def finish(self) -> None:
        self.world.log.append(f"finish {self.name}")
        if self.name not in self.world.deaf:
            self.world.arrive(0.5, Exited(self.name, 0))

    def kill(self) -> None:
        self.world.log.append(f"kill {self.name}")
        self.world.arrive(0.1, Exited(self.name, -9))


class World:
    """A clock that moves only while the supervisor waits, a history of events, and what was done."""

    def __init__(
        self, *history: tuple[float, Event], deaf: Sequence[str] = (), ready_at: float = 0.0
    ) -> None:
        self.now = 0.0
        self.history = sorted(history, key=lambda entry: entry[0])
        self.deaf = deaf
        self.ready_at = ready_at
        self.log: list[str] = []
        self.workers: list[str] = []

    def arrive(self, delay: float, event: Event) -> None:
        self.history.append((self.now + delay, event))
        self.history.sort(key=lambda entry: entry[0])

    def start(self, spec: ProcessSpec, arguments: Sequence[str]) -> FakeChild:
        self.log.append("start " + " ".join(arguments))
        return FakeChild(self, spec.name)

    def next_event(self, timeout_s: float) -> Event | None:
        # A wait without end in an empty history would be a hang.
        assert self.history or timeout_s <= 100.0
        if self.history and self.history[0][0] <= self.now + timeout_s:
            time, event = self.history.pop(0)
            self.now = max(self.now, time)
            return event
        self.now += timeout_s
        return None

    def probe(self, address: str, path: str) -> bool:
        assert (address, path) == ("127.0.0.1:2", "/ready")
        return self.now >= self.ready_at

    def line(self, name: str, text: str) -> None:
        pass

    def ready(self, addresses: Mapping[str, str]) -> None:
        self.log.append(f"ready {addresses['gateway']} at {self.now:.1f}")

    def stopping(self) -> None:
        self.log.append("stopping")

    def restarting(self, sentence: str) -> None:
        self.log.append(f"{sentence} at {self.now:.1f}")

    def reloading(self, sentence: str) -> None:
        self.log.append(sentence)

    def publish(self, addresses: Sequence[str]) -> None:
        self.workers = list(addresses)

    def look(self, address: str) -> Mapping[str, bool] | None:
        """A gateway that follows at once, and whose requests have always ended."""
        assert address == "127.0.0.1:2"
        return dict.fromkeys(self.workers, True)

    def failed(self, sentence: str) -> None:
        self.log.append(sentence)

    def run(self, plan: LaunchPlan) -> int:
        """The exit code."""
        return Supervisor(
            plan,
            start=self.start,
            next_event=self.next_event,
            clock=lambda: self.now,
            probe=self.probe,
            report=self,
            publish=self.publish,
            look=self.look,
        ).run()
