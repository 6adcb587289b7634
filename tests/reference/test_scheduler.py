"""In-flight batching as a table of situations, and its invariants for any situation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.executors.reference.scheduler import Active, Limits, Schedule, Waiting, schedule

LIMITS = Limits(max_batch_size=4, max_num_tokens=10)


@pytest.mark.parametrize(
    ("waiting", "active", "free_blocks", "planned"),
    [
        pytest.param([], [], 9, Schedule((), (), ()), id="nothing to do"),
        pytest.param(
            [Waiting(1, 3, 1), Waiting(2, 4, 1)],
            [],
            9,
            Schedule((1, 2), ((1, 3), (2, 4)), ()),
            id="prompts share an iteration",
        ),
        pytest.param(
            [Waiting(3, 5, 1)],
            [Active(1, 0), Active(2, 0)],
            9,
            Schedule((3,), ((3, 5),), (1, 2)),
            id="context and generation mix",
        ),
        pytest.param(
            [Waiting(2, 25, 1)], [Active(1, 0)], 9, Schedule((2,), ((2, 9),), (1,)), id="a long prompt is cut"
        ),
        pytest.param(
            [Waiting(3, 5, 1)],
            [Active(1, 0), Active(2, 16)],
            9,
            Schedule((), ((2, 9),), (1,)),
            id="a prompt in flight goes before a new one",
        ),
        pytest.param(
            [Waiting(3, 5, 1)],
            [Active(1, 0), Active(2, 7)],
            9,
            Schedule((3,), ((2, 7), (3, 2)), (1,)),
            id="what a prompt leaves goes to the next",
        ),
        pytest.param(
            [Waiting(5, 1, 1)],
            [Active(key, 0) for key in range(1, 5)],
            9,
            Schedule((), (), (1, 2, 3, 4)),
            id="the batch is full",
        ),
        pytest.param(
            [Waiting(2, 1, 5), Waiting(3, 1, 1)],
            [Active(1, 0)],
            4,
            Schedule((), (), (1,)),
            id="a small request does not overtake one that lacks blocks",
        ),
        pytest.param(
            [Waiting(1, 1, 3), Waiting(2, 1, 2)],
            [],
            4,
            Schedule((1,), ((1, 1),), ()),
            id="blocks are counted within an iteration",
        ),
    ],
)
def test_situations(
    waiting: list[Waiting], active: list[Active], free_blocks: int, planned: Schedule
) -> None:
    assert schedule(waiting, active, free_blocks, LIMITS) == planned


@given(
    prompts=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 6)), max_size=8),
    left=st.lists(st.integers(0, 30), max_size=4),
    free_blocks=st.integers(0, 12),
    max_num_tokens=st.integers(4, 20),
)
def test_limits_hold_and_work_moves(
    prompts: list[tuple[int, int]], left: list[int], free_blocks: int, max_num_tokens: int
) -> None:
    waiting = [Waiting(100 + index, tokens, blocks) for index, (tokens, blocks) in enumerate(prompts)]
    active = [Active(index, tokens) for index, tokens in enumerate(left)]
    plan = schedule(waiting, active, free_blocks, Limits(4, max_num_tokens))
    sizes = {one.key: one.prompt_tokens for one in waiting} | {one.key: one.context_left for one in active}
    assert sum(tokens for _, tokens in plan.context) + len(plan.generation) <= max_num_tokens
    assert all(0 < tokens <= sizes[key] for key, tokens in plan.context)
    assert len(active) + len(plan.admitted) <= 4
    assert sum(one.blocks for one in waiting if one.key in plan.admitted) <= free_blocks
    assert list(plan.admitted) == [one.key for one in waiting][: len(plan.admitted)]
    assert set(plan.admitted) <= {key for key, _ in plan.context}
    # Every generating sequence moves, and the oldest prompt in flight does.
    assert list(plan.generation) == [one.key for one in active if one.context_left == 0]
    prompts_in_flight = [one.key for one in active if one.context_left]
    if prompts_in_flight:
        assert plan.context[0][0] == prompts_in_flight[0]
