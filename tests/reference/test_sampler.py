"""Sampling: the order of operations, what each option keeps, and the distributions that come out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inflight.executors.reference.core.admission import Bounds, Parameters, admit
from inflight.executors.reference.core.sampler import (
    ACCEPTANCE,
    BANNED,
    SamplerState,
    draw,
    pick,
    sample,
    uniform,
)

from .support import request

VOCABULARY = 8
BOUNDS = Bounds(VOCABULARY, max_seq_len=64, num_blocks=99, tokens_per_block=4, max_queue_size=9)
#: Token 0 is the likeliest, then 1, and so on.
LOGITS = np.array([3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.0, -0.5], dtype=np.float32)


def state(prompt: list[int] | None = None, index: int = 0, **fields: Any) -> SamplerState:
    """A row's state; ``fields`` as `support.request` takes them."""
    asked = request(1, prompt or [7], **fields)
    return SamplerState(admit(asked, BOUNDS).parameters, VOCABULARY, asked.input_token_ids, index)


def edited(subject: SamplerState, logits: npt.NDArray[np.float32] = LOGITS) -> npt.NDArray[np.float32]:
    row: npt.NDArray[np.float32] = logits.copy()
    subject.edit(row)
    return row


def frequencies(count: int = 4000, **sampling: Any) -> npt.NDArray[np.float64]:
    """How often each token comes over one seeded stream."""
    subject = state(sampling={"seed": 11, **sampling})
    counts = np.zeros(VOCABULARY)
    for _ in range(count):
        subject.observe(sample(LOGITS[None], [subject])[0])
        counts[subject.generated[-1]] += 1
    return counts / count


def softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    weights: npt.NDArray[np.float32] = np.exp(logits - logits.max())
    weights /= weights.sum()
    return weights


def test_greedy_takes_the_best_and_the_lower_id_among_equals() -> None:
    rows = np.stack([LOGITS, LOGITS[::-1], np.zeros(VOCABULARY, dtype=np.float32)])
    assert sample(rows, [state(), state(), state()]) == [0, 7, 0]


def test_the_logits_stay_as_they_are() -> None:
    rows = np.stack([LOGITS, LOGITS])
    sample(rows, [state(sampling={"top_p": 0.5}), state(bad_words=[[0]])])
    np.testing.assert_array_equal(rows, np.stack([LOGITS, LOGITS]))


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        ({"top_p": 1.0}, range(8)),
        ({"top_k": 3}, range(3)),
        ({"top_k": 100}, range(8)),
        # Cumulative: 0.40, 0.65, 0.80, ...: the token that crosses the threshold is kept.
        ({"top_p": 0.3}, range(1)),
        ({"top_p": 0.5}, range(2)),
        ({"top_p": 0.7}, range(3)),
        # Within the best two, 0.62 and 0.38.
        ({"top_k": 2, "top_p": 0.6}, range(1)),
        ({"top_k": 2, "top_p": 0.7}, range(2)),
        # Ratios to the best: 1, 0.61, 0.37, 0.22, ...
        ({"top_p": 1.0, "min_p": 0.5}, range(2)),
        ({"top_p": 1.0, "min_p": 0.3}, range(3)),
        ({"top_p": 1.0, "min_p": 1.0}, range(1)),
        ({"top_k": 4, "min_p": 0.3}, range(3)),
    ],
)
def test_draws_follow_the_kept_tokens(sampling: dict[str, Any], allowed: range) -> None:
    found = frequencies(**sampling)
    wanted = np.zeros(VOCABULARY)
    wanted[list(allowed)] = softmax(LOGITS[list(allowed)])
    assert (found[wanted == 0] == 0).all()
    # Four standard deviations of 4,000 draws; the seed is fixed, so that this cannot flicker.
    np.testing.assert_allclose(found, wanted, atol=4 * 0.5 / np.sqrt(4000))


