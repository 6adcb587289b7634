"""The supervisor's histories, replayed: no process, no clock, no port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from inflight.launch.plan import ProcessSpec, ServePlan
from inflight.launch.supervisor import Event, Exited, Line, StopRequested, Supervisor

WORKER = ProcessSpec(name="worker", arguments=("worker",), stop_grace_s=5.0)
GATEWAY = ProcessSpec(
    name="gateway",
    arguments=("gateway", "--worker={worker}"),
    after=("worker",),
    ready_path="/ready",
    stop_grace_s=10.0,
)
PLAN = ServePlan((WORKER, GATEWAY), ready_within_s=100.0)
WORKER_UP = Line("worker", "inflight worker: listening on grpc://127.0.0.1:1")
GATEWAY_UP = Line("gateway", "inflight gateway: listening on http://127.0.0.1:2")
INTERRUPT, TERMINATE = StopRequested(2), StopRequested(15)


class FakeChild:
    """Ends when it is asked to, unless it is `deaf`; always ends when it is killed."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name

    def terminate(self) -> None:
        self.world.log.append(f"terminate {self.name}")
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

    def failed(self, sentence: str) -> None:
        self.log.append(sentence)

    def run(self) -> int:
        return Supervisor(
            PLAN,
            start=self.start,
            next_event=self.next_event,
            clock=lambda: self.now,
            probe=self.probe,
            report=self,
        ).run()


def test_one_interrupt_stops_the_gateway_and_then_the_worker() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (9, INTERRUPT), ready_at=3.0)
    assert world.run() == 0
    assert world.log == [
        "start worker",
        "start gateway --worker=127.0.0.1:1",
        "ready 127.0.0.1:2 at 3.0",
        "stopping",
        "terminate gateway",
        "terminate worker",
    ]
    assert world.now == 10.0


def test_a_worker_that_dies_before_it_listens_ends_all_with_its_code() -> None:
    world = World((1, Exited("worker", 3)))
    assert world.run() == 3
    assert world.log == [
        "start worker",
        "the worker ended with code 3 before it was ready; see its last lines above",
    ]


def test_a_worker_that_is_killed_takes_the_gateway_with_it() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (5, Exited("worker", -9)))
    assert world.run() == 137
    assert world.log[-2:] == [
        "the worker was ended by signal 9; see its last lines above",
        "terminate gateway",
    ]


def test_a_child_that_ends_politely_but_unasked_is_a_failure() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (5, Exited("gateway", 0)))
    assert world.run() == 1
    assert world.log[-1] == "terminate worker"


def test_a_child_that_hears_nothing_is_killed_after_its_grace() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (5, TERMINATE), deaf=("gateway",))
    assert world.run() == 0
    assert world.log[-4:] == ["stopping", "terminate gateway", "kill gateway", "terminate worker"]
    # 10 s of grace, and the two exits.
    assert abs(world.now - 15.6) < 1e-6


def test_a_second_interrupt_kills_at_once() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (5, INTERRUPT), (6, INTERRUPT), deaf=("gateway", "worker"))
    assert world.run() == 130
    assert world.log[-3:] == ["terminate gateway", "kill worker", "kill gateway"]
    assert world.now < 7.0


def test_an_interrupt_while_the_model_loads_stops_the_worker_alone() -> None:
    world = World((1, INTERRUPT))
    assert world.run() == 0
    assert world.log == ["start worker", "stopping", "terminate worker"]


def test_what_never_becomes_ready_is_given_up() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), ready_at=float("inf"))
    assert world.run() == 1
    assert world.log[-3:] == ["nothing was ready in time", "terminate gateway", "terminate worker"]
    assert 100.0 <= world.now < 105.0


class DefectiveReport(World):
    def ready(self, addresses: Mapping[str, str]) -> None:
        raise ZeroDivisionError(addresses)


def test_a_defect_in_here_leaves_no_child_behind() -> None:
    world = DefectiveReport((1, WORKER_UP), (2, GATEWAY_UP))
    with pytest.raises(ZeroDivisionError):
        world.run()
    assert world.log[-2:] == ["kill worker", "kill gateway"]
