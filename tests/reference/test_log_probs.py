"""Log probabilities of chosen tokens and alternatives."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.executors.reference.core.log_probs import chosen_and_best

ROWS = np.array([[1.0, 3.0, 2.0, 0.0], [5.0, 5.0, 5.0, 5.0]], dtype=np.float32)


@pytest.mark.parametrize(("width", "best"), [(0, []), (1, [1]), (3, [1, 2, 0])])
def test_the_best_come_in_order(width: int, best: list[int]) -> None:
    values, ids, alternatives = chosen_and_best(ROWS, np.array([2, 3]), width)
    assert ids.shape == alternatives.shape == (2, width)
    assert ids[0].tolist() == best
    assert len(set(ids[1].tolist())) == width
    total = np.log(np.exp(ROWS.astype(np.float64)).sum(axis=1))
    np.testing.assert_allclose(values, ROWS[[0, 1], [2, 3]] - total, rtol=1e-5)
    expected = np.take_along_axis(ROWS, ids.astype(np.int64), axis=1) - total[:, None]
    np.testing.assert_allclose(alternatives, expected, rtol=1e-5)


def test_the_whole_vocabulary_sums_to_one() -> None:
    _, ids, alternatives = chosen_and_best(ROWS, np.array([0, 0]), 4)
    assert sorted(ids[0].tolist()) == [0, 1, 2, 3]
    np.testing.assert_allclose(np.exp(alternatives).sum(axis=1), 1.0, rtol=1e-6)