@pytest.mark.parametrize(
    "sampling",
    [
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_k": 5},
        {"top_k": 400, "top_p": 0.8},
        {"top_p": 1.0, "min_p": 0.4},
    ],
)
def test_a_large_vocabulary_is_not_cut_short(sampling: dict[str, Any]) -> None:
    """Against a plain computation over the whole vocabulary; some limits reach past the sorted best."""
    vocab_size = 1000
    logits = np.random.default_rng(3).normal(size=vocab_size).astype(np.float32)
    order = np.argsort(-logits)
    probabilities = softmax(logits)[order].astype(np.float64)
    top_k = sampling.get("top_k", vocab_size)
    probabilities[top_k:] = 0
    probabilities /= probabilities.sum()
    cumulative = np.cumsum(probabilities) - probabilities
    probabilities[cumulative >= sampling.get("top_p", 1.0)] = 0
    probabilities[probabilities < sampling.get("min_p", 0.0) * probabilities[0]] = 0
    # What is kept is drawn from in order of id, whatever the limits.
    by_id = np.sort(order)
    cumulative = np.cumsum(probabilities[np.argsort(order)]) / probabilities.sum()
    uniforms = np.linspace(0.001, 0.999, 200)
    # Clear of the boundaries, where the last bit decides.
    clear = np.abs(cumulative[:, None] - uniforms).min(axis=0) > 1e-5
    parameters = state_parameters(sampling, vocab_size)
    rows = np.repeat(logits[None], 200, axis=0)
    found = draw(rows, [parameters] * 200, uniforms, np.full(200, parameters.top_p))
    wanted = by_id[(cumulative[:, None] <= uniforms).sum(axis=0)]
    assert clear.sum() > 150
    np.testing.assert_array_equal(found[clear], wanted[clear])


def state_parameters(sampling: dict[str, Any], vocab_size: int) -> Parameters:
    bounds = Bounds(vocab_size, max_seq_len=64, num_blocks=99, tokens_per_block=4, max_queue_size=9)
    return admit(request(1, [1], sampling=sampling), bounds).parameters


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_flattens_or_sharpens(temperature: float) -> None:
    found = frequencies(top_p=1.0, temperature=temperature)
    np.testing.assert_allclose(found, softmax(LOGITS / temperature), atol=4 * 0.5 / np.sqrt(4000))


def test_a_seed_repeats_itself_and_its_sequences_differ() -> None:
    flat = np.zeros((1, VOCABULARY), dtype=np.float32)

    def stream(seed: int, index: int) -> list[int]:
        subject = state(index=index, sampling={"top_p": 1.0, "seed": seed})
        return [sample(flat, [subject], [number])[0] for number in range(24)]

    assert stream(1, 0) == stream(1, 0)
    streams = {tuple(stream(seed, index)) for seed in (1, 2, 2**64 - 1) for index in range(4)}
    assert len(streams) == 12


def test_random_numbers_are_philox() -> None:
    """Random123's known answer for `philox4x32 10` over zeros: its first two words."""
    assert uniform(0, 0, 0) == ((0x6627E8D5 >> 5) * 2**26 + (0xE169C58D >> 6)) / 2**53


def test_random_numbers_are_even_and_independent() -> None:
    places = itertools.product(range(8), range(2), range(500))
    numbers = [uniform(seed, index, number) for seed, index, number in places]
    counts = np.histogram(numbers, bins=16, range=(0, 1))[0]
    # Chi-square with 15 degrees of freedom: 37.7 at 0.001; the numbers are fixed.
    assert ((counts - 500) ** 2 / 500).sum() < 37.7
    following = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
    assert abs(following) < 4 / np.sqrt(len(numbers))
    assert len({uniform(7, 0, 3, purpose) for purpose in range(2)}) == 2


@pytest.mark.parametrize("sampling", [{"top_k": 30}, {"top_p": 0.1}])
def test_of_equal_tokens_the_lower_ids_are_kept(sampling: dict[str, Any]) -> None:
    """Also where more tokens are equal than are sorted."""
    parameters = state_parameters(sampling, 300)
    rows = np.zeros((50, 300), dtype=np.float32)
    found = draw(rows, [parameters] * 50, np.linspace(0, 0.999, 50), np.full(50, parameters.top_p))
    np.testing.assert_array_equal(found, (np.linspace(0, 0.999, 50) * 30).astype(np.int64))


