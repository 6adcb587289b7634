"""Why a sequence ends."""

from __future__ import annotations

import pytest

from inflight.executors.base import FinishReason
from inflight.executors.reference.core.stop import ends_with_any, finish_reason


@pytest.mark.parametrize(
    ("generated", "stop_words", "end_id", "min_tokens", "max_tokens", "reason"),
    [
        ([], [], None, 0, 5, FinishReason.NOT_FINISHED),
        ([1], [], None, 0, 5, FinishReason.NOT_FINISHED),
        ([1], [], 1, 0, 5, FinishReason.END_ID),
        ([1, 2], [], 1, 0, 5, FinishReason.NOT_FINISHED),
        ([1], [[1]], 1, 0, 1, FinishReason.END_ID),
        ([3, 1], [[1]], None, 0, 5, FinishReason.STOP_WORDS),
        ([3, 1, 2], [[4], [1, 2]], None, 0, 5, FinishReason.STOP_WORDS),
        ([1, 3, 2], [[1, 2]], None, 0, 5, FinishReason.NOT_FINISHED),
        ([2], [[1, 2]], None, 0, 5, FinishReason.NOT_FINISHED),
        ([1, 2], [[1, 2]], None, 0, 2, FinishReason.STOP_WORDS),
        ([1, 2], [[1, 2]], None, 3, 9, FinishReason.NOT_FINISHED),
        ([0, 1, 2], [[1, 2]], None, 3, 9, FinishReason.STOP_WORDS),
        ([1, 2], [], None, 0, 2, FinishReason.LENGTH),
    ],
)
def test_reasons(
    generated: list[int],
    stop_words: list[list[int]],
    end_id: int | None,
    min_tokens: int,
    max_tokens: int,
    reason: FinishReason,
) -> None:
    assert finish_reason(generated, stop_words, end_id, min_tokens, max_tokens) == reason


def test_nothing_ends_with_an_empty_word() -> None:
    assert not ends_with_any([], [[]])
    assert not ends_with_any([1], [[]])
