"""The engine, iteration by iteration: batching that changes nothing, every way to end, nothing leaked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.executors.base import FinishReason, NamedTensor, Request
from inflight.executors.reference.core.drafts import LookupConfig
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.rows import Row
from inflight.executors.reference.core.scheduler import CapacitySchedulerPolicy

from .support import Told, collect, engine, expected, request, run

PROMPT = [3, 4, 5, 6]


def greedy(name: str = "llama", prompt: list[int] | None = None, max_tokens: int = 12) -> list[int]:
    """What the model says by itself."""
    return run(engine(name), [request(1, prompt or PROMPT, max_tokens)])[1, 0].tokens


def mixed_requests(count: int) -> list[Request]:
    """Prompts of 1 to 60 tokens, outputs of 1 to 30."""
    draw = np.random.default_rng(5)
    return [
        request(
            client_id,
            draw.integers(3, 64, size=int(draw.integers(1, 60))).tolist(),
            int(draw.integers(1, 30)),
            output={"num_top_log_probs": 2, "return_log_probs": True},
        )
        for client_id in range(count)
    ]


@pytest.mark.parametrize("name", ["llama", "mistral_window", "qwen3"])
@pytest.mark.parametrize("max_num_tokens", [64, 4096])
def test_greedy_output_among_64_equals_the_output_alone(name: str, max_num_tokens: int) -> None:
    requests = mixed_requests(64)
    together = run(engine(name, max_num_tokens=max_num_tokens, num_blocks=2000), requests)
    compared = 0
    for one in requests:
        alone = run(engine(name), [one])[one.client_id, 0]
        beside = together[one.client_id, 0]
        for position, (token, other) in enumerate(zip(alone.tokens, beside.tokens, strict=True)):
            if token != other:
                # Only a near tie of the two best may fall otherwise; what follows it is another text.
                assert abs(gap(alone, position)) < 1e-3
                break
            compared += 1
            assert beside.log_probs[position] == pytest.approx(alone.log_probs[position], abs=1e-3)
    assert compared > 0.95 * sum(one.max_tokens for one in requests)


def gap(told: Told, position: int) -> float:
    return told.top_values[position][0] - told.top_values[position][1]


def test_a_prompt_in_chunks_says_the_same() -> None:
    prompt = [(7 * token) % 61 + 3 for token in range(90)]
    whole = run(engine(max_num_tokens=256), [request(1, prompt, 20)])[1, 0].tokens
    chunked = run(engine(max_num_tokens=64, max_batch_size=8), [request(1, prompt, 20)])[1, 0].tokens
    assert chunked == whole


def test_streaming_tells_a_token_a_row_and_not_streaming_one_row() -> None:
    streamed = run(engine(), [request(1, PROMPT, 6)])[1, 0]
    at_once = run(engine(), [request(1, PROMPT, 6, streaming=False)])[1, 0]
    assert (streamed.rows, at_once.rows) == (6, 1)
    assert streamed.tokens == at_once.tokens
    assert streamed.finish_reason == at_once.finish_reason == FinishReason.LENGTH


def test_the_end_token_and_a_stop_word_are_told() -> None:
    tokens = greedy()
    end = tokens[4]
    ended = run(engine(), [request(1, PROMPT, 12, end_id=end, output={"return_log_probs": True})])[1, 0]
    cut = tokens[: tokens.index(end) + 1]
    assert (ended.tokens, ended.finish_reason) == (cut, FinishReason.END_ID)
    assert len(ended.log_probs) == len(cut)
    whole = run(engine(), [request(1, PROMPT, 12, output={"return_log_probs": True})])[1, 0]
    assert ended.log_probs == pytest.approx(whole.log_probs[: len(cut)], abs=1e-5)
    word = tokens[3:5]
    stopped = run(engine(), [request(1, PROMPT, 12, stop_words=[[63, 63], word])])[1, 0]
    assert stopped.tokens[-2:] == word
    assert stopped.tokens == tokens[: len(stopped.tokens)]
    assert stopped.finish_reason == FinishReason.STOP_WORDS


def test_the_minimum_length_holds_back_the_end() -> None:
    end = greedy()[0]
    told = run(engine(), [request(1, PROMPT, 12, end_id=end, sampling={"min_tokens": 5})])[1, 0]
    assert len(told.tokens) >= 5
    assert end not in told.tokens[:5]


def test_several_sequences_have_streams_of_their_own() -> None:
    sampling = {"num_return_sequences": 3, "top_p": 1.0, "seed": 5, "temperature": 3.0}
    told = run(engine(), [request(1, PROMPT, 16, sampling=sampling)])
    assert set(told) == {(1, 0), (1, 1), (1, 2)}
    assert len({tuple(one.tokens) for one in told.values()}) == 3
    assert [one.final for one in told.values()].count(True) == 1
    first = run(engine(), [request(1, PROMPT, 16, sampling=sampling | {"num_return_sequences": 1})])
    assert first[1, 0].tokens == told[1, 0].tokens


def test_a_seed_says_the_same_alone_and_among_others() -> None:
    def asked(client_id: int) -> Request:
        return request(client_id, PROMPT, 16, sampling={"top_p": 0.95, "seed": client_id, "temperature": 2.0})

    together = run(engine(), [asked(client_id) for client_id in range(20)])
    for client_id in range(20):
        assert run(engine(), [asked(client_id)])[client_id, 0].tokens == together[client_id, 0].tokens


@pytest.mark.parametrize("max_num_tokens", [64, 8])
def test_prompt_log_probs_are_those_of_transformers(max_num_tokens: int) -> None:
    token_ids, logits = expected("llama")
    subject = engine(max_num_tokens=max_num_tokens, max_batch_size=4)
    asked = {"num_prompt_log_probs": 3}
    told = run(subject, [request(9, [5] * 10), request(1, token_ids, 3, output=asked)])[1, 0]
    [row] = told.prompt_rows
    assert row.prompt is not None
    reference = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert np.isnan(row.prompt.values[0])
    assert row.prompt.top_ids[0].tolist() == [-1, -1, -1]
    np.testing.assert_allclose(
        row.prompt.values[1:], reference[np.arange(len(token_ids) - 1), token_ids[1:]], atol=1e-4
    )
    np.testing.assert_array_equal(row.prompt.top_ids[1:], np.argsort(-reference, axis=1)[:-1, :3])


def test_log_probs_are_of_the_model_whatever_the_sampling() -> None:
    token_ids, logits = expected("llama")
    reference = logits[-1] - np.log(np.exp(logits[-1]).sum())
    told = run(
        engine(),
        [
            request(
                1,
                token_ids,
                1,
                sampling={"temperature": 0.3, "top_k": 4, "repetition_penalty": 1.5},
                logit_bias=[(9, 100.0)],
                output={"return_log_probs": True, "num_top_log_probs": 2},
            )
        ],
    )[1, 0]
    assert told.tokens == [9]
    assert told.log_probs == [pytest.approx(float(reference[9]), abs=1e-4)]
    assert told.top_ids == [np.argsort(-reference)[:2].tolist()]


@pytest.mark.parametrize("lookup", [None, LookupConfig(4, 2)])
def test_alternatives_may_be_named(lookup: LookupConfig | None) -> None:
    named = [60, 7, 3]
    ids = NamedTensor("inflight_log_prob_ids", "INT32", (3,), np.array(named, "<i4").tobytes())
    prompt = PROMPT * 4
    output = {"return_log_probs": True}
    told = run(
        engine(lookup=lookup),
        [
            request(1, prompt, 6, output={**output, "num_top_log_probs": 3}, tensors=[ids]),
            request(2, prompt, 6, output={**output, "num_top_log_probs": 64}),
        ],
    )
    one, every = told[1, 0], told[2, 0]
    assert one.tokens == every.tokens
    assert one.log_probs == pytest.approx(every.log_probs, abs=1e-5)
    assert one.top_ids == [named] * 6
    for values, all_ids, all_values in zip(one.top_values, every.top_ids, every.top_values, strict=True):
        expected_values = dict(zip(all_ids, all_values, strict=True))
        assert values == pytest.approx([expected_values[one] for one in named], abs=1e-5)


def test_no_tokens_may_be_asked_for() -> None:
    told = run(engine(), [request(1, PROMPT, 0, output={"num_prompt_log_probs": 0})])[1, 0]
    assert (told.tokens, told.finish_reason, told.final) == ([], FinishReason.LENGTH, True)
    assert len(told.prompt_rows) == 1


@pytest.mark.parametrize("streaming", [True, False])
def test_cancel_is_answered_before_the_next_iteration(streaming: bool) -> None:
    subject = engine(max_batch_size=2)
    start = Iteration()
    sampling = {"num_return_sequences": 2, "top_p": 1.0}
    subject.add([request(1, PROMPT, 50, sampling=sampling, streaming=streaming)], start)
    subject.add([request(2, PROMPT, 50), request(3, PROMPT, 50)], start)
    told = collect(start.rows)
    # An iteration ahead, tokens come an iteration later.
    for _ in range(2 + subject.depth):
        iteration = Iteration()
        subject.step(iteration)
        collect(iteration.rows, told)
    assert (subject.num_active, subject.num_waiting) == (2, 2)
    stopping = Iteration()
    subject.cancel([1, 3, 77], stopping)
    subject.cancel([1], stopping)
    assert (subject.num_active, subject.num_waiting, subject.pool.used) == (0, 1, 0)
    collect(stopping.rows, told)
    assert [one.finish_reason for one in told.values()] == [FinishReason.CANCELLED] * 3
    assert [key for key, one in told.items() if one.final] == [(1, 1), (3, 0)]
    assert len(told[1, 0].tokens) == 3


def test_refusals_leave_the_others_alone() -> None:
    requests = [
        request(1, []),
        request(2, PROMPT, 3),
        request(3, [64]),
        request(2, PROMPT, 3),
        request(4, PROMPT, 3, sampling={"num_return_sequences": 500}),
    ]
    subject = engine()
    iteration = Iteration()
    subject.add(requests, iteration)
    refused = {row.client_id: row for row in iteration.rows}
    assert set(refused) == {1, 2, 3, 4}
    assert all(row.final and row.error for row in iteration.rows)
    assert "queue" in (refused[4].error or ("", ""))[1]
    for _ in range(subject.depth):
        step = Iteration()
        subject.step(step)
    assert [row.client_id for row in step.rows] == [2]


def test_a_client_id_may_be_used_again_once_it_is_final() -> None:
    subject = engine()
    first = run(subject, [request(1, PROMPT, 3)])
    assert run(subject, [request(1, PROMPT, 3)])[1, 0].tokens == first[1, 0].tokens


def test_requests_wait_for_blocks_and_none_is_evicted() -> None:
    # Each needs 4 of 10 blocks at its longest: two run at a time.
    subject = engine(num_blocks=10, max_seq_len=40)
    requests = [request(client_id, PROMPT, 13) for client_id in range(5)]
    iteration = Iteration()
    subject.add(requests, iteration)
    told = collect(iteration.rows)
    most = 0
    while subject.has_work:
        iteration = Iteration()
        subject.step(iteration)
        most = max(most, subject.num_active)
        collect(iteration.rows, told)
    assert most == 2
    assert all(one.tokens == told[0, 0].tokens for one in told.values())
    assert subject.pool.used == 0


ACTION = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 40), st.integers(0, 20), st.integers(1, 3)),
    st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0), st.just(0)),
    st.tuples(st.just("step"), st.just(0), st.just(0), st.just(0)),
)


def test_planning_ahead_of_the_tokens_changes_none_of_them() -> None:
    """Depth 2 plans each iteration before the last one's tokens are known, as a device needs it."""
    told = greedy(max_tokens=20)
    word = told[5:7]
    samplings: list[dict[str, Any]] = [
        {},
        {"top_p": 0.9, "temperature": 2.0, "seed": 4, "num_return_sequences": 2},
        {"repetition_penalty": 1.7, "frequency_penalty": 0.3},
        {"top_k": 3, "temperature": 3.0, "min_tokens": 9},
    ]
    output = {"return_log_probs": True, "num_top_log_probs": 2, "num_prompt_log_probs": 1}
    requests = [
        request(
            10 * index + length,
            PROMPT * length,
            20 - length,
            sampling=sampling,
            output=output,
            end_id=told[9],
            stop_words=[word],
            bad_words=[told[10:12]] if length == 3 else [],
        )
        for index, sampling in enumerate(samplings)
        for length in (1, 2, 3, 7)
    ]
    alike = [
        run(engine(max_batch_size=6, max_num_tokens=20, num_blocks=60, depth=depth), requests)
        for depth in (1, 2)
    ]
    for key, one in alike[0].items():
        other = alike[1][key]
        assert (one.tokens, one.finish_reason, one.rows) == (other.tokens, other.finish_reason, other.rows)
        assert one.top_ids == other.top_ids
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-3)
        assert len(one.prompt_rows) == len(other.prompt_rows)
    assert {one.finish_reason for one in alike[0].values()} == {
        FinishReason.END_ID,
        FinishReason.STOP_WORDS,
        FinishReason.LENGTH,
    }


