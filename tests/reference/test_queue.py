"""The waiting queue alone: its order, and what is due when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inflight.executors.reference.core.queue import WaitingQueue, due


def waiting(key: int, due: int | None = 0, **state: Any) -> Any:
    """A sequence, as far as the queue looks at it."""
    extras = SimpleNamespace(priority=state.get("priority", 0.5))
    owner = SimpleNamespace(
        due=due, is_idle=state.get("is_idle", False), admitted=SimpleNamespace(extras=extras)
    )
    sampler = SimpleNamespace(generated=state.get("generated", []))
    return SimpleNamespace(key=key, owner=owner, paused=state.get("paused", False), sampler=sampler)


def keys(queue: WaitingQueue) -> list[int]:
    return [one.key for one in queue]


@pytest.mark.parametrize(
    "ordered",
    [
        pytest.param([waiting(2, 5), waiting(1, 6)], id="who is due first"),
        pytest.param([waiting(1, 5), waiting(2, 5)], id="of those due at once, who came first"),
        pytest.param([waiting(2, None), waiting(1, 1)], id="due at once, where that was not set"),
        pytest.param([waiting(2, 9, priority=0.6), waiting(1, 1)], id="priority before that"),
        pytest.param(
            [waiting(2, 9, priority=0.1, paused=True), waiting(1, 1)], id="who was paused before both"
        ),
        pytest.param([waiting(2, 9, generated=[7]), waiting(1, 1)], id="so is who has begun elsewhere"),
        pytest.param(
            [waiting(2, 9), waiting(1, 1, is_idle=True, paused=True)], id="idle ones last, begun or not"
        ),
    ],
)
def test_the_order(ordered: list[Any]) -> None:
    for arrivals in (ordered, ordered[::-1]):
        queue = WaitingQueue()
        for one in arrivals:
            queue.push(one)
        assert list(queue) == ordered
        assert len(queue) == 2


def test_each_is_removed_once_and_nothing_else_goes() -> None:
    queue = WaitingQueue()
    sequences = [waiting(key) for key in (1, 2, 3)]
    for one in sequences:
        queue.push(one)
    # Of the same rank as one that waits, and another one.
    assert queue.remove(waiting(2)) is False
    assert queue.remove(waiting(9)) is False
    assert queue.remove(sequences[1]) is True
    assert queue.remove(sequences[1]) is False
    assert keys(queue) == [1, 3]


def test_a_request_is_due_once_twice_its_tokens_have_come() -> None:
    queue = WaitingQueue()
    first, idle, second, other = waiting(1), waiting(2, is_idle=True), waiting(3), waiting(4, is_idle=True)
    for one, tokens in ((first, 30), (idle, 7), (second, 4), (other, 5)):
        queue.set_due(one.owner, tokens)
    assert [due(one) for one in (first, second)] == [(60, 1), (38, 3)]
    # What nobody waits for counts by itself.
    assert [due(one) for one in (idle, other)] == [(14, 2), (17, 4)]


def test_a_request_that_needs_nothing_computed_is_due_now_and_does_not_count() -> None:
    queue = WaitingQueue()
    long, cached, last = waiting(1), waiting(2), waiting(3)
    for one, tokens in ((long, 50), (cached, 30)):
        queue.set_due(one.owner, tokens)
        queue.push(one)
    assert keys(queue) == [1, 2]
    queue.hurry(cached, 30)
    assert keys(queue) == [2, 1]
    assert due(cached) == (50, 2)
    queue.set_due(last.owner, 3)
    assert due(last) == (56, 3)
