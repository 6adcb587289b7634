"""Decoding beyond one token at a time: beams, draft tokens, and the logits that are returned."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inflight.executors.base import FinishReason, NamedTensor
from inflight.executors.reference.core.draft_model import DraftModel
from inflight.executors.reference.core.drafts import Drafts, LookupConfig
from inflight.executors.reference.core.extras import ExternalDrafts
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.sampler import SamplerState
from inflight.executors.reference.core.scheduler import CapacitySchedulerPolicy

from .support import FIXTURES, Told, collect, engine, expected, request, run
from .test_sampler import state_parameters

PROMPT = [(7 * token) % 61 + 3 for token in range(18)]
FAMILIES = [
    "llama",
    "mistral_window",
    "qwen2_tied",
    "qwen3",
    "gpt2",
    "mixtral",
    "phi3_window",
    "gemma",
    "baichuan2_rotary",
    "baichuan2_alibi",
    "gemma2",
    "gemma3",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
]
EARLY_STOPPING = {True: 1, False: 0, "never": -1}


def searches(name: str, *, beams: bool) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((FIXTURES / name / "searches.json").read_text())
    return [case for case in cases if (case["num_beams"] > 1) == beams]


def sampling_of(case: dict[str, Any]) -> dict[str, Any]:
    return {
        "beam_width": case["num_beams"],
        "length_penalty": case["length_penalty"],
        "early_stopping": EARLY_STOPPING[case["early_stopping"]],
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_beams_are_those_of_transformers(name: str) -> None:
    """All searches of a family in flight at once, one stream of plain requests beside them."""
    cases = searches(name, beams=True)
    subject = engine(name, num_blocks=3000)
    requests = [
        request(
            key,
            case["prompt"],
            14,
            sampling=sampling_of(case),
            end_id=case["end_id"],
            streaming=False,
            output={"return_log_probs": True},
        )
        for key, case in enumerate(cases)
    ]
    told = run(subject, [*requests, request(99, PROMPT, 20)])
    for key, case in enumerate(cases):
        width = case["num_beams"]
        answers = [told[key, index] for index in range(width)]
        assert [one.tokens for one in answers] == case["answers"], case
        assert [one.final for one in answers] == [False] * (width - 1) + [True]
        # The sums that the search ranks by: with the end token, which is not among the tokens.
        sums = answers[-1].tensors["cum_log_probs"]
        assert sums.shape == (width,)
        for one, score, total in zip(answers, case["scores"], sums.tolist(), strict=True):
            ended = one.finish_reason == FinishReason.END_ID
            length = float((len(one.tokens) + ended) ** case["length_penalty"])
            assert total / length == pytest.approx(score, abs=2e-3)
            assert ended or sum(one.log_probs) == pytest.approx(total, abs=1e-3)
    assert told[99, 0].tokens == run(engine(name), [request(99, PROMPT, 20)])[99, 0].tokens
    assert (subject.pool.used, subject.num_active) == (0, 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_search_with_penalties_and_bans_is_that_of_transformers(name: str) -> None:
    for case in searches(name, beams=False):
        keys = ("no_repeat_ngram_size", "repetition_penalty")
        sampling = {key: case[key] for key in keys if key in case}
        [told] = run(
            engine(name), [request(1, case["prompt"], 14, sampling=sampling, end_id=case["end_id"])]
        ).values()
        # The recorded answers leave the end token out.
        end = [case["end_id"]] if told.finish_reason == FinishReason.END_ID else []
        assert [told.tokens] == [answer + end for answer in case["answers"]]


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_beams_with_little_room_come_out_the_same(policy: CapacitySchedulerPolicy) -> None:
    subject = engine(num_blocks=40, max_seq_len=60, policy=policy)
    sampling = {"beam_width": 4}
    requests = [request(key, PROMPT[key:], 12, sampling=sampling, streaming=False) for key in range(4)]
    iteration = Iteration()
    subject.add([*requests, request(9, PROMPT, 30)], iteration)
    told = collect(iteration.rows)
    paused = 0
    while subject.has_work:
        iteration = Iteration()
        subject.step(iteration)
        paused += iteration.paused
        collect(iteration.rows, told)
    assert (paused > 0) == (policy is CapacitySchedulerPolicy.MAX_UTILIZATION)
    assert subject.pool.used == 0
    for one in requests:
        alone = run(engine(), [one])
        for index in range(4):
            assert told[one.client_id, index].tokens == alone[one.client_id, index].tokens


def test_beams_stop_at_words_and_can_be_cancelled_and_diverse() -> None:
    def answers(**fields: Any) -> list[Told]:
        sampling = {"beam_width": 3, **fields.pop("sampling", {})}
        told = run(engine(), [request(1, PROMPT, 12, sampling=sampling, streaming=False, **fields)])
        return [told[1, index] for index in range(len(told))]

    plain = answers()
    word = plain[0].tokens[3:5]
    stopped = answers(stop_words=[word])
    assert any(one.finish_reason == FinishReason.STOP_WORDS and one.tokens[-2:] == word for one in stopped)
    assert [one.tokens for one in answers(sampling={"beam_search_diversity_rate": 4.0})] != [
        one.tokens for one in plain
    ]
    assert [one.tokens for one in answers(sampling={"num_return_sequences": 2})] == [
        one.tokens for one in plain[:2]
    ]
    banned = answers(bad_words=[[plain[0].tokens[0]]])
    assert all(plain[0].tokens[0] not in one.tokens for one in banned)
    subject = engine()
    iteration = Iteration()
    subject.add([request(1, PROMPT, 12, sampling={"beam_width": 3}, streaming=False)], iteration)
    for _ in range(4):
        subject.step(iteration)
    subject.cancel([1], iteration)
    [row] = iteration.rows
    assert (row.final, row.finish_reason) == (True, FinishReason.CANCELLED)
    assert subject.pool.used == 0


# Returned logits.


@pytest.mark.parametrize("max_num_tokens", [64, 8])
def test_context_logits_are_those_of_transformers_also_where_the_prompt_is_hot(max_num_tokens: int) -> None:
    token_ids, logits = expected("llama")
    subject = engine(max_num_tokens=max_num_tokens, max_batch_size=4)
    run(subject, [request(1, token_ids, 3)])
    asked = {"return_context_logits": True, "num_prompt_log_probs": 0}
    for tokens in (3, 0):
        told = run(subject, [request(2, token_ids, tokens, output=asked)])[2, 0]
        assert told.context_logits is not None
        np.testing.assert_allclose(told.context_logits, logits, atol=1e-3)


@pytest.mark.parametrize("streaming", [True, False])
def test_generation_logits_choose_the_tokens(streaming: bool) -> None:
    asked = {"return_generation_logits": True}
    told = run(engine(), [request(1, PROMPT, 7, output=asked, streaming=streaming)])[1, 0]
    assert [int(row.argmax()) for row in told.logits] == told.tokens
    ended = run(engine(), [request(1, PROMPT, 7, output=asked, end_id=told.tokens[3])])[1, 0]
    # The end token is told, but returned logits are those of the output before it.
    assert len(ended.logits) == len(ended.tokens) - 1 == told.tokens.index(told.tokens[3])


# Draft tokens.


def ints(name: str, values: list[int]) -> NamedTensor:
    return NamedTensor(name, "INT32", (len(values),), np.array(values, "<i4").tobytes())


def floats(name: str, values: npt.ArrayLike) -> NamedTensor:
    array = np.atleast_1d(np.asarray(values, "<f4"))
    return NamedTensor(name, "FP32", array.shape, array.tobytes())


KINDS: list[dict[str, Any]] = [
    {},
    {"top_p": 0.9, "temperature": 1.5, "seed": 7},
    {"repetition_penalty": 1.4, "no_repeat_ngram_size": 3},
]


@pytest.mark.parametrize("sampling", KINDS)
@pytest.mark.parametrize("right", [0, 1, 5, 9])
def test_draft_tokens_change_the_steps_and_not_the_tokens(sampling: dict[str, Any], right: int) -> None:
    plain = run(engine(), [request(1, PROMPT, 10, sampling=sampling, output={"return_log_probs": True})])
    tokens = plain[1, 0].tokens
    guesses = [*tokens[:right], *((token + 1) % 64 for token in tokens[right:9])]
    subject = engine()
    iteration = Iteration()
    asked = request(
        1,
        PROMPT,
        10,
        sampling=sampling,
        output={"return_log_probs": True},
        tensors=[ints("draft_input_ids", guesses)],
    )
    subject.add([asked], iteration)
    told = collect(iteration.rows)
    steps = accepted = 0
    while subject.has_work:
        iteration = Iteration()
        subject.step(iteration)
        steps += 1
        accepted += iteration.accepted_tokens
        collect(iteration.rows, told)
    assert told[1, 0].tokens == tokens
    assert told[1, 0].log_probs == pytest.approx(plain[1, 0].log_probs, abs=1e-3)
    assert accepted == right
    # The first guess is checked by the prompt's own logits, all others by the step after.
    # A runner that is one iteration ahead is collected once more at the end.
    assert steps == (10 if right < 2 else 11 - right) + subject.depth - 1
    assert subject.pool.used == 0


@pytest.mark.parametrize("sampling", KINDS)
@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_prompt_lookup_changes_no_token(sampling: dict[str, Any], policy: CapacitySchedulerPolicy) -> None:
    requests = [
        request(key, [5 + key, *PROMPT, *PROMPT[: 5 + key]], 30, sampling=sampling, end_id=9)
        for key in range(6)
    ]
    lookup = LookupConfig(max_draft_len=4, max_matching_ngram_size=2)
    subject = engine(lookup=lookup, policy=policy, num_blocks=60)
    plain = run(engine(), requests)
    told = run(subject, requests)
    assert {key: one.tokens for key, one in told.items()} == {key: one.tokens for key, one in plain.items()}
    assert subject.pool.used == 0


@pytest.mark.parametrize("sampling", KINDS)
@pytest.mark.parametrize("draft", ["llama", "llama3_rope"])
@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_a_draft_model_changes_no_token(
    sampling: dict[str, Any], draft: str, policy: CapacitySchedulerPolicy
) -> None:
    """The model itself, whose guesses hold where it is greedy, and a stranger, whose guesses do not."""
    asked = {"return_log_probs": True}
    requests = [
        request(key, [5 + key, *PROMPT[: 2 + 3 * key]], 20 + key, sampling=sampling, end_id=9, output=asked)
        for key in range(6)
    ]
    proposer = DraftModel(engine(draft, num_blocks=60, max_batch_size=4), 128, 3)
    subject = engine(proposer=proposer, policy=policy, num_blocks=60)
    iteration = Iteration(clock=itertools.count().__next__)
    subject.add(requests, iteration)
    told = collect(iteration.rows)
    iterations = []
    while subject.has_work:
        iteration = Iteration(clock=itertools.count().__next__)
        iterations.append(iteration)
        subject.step(iteration)
        collect(iteration.rows, told)
    for one in requests:
        plain = run(engine(), [one])[one.client_id, 0]
        assert told[one.client_id, 0].tokens == plain.tokens
        assert told[one.client_id, 0].log_probs == pytest.approx(plain.log_probs, abs=1e-3)
    proposed = sum(one.draft_tokens for one in iterations)
    accepted = sum(one.accepted_tokens for one in iterations)
    assert subject.pool.used == 0
    if "repetition_penalty" in sampling and os.environ.get("INFLIGHT_TEST_DEVICE") == "cuda":
        # Its guesses would be checked on the host, for which a GPU does not wait.
        assert proposed == 0
        return
    assert sum(one.draft_s for one in iterations) > 0
    if draft == "llama" and not sampling:
        assert accepted == proposed > 60
        assert len(iterations) < 20
    else:
        assert 0 <= accepted < proposed


def test_a_draft_model_that_has_no_room_guesses_nothing() -> None:
    proposer = DraftModel(engine(max_seq_len=24), 24, 3)
    told = run(engine(proposer=proposer), [request(1, PROMPT, 40)])[1, 0]
    assert told.tokens == run(engine(), [request(1, PROMPT, 40)])[1, 0].tokens


def test_lookup_guesses_what_followed_the_longest_run() -> None:
    drafts = Drafts(LookupConfig(3, 2))
    drafts.propose([1, 2, 3, 4, 5, 9, 2, 8, 1, 2])
    assert drafts.pending(9) == [3, 4, 5]
    assert drafts.pending(2) == [3, 4]
    other = Drafts(LookupConfig(3, 2))
    other.propose([1, 2, 3])
    assert other.pending(9) == []
    other.propose([1, 2, 3], [2])
    assert other.pending(9) == [3, 2]


@pytest.mark.parametrize("threshold", [None, 0.0, 1.0])
def test_draft_logits_accept_by_the_ratio_of_probabilities(threshold: float | None) -> None:
    """With a drawn threshold, accepted and drawn tokens together are distributed as the model says."""
    draw = np.random.default_rng(5)
    target, draft = draw.normal(size=(2, 8)).astype(np.float32)
    shares = np.exp(target - np.log(np.exp(target).sum()))
    guessed = np.exp(draft - np.log(np.exp(draft).sum()))
    counts = np.zeros(8)
    accepted = 0
    parameters = state_parameters({"top_p": 1.0, "seed": 3}, 8)
    state = SamplerState(parameters, 8, [1])
    weights = guessed.astype(np.float64)
    for guess in draw.choice(8, p=weights / weights.sum(), size=6000):
        drafts = Drafts(external=ExternalDrafts((int(guess),), draft[None], threshold))
        token, is_guess = drafts.check(target, state)
        state.observe(token)
        counts[token] += 1
        accepted += is_guess
    if threshold is None:
        np.testing.assert_allclose(counts / 6000, shares, atol=4 * 0.5 / np.sqrt(6000))
        assert accepted / 6000 == pytest.approx(float(np.minimum(shares, guessed).sum()), abs=0.03)
    elif threshold == 0.0:
        assert accepted == 6000
    else:
        assert accepted / 6000 == pytest.approx(float(guessed[shares >= guessed].sum()), abs=0.03)


def test_draft_logits_reach_the_engine() -> None:
    greedy = run(engine(), [request(1, PROMPT, 4)])[1, 0].tokens
    other = (greedy[0] + 1) % 64
    logits = np.zeros((1, 64), "<f4")
    logits[0, other] = 20.0

    def first(threshold: float) -> int:
        tensors = [
            ints("draft_input_ids", [other]),
            floats("draft_logits", logits),
            floats("draft_acceptance_threshold", threshold),
        ]
        return run(engine(), [request(1, PROMPT, 4, tensors=tensors)])[1, 0].tokens[0]

    assert first(0.0) == other
    assert first(1.0) == greedy[0]
