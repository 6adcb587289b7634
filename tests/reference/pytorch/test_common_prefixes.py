"""When it pays to look for what rows have in common."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")

from inflight.executors.reference.pytorch.common_prefixes import CommonPrefixes

#: Blocks of what many prompts begin with.
SYSTEM = [7, 3, 9, 5]


def noted(*tables: list[int]) -> CommonPrefixes:
    """Of sequences in slots 0, 1, ..., whose first 16 keys are four blocks."""
    prefixes = CommonPrefixes(32, 4, 16)
    for slot, blocks in enumerate(tables):
        prefixes.enter(slot, blocks)
    return prefixes


def own(count: int) -> list[list[int]]:
    return [[100 * place + block for block in range(5)] for place in range(1, count + 1)]


@pytest.mark.parametrize(
    ("tables", "are_many"),
    [
        ([[*SYSTEM, row] for row in range(4)], True),
        ([[*SYSTEM, row] for row in range(3)], False),
        ([SYSTEM[:3]] * 8, False),
        (own(8), False),
        ([*[[*SYSTEM, 90]] * 4, *own(12)], True),
        ([*[[*SYSTEM, 90]] * 4, *own(13)], False),
        ([*[[*SYSTEM, 90]] * 4, *[[1, 2, 3, 4]] * 4, *own(20)], True),
        ([*[[*SYSTEM, 90]] * 5, *[[1, 2, 3, 4]] * 3, *own(20)], False),
    ],
)
def test_many_rows_begin_alike(tables: list[list[int]], are_many: bool) -> None:
    assert noted(*tables).are_many(np.arange(len(tables))) is are_many


def test_rows_of_one_sequence_begin_alike() -> None:
    """Guesses of its next tokens, which are checked by row."""
    assert noted([*SYSTEM, 1]).are_many(np.zeros(4, dtype=np.int32))


def test_who_comes_and_goes_counts() -> None:
    prefixes = noted(*[[*SYSTEM, row] for row in range(4)], *own(12))
    rows = np.arange(16)
    assert prefixes.are_many(rows)
    assert prefixes.are_many(rows)
    assert not prefixes.are_many(rows[1:])
    prefixes.enter(4, [*SYSTEM, 1])
    assert prefixes.are_many(rows[1:])
    assert not prefixes.are_many(rows[:0])
    prefixes.enter(5, SYSTEM[:1])
    assert not prefixes.are_many(rows[:0])
    assert prefixes.are_many(rows[1:])
    # A slot's next sequence, and the same rows.
    prefixes.enter(4, SYSTEM[:2])
    assert not prefixes.are_many(rows[1:])
