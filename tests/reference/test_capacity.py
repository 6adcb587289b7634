"""What the engine does with little room: pausing and resuming, priorities, whole prompts, reuse of blocks."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from inflight.executors.base import FinishReason, NamedTensor, Request
from inflight.executors.reference.core.admission import Bounds
from inflight.executors.reference.core.blocks import BlockPool
from inflight.executors.reference.core.drafts import Checks
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.reuse import ReuseIndex
from inflight.executors.reference.core.runner import Outcome, Pending, Work
from inflight.executors.reference.core.sampler import SamplerState
from inflight.executors.reference.core.scheduler import CapacitySchedulerPolicy, Limits

from .support import AllTold, collect, engine, expected, request, run

MAX_UTILIZATION = CapacitySchedulerPolicy.MAX_UTILIZATION
PROMPT = [(7 * token) % 61 + 3 for token in range(18)]


def scalar(name: str, value: float, datatype: str = "FP32") -> NamedTensor:
    dtype = {"FP32": "<f4", "INT32": "<i4"}[datatype]
    return NamedTensor(name, datatype, (1,), np.array([value], dtype=dtype).tobytes())


def salted(salt: str) -> list[NamedTensor]:
    data = salt.encode()
    return [NamedTensor("inflight_cache_salt", "BYTES", (1,), len(data).to_bytes(4, "little") + data)]


def run_counting_pauses(subject: Engine, requests: list[Request]) -> tuple[AllTold, int]:
    iteration = Iteration()
    subject.add(requests, iteration)
    told = collect(iteration.rows)
    pauses = 0
    for _ in range(3000):
        if not subject.has_work:
            return told, pauses
        iteration = Iteration()
        subject.step(iteration)
        pauses += iteration.paused
        collect(iteration.rows, told)
    raise AssertionError("work is left")


def mixed(count: int = 6) -> list[Request]:
    kinds: list[dict[str, Any]] = [
        {},
        {"top_p": 0.9, "temperature": 2.0, "seed": 4},
        {"repetition_penalty": 1.7, "frequency_penalty": 0.3},
    ]
    return [
        request(
            key,
            [5 + key, *PROMPT[: 4 + key]],
            24,
            sampling=kinds[key % 3],
            streaming=key % 2 == 0,
            output={"return_log_probs": True},
        )
        for key in range(count)
    ]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("reuse", [True, False])
def test_what_is_paused_goes_on_as_if_nothing_had_been(reuse: bool, depth: int) -> None:
    told, pauses = run_counting_pauses(
        engine(num_blocks=16, max_seq_len=60, policy=MAX_UTILIZATION, reuse=reuse, depth=depth), mixed()
    )
    assert pauses > 3
    for one in mixed():
        alone = run(engine(reuse=False), [one])[one.client_id, 0]
        beside = told[one.client_id, 0]
        assert (beside.tokens, beside.finish_reason) == (alone.tokens, FinishReason.LENGTH)
        assert beside.log_probs == pytest.approx(alone.log_probs, abs=1e-3)
        assert beside.rows == alone.rows


def test_the_same_requests_are_never_paused_where_no_evict_is_guaranteed() -> None:
    told, pauses = run_counting_pauses(engine(num_blocks=16, max_seq_len=60), mixed())
    assert pauses == 0
    assert all(one.finish_reason == FinishReason.LENGTH for one in told.values())


def test_the_highest_priority_is_admitted_first() -> None:
    subject = engine(max_batch_size=1)
    requests = [
        request(key, PROMPT, 2, tensors=[scalar("priority", priority)])
        for key, priority in enumerate([0.5, 0.1, 0.9, 0.5])
    ]
    finals = []
    iteration = Iteration()
    subject.add(requests, iteration)
    while subject.has_work:
        iteration = Iteration()
        subject.step(iteration)
        finals += [row.client_id for row in iteration.rows if row.final]
    assert finals == [2, 0, 3, 1]


def test_without_chunks_a_prompt_that_no_iteration_takes_is_refused() -> None:
    subject = engine(max_num_tokens=16, max_batch_size=4, chunked=False)
    told = run(subject, [request(1, PROMPT, 3), request(2, PROMPT[:16], 3)])
    assert "enable_chunked_context" in (told[1, 0].error or "")
    assert told[2, 0].tokens == run(engine(), [request(2, PROMPT[:16], 3)])[2, 0].tokens


def test_a_hot_prompt_is_found_and_says_the_same() -> None:
    subject = engine()
    cold = run(subject, [request(1, PROMPT, 12)])[1, 0]
    hot = run(subject, [request(2, PROMPT, 12)])[2, 0]
    assert (cold.cached_tokens, hot.cached_tokens) == ([0], [17])
    assert hot.tokens == cold.tokens
    # A conversation goes on: the answer is found as well, in part of its last block.
    longer = [*PROMPT, *cold.tokens, 7, 8, 9]
    on = run(subject, [request(3, longer, 8)])[3, 0]
    assert on.cached_tokens == [len(PROMPT) + 11]
    assert on.tokens == run(engine(reuse=False), [request(3, longer, 8)])[3, 0].tokens
    kinds = [event["data"]["type"] for event in subject.pool.take_events()]
    assert set(kinds) == {"stored"}
    assert subject.pool.take_events() == []


def test_a_salt_hides_what_was_computed() -> None:
    subject = engine()
    for key, salt, found in [(1, "a", 0), (2, "b", 0), (3, "a", 17), (4, "b", 17)]:
        [told] = run(subject, [request(key, PROMPT, 2, tensors=salted(salt))]).values()
        assert told.cached_tokens == [found]


def test_sequences_of_one_prompt_compute_it_once() -> None:
    subject = engine()
    sampling = {"num_return_sequences": 4, "top_p": 1.0, "seed": 3}
    tokens = 0
    iteration = Iteration()
    subject.add([request(1, PROMPT, 4, sampling=sampling)], iteration)
    told = collect(iteration.rows)
    while subject.has_work:
        iteration = Iteration()
        subject.step(iteration)
        tokens += iteration.context_tokens
        collect(iteration.rows, told)
    # The three others find its four full blocks and compute the two tokens that are left.
    assert tokens == len(PROMPT) + 3 * 2
    apart = run(engine(reuse=False), [request(1, PROMPT, 4, sampling=sampling)])
    assert {key: one.tokens for key, one in told.items()} == {key: one.tokens for key, one in apart.items()}


def test_prompt_log_probs_are_right_where_the_prompt_is_hot() -> None:
    token_ids, logits = expected("llama")
    subject = engine(max_num_tokens=10, max_batch_size=4)
    run(subject, [request(1, token_ids, 2)])
    told = run(subject, [request(2, token_ids, 2, output={"num_prompt_log_probs": 1})])[2, 0]
    [row] = told.prompt_rows
    assert row.prompt is not None
    reference = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(
        row.prompt.values[1:], reference[np.arange(len(token_ids) - 1), token_ids[1:]], atol=1e-4
    )
    assert told.cached_tokens == [0]


def test_blocks_of_high_priority_outlive_the_others_until_their_time_is_over() -> None:
    ranges = [
        NamedTensor(f"retention_token_range_{name}", "INT32", (1,), np.array([value], "<i4").tobytes())
        for name, value in (("starts", 0), ("ends", -1), ("priorities", 90), ("durations_ms", 5000))
    ]

    def found_after_flood(now_s: float) -> int:
        subject = engine(num_blocks=12, max_seq_len=40)
        run(subject, [request(1, PROMPT, 2, tensors=ranges)])
        quiet = Iteration(now_s=now_s)
        subject.step(quiet)
        for key in range(2, 6):
            start = Iteration(now_s=now_s)
            subject.add([request(key, [key + 20] * 16, 2)], start)
            while subject.has_work:
                subject.step(Iteration(now_s=now_s))
        told = collect([])
        last = Iteration(now_s=now_s)
        subject.add([request(9, PROMPT, 2)], last)
        while subject.has_work:
            last = Iteration(now_s=now_s)
            subject.step(last)
            collect(last.rows, told)
        return told[9, 0].cached_tokens[0]

    assert found_after_flood(1.0) >= 16
    assert found_after_flood(6.0) == 0


class CountingRunner:
    """Gives each row the token that follows from all tokens before it, so that none may be lost."""

    depth = 2

    def follows(self, _: SamplerState) -> bool:
        return False

    def checks(self, _: SamplerState) -> Checks:
        return Checks.NOT

    def launch(self, work: Work) -> Outcome:
        tokens = [sum(one.known) % 61 + 3 for one in work.choosing()]
        return Outcome(tokens)

    def choose(self, pending: Pending) -> None:
        raise AssertionError(f"no request of these tests needs the tokens before: {pending}")

    def collect(self, pending: Pending) -> Outcome:
        assert isinstance(pending, Outcome)
        return pending


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_ten_thousand_requests_and_cancels_leave_nothing_in_use(policy: CapacitySchedulerPolicy) -> None:
    """Mixed lengths, sequences and priorities, cancels at random: no block in use, no growing state."""
    draw = np.random.default_rng(11)
    limits = Limits(64, 512, policy)
    pool = BlockPool(120, 4, ReuseIndex(4, True, 50))
    bounds = Bounds(64, 128, 120, 4, 400, None, policy is MAX_UTILIZATION)
    subject = Engine(CountingRunner(), pool, limits, bounds)
    finals: set[int] = set()
    added, objects, pauses = 0, 0, 0
    for target in (5000, 10000):
        while added < target or subject.has_work:
            iteration = Iteration(now_s=float(added))
            while added < target and subject.num_waiting < 60:
                prompt = [int(token) for token in draw.integers(3, 6, size=int(draw.integers(1, 24)))]
                sampling = {"num_return_sequences": 1 + int(draw.random() < 0.1)}
                tensors = [scalar("priority", float(draw.random()))] if draw.random() < 0.2 else []
                asked = request(added, prompt, int(draw.integers(0, 20)), sampling=sampling, tensors=tensors)
                subject.add([asked], iteration)
                added += 1
            if draw.random() < 0.5:
                subject.cancel([added - int(draw.integers(1, 120))], iteration)
            subject.step(iteration)
            pauses += iteration.paused
            for row in iteration.rows:
                assert row.error is None
                if row.final:
                    assert row.client_id not in finals
                    finals.add(row.client_id)
        assert finals == set(range(target))
        assert (pool.used, pool.available) == (0, 120)
        # What the cache remembers is as much as it has blocks.
        gc.collect()
        before, objects = objects, len(gc.get_objects())
    assert objects < before + 500
    assert (pauses > 0) == (policy is MAX_UTILIZATION)
