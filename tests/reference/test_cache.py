"""Block accounting: nothing leaks, nothing is shared, a reservation is always honoured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.executors.reference.cache import BlockAccountingError, BlockPool, BlockTable, blocks_for


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 4) == blocks


def test_a_reservation_beyond_what_is_left_is_declined() -> None:
    pool = BlockPool(4, 8)
    assert pool.reserve(3) is not None
    assert pool.reserve(2) is None
    assert pool.available == 1
    assert pool.used == 0


def test_growing_takes_from_the_reservation() -> None:
    pool = BlockPool(4, 8)
    table = pool.reserve(3)
    assert table is not None
    pool.grow(table, 9)
    assert (len(table.blocks), table.reserved, pool.used, pool.available) == (2, 1, 2, 1)
    pool.grow(table, 16)
    assert len(table.blocks) == 2
    pool.release(table)
    assert (pool.used, pool.available, pool.total_allocated) == (0, 4, 2)


def test_mistakes_of_the_caller_are_caught() -> None:
    pool = BlockPool(4, 8)
    table = pool.reserve(1)
    assert table is not None
    with pytest.raises(BlockAccountingError):
        pool.grow(table, 9)
    pool.release(table)
    with pytest.raises(BlockAccountingError):
        pool.release(table)
    with pytest.raises(BlockAccountingError):
        pool.grow(table, 1)


ACTIONS = st.tuples(st.sampled_from(["reserve", "grow", "release"]), st.integers(0, 40))


@given(
    num_blocks=st.integers(1, 12),
    actions=st.lists(
        st.tuples(st.sampled_from(["reserve", "grow", "release"]), st.integers(0, 40)), max_size=80
    ),
)
def test_no_sequence_of_actions_leaks_or_shares_a_block(
    num_blocks: int, actions: list[tuple[str, int]]
) -> None:
    pool = BlockPool(num_blocks, 4)
    tables: list[BlockTable] = []
    for action, number in actions:
        if action == "reserve":
            available = pool.available
            table = pool.reserve(number % 6)
            assert (table is None) == (number % 6 > available)
            if table is not None:
                tables.append(table)
        elif tables:
            table = tables[number % len(tables)]
            if action == "grow":
                # Within the reservation it must never fail.
                pool.grow(table, min(number, (len(table.blocks) + table.reserved) * 4))
            else:
                tables.remove(table)
                pool.release(table)
        held = [block for table in tables for block in table.blocks]
        assert len(held) == len(set(held)) == pool.used
        assert all(0 <= block < num_blocks for block in held)
        assert pool.available == num_blocks - len(held) - sum(table.reserved for table in tables) >= 0
    for table in tables:
        pool.release(table)
    assert pool.available == num_blocks
    assert pool.used == 0
