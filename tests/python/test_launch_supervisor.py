"""The supervisor's histories, replayed: no process, no clock, no port."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from inflight.launch.events import Exited, Line, StopRequested
from inflight.launch.plan import LaunchPlan, ProcessSpec
from inflight.launch.topology import Restart
from support.supervised import GATEWAY_UP, WORKER_UP, World

WORKER = ProcessSpec(
    name="worker",
    arguments=("worker", "--grpc-port=0"),
    stop_grace_s=5.0,
    restart_port="--grpc-port",
)
GATEWAY = ProcessSpec(
    name="gateway",
    arguments=("gateway", "--worker={worker}"),
    after=("worker",),
    ready_path="/ready",
    stop_grace_s=10.0,
)
PLAN = LaunchPlan((WORKER, GATEWAY), ready_within_s=100.0)
INTERRUPT, TERMINATE = StopRequested(2), StopRequested(15)


def test_one_interrupt_stops_the_gateway_and_then_the_worker() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (9, INTERRUPT), ready_at=3.0)
    assert world.run(PLAN) == 0
    assert world.log == [
        "start worker --grpc-port=0",
        "start gateway --worker=127.0.0.1:1",
        "ready 127.0.0.1:2 at 3.0",
        "stopping",
        "terminate gateway",
        "terminate worker",
    ]
    assert world.now == 10.0


def test_a_worker_that_dies_before_it_listens_ends_all_with_its_code() -> None:
    world = World((1, Exited("worker", 3)))
    assert world.run(PLAN) == 3
    assert world.log == [
        "start worker --grpc-port=0",
        "the worker ended with code 3 before it was ready; see its last lines above",
    ]


def test_a_worker_that_dies_is_restarted_where_it_listened() -> None:
    world = World(
        (1, WORKER_UP),
        (2, GATEWAY_UP),
        (4, Line("worker", "out of memory")),
        (5, Exited("worker", -9)),
        (8, WORKER_UP),
        (20, INTERRUPT),
    )
    assert world.run(PLAN) == 0
    assert world.log[3:] == [
        "the worker was ended by signal 9, last line `out of memory`; restarting it in 1 s (1 of 5) at 5.0",
        "start worker --grpc-port=1",
        "stopping",
        "terminate gateway",
        "terminate worker",
    ]


def test_restarts_are_bounded_and_wait_longer_each_time() -> None:
    # Each time it listens, and dies a second later.
    deaths = [5.0, 8.0, 12.0, 18.0, 28.0, 46.0]
    history = [(time, Exited("worker", 7)) for time in deaths]
    ups = [(time - 1, WORKER_UP) for time in deaths[1:]]
    world = World((1, WORKER_UP), (2, GATEWAY_UP), *history, *ups)
    assert world.run(PLAN) == 7
    waits = [line.partition("restarting it in ")[2] for line in world.log if "restarting" in line]
    assert waits == [
        "1 s (1 of 5) at 5.0",
        "2 s (2 of 5) at 8.0",
        "4 s (3 of 5) at 12.0",
        "8 s (4 of 5) at 18.0",
        "16 s (5 of 5) at 28.0",
    ]
    assert world.log[-2:] == [
        "the worker ended with code 7 after 5 restarts; see its last lines above",
        "terminate gateway",
    ]


def test_restarts_are_forgiven_after_a_while() -> None:
    world = World(
        (1, WORKER_UP),
        (2, GATEWAY_UP),
        (5, Exited("worker", -9)),
        (8, WORKER_UP),
        (700, Exited("worker", -9)),
        (705, WORKER_UP),
        (710, INTERRUPT),
    )
    assert world.run(PLAN) == 0
    assert [line[-22:] for line in world.log if "restarting" in line] == [
        "in 1 s (1 of 5) at 5.0",
        " 1 s (1 of 5) at 700.0",
    ]


def test_a_mistake_of_the_user_is_not_tried_again() -> None:
    world = World(
        (1, WORKER_UP),
        (2, GATEWAY_UP),
        (5, Exited("worker", -9)),
        (7, Exited("worker", 2)),
    )
    assert world.run(PLAN) == 2
    assert world.log[-2:] == [
        "the worker ended with code 2 before it was ready; see its last lines above",
        "terminate gateway",
    ]


def test_a_worker_that_dies_before_all_were_ready_is_not_restarted() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (5, Exited("worker", 1)), ready_at=9.0)
    assert world.run(PLAN) == 1
    assert world.log[-2:] == [
        "the worker ended with code 1; see its last lines above",
        "terminate gateway",
    ]


def test_a_stop_during_a_restart_ends_all() -> None:
    dies = ((1, WORKER_UP), (2, GATEWAY_UP), (5, Exited("worker", -9)))
    world = World(*dies, (5.5, TERMINATE))
    assert world.run(PLAN) == 0
    assert world.log[-2:] == ["stopping", "terminate gateway"]
    world = World(*dies, (7, INTERRUPT))
    assert world.run(PLAN) == 0
    assert world.log[-3:] == ["stopping", "terminate gateway", "terminate worker"]


def test_a_restart_that_never_listens_is_killed_and_tried_again() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (5, Exited("worker", -9)), (120, INTERRUPT))
    assert world.run(PLAN) == 0
    assert world.log[4:7] == [
        "start worker --grpc-port=1",
        "kill worker",
        "the worker was ended by signal 9 before it was ready, last line "
        "`inflight worker: listening on grpc://127.0.0.1:1`; restarting it in 2 s (2 of 5) at 106.1",
    ]


def test_a_child_that_ends_politely_but_unasked_is_a_failure() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (5, Exited("gateway", 0)))
    assert world.run(PLAN) == 1
    assert world.log[-1] == "terminate worker"


def test_a_child_that_hears_nothing_is_killed_after_its_grace() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (5, TERMINATE), deaf=("gateway",))
    assert world.run(PLAN) == 0
    assert world.log[-4:] == ["stopping", "terminate gateway", "kill gateway", "terminate worker"]
    # 10 s of grace, and the two exits.
    assert abs(world.now - 15.6) < 1e-6


def test_a_second_interrupt_kills_at_once() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (5, INTERRUPT), (6, INTERRUPT), deaf=("gateway", "worker"))
    assert world.run(PLAN) == 130
    assert world.log[-3:] == ["terminate gateway", "kill worker", "kill gateway"]
    assert world.now < 7.0


def test_an_interrupt_while_the_model_loads_stops_the_worker_alone() -> None:
    world = World((1, INTERRUPT))
    assert world.run(PLAN) == 0
    assert world.log == ["start worker --grpc-port=0", "stopping", "terminate worker"]


def test_what_never_becomes_ready_is_given_up() -> None:
    world = World((1, WORKER_UP), (2, GATEWAY_UP), ready_at=float("inf"))
    assert world.run(PLAN) == 1
    assert world.log[-3:] == ["nothing was ready in time", "terminate gateway", "terminate worker"]
    assert 100.0 <= world.now < 105.0


class DefectiveReport(World):
    def ready(self, addresses: Mapping[str, str]) -> None:
        raise ZeroDivisionError(addresses)


def test_several_are_stopped_at_once_after_those_that_need_them() -> None:
    other = replace(WORKER, name="other")
    plan = replace(PLAN, processes=(WORKER, other, replace(GATEWAY, after=("worker", "other"))))
    other_up = Line("other", "inflight worker: listening on grpc://127.0.0.1:3")
    world = World((1, WORKER_UP), (1, other_up), (2, GATEWAY_UP), (5, TERMINATE), deaf=("other",))
    assert world.run(plan) == 0
    assert world.log[-5:] == [
        "stopping",
        "terminate gateway",
        "terminate worker",
        "terminate other",
        "kill other",
    ]
    # The gateway's half second, 5 s of grace, and the kill: no drain waits for another.
    assert abs(world.now - 10.6) < 1e-6


def test_the_restart_policy_is_the_plans() -> None:
    never = replace(PLAN, restart=Restart(most=0))
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (5, Exited("worker", 7)))
    assert world.run(never) == 7
    assert world.log[-2:] == ["the worker ended with code 7; see its last lines above", "terminate gateway"]
    slow = replace(PLAN, restart=Restart(first_wait_s=2.5))
    world = World((1, WORKER_UP), (2, GATEWAY_UP), (5, Exited("worker", 7)), (9, WORKER_UP), (20, INTERRUPT))
    assert world.run(slow) == 0
    assert "restarting it in 2.5 s (1 of 5) at 5.0" in "".join(world.log)


def test_a_dead_gateway_is_restarted_where_it_listened_and_the_workers_stay() -> None:
    gateway = replace(GATEWAY, restart_port="--port", arguments=("gateway", "--worker={worker}", "--port=0"))
    plan = replace(PLAN, processes=(WORKER, gateway))
    world = World(
        (1, WORKER_UP), (2, GATEWAY_UP), (5, Exited("gateway", -9)), (7, GATEWAY_UP), (20, TERMINATE)
    )
    assert world.run(plan) == 0
    assert [line for line in world.log if line.startswith("start")] == [
        "start worker --grpc-port=0",
        "start gateway --worker=127.0.0.1:1 --port=0",
        "start gateway --worker=127.0.0.1:1 --port=2",
    ]


def test_a_defect_in_here_leaves_no_child_behind() -> None:
    world = DefectiveReport((1, WORKER_UP), (2, GATEWAY_UP))
    with pytest.raises(ZeroDivisionError):
        world.run(PLAN)
    assert world.log[-2:] == ["kill worker", "kill gateway"]
