"""The bound on prompt tokens follows what they take, and holds only while a client waits for tokens."""

from __future__ import annotations

import pytest

from inflight.executors.base import Request
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


def test_prompts_that_may_not_be_cut_are_not_bounded() -> None:
    limits = Limits(4, 200, enable_chunked_context=False, max_prompt_s=0.05)
    assert Planner(engine().pool, limits).pace.tokens is None
