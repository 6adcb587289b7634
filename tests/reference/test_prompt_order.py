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


@pytest.mark.parametrize("priority", [0.5, 0.9])
def test_who_waits_for_blocks_that_a_long_prompt_computes_waits_no_longer_than_it_must(
    priority: float,
) -> None:
    """Short ones pass the long prompt all the time, and would pass who waits for it as well."""
    given = NamedTensor("priority", "FP32", (1,), struct.pack("<f", priority))
    long = prompt(1, 60)
    arrivals = [[request(0, long, 2)], [request(1, [*long[:4], 9, 9], 2, tensors=[given])]]
    arrivals += [[request(2 + key, prompt(7 + key, 5), 2, tensors=[given])] for key in range(30)]
    assert order(engine(max_num_tokens=8), arrivals).index(1) <= 2


def test_a_prompt_that_has_begun_is_passed_for_no_longer_whatever_the_priority() -> None:
    urgent = NamedTensor("priority", "FP32", (1,), struct.pack("<f", 0.9))
    arrivals = [[request(0, prompt(3, 40), 2)]]
    arrivals += [[request(1 + key, prompt(7 + key, 7), 2, tensors=[urgent])] for key in range(40)]
    # Those due before it have 40 tokens, and one iteration's that were planned when it was not due.
    assert order(engine(max_num_tokens=8), arrivals).index(0) <= 7


def test_what_nobody_waits_for_holds_up_nobody() -> None:
    idle = NamedTensor("priority", "FP32", (1,), struct.pack("<f", 0.0))
    arrivals = [
        [request(0, prompt(1, 60), 2)],
        [request(1, prompt(2, 60), 2, tensors=[idle]), request(2, prompt(3, 60), 2, tensors=[idle])],
        [request(3, prompt(4, 5), 2)],
    ]
    assert order(engine(max_num_tokens=8), arrivals)[:2] == [3, 0]


def test_choices_count_where_each_computes_the_prompt() -> None:
    many = request(1, prompt(2, 10), 2, sampling={"num_return_sequences": 8})
    assert order(engine(max_num_tokens=8, reuse=False), [[request(0, prompt(1, 40), 2), many]]) == [0, 1]


def test_the_order_changes_no_token() -> None:
    token_ids, _ = expected("llama")
    prompts = [token_ids[:12], prompt(1, 40), token_ids[:3], prompt(2, 25)]
    alone = [run(engine(), [request(0, one, 6)])[0, 0].tokens for one in prompts]
    together = run(engine(max_num_tokens=8), [request(key, one, 6) for key, one in enumerate(prompts)])
    assert [together[key, 0].tokens for key in range(len(prompts))] == alone


@given(st.lists(st.integers(0, 1000), max_size=60))
def test_those_that_pass_a_prompt_have_at_most_its_tokens(lengths: list[int]) -> None:
    queue, owners = WaitingQueue(), [SimpleNamespace(due=0, is_idle=False) for _ in lengths]
    for owner, tokens in zip(owners, lengths, strict=True):
        queue.set_due(owner, tokens)  # type: ignore[arg-type]
    for place, tokens in enumerate(lengths):
        passing = [
            later
            for one, later in zip(owners[place + 1 :], lengths[place + 1 :], strict=True)
            if one.due < owners[place].due
        ]
        assert sum(passing) <= tokens