def test_a_row_is_the_same_alone_and_among_others() -> None:
    kinds: list[dict[str, Any]] = [
        {"sampling": {"top_p": 0.9, "seed": 1}},
        {"sampling": {"top_k": 3, "seed": 2, "temperature": 1.7}},
        {},
        {"sampling": {"top_p": 1.0, "seed": 3, "presence_penalty": 1.0}},
        {"sampling": {"top_p": 1.0, "seed": 4, "min_p": 0.1}, "logit_bias": [(5, 3.0)]},
        {"bad_words": [[0], [1]]},
        {"sampling": {"top_k": 7, "top_p": 0.95, "seed": 5}},
    ]
    rows = np.random.default_rng(0).normal(size=(30, len(kinds), VOCABULARY)).astype(np.float32)
    together = [state(**kind) for kind in kinds]
    batched = []
    for step in rows:
        tokens = sample(step, together)
        for one, token in zip(together, tokens, strict=True):
            one.observe(token)
        batched.append(tokens)
    for place, kind in enumerate(kinds):
        alone = state(**kind)
        solo = []
        for step in rows:
            solo.append(sample(step[place : place + 1], [alone])[0])
            alone.observe(solo[-1])
        assert solo == [tokens[place] for tokens in batched]


def test_the_order_is_bias_temperature_penalties() -> None:
    subject = state(
        prompt=[0, 0, 6],
        sampling={
            "top_p": 1.0,
            "temperature": 2.0,
            "repetition_penalty": 4.0,
            "presence_penalty": 0.25,
            "frequency_penalty": 0.5,
        },
        logit_bias=[(0, 1.0), (6, -2.0), (1, 0.5)],
    )
    row = edited(subject)
    # Token 0: (3 + 1) / 2 = 2, seen twice: 2 / 4 - 0.25 - 2 x 0.5. Token 6: (0 - 2) / 2, negative: x 4.
    assert row[0] == pytest.approx(0.5 - 0.25 - 1.0)
    assert row[6] == pytest.approx(-4.0 - 0.25 - 0.5)
    assert row[1] == pytest.approx((2.5 + 0.5) / 2)
    assert row[2] == pytest.approx(1.0)


def test_penalties_count_prompt_and_output() -> None:
    subject = state(prompt=[1], sampling={"frequency_penalty": 1.0})
    assert edited(subject)[1] == pytest.approx(1.5)
    subject.observe(1)
    subject.observe(2)
    row = edited(subject)
    assert (row[1], row[2], row[3]) == (pytest.approx(0.5), pytest.approx(1.0), pytest.approx(1.5))


def test_the_end_waits_for_the_minimum() -> None:
    subject = state(end_id=0, stop_words=[[1], [2, 3]], sampling={"min_tokens": 2})
    for _ in range(2):
        assert sample(LOGITS[None], [subject]) == [2]
        subject.observe(2)
    assert sample(LOGITS[None], [subject]) == [0]


@pytest.mark.parametrize(
    ("prompt", "generated", "bad_words", "token"),
    [
        ([7], [], [[0]], 1),
        ([7], [], [[0], [1], [2]], 3),
        ([7], [], [[5, 0]], 0),
        ([7, 5], [], [[5, 0]], 1),
        ([7], [5], [[5, 0]], 1),
        ([7, 4], [5], [[4, 5, 0]], 1),
        ([7, 4], [5, 5], [[4, 5, 0]], 0),
        ([7], [], [[6, 5, 7, 0]], 0),
    ],
)
def test_bad_words(prompt: list[int], generated: list[int], bad_words: list[list[int]], token: int) -> None:
    subject = state(prompt=prompt, bad_words=bad_words)
    for one in generated:
        subject.observe(one)
    assert sample(LOGITS[None], [subject]) == [token]


def test_bias_may_forbid_and_force() -> None:
    assert sample(LOGITS[None], [state(logit_bias=[(6, 100.0)])]) == [6]
    dense = np.zeros(VOCABULARY, dtype="<f4")
    dense[0] = -np.inf
    assert sample(LOGITS[None], [state(embedding_bias=dense.tobytes())]) == [1]


