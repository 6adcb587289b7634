"""What the option `batch_invariant` rests on: a row's bits are those that it has alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from inflight.executors.reference.core import log_probs, probabilities
from inflight.executors.reference.core.admission import Bounds, admit
from inflight.executors.reference.core.sampler import SamplerState, sample
from inflight.executors.reference.numpy import arrays, experts, invariant
from reference.support import request

ROWS = 67
SIZE = 8


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def subsets() -> list[Any]:
    draw = np.random.default_rng(1)
    counts = [1, 1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 24, 31, 32, 33, 48, 64, ROWS]
    return [draw.permutation(ROWS)[:count] for count in counts]


def check(compute: Callable[[Any], Any], x: Any) -> None:
    """``compute`` gives each row of ``x`` the same, whatever the others are and wherever it is."""
    whole = compute(x)
    for rows in subsets():
        assert np.array_equal(compute(x[rows]), whole[rows]), rows
    # Memory that is aligned to one number only, which kernels may read otherwise.
    for offset in range(4):
        memory = np.empty(x.size + 16, dtype=x.dtype)
        shifted = memory[offset : offset + x.size].reshape(x.shape)
        shifted[...] = x
        assert np.array_equal(compute(shifted), whole)


def reported(part: int, x: Any) -> Any:
    return log_probs.chosen_and_best(x, x.argmax(1), 3)[part]


@pytest.mark.parametrize(
    ("width", "out"),
    [(8, 8), (32, 64), (33, 50), (64, 1), (256, 512), (256, 3072), (700, 900), (1, 5), (1024, 1536)],
)
def test_a_product_is_that_of_the_row(width: int, out: int) -> None:
    weight, bias = drawn(out, width, seed=2), drawn(out, seed=3)
    check(lambda x: invariant.linear(x, weight, bias), drawn(ROWS, width))
    np.testing.assert_allclose(
        invariant.linear(drawn(ROWS, width), weight), arrays.linear(drawn(ROWS, width), weight), atol=2e-3
    )


@pytest.mark.parametrize("width", [8, 30, 33, 256, 1000, 4097])
def test_norms_activations_and_probabilities_are_those_of_the_row(width: int) -> None:
    weight, bias, x = drawn(width, seed=2), drawn(width, seed=3), drawn(ROWS, width)
    check(lambda x: arrays.rms_norm(x, weight, 1e-5), x)
    check(lambda x: arrays.layer_norm(x, weight, bias, 1e-5), x)
    check(arrays.silu, x)
    check(arrays.gelu_tanh, x)
    check(lambda x: arrays.capped(x.copy(), 1.5), x)
    check(lambda x: arrays.activate(x, "silu", False), x)
    check(lambda x: probabilities.softmax(x.copy()), x)
    check(probabilities.log_softmax, x)
    heads = drawn(ROWS, 3, width)
    check(lambda x: arrays.rms_norm(x[:, :2], weight, 1e-5), heads)
    if width % 2 == 0:
        check(arrays.silu_gate, x)
        check(lambda x: arrays.activate(x, "gelu_tanh", True), x)
        for part in range(3):
            check(partial(reported, part), x)


@pytest.mark.parametrize("vocab_size", [64, 3072, 9000, 40_000])
def test_a_draw_is_that_of_the_row(vocab_size: int) -> None:
    logits = drawn(ROWS, vocab_size) * 4
    settings: list[dict[str, Any]] = [
        {"top_p": 0.9},
        {"top_p": 1.0},
        {"top_k": 50, "top_p": 0.95, "min_p": 0.01},
        {"top_p": 0.9999, "temperature": 2.0},
    ]
    states = []
    for row in range(ROWS):
        one = request(1, [1], sampling={**settings[row % 4], "seed": row})
        parameters = admit(one, Bounds(vocab_size, 100, 99, 4, 9)).parameters
        states.append(SamplerState(parameters, vocab_size, [1]))
    whole = np.array(sample(logits, states))
    for rows in subsets():
        assert sample(logits[rows], [states[row] for row in rows]) == whole[rows].tolist()


def test_experts_are_those_of_the_row() -> None:
    gate_up, down, router = drawn(4, 64, 32, seed=2), drawn(4, 32, 32, seed=3), drawn(4, 32, seed=4)

    def compute(x: Any) -> Any:
        scores = invariant.linear(x, router)
        choice = experts.choose(scores, 2, normalized=True)
        return experts.experts(x, choice, gate_up, down, "silu", product=invariant.linear)

    check(compute, drawn(ROWS, 32))


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize("kind", ["plain", "capped", "scored"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 4), (4, 4), (8, 1)])
def test_attention_of_a_token_is_that_of_a_prompt(
    window: int | None, alibi: bool, kind: str, heads: int, kv_heads: int
) -> None:
    count, sinks, dimension = 77, 3, 16
    softcap = 1.5 if kind == "capped" else None
    scores = np.linspace(-2, 5, heads, dtype=np.float32) if kind == "scored" else None
    padded = -(-count // SIZE) * SIZE
    queries = drawn(count, heads, dimension)
    keys, values = (
        drawn(1, padded, kv_heads, dimension, seed=1),
        drawn(1, padded, kv_heads, dimension, seed=2),
    )
    places = np.arange(padded)[None]
    slopes = np.linspace(0.1, 0.9, heads, dtype=np.float32) if alibi else None

    def attend(rows: Any, keys: Any, values: Any, places: Any) -> Any:
        part = invariant.Part(rows, rows, np.zeros((1, 1), np.int64), places, SIZE, sinks)
        scale = dimension**-0.5
        return invariant.attention(queries[rows], keys, values, part, scale, window, slopes, scores, softcap)

    whole = attend(np.arange(count), keys, values, places)
    for start, stop in ((0, 5), (5, 6), (6, 60), (60, 77)):
        blocks = -(-stop // SIZE) * SIZE
        part = attend(np.arange(start, stop), keys[:, :blocks], values[:, :blocks], places[:, :blocks])
        assert np.array_equal(part, whole[start:stop])
    # One token each, as sequences of their own: what the padding holds does not matter.
    rows = np.array([0, 7, 8, 50, 76, 31])
    own_keys, own_values = keys.repeat(len(rows), 0), values.repeat(len(rows), 0)
    for place, row in enumerate(rows):
        own_keys[place, row + 1 :] = own_values[place, row + 1 :] = 9.0
    assert np.array_equal(attend(rows, own_keys, own_values, places.repeat(len(rows), 0)), whole[rows])
    theirs = arrays.context_attention(
        queries,
        keys[0, :count],
        values[0, :count],
        0,
        window,
        dimension**-0.5,
        places[0, :count],
        sinks,
        slopes,
        scores,
        softcap,
    )
    np.testing.assert_allclose(whole, theirs, atol=1e-5)


def test_blocks_that_left_the_window_change_nothing() -> None:
    """What was given back is left out of a sequence's blocks, and adds nothing where it is still there."""
    count, window, sinks = 80, 20, 3
    keys, values = drawn(1, count, 2, 16, seed=1), drawn(1, count, 2, 16, seed=2)
    queries, positions = drawn(1, 4, 16), np.array([count - 1])
    kept = np.r_[0:SIZE, count - 4 * SIZE : count]
    whole, rest = (
        invariant.attention(
            queries,
            keys[:, places],
            values[:, places],
            invariant.Part(positions, positions, np.zeros((1, 1), np.int64), places[None], SIZE, sinks),
            0.25,
            window,
        )
        for places in (np.arange(count), kept)
    )
    assert np.array_equal(whole, rest)
