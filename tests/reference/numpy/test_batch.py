"""The layout of an iteration: slots, positions and groups of generation rows."""

from __future__ import annotations

import numpy as np
import pytest

from inflight.executors.reference.core.blocks import GONE
from inflight.executors.reference.numpy import batch as layout
from inflight.executors.reference.numpy.batch import Span, build_batch


def test_generation_comes_first_then_each_chunk() -> None:
    batch = build_batch(
        [Span([7], 5, [9, 3]), Span([8], 0, [4])],
        [Span([1, 2, 3], 2, [6, 5]), Span([4], 0, [0])],
        tokens_per_block=4,
    )
    assert batch.token_ids.tolist() == [7, 8, 1, 2, 3, 4]
    assert batch.positions.tolist() == [5, 0, 2, 3, 4, 0]
    assert batch.slots.tolist() == [3 * 4 + 1, 4 * 4, 6 * 4 + 2, 6 * 4 + 3, 5 * 4, 0]
    assert [(span.start, span.stop, span.first_position) for span in batch.context] == [(2, 5, 2), (5, 6, 0)]


def test_no_rows_at_all() -> None:
    batch = build_batch([], [], tokens_per_block=4)
    assert (len(batch.token_ids), batch.generation, batch.context) == (0, (), ())


@pytest.mark.parametrize("group_tokens", [1, 64, 4096])
def test_every_generation_row_is_in_one_group_that_holds_it(
    group_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_GROUP_TOKENS", group_tokens)
    positions = [0, 3, 4, 15, 16, 17, 40, 100, 2, 63, 64]
    spans = [Span([1], position, list(range(30))) for position in positions]
    batch = build_batch(spans, [], tokens_per_block=4)
    assert sorted(row for group in batch.generation for row in group.rows.tolist()) == list(range(11))
    for group in batch.generation:
        assert group.lengths.tolist() == [positions[row] + 1 for row in group.rows]
        assert group.padded == group.lengths.max()
        assert group.padded <= 2 * (group.lengths.min() + 4)
        assert group.block_table.shape == (len(group.rows), -(-group.padded // 4))
        assert len(group.rows) == 1 or len(group.rows) * group.padded <= group_tokens
        mask = group.mask(None)
        shown = np.broadcast_to(
            True if mask is None else mask[:, 0, 0, :] == 0, (len(group.rows), group.padded)
        )
        assert shown.sum(axis=1).tolist() == group.lengths.tolist()
        windowed = group.mask(3)
        hides = np.zeros((len(group.rows), 1, 1, group.padded)) if windowed is None else windowed
        assert (hides == 0).sum(axis=(1, 2, 3)).tolist() == np.minimum(group.lengths, 3).tolist()


def test_what_has_left_the_window_is_not_laid_out() -> None:
    """A sequence without its beginning costs as much as one that begins where it does."""
    blocks = [*[GONE] * 6, 11, 12, 13]
    whole = build_batch([Span([1], 9, [11, 12, 13])], [Span([1, 2], 8, [11, 12, 13])], 4, windowed=True)
    late = build_batch([Span([1], 33, blocks)], [Span([1, 2], 32, blocks)], 4, windowed=True)
    assert late.positions.tolist() == [position + 24 for position in whole.positions.tolist()]
    assert late.slots.tolist() == whole.slots.tolist()
    [row], [same] = late.generation, whole.generation
    assert (row.lengths.tolist(), row.padded, row.places) == (same.lengths.tolist(), same.padded, None)
    [chunk], [other] = late.context, whole.context
    assert (chunk.first_position, chunk.keys, chunk.places) == (other.first_position, other.keys, None)