@pytest.mark.parametrize("sampling", [{}, {"top_p": 1.0}, {"top_k": 4, "min_p": 0.2}])
def test_a_row_with_every_token_banned_still_gives_one(sampling: dict[str, Any]) -> None:
    dense = np.full(VOCABULARY, -np.inf, dtype="<f4").tobytes()
    subject = state(embedding_bias=dense, sampling={"repetition_penalty": 2.0, **sampling})
    assert 0 <= sample(LOGITS[None], [subject])[0] < VOCABULARY


@pytest.mark.parametrize("logits", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")
def test_broken_logits_still_give_a_token_of_the_vocabulary(logits: float) -> None:
    row = np.full((1, VOCABULARY), logits, dtype=np.float32)
    for sampling in ({}, {"top_p": 1.0}, {"top_k": 4}, {"top_p": 0.5, "temperature": 1e-4}):
        assert 0 <= sample(row, [state(sampling=sampling)])[0] < VOCABULARY


@pytest.mark.parametrize(
    ("size", "prompt", "generated", "token"),
    [
        (1, [0, 1], [2], 3),
        (2, [7, 0, 5, 7], [], 1),
        (2, [7], [0, 7], 1),
        (2, [7, 0, 5, 7], [5], 0),
        (3, [7, 0, 5, 7], [], 0),
        (3, [4, 5, 0, 4], [5], 1),
    ],
)
def test_no_ngram_is_said_twice(size: int, prompt: list[int], generated: list[int], token: int) -> None:
    subject = state(prompt=prompt, sampling={"no_repeat_ngram_size": size})
    for one in generated:
        subject.observe(one)
    assert sample(LOGITS[None], [subject]) == [token]


def test_top_p_decays_to_its_minimum_and_starts_again() -> None:
    subject = state(
        sampling={"top_p": 0.8, "top_p_decay": 0.5, "top_p_min": 0.3, "top_p_reset_ids": 6, "seed": 1}
    )
    seen = [subject.top_p]
    for token in (1, 2, 6, 1):
        subject.observe(token)
        seen.append(subject.top_p)
    assert seen == [pytest.approx(value) for value in (0.8, 0.4, 0.3, 0.8, 0.4)]
    assert subject.needs_history
    # 0.40 is the best token's share: with 0.4 left of top_p, nothing else is drawn.
    assert {sample(LOGITS[None], [subject], [number])[0] for number in range(200)} == {0}


def test_one_best_is_no_draw() -> None:
    parameters = state_parameters({"top_k": 1, "seed": 1}, VOCABULARY)
    uniforms = np.linspace(0, 0.999, 20)
    found = draw(np.repeat(LOGITS[None, ::-1], 20, axis=0), [parameters] * 20, uniforms, np.full(20, 1.0))
    assert set(found.tolist()) == {7}


def test_what_is_as_likely_as_the_least_is_kept() -> None:
    parameters = state_parameters({"top_p": 1.0, "min_p": 1.0}, VOCABULARY)
    rows = np.repeat(np.array([[1, 2, 2, 0, 0, 0, 0, 0]], dtype=np.float32), 20, axis=0)
    found = draw(rows, [parameters] * 20, np.linspace(0, 0.999, 20), np.full(20, 1.0))
    assert set(found.tolist()) == {1, 2}


def test_a_number_is_for_one_purpose() -> None:
    subject = state(sampling={"seed": 5})
    assert subject.uniform(3) == uniform(5, 0, 3)
    assert subject.uniform(3, ACCEPTANCE) == uniform(5, 0, 3, ACCEPTANCE) != subject.uniform(3)
    subject.observe(1)
    assert subject.uniform() == uniform(5, 0, 1)
    assert SamplerState(subject.parameters, VOCABULARY, [7]).uniform() == uniform(5, 0, 0)
    # All 64 bits of a seed count.
    assert len({uniform(1 << bit, 0, 0) for bit in range(64)}) == 64


def test_a_penalty_lowers_what_is_between_nothing_and_one() -> None:
    row = edited(state(prompt=[5, 6], sampling={"repetition_penalty": 2.0}))
    assert (row[5], row[6]) == (pytest.approx(0.25), 0.0)


def test_all_bans_hold_together() -> None:
    subject = state(
        prompt=[7, 3, 7],
        bad_words=[[0], [7, 1]],
        sampling={"no_repeat_ngram_size": 2, "min_tokens": 9},
        end_id=2,
    )
    assert sorted(subject.banned()) == [0, 1, 2, 3]
    row = edited(subject)
    assert np.flatnonzero(row == BANNED).tolist() == [0, 1, 2, 3]


def test_no_logit_is_infinite_once_it_is_edited() -> None:
    dense = np.zeros(VOCABULARY, dtype="<f4")
    dense[[0, 3]] = -np.inf
    row = edited(state(embedding_bias=dense.tobytes()))
    assert np.flatnonzero(row == BANNED).tolist() == [0, 3]


def test_virtual_tokens_have_no_logit() -> None:
    sampling = {"presence_penalty": 1.0, "no_repeat_ngram_size": 2}
    parameters = state_parameters(sampling, VOCABULARY)
    subject = SamplerState(parameters, VOCABULARY, [7, VOCABULARY, VOCABULARY + 5, 7])
    assert subject.banned() == []
    seen = subject.seen()
    assert seen is not None
    assert (seen[0].tolist(), seen[1].tolist()) == ([7], [2])


def test_a_row_that_is_processed_is_a_new_one_with_its_temperature() -> None:
    half = LOGITS.astype(np.float16)
    row = state(sampling={"top_p": 1.0, "temperature": 2.0}).processed(half)  # type: ignore[arg-type]
    assert row.dtype == np.float32
    np.testing.assert_array_equal(row, LOGITS / 2)
    penalized = state(prompt=[0], sampling={"temperature": 2.0, "presence_penalty": 1.0}).processed(LOGITS)
    assert (penalized[0], penalized[1], LOGITS[0]) == (0.5, 1.25, 3.0)


class Recorded:
    """A guide that allows three tokens and keeps what it is given."""

    def __init__(self) -> None:
        self.observed: list[int] = []
        self.resumed: list[list[int]] = []
        self.weighed: list[int] = []

    def observe(self, token: int) -> None:
        self.observed.append(token)

    def resume(self, tokens: list[int]) -> None:
        self.resumed.append(tokens)

    def mask(self) -> npt.NDArray[np.bool_]:
        return np.arange(VOCABULARY) >= 5

    def weigh(self, logits: npt.NDArray[np.float32]) -> None:
        self.weighed.append(len(logits))


def test_a_guide_has_every_token_once() -> None:
    subject = state(sampling={"top_p": 0.8, "top_p_decay": 0.5, "seed": 1})
    guide = Recorded()
    subject.guide = guide  # type: ignore[assignment]
    subject.resume([])
    subject.resume([4, 5])
    assert (subject.generated, guide.resumed, guide.observed) == ([4, 5], [[4, 5]], [])
    assert subject.top_p == pytest.approx(0.2)
    subject.observe(6)
    subject.note(7)
    assert (subject.generated, guide.observed) == ([4, 5, 6, 7], [6])
    row = edited(subject)
    assert np.flatnonzero(row == BANNED).tolist() == [0, 1, 2, 3, 4]
    assert guide.weighed == [VOCABULARY]
    alone = state()
    alone.resume([4])
    assert alone.generated == [4]


def test_a_branch_has_its_own_output() -> None:
    subject = state(prompt=[7, 3], sampling={"no_repeat_ngram_size": 2, "presence_penalty": 1.0})
    subject.observe(7)
    branch = subject.branch([4, 7])
    assert (branch.generated, branch.prompt, branch.parameters) == ([4, 7], [7, 3], subject.parameters)
    assert branch.banned() == [3]
    assert edited(branch)[4] == pytest.approx(LOGITS[4] - 1)
    assert subject.generated == [7]


def test_many_small_weights_count_behind_a_large_one() -> None:
    weights = np.full((1, 1001), 1e-8, dtype=np.float32)
    weights[0, 0] = 1
    for share in (0.25, 0.75):
        target = (1 + share * 1e-5) / (1 + 1e-5)
        assert abs(pick(weights, np.array([target]))[0] - share * 1000) <= 2


def test_without_any_weight_the_last_is_picked() -> None:
    assert pick(np.zeros((2, 4)), np.array([0.0, 0.5])).tolist() == [3, 3]
