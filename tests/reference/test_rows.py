"""Rows to columns and back."""

from __future__ import annotations

import numpy as np

from inflight.executors.base import FinishReason, ResponseBatch, StatusCode
from inflight.executors.reference.core.rows import PromptRecord, Row, TokenRecord, pack

from .support import unpack


def record(values: list[float], width: int) -> TokenRecord:
    ids = [np.arange(width, dtype=np.int32) + index for index in range(len(values))]
    best = [(one / 8).astype(np.float32) for one in ids]
    return TokenRecord(list(values), ids, best)


def test_no_rows_are_the_empty_batch() -> None:
    assert pack([]) == ResponseBatch()


def test_dense_columns() -> None:
    rows = [
        Row(2**64 - 1, 0, [1, 2, 3]),
        Row(7, 2, [], FinishReason.END_ID, True),
        Row(8, 1, [9], FinishReason.LENGTH),
        Row(9, final=True, error=(StatusCode.INVALID_ARGUMENT, "no")),
    ]
    batch = pack(rows)
    read = unpack(batch)
    assert [
        (row.client_id, row.sequence_index, list(row.tokens), row.finish_reason, row.final) for row in rows
    ] == [(row.client_id, row.sequence_index, list(row.tokens), row.finish_reason, row.final) for row in read]
    assert batch.errors == [(3, 3, "no")]
    assert batch.log_prob_rows == batch.top_log_prob_rows == b""
    assert batch.prompt_log_probs == []


def test_sparse_columns_hold_only_the_rows_that_have_them() -> None:
    rows = [
        Row(1, tokens=[5]),
        Row(2, tokens=[5, 6], record=record([0.5, 0.25], 2), wants_log_probs=True, top_width=2),
        Row(3, tokens=[], record=record([], 2), wants_log_probs=True, top_width=2),
        Row(4, tokens=[7], record=record([1.0], 0), wants_log_probs=True),
        Row(5, tokens=[8], record=record([2.0], 3), top_width=3),
    ]
    batch = pack(rows)
    assert np.frombuffer(batch.log_prob_rows, "<u4").tolist() == [1, 3]
    assert np.frombuffer(batch.log_probs, "<f4").tolist() == [0.5, 0.25, 1.0]
    assert np.frombuffer(batch.top_log_prob_rows, "<u4").tolist() == [1, 4]
    assert np.frombuffer(batch.top_log_prob_widths, "<u4").tolist() == [2, 3]
    assert np.frombuffer(batch.top_log_prob_ids, "<i4").tolist() == [0, 1, 1, 2, 0, 1, 2]
    assert len(batch.top_log_probs) == len(batch.top_log_prob_ids)


def test_prompt_log_probs_begin_with_none() -> None:
    [(row, values, width, ids, best)] = pack(
        [Row(1), Row(2, prompt=PromptRecord.empty(3, 2))]
    ).prompt_log_probs
    assert (row, width) == (1, 2)
    assert np.isnan(np.frombuffer(values, "<f4")).all()
    assert np.frombuffer(ids, "<i4").tolist() == [-1] * 6
    assert len(best) == 4 * 6
