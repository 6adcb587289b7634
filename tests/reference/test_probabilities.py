"""Probabilities and the best of a row, against plain arithmetic in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.executors.reference.core.log_probs import chosen_and_best, chosen_and_named
from inflight.executors.reference.core.probabilities import best_ids, log_softmax, softmax

#: Rows whose values are far apart: what is right for one is nothing for the others.
ROWS = np.array([[1e4, 1e4 - 1, 0], [-1e4, -1e4 - 2, -1e4 - 1], [0.5, 0.25, -3]], dtype=np.float32)


def expected_logs(rows: np.ndarray) -> np.ndarray:
    exact = rows.astype(np.float64)
    exact -= exact.max(axis=-1, keepdims=True)
    logs: np.ndarray = exact - np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    return logs


@pytest.mark.parametrize("shape", [(3, 3), (3, 1, 3), (1, 3, 3)])
def test_the_last_axis_is_a_distribution(shape: tuple[int, ...]) -> None:
    rows = ROWS.reshape(shape)
    logs = log_softmax(rows)
    assert logs.dtype == np.float32
    np.testing.assert_allclose(logs, expected_logs(rows), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(rows, ROWS.reshape(shape))
    in_place = rows.copy()
    assert softmax(in_place) is in_place
    np.testing.assert_allclose(in_place, np.exp(expected_logs(rows)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [0, 1, 3, 20, 299, 300])
def test_the_best_come_first_and_of_equals_the_lowest_id(width: int) -> None:
    generator = np.random.default_rng(5)
    # A few values only, so that most are equal to others, and one row where all are.
    rows = generator.integers(0, 4, size=(6, 300)).astype(np.float32)
    rows[5] = 7
    ids = best_ids(rows, width)
    assert ids.shape == (6, width)
    for row, found in zip(rows, ids, strict=True):
        wanted = sorted((-value, place) for place, value in enumerate(row.tolist()))[:width]
        assert found.tolist() == [place for _, place in wanted]


def test_those_above_equals_are_kept() -> None:
    row = np.array([[1, 1, 9, 1, 1, 1]], dtype=np.float32)
    assert best_ids(row, 3).tolist() == [[2, 0, 1]]


def test_values_of_chosen_and_of_best_tokens() -> None:
    logs = expected_logs(ROWS)
    chosen, ids, best = chosen_and_best(ROWS, np.array([2, 1, 0]), 2)
    np.testing.assert_allclose(chosen, [logs[0, 2], logs[1, 1], logs[2, 0]], rtol=1e-5)
    assert ids.dtype == np.int32
    assert ids.tolist() == [[0, 1], [0, 2], [0, 1]]
    np.testing.assert_allclose(best, np.take_along_axis(logs, ids, axis=1), rtol=1e-5, atol=1e-6)


def test_values_of_named_tokens_in_their_order() -> None:
    logs = expected_logs(ROWS)
    chosen, ids, values = chosen_and_named(ROWS[2], 1, [2, 0])
    assert chosen == pytest.approx(logs[2, 1], rel=1e-5)
    assert ids.dtype == np.int32
    assert ids.tolist() == [2, 0]
    np.testing.assert_allclose(values, logs[2, [2, 0]], rtol=1e-5)
