"""Which iterations with prompts are launched by hand though a graph has room for them."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")

from inflight.executors.reference.pytorch.steps import pays_by_hand


@pytest.mark.parametrize(
    ("rows", "graph_rows", "launching_rows", "expected"),
    [
        (1280, 1600, 300, True),
        (1568, 1600, 300, False),  # few rows are spare
        (1280, 1280, 300, False),
        (400, 448, 300, False),  # the device would wait for the host
        (4000, 6400, 3600, False),
        (6000, 8448, 3600, True),
        (1280, 1600, math.inf, False),  # nothing was measured
    ],
)
def test_spare_rows_cost_more_than_launching_that_is_hidden(
    rows: int, graph_rows: int, launching_rows: float, expected: bool
) -> None:
    assert pays_by_hand(rows, graph_rows, launching_rows) == expected
