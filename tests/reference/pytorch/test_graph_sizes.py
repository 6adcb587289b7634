"""Which graph has room for an iteration with prompts, and when it is launched by hand all the same."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")

from inflight.executors.reference.pytorch.graph_sizes import pays_by_hand, place_with_room
from inflight.executors.reference.pytorch.packing import PackedShape


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


@pytest.mark.parametrize(
    ("shape", "place"),
    [
        pytest.param(PackedShape(0, 10, 1, 1), (64, 16), id="the smallest"),
        pytest.param(PackedShape(17, 10, 1, 1), (64, 32), id="with more rows"),
        pytest.param(PackedShape(17, 65, 1, 1), (512, 32), id="few tokens take a much larger one"),
        pytest.param(PackedShape(0, 900, 1, 1), (1024, 16), id="many tokens take one that is little larger"),
        pytest.param(PackedShape(0, 600, 1, 1), None, id="but none that is much larger"),
        pytest.param(PackedShape(33, 10, 1, 1), None, id="no graph has so many rows"),
        pytest.param(PackedShape(0, 1025, 1, 1), None, id="nor so many tokens"),
        pytest.param(PackedShape(0, 64, 40, 1), None, id="nor so many tiles"),
    ],
)
def test_an_iteration_takes_the_smallest_graph_with_room(
    shape: PackedShape, place: tuple[int, int] | None
) -> None:
    places = [(tokens, generation) for tokens in (64, 512, 1024) for generation in (16, 32)]

    def holds(tokens: int, generation: int) -> PackedShape:
        return PackedShape(generation, tokens, 32, 64)

    assert place_with_room(places, shape, holds) == place
