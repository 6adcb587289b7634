"""In-flight batching as a table of situations, and its invariants for any situation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.executors.reference.core.scheduler import (
    Active,
    CapacitySchedulerPolicy,
    Limits,
    Schedule,
    Steady,
    Waiting,
    schedule,
)

LIMITS = Limits(max_batch_size=4, max_num_tokens=10)


@pytest.mark.parametrize(
    ("waiting", "active", "free_blocks", "planned"),
    [
        pytest.param([], [], 9, Schedule(), id="nothing to do"),
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
            [Waiting(3, 5, 1, due=(1, 0)), Waiting(4, 5, 1, due=(3, 0))],
            [Active(1, 0), Active(2, 16, due=(2, 0))],
            9,
            Schedule((3,), ((3, 5), (2, 4)), (1,)),
            id="unless the new one goes before by its rank",
        ),
        pytest.param(
            [Waiting(3, 5, 1, due=(1, 0))],
            [Active(1, 4, due=(2, 0)), Active(2, 16, due=(1, 0))],
            9,
            Schedule((), ((2, 10),)),
            id="of prompts in flight, too, the first by rank goes first",
        ),
        pytest.param(
            [Waiting(3, 5, 1, due=(1, 0), behind=2), Waiting(4, 5, 1, due=(1, 1))],
            [Active(2, 16, due=(2, 0))],
            9,
            Schedule((), ((2, 10),)),
            id="nor do those that come after one that waits for it",
        ),
        pytest.param(
            [Waiting(3, 5, 10, due=(1, 0))],
            [Active(2, 16, due=(2, 0))],
            9,
            Schedule((), ((2, 10),)),
            id="what lacks blocks leaves the tokens to others",
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
        pytest.param(
            [Waiting(key, 1, 1) for key in range(1, 6)],
            [],
            9,
            Schedule((1, 2, 3, 4), ((1, 1), (2, 1), (3, 1), (4, 1))),
            id="so are places",
        ),
        pytest.param(
            [Waiting(3, 5, 1)],
            [Active(1, 0), Active(2, 8)],
            9,
            Schedule((3,), ((2, 8), (3, 1)), (1,)),
            id="a prompt begins with a single token, if there is no more room",
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
    sizes = {one.key: one.context_tokens for one in waiting} | {one.key: one.context_left for one in active}
    assert sum(tokens for _, tokens in plan.context) + len(plan.generation) <= max_num_tokens
    assert all(0 < tokens <= sizes[key] for key, tokens in plan.context)
    assert len(active) + len(plan.admitted) <= 4
    assert sum(one.most_blocks for one in waiting if one.key in plan.admitted) <= free_blocks
    assert list(plan.admitted) == [one.key for one in waiting][: len(plan.admitted)]
    assert set(plan.admitted) <= {key for key, _ in plan.context}
    # Every generating sequence moves, and the oldest prompt in flight does.
    assert list(plan.generation) == [one.key for one in active if one.context_left == 0]
    prompts_in_flight = [one.key for one in active if one.context_left]
    if prompts_in_flight:
        assert plan.context[0][0] == prompts_in_flight[0]


MAX_UTILIZATION = CapacitySchedulerPolicy.MAX_UTILIZATION


@pytest.mark.parametrize(
    ("waiting", "active", "free_blocks", "planned"),
    [
        pytest.param(
            [Waiting(3, 4, most_blocks=9, context_blocks=2)],
            [Active(1, 0, blocks_left=7, blocks_next=1)],
            3,
            Schedule((3,), ((3, 4),), (1,)),
            id="what fits now is admitted, whatever it may grow to",
        ),
        pytest.param(
            [Waiting(3, 4, 9, 3)],
            [Active(1, 0, blocks_next=1)],
            3,
            Schedule((), (), (1,)),
            id="the next step of those in flight goes before",
        ),
        pytest.param(
            [Waiting(4, 1, 1, 1)],
            [Active(key, 0, blocks_next=1, blocks_held=3) for key in (1, 2, 3)],
            1,
            Schedule((), (), (1, 2), paused=(3,)),
            id="the youngest is paused and nobody takes its place at once",
        ),
        pytest.param(
            [],
            [Active(key, 0, blocks_next=1, blocks_held=0) for key in (1, 2, 3)],
            0,
            Schedule((), (), (1,), paused=(3, 2)),
            id="the oldest is never paused",
        ),
        pytest.param(
            [],
            [Active(key, 0, blocks_next=2, blocks_held=1) for key in (1, 2, 3)],
            3,
            Schedule((), (), (1, 2), paused=(3,)),
            id="what a pause gives back is enough for the others",
        ),
        pytest.param(
            [],
            [Active(key, 0, blocks_next=2, blocks_held=1) for key in (1, 2, 3, 4)],
            3,
            Schedule((), (), (1, 2), paused=(4, 3)),
            id="as many are paused as it takes",
        ),
        pytest.param(
            [Waiting(4, 1, 1, 1)],
            [Active(1, 0, blocks_next=1), Active(2, 0, blocks_next=1), Active(3, 0, blocks_next=5)],
            3,
            Schedule((), (), (1, 2), paused=(3,)),
            id="though there would be a block",
        ),
        pytest.param(
            [], [Active(1, 0), Active(2, 5)], 0, Schedule((), ((2, 5),), (1,)), id="no room is needed"
        ),
    ],
)
def test_max_utilization(
    waiting: list[Waiting], active: list[Active], free_blocks: int, planned: Schedule
) -> None:
    assert schedule(waiting, active, free_blocks, Limits(4, 10, MAX_UTILIZATION)) == planned


def fetched(key: int, blocks: int) -> Waiting:
    return Waiting(key, 0, blocks, fetches=True)


@pytest.mark.parametrize(
    ("waiting", "active", "planned"),
    [
        pytest.param(
            [fetched(1, 4), Waiting(2, 3, 4)],
            [],
            Schedule((1, 2), ((2, 3),)),
            id="it takes a place and blocks, and no part of the iteration",
        ),
        pytest.param(
            [fetched(2, 4)],
            [Active(1, 16)],
            Schedule((2,), ((1, 10),)),
            id="though there are no tokens left",
        ),
        pytest.param([fetched(1, 8)], [], Schedule((1,)), id="it may take the last block"),
        pytest.param(
            [fetched(1, 9), Waiting(2, 3, 1)], [], Schedule(), id="and is not overtaken for lack of blocks"
        ),
        pytest.param(
            [fetched(1, 5), fetched(2, 4)], [], Schedule((1,)), id="blocks are counted within an iteration"
        ),
        pytest.param(
            [fetched(key, 1) for key in range(1, 6)], [], Schedule((1, 2, 3, 4)), id="so are places"
        ),
        pytest.param(
            [], [Active(1, 5, arriving=True), Active(2, 0)], Schedule((), (), (2,)), id="on its way, it waits"
        ),
    ],
)
def test_a_context_that_comes_from_elsewhere(
    waiting: list[Waiting], active: list[Active], planned: Schedule
) -> None:
    assert schedule(waiting, active, 8, LIMITS) == planned


@pytest.mark.parametrize(
    ("waiting", "active", "limits", "steady", "planned"),
    [
        pytest.param(
            [Waiting(9, 20, 1)],
            [],
            LIMITS,
            Steady(count=3, running=2),
            Schedule((9,), ((9, 8),)),
            id="those that run take a token each",
        ),
        pytest.param(
            [Waiting(8, 1, 1), Waiting(9, 1, 1)],
            [],
            LIMITS,
            Steady(count=3, running=2),
            Schedule((8,), ((8, 1),)),
            id="those that end have their places",
        ),
        pytest.param(
            [Waiting(9, 1, 3)],
            [Active(1, 0, blocks_left=2)],
            LIMITS,
            Steady(count=1, blocks_left=4),
            Schedule((), (), (1,)),
            id="the blocks of their ends are not given away",
        ),
        pytest.param(
            [],
            [Active(1, 0, blocks_next=3), Active(2, 0, blocks_next=3)],
            Limits(4, 10, MAX_UTILIZATION),
            Steady(count=1, running=1, blocks_next=3),
            Schedule((), (), (1,), paused=(2,)),
            id="nor those of their next steps",
        ),
        pytest.param(
            [Waiting(9, 1, 9, 3)],
            [Active(1, 0, blocks_next=3)],
            Limits(4, 10, MAX_UTILIZATION),
            Steady(count=1, running=1, blocks_next=3),
            Schedule((), (), (1,)),
            id="neither to those that wait",
        ),
        pytest.param(
            [],
            [Active(1, 0, draft_tokens=9, drafts_are_rows=True)],
            Limits(8, 100),
            Steady(count=5, running=4),
            Schedule((), (), (1,), drafts=((1, 3),)),
            id="each is a row",
        ),
    ],
)
def test_sequences_that_run_all_together(
    waiting: list[Waiting], active: list[Active], limits: Limits, steady: Steady, planned: Schedule
) -> None:
    assert schedule(waiting, active, 8, limits, steady) == planned


def test_without_chunks_a_prompt_waits_for_room() -> None:
    limits = Limits(4, 10, enable_chunked_context=False)
    waiting = [Waiting(3, 9, 1), Waiting(4, 1, 1)]
    assert schedule(waiting, [Active(1, 0), Active(2, 0)], 9, limits) == Schedule((), (), (1, 2))
    assert schedule(waiting, [Active(1, 0)], 9, limits) == Schedule((3,), ((3, 9),), (1,))


def test_who_waits_for_blocks_lets_others_pass() -> None:
    waiting = [Waiting(2, 3, 1, behind=1), Waiting(3, 3, 1)]
    assert schedule(waiting, [Active(1, 5)], 9, LIMITS) == Schedule((3,), ((1, 5), (3, 3)), ())


def test_drafts_take_what_is_left() -> None:
    active = [Active(1, 0, draft_tokens=5), Active(2, 3), Active(3, 0, draft_tokens=5)]
    planned = schedule([], active, 9, LIMITS)
    assert planned == Schedule((), ((2, 3),), (1, 3), drafts=((1, 5),))


def test_drafts_that_are_rows_leave_one_to_each_sequence() -> None:
    limits = Limits(4, 100, max_rows=8)
    active = [Active(key, 0, draft_tokens=3, drafts_are_rows=True) for key in range(3)]
    planned = schedule([Waiting(9, 5, 1)], active, 9, limits)
    assert planned == Schedule((9,), ((9, 5),), (0, 1, 2), drafts=((0, 3), (1, 1)))
    assert schedule([], active, 9, Limits(3, 100)).drafts == ()


def test_drafts_that_are_rows_stay_within_the_tokens() -> None:
    active = [Active(1, 0, draft_tokens=5, drafts_are_rows=True)]
    assert schedule([], active, 9, Limits(4, 3, max_rows=8)).drafts == ((1, 2),)


def test_drafts_that_are_no_rows_leave_those_to_others() -> None:
    active = [Active(1, 0, draft_tokens=2), Active(2, 0, draft_tokens=4, drafts_are_rows=True)]
    assert schedule([], active, 9, Limits(4, 100, max_rows=5)).drafts == ((1, 2), (2, 3))


@dataclass
class Simulated:
    """A sequence as the engine keeps it, with blocks of 4 tokens."""

    key: int
    prompt: int
    output: int
    generated: int = 0
    done: int = 0
    context: int = 0
    held: int = 0
    pauses: int = 0

    def __post_init__(self) -> None:
        self.context = self.prompt


@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=14),
    num_blocks=st.integers(10, 24),
    max_num_tokens=st.integers(4, 20),
    policy=st.sampled_from(list(CapacitySchedulerPolicy)),
    chunked=st.booleans(),
)
def test_every_sequence_comes_to_its_end(
    sizes: list[tuple[int, int]],
    num_blocks: int,
    max_num_tokens: int,
    policy: CapacitySchedulerPolicy,
    chunked: bool,
) -> None:
    """The scheduler over a cache of counted blocks: nobody starves, no block is missing or left over."""
    limits = Limits(4, 40 if not chunked else max_num_tokens, policy, chunked)
    queue = [Simulated(key, *size) for key, size in enumerate(sizes)]
    active: list[Simulated] = []
    free = num_blocks

    def blocks(tokens: int) -> int:
        return -(-tokens // 4)

    for _ in range(sum(prompt + output for prompt, output in sizes) * 8):
        if not queue and not active:
            break
        plan = schedule(
            [
                Waiting(one.key, one.context, blocks(one.prompt + one.output - 1), blocks(one.context))
                for one in queue
            ],
            [
                Active(
                    one.key,
                    one.context - one.done,
                    blocks(one.prompt + one.output - 1) - one.held,
                    blocks(one.prompt + one.generated) - one.held,
                    one.held,
                )
                for one in active
            ],
            free,
            limits,
        )
        if policy is CapacitySchedulerPolicy.GUARANTEED_NO_EVICT:
            assert not plan.paused
        assert list(plan.paused) == [one.key for one in active][::-1][: len(plan.paused)]
        for key in plan.paused:
            one = next(one for one in active if one.key == key)
            active.remove(one)
            free += one.held
            one.held, one.done, one.context = 0, 0, one.prompt + one.generated
            one.pauses += 1
            queue.append(one)
        queue.sort(key=lambda one: (not one.pauses, one.key))
        for key in plan.admitted:
            one = next(one for one in queue if one.key == key)
            queue.remove(one)
            active.append(one)
            one.held = blocks(one.context)
            free -= one.held
        by_key = {one.key: one for one in active}
        tokens = len(plan.generation) + sum(count for _, count in plan.context)
        assert 0 < tokens <= limits.max_num_tokens
        for key, count in plan.context:
            by_key[key].done += count
            by_key[key].generated += by_key[key].done == by_key[key].context
        for key in plan.generation:
            one = by_key[key]
            grown = blocks(one.prompt + one.generated) - one.held
            one.held, free = one.held + grown, free - grown
            one.generated += 1
        assert free >= 0
        for one in [one for one in active if one.generated == one.output]:
            active.remove(one)
            free += one.held
    assert not queue
    assert not active
    assert free == num_blocks


def idle(key: int, tokens: int) -> Waiting:
    return Waiting(key, tokens, 1, is_idle=True)


@pytest.mark.parametrize(
    ("waiting", "active", "planned"),
    [
        pytest.param(
            [idle(1, 9), idle(2, 2)],
            [],
            Schedule((1,), ((1, 4),)),
            id="idle prompts are taken in small chunks",
        ),
        pytest.param([idle(1, 2), idle(2, 9)], [], Schedule((1, 2), ((1, 2), (2, 2))), id="which they share"),
        pytest.param(
            [Waiting(1, 3, 1), idle(2, 2)],
            [],
            Schedule((1,), ((1, 3),)),
            id="none is processed next to a client's",
        ),
        pytest.param(
            [Waiting(3, 3, 1)],
            [Active(1, 5, is_idle=True), Active(2, 2)],
            Schedule((3,), ((2, 2), (3, 3))),
            id="nor one that has begun",
        ),
        pytest.param(
            [Waiting(4, 3, 1), idle(3, 9)],
            [Active(1, 6, is_idle=True)],
            Schedule((4,), ((4, 3),)),
            id="a client who waits goes before one that has begun",
        ),
        pytest.param(
            [Waiting(4, 3, 10), idle(3, 9)],
            [Active(1, 6, is_idle=True)],
            Schedule((), ((1, 4),)),
            id="unless there are no blocks for it",
        ),
        pytest.param(
            [idle(3, 9), idle(4, 9)],
            [Active(1, 3, is_idle=True), Active(2, 9, is_idle=True)],
            Schedule((), ((1, 3), (2, 1))),
            id="what has begun goes before what waits",
        ),
        pytest.param(
            [Waiting(4, 3, 1, behind=2), idle(3, 9)],
            [Active(1, 3, is_idle=True)],
            Schedule((3,), ((1, 3), (3, 1))),
            id="a client who waits for a block that is computed leaves the iteration",
        ),
        pytest.param(
            [idle(3, 9)],
            [Active(1, 0), Active(2, 0, is_idle=True)],
            Schedule((3,), ((3, 4),), (1, 2)),
            id="generation goes on for all",
        ),
    ],
)
def test_idle_prompts_come_after_clients(
    waiting: list[Waiting], active: list[Active], planned: Schedule
) -> None:
    assert schedule(waiting, active, 9, Limits(4, 20, idle_num_tokens=4)) == planned


def test_an_idle_prompt_that_may_not_be_cut_is_taken_whole() -> None:
    limits = Limits(4, 20, enable_chunked_context=False, idle_num_tokens=4)
    assert schedule([idle(1, 9), idle(2, 9)], [], 9, limits) == Schedule((1,), ((1, 9),))
    assert schedule([Waiting(1, 3, 1), idle(2, 2)], [], 9, limits) == Schedule((1,), ((1, 3),))


@pytest.mark.parametrize(
    ("first", "taken"),
    [(3, ((1, 3), (2, 9))), (4, ((1, 4),))],
    ids=["while one token is left", "but not once none is"],
)
def test_idle_prompts_that_have_begun_are_taken_whole(first: int, taken: tuple[tuple[int, int], ...]) -> None:
    limits = Limits(4, 20, enable_chunked_context=False, idle_num_tokens=4)
    begun = [Active(1, first, is_idle=True), Active(2, 9, is_idle=True)]
    assert schedule([], begun, 9, limits).context == taken
