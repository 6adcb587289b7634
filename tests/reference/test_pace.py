"""The bound on prompt tokens follows what they take, and holds only while a client waits for tokens."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.executors.base import Request
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.pace import Pace
from inflight.executors.reference.core.planner import Planner
from inflight.executors.reference.core.scheduler import Active, Limits, Schedule, Waiting, schedule

from .support import engine, request
from .test_idle import idle


@pytest.mark.parametrize(
    ("most_s", "iterations", "tokens"),
    [
        pytest.param(0.0, [(8192, 0.4)], None, id="no bound"),
        pytest.param(0.05, [], 1024, id="nothing was measured"),
        pytest.param(0.05, [(2048, 0.075)], 1280, id="as many as take so long"),
        pytest.param(0.05, [(0, 0.04)] * 40 + [(2048, 0.115)], 1280, id="generation does not count"),
        pytest.param(0.05, [(2048, 0.0)], 49_999_872, id="no time is no bound"),
        pytest.param(0.05, [(64, 0.005)], 1024, id="a small chunk says nothing"),
        pytest.param(0.05, [(1024, 3.0)], 256, id="never fewer than take no less"),
        pytest.param(0.05, [(1024, 3.0)] + [(256, 0.0095)] * 60, 1280, id="a slow start is forgotten"),
    ],
)
def test_a_bound_follows_what_tokens_take(
    most_s: float, iterations: list[tuple[int, float]], tokens: int | None
) -> None:
    pace = Pace(most_s)
    for one in iterations:
        pace.note(*one)
    assert pace.tokens == tokens


@pytest.mark.parametrize(
    ("most_s", "prompts", "tokens"),
    [
        pytest.param(0.0, 300, None, id="no bound"),
        pytest.param(0.05, 1, 1280, id="one"),
        pytest.param(0.05, 2, 2560, id="two"),
        pytest.param(0.05, 300, 2560, id="a crowd has no more than two"),
    ],
)
def test_prompts_together_have_a_bound(most_s: float, prompts: int, tokens: int | None) -> None:
    pace = Pace(most_s)
    pace.note(2048, 0.075)
    assert pace.together(prompts) == tokens


@pytest.mark.parametrize(
    ("prompts", "left", "tokens"),
    [
        pytest.param(300, 5120, 5120, id="done in one iteration in place of two"),
        pytest.param(300, 5121, 2560, id="three would take too long in one"),
        pytest.param(300, 2000, 2560, id="done in one anyway"),
        pytest.param(3, 5120, 5120, id="few are a crowd"),
        pytest.param(2, 5120, 2560, id="two are not"),
        pytest.param(1, 2560, 1280, id="nor is one"),
    ],
)
def test_a_crowd_that_outnumbers_the_streams_is_cut_less(prompts: int, left: int, tokens: int) -> None:
    pace = Pace(0.05)
    pace.note(2048, 0.075)
    assert pace.together(prompts, left) == tokens


def test_a_crowd_is_not_bounded_without_a_bound() -> None:
    assert Pace(0.0).together(300, 5120) is None


@pytest.mark.parametrize(
    ("waiting", "active", "planned"),
    [
        pytest.param(
            [Waiting(2, 9, 1)], [Active(1, 0)], Schedule((2,), ((2, 6),), (1,)), id="a prompt is cut"
        ),
        pytest.param(
            [Waiting(3, 9, 1)],
            [Active(1, 0), Active(2, 4)],
            Schedule((3,), ((2, 4), (3, 2)), (1,)),
            id="prompts share it",
        ),
        pytest.param(
            [Waiting(3, 9, 1)], [Active(1, 0), Active(2, 6)], Schedule((), ((2, 6),), (1,)), id="to its end"
        ),
    ],
)
def test_prompts_are_bounded(waiting: list[Waiting], active: list[Active], planned: Schedule) -> None:
    assert schedule(waiting, active, 9, Limits(4, 20), prompt_tokens=6) == planned


class Fixed(Pace):
    """A bound of 60 tokens, whatever they take."""

    tokens = 60


@pytest.mark.parametrize(
    ("generating", "prompts", "tokens"),
    [
        pytest.param([request(1, [3, 4], 50)], 1, 60, id="a stream does not stand still for a prompt"),
        pytest.param([request(1, [3, 4], 50)], 2, 120, id="but longer for two"),
        pytest.param([request(1, [3, 4], 50)], 5, 120, id="and no longer for a crowd"),
        pytest.param([idle(1, [3, 4], 50)], 1, 125, id="for nobody who waits for tokens"),
        pytest.param([], 2, 250, id="nobody generates"),
    ],
)
def test_clients_who_generate_bound_prompts(generating: list[Request], prompts: int, tokens: int) -> None:
    subject = engine(max_num_tokens=2000, max_seq_len=200, num_blocks=1000)
    subject._planner.pace = Fixed(0.05)
    subject.add(generating, Iteration())
    for _ in range(3):
        subject.step(Iteration())
    # Prompts that have nothing in common.
    asked = [request(2 + key, [2 + key, *range(3, 63), *range(64)], 2) for key in range(prompts)]
    subject.add(asked, Iteration())
    iteration = Iteration()
    subject.step(iteration)
    assert iteration.context_tokens == tokens


def among(*generating: int) -> Engine:
    """An engine with a bound of 60 tokens a prompt, where sequences that begin with these generate."""
    subject = engine(max_num_tokens=2000, max_seq_len=200, num_blocks=1000)
    subject._planner.pace = Fixed(0.05)
    subject.add([request(one, [one, 1], 50) for one in generating], Iteration())
    for _ in range(3):
        subject.step(Iteration())
    return subject


def prompt_tokens_of_a_step(subject: Engine, *asked: Request) -> int:
    """How many the next iteration has, once these have come."""
    subject.add(asked, Iteration())
    iteration = Iteration()
    subject.step(iteration)
    return iteration.context_tokens


def crowd(prompts: int, length: int, **fields: Any) -> list[Request]:
    """Requests that have nothing in common."""
    return [request(20 + one, [20 + one, *range(1, length)], 2, **fields) for one in range(prompts)]


@pytest.mark.parametrize(
    ("generating", "asked", "tokens"),
    [
        pytest.param([3], crowd(4, 50), 200, id="more wait than generate"),
        pytest.param([3, 4, 5, 6], crowd(4, 50), 200, id="as many wait"),
        pytest.param([3, 4, 5, 6, 7], crowd(4, 50), 120, id="fewer wait"),
        pytest.param([3], crowd(5, 50), 120, id="they have too much left"),
        pytest.param([3], crowd(2, 63), 120, id="two are not a crowd"),
        pytest.param(
            [3], [*crowd(4, 50), idle(2, [2] * 100, 2)], 200, id="what nobody waits for is not of it"
        ),
        pytest.param(
            [3],
            crowd(2, 63, sampling={"num_return_sequences": 2}),
            126,
            id="several choices compute a prompt once",
        ),
    ],
)
def test_few_streams_wait_for_a_crowd_once(generating: list[int], asked: list[Request], tokens: int) -> None:
    assert prompt_tokens_of_a_step(among(*generating), *asked) == tokens


def test_of_a_prompt_that_has_begun_the_rest_counts() -> None:
    subject = among(3)
    assert prompt_tokens_of_a_step(subject, request(2, [2, *range(1, 63), *range(62)], 2)) == 60
    assert prompt_tokens_of_a_step(subject, *crowd(3, 58)) == 65 + 3 * 58


def test_an_idle_prompt_that_has_begun_is_not_of_a_crowd() -> None:
    subject = among(3)
    assert 0 < prompt_tokens_of_a_step(subject, idle(2, [2] * 150, 2)) < 100
    assert prompt_tokens_of_a_step(subject, *crowd(4, 50)) == 200


def test_of_a_prompt_that_is_cached_the_rest_counts() -> None:
    subject = among(3)
    beginning = list(range(1, 41))
    subject.add([request(2, beginning, 1)], Iteration())
    for _ in range(3):
        subject.step(Iteration())
    asked = [request(20 + one, [*beginning, *[20 + one] * 40], 2) for one in range(5)]
    assert prompt_tokens_of_a_step(subject, *asked) == 200


def test_prompts_that_may_not_be_cut_are_not_bounded() -> None:
    limits = Limits(4, 200, enable_chunked_context=False, max_prompt_s=0.05)
    assert Planner(engine().pool, limits).pace.tokens is None


def test_what_is_computed_of_prompts_that_are_not_complete_is_counted() -> None:
    subject = engine(max_num_tokens=40, max_seq_len=200, num_blocks=1000)
    subject.add([request(1, list(range(60)) + [3] * 40, 2), request(2, [5] * 10, 2)], Iteration())
    counted = []
    for _ in range(4):
        subject.step(Iteration())
        counted.append(subject.num_partial_tokens)
    # 40 tokens an iteration: 10 of the shorter prompt go first, and its answer takes one of the next.
    assert counted == [30, 69, 0, 0]
