"""Short prompts pass long ones, as far as a long one can bear it; what is cached makes a prompt short."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.executors.base import NamedTensor, Request
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.queue import WaitingQueue

from .support import engine, expected, request, run


def prompt(seed: int, length: int) -> list[int]:
    return [(seed + 11 * place) % 61 + 3 for place in range(length)]


def order(subject: Engine, arrivals: list[list[Request]]) -> list[int]:
    """Clients in the order of their first tokens, where each list arrives an iteration after the last."""
    first: list[int] = []
    for step in range(400):
        iteration = Iteration()
        if step < len(arrivals):
            subject.add(arrivals[step], iteration)
        elif not subject.has_work:
            return first
        subject.step(iteration)
        for row in iteration.rows:
            assert row.error is None
            if row.client_id not in first:
                first.append(row.client_id)
    raise AssertionError("work is left")


@pytest.mark.parametrize(
    ("lengths", "expected_order"),
    [
        pytest.param([[60], [5]], [1, 0], id="a prompt that has begun lets a short one pass"),
        pytest.param([[60, 5]], [1, 0], id="one that waits as well"),
        pytest.param([[30, 30]], [0, 1], id="prompts of one length keep their order"),
        pytest.param([[40, 30]], [0, 1], id="nearly as long is not short"),
        # Both the long one and the third short one are due after 80 tokens.
        pytest.param([[40, *[10] * 9]], [1, 2, 0, *range(3, 10)], id="of a crowd a few pass"),
    ],
)
def test_order_of_first_tokens(lengths: list[list[int]], expected_order: list[int]) -> None:
    key = 0
    arrivals = []
    for together in lengths:
        arrivals.append(
            [request(key + place, prompt(key + place, one), 2) for place, one in enumerate(together)]
        )
        key += len(together)
    assert order(engine(max_num_tokens=8, max_batch_size=8), arrivals) == expected_order


def test_what_is_cached_counts_for_nothing() -> None:
    subject = engine(max_num_tokens=8, max_batch_size=4)
    known = prompt(50, 60)
    run(subject, [request(9, known, 2)])
    assert order(subject, [[request(0, prompt(3, 30), 2), request(1, [*known, 5, 6], 2)]]) == [1, 0]


def test_priority_goes_before_length() -> None:
    urgent = NamedTensor("priority", "FP32", (1,), struct.pack("<f", 0.9))
    long = request(0, prompt(3, 60), 2, tensors=[urgent])
    assert order(engine(max_num_tokens=8), [[long, request(1, prompt(7, 4), 2)]]) == [0, 1]


def test_the_order_changes_no_token() -> None:
    token_ids, _ = expected("llama")
    prompts = [token_ids[:12], prompt(1, 40), token_ids[:3], prompt(2, 25)]
    alone = [run(engine(), [request(0, one, 6)])[0, 0].tokens for one in prompts]
    together = run(engine(max_num_tokens=8), [request(key, one, 6) for key, one in enumerate(prompts)])
    assert [together[key, 0].tokens for key in range(len(prompts))] == alone


@given(st.lists(st.integers(0, 1000), max_size=60))
def test_those_that_pass_a_prompt_have_at_most_its_tokens(lengths: list[int]) -> None:
    queue, owners = WaitingQueue(), [SimpleNamespace(due=0) for _ in lengths]
    for owner, tokens in zip(owners, lengths, strict=True):
        queue.expect(owner, tokens)  # type: ignore[arg-type]
    for place, tokens in enumerate(lengths):
        passing = [
            later
            for one, later in zip(owners[place + 1 :], lengths[place + 1 :], strict=True)
            if one.due < owners[place].due
        ]
        assert sum(passing) <= tokens