@settings(max_examples=40, deadline=None)
@given(
    actions=st.lists(ACTION, max_size=40),
    depth=st.sampled_from([1, 2]),
    reuse=st.booleans(),
    policy=st.sampled_from(list(CapacitySchedulerPolicy)),
)
def test_whatever_happens_every_request_ends_once_and_all_blocks_return(
    actions: list[tuple[str, int, int, int]], depth: int, reuse: bool, policy: CapacitySchedulerPolicy
) -> None:
    subject: Engine = engine(
        num_blocks=20,
        max_batch_size=4,
        max_num_tokens=16,
        max_seq_len=64,
        depth=depth,
        reuse=reuse,
        policy=policy,
    )
    told: dict[tuple[int, int], Told] = {}
    added = 0
    for action, first, second, third in actions:
        iteration = Iteration()
        if action == "add":
            sampling: dict[str, Any] = {"num_return_sequences": third, "top_p": 1.0}
            subject.add([request(added, [5] * first, second, sampling=sampling)], iteration)
            added += 1
        elif action == "cancel":
            subject.cancel([first], iteration)
        else:
            subject.step(iteration)
        collect(iteration.rows, told)
    collect(run_down(subject), told)
    finals = [client_id for (client_id, _), one in told.items() if one.final]
    assert sorted(finals) == list(range(added))
    assert (subject.pool.used, subject.pool.available) == (0, 20)


def run_down(subject: Engine) -> list[Row]:
    rows: list[Row] = []
    for _ in range(2000):
        if not subject.has_work:
            return rows
        iteration = Iteration()
        subject.step(iteration)
        rows.extend(iteration.rows)
    raise AssertionError("the engine does not come to rest")
