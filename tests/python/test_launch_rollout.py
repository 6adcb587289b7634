"""Workers that are replaced while the rest runs: the supervisor's histories, without processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from inflight.launch.events import Event, Exited, Line, ReloadRequested, StopRequested
from inflight.launch.plan import LaunchPlan, ProcessSpec
from inflight.launch.plan import plan as make_plan
from inflight.launch.rollout import Swap, swaps
from inflight.launch.topology import Reload
from inflight.launch.topology_file import parse
from support.supervised import GATEWAY_UP, WORKER_UP, World

FIRST = ProcessSpec(
    name="worker", arguments=("worker", "--grpc-port=7"), stop_grace_s=5.0, restart_port="--grpc-port"
)
GATEWAY = ProcessSpec(
    name="gateway", arguments=("gateway", "--worker-file=w"), after=("worker",), ready_path="/ready"
)
PLAN = LaunchPlan((FIRST, GATEWAY), worker_file="w", ready_within_s=100.0)
NEXT_UP = Line("worker.2", "inflight worker: listening on grpc://127.0.0.1:3")
STOP = StopRequested(15)
STOP_FIRST = Reload(order="stop-first")


class Reloaded(World):
    """Notes what is published, and what whoever asked is told."""

    def __init__(self, *history: tuple[float, Event], asked_at: float = 5.0, plan: LaunchPlan = PLAN) -> None:
        asked = ReloadRequested(plan, lambda _: None, lambda end: self.log.append(f"told `{end}`"))
        super().__init__((1, WORKER_UP), (2, GATEWAY_UP), (asked_at, asked), *history)

    def publish(self, addresses: Sequence[str]) -> None:
        super().publish(addresses)
        self.log.append(f"workers {' '.join(addresses)}")

    def after_start(self) -> list[str]:
        """What was done once all was ready."""
        return self.log[4:]


def test_the_new_worker_serves_before_the_old_one_goes() -> None:
    world = Reloaded((9, NEXT_UP), (20, STOP))
    assert world.run(PLAN) == 0
    assert world.after_start() == [
        "start worker --grpc-port=0",
        "workers 127.0.0.1:1 127.0.0.1:3",
        "workers 127.0.0.1:3",
        "terminate worker",
        "worker.2 replaced worker",
        "reload done",
        "told ``",
        "stopping",
        "terminate gateway",
        "terminate worker.2",
    ]


def test_stop_first_keeps_the_port() -> None:
    plan = replace(PLAN, reload=STOP_FIRST)
    world = Reloaded((9, NEXT_UP), (20, STOP), plan=plan)
    assert world.run(plan) == 0
    assert world.after_start()[:5] == [
        "workers ",
        "terminate worker",
        "start worker --grpc-port=7",
        "workers 127.0.0.1:3",
        "worker.2 replaced worker",
    ]


def test_a_new_worker_that_dies_changes_nothing() -> None:
    dies = ((8, Line("worker.2", "out of memory")), (9, Exited("worker.2", 1)))
    world = Reloaded(*dies, (20, STOP))
    assert world.run(PLAN) == 0
    assert world.after_start() == [
        "start worker --grpc-port=0",
        "workers 127.0.0.1:1",
        "reload failed: worker.2 ended before it was ready, last line `out of memory`; worker keeps running",
        "told `worker.2 ended before it was ready, last line `out of memory`; worker keeps running`",
        "stopping",
        "terminate gateway",
        "terminate worker",
    ]


def test_when_the_new_one_dies_after_the_old_one_stopped_the_old_one_is_started_again() -> None:
    plan = replace(PLAN, reload=STOP_FIRST)
    world = Reloaded((9, Exited("worker.2", 1)), (12, WORKER_UP), (20, STOP), plan=plan)
    assert world.run(plan) == 0
    assert [line for line in world.after_start() if line.startswith(("start", "terminate"))] == [
        "terminate worker",
        "start worker --grpc-port=7",
        "start worker --grpc-port=7",
        "terminate gateway",
        "terminate worker",
    ]


def test_a_new_worker_that_never_listens_is_given_up() -> None:
    world = Reloaded((200, STOP))
    assert world.run(PLAN) == 0
    assert "kill worker.2" in world.log
    assert any(line.startswith("reload failed: worker.2 ended before it was ready") for line in world.log)
    assert world.workers == ["127.0.0.1:1"]


class Unconvinced(Reloaded):
    """Its gateway gets no token from the worker that comes first."""

    def look(self, address: str) -> Mapping[str, bool] | None:
        return {worker: not worker.endswith(":3") for worker in super().look(address) or ()}


def test_a_new_worker_without_a_token_is_taken_out_again() -> None:
    world = Unconvinced((9, NEXT_UP), (300, STOP))
    assert world.run(PLAN) == 0
    assert world.workers == ["127.0.0.1:1"]
    assert "told `no token came from worker.2 within 120 s; worker keeps running`" in world.log
    assert world.log.index("terminate worker.2") < world.log.index("stopping")


class Busy(Reloaded):
    """Its gateway never lets go of a worker."""

    def look(self, address: str) -> Mapping[str, bool] | None:
        return {"127.0.0.1:1": True, **(super().look(address) or {})}


def test_open_requests_are_waited_for_and_not_for_ever() -> None:
    plan = replace(PLAN, reload=Reload(finish_s=30.0))
    world = Busy((9, NEXT_UP), (100, STOP), plan=plan)
    assert world.run(plan) == 0
    assert world.log.index("terminate worker") < world.log.index("stopping")


def test_a_replaced_worker_that_dies_is_restarted_as_any_other() -> None:
    world = Reloaded((9, NEXT_UP), (30, Exited("worker.2", -9)), (32, NEXT_UP), (50, STOP))
    assert world.run(PLAN) == 0
    assert world.after_start()[7:9] == [
        "the worker.2 was ended by signal 9, last line `inflight worker: listening on grpc://127.0.0.1:3`;"
        " restarting it in 1 s (1 of 5) at 30.0",
        "start worker --grpc-port=3",
    ]


def test_a_stop_ends_a_reload() -> None:
    world = Reloaded((7, STOP))
    assert world.run(PLAN) == 0
    assert world.after_start() == [
        "start worker --grpc-port=0",
        "stopping",
        "terminate gateway",
        "terminate worker.2",
        "terminate worker",
        "reload failed: everything ends",
        "told `everything ends`",
    ]


def test_one_reload_at_a_time_and_none_before_all_are_ready() -> None:
    world = Reloaded(asked_at=1.5)
    world.arrive(20, STOP)
    assert world.run(PLAN) == 0
    assert "told `not everything is ready; nothing was replaced`" in world.log
    second = ReloadRequested(PLAN, lambda _: None, lambda end: world.log.append(f"second `{end}`"))
    world = Reloaded((6, second), (9, NEXT_UP), (20, STOP))
    assert world.run(PLAN) == 0
    assert "second `another reload is under way; nothing was replaced`" in world.log
    assert "told ``" in world.log


def test_swaps_add_first_and_remove_last() -> None:
    running = (replace(FIRST, name="worker-0.3"), replace(FIRST, name="worker-1"), GATEWAY)
    wanted = (replace(FIRST, name="worker-0"), replace(FIRST, name="worker-2"), GATEWAY)
    made = [
        (pair.old and pair.old.name, pair.new and (pair.new.name, pair.new.arguments[1]))
        for pair in swaps(running, replace(PLAN, processes=wanted), Reload())
    ]
    assert made == [
        (None, ("worker-2", "--grpc-port=7")),
        ("worker-0.3", ("worker-0.4", "--grpc-port=0")),
        ("worker-1", None),
    ]


def planned(text: str) -> LaunchPlan:
    return make_plan(parse(text, Path("/srv")), worker_file="w")


def made_of(pairs: Sequence[Swap]) -> list[tuple[str | None, str | None]]:
    return [(pair.old.name if pair.old else None, pair.new.name if pair.new else None) for pair in pairs]


ONE = "models: [{executor: simulated}]"
TWO = "models: [{executor: simulated, replicas: 2}]"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (ONE, TWO, [(None, "worker-1")]),
        (TWO, ONE, [("worker-1", None)]),
        (TWO, TWO.replace("2", "3"), [(None, "worker-2")]),
        (ONE, ONE, [("worker", "worker.2")]),
        (ONE, f"{TWO}\nreload: {{workers: always}}", [(None, "worker-1"), ("worker", "worker-0.2")]),
        (ONE, TWO.replace("}", ", device: cpu}"), [(None, "worker-1"), ("worker", "worker-0.2")]),
        # One more model changes the names of all, and the free ports of those behind it.
        (
            ONE,
            "models: [{name: a, replicas: 2}, {executor: simulated}]",
            [(None, "worker-a-0"), (None, "worker-a-1")],
        ),
        # Another model under a name that the old one's worker has until it is gone.
        (ONE, "models: [{name: a}]", [(None, "worker.2"), ("worker", None)]),
        (
            ONE,
            f"{ONE}\ngateways: {{replicas: 2, port: 9000}}",
            [("worker", "worker.2"), (None, "gateway-1"), ("gateway", "gateway-0.2")],
        ),
    ],
)
def test_a_worker_keeps_its_place_and_only_what_changed_is_replaced(
    before: str, after: str, expected: list[tuple[str | None, str | None]]
) -> None:
    wanted = planned(after)
    assert made_of(swaps(planned(before).processes, wanted, wanted.reload)) == expected


def test_an_added_worker_takes_no_port_that_a_running_one_has() -> None:
    """Neither over many reloads, in which numbers that are left open move."""
    running = list(planned(ONE).processes)
    for replicas in (2, 3, 1, 2, 1, 3):
        more = f"models: [{{name: a, replicas: {replicas}}}, {{executor: simulated, replicas: {replicas}}}]"
        wanted = planned(more)
        for pair in swaps(running, wanted, wanted.reload):
            if pair.new is not None:
                running.append(pair.new)
                ports = [
                    one for spec in running for one in spec.arguments if "-port=" in one and "=0" not in one
                ]
                numbers = [port.partition("=")[2] for port in ports]
                assert len(set(numbers)) == len(numbers), ports
            if pair.old is not None:
                running.remove(pair.old)
            assert len({spec.name for spec in running}) == len(running)
        assert len(running) == 2 * replicas + 1


OTHER = replace(GATEWAY, arguments=(*GATEWAY.arguments, "--threads=2"))
NEXT_GATEWAY_UP = Line("gateway.2", "inflight gateway: listening on http://127.0.0.1:2")


def test_gateways_come_last_and_only_where_they_differ() -> None:
    def made(gateways: str, *wanted: ProcessSpec) -> list[tuple[str | None, str | None]]:
        plan = replace(PLAN, processes=wanted)
        pairs = swaps((FIRST, GATEWAY), plan, Reload(order="stop-first", gateways=gateways))
        return [(pair.old.name if pair.old else None, pair.new.name if pair.new else None) for pair in pairs]

    worker = ("worker", "worker.2")
    assert made("changed", GATEWAY, FIRST) == [worker]
    assert made("always", GATEWAY, FIRST) == [worker, ("gateway", "gateway.2")]
    assert made("changed", OTHER, FIRST) == [worker, ("gateway", "gateway.2")]
    moved = replace(GATEWAY, environment={"INFLIGHT_LOG": "debug"})
    assert made("changed", moved, FIRST) == [worker, ("gateway", "gateway.2")]
    assert made("changed", FIRST, replace(GATEWAY, name="gateway-0"), replace(OTHER, name="gateway-1")) == [
        worker,
        (None, "gateway-0"),
        (None, "gateway-1"),
        ("gateway", None),
    ]


def with_other_gateway(*history: tuple[float, Event], finish_s: float = 300.0) -> Reloaded:
    plan = replace(PLAN, processes=(FIRST, OTHER), reload=Reload(finish_s=finish_s))
    return Reloaded((9, NEXT_UP), *history, plan=plan)


def test_a_new_gateway_accepts_before_the_old_one_finishes() -> None:
    world = with_other_gateway((12, NEXT_GATEWAY_UP), (20, STOP))
    assert world.run(PLAN) == 0
    assert world.after_start()[4:] == [
        "worker.2 replaced worker",
        "start gateway --worker-file=w --threads=2",
        "finish gateway",
        "gateway.2 replaced gateway",
        "reload done",
        "told ``",
        "stopping",
        "terminate gateway.2",
        "terminate worker.2",
    ]


def test_a_gateway_with_endless_requests_is_asked_to_end_in_time() -> None:
    world = with_other_gateway((12, NEXT_GATEWAY_UP), (60, STOP), finish_s=30.0)
    world.deaf = ("gateway",)
    # It is asked twice, and killed where it does not hear.
    assert world.run(PLAN) == 0
    asked = ("finish gateway", "terminate gateway", "kill gateway")
    assert [line for line in world.log if line in asked] == list(asked)


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        (
            (12, Exited("gateway.2", 2)),
            "gateway.2 ended before it was ready, last line ``; gateway keeps running",
        ),
        (
            (59, Line("gateway.2", "no worker")),
            "gateway.2 had no ready worker within 25 s; gateway keeps running",
        ),
    ],
)
def test_a_new_gateway_that_does_not_come_up_changes_nothing(
    history: tuple[float, Event], reason: str
) -> None:
    world = with_other_gateway(history, (60, STOP))
    assert world.run(PLAN) == 0
    assert f"told `{reason}`" in world.log
    assert "finish gateway" not in world.log
    assert world.workers == ["127.0.0.1:3"]


WORKER_3_UP = Line("worker.3", "inflight worker: listening on grpc://127.0.0.1:4")
GATEWAY_3_UP = Line("gateway.3", "inflight gateway: listening on http://127.0.0.1:2")


@pytest.mark.parametrize(
    ("deaf", "replaced"),
    [
        ("worker.2", ["worker.3 replaced worker"]),
        (
            "gateway.2",
            ["worker.2 replaced worker", "worker.3 replaced worker.2", "gateway.3 replaced gateway"],
        ),
    ],
)
def test_a_reload_replaces_those_that_run_while_what_the_last_one_gave_up_still_ends(
    deaf: str, replaced: list[str]
) -> None:
    if deaf == "worker.2":
        again = ReloadRequested(PLAN, lambda _: None, lambda _: None)
        world: Reloaded = Unconvinced((9, NEXT_UP), (130, again), (131, WORKER_3_UP), (150, STOP))
    else:
        # The gateway of the first reload never listens.
        plan = replace(PLAN, processes=(FIRST, OTHER))
        again = ReloadRequested(plan, lambda _: None, lambda _: None)
        world = with_other_gateway((45, again), (50, WORKER_3_UP), (52, GATEWAY_3_UP), (70, STOP))
    world.deaf = (deaf,)
    assert world.run(PLAN) == 0
    assert [line for line in world.log if " replaced " in line] == replaced
    assert world.log.index(f"terminate {deaf}") < world.log.index(f"kill {deaf}")
