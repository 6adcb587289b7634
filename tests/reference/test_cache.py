"""Block accounting: nothing leaks, nothing is shared by mistake, content is found where it lies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.executors.reference.core.blocks import (
    GONE,
    BlockAccountingError,
    BlockPool,
    BlockTable,
    blocks_for,
)
from inflight.executors.reference.core.reuse import NO_MATCH, ReuseIndex, chain, root
from inflight.executors.reference.core.window import CacheWindow
from inflight.executors.reference.numpy.cache import PagedCache

SIZE = 4
ROOT = root()


def open_table(pool: BlockPool, tokens: list[int], salt: bytes = b"") -> tuple[BlockTable, int]:
    """A table for a prompt, and how many of its tokens were found."""
    match = pool.match(tokens, chain(root(salt), tokens, SIZE), root(salt))
    table = pool.hold(match)
    pool.fill(table, match, len(tokens))
    return table, match.tokens(SIZE)


def keep(pool: BlockPool, table: BlockTable, tokens: list[int], salt: bytes = b"") -> None:
    pool.store(table, tokens, chain(root(salt), tokens, SIZE), root(salt), ended=True)
    pool.release(table)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 4) == blocks


def test_growing_takes_blocks_and_releasing_gives_them_back() -> None:
    pool = BlockPool(4, 8)
    table = pool.hold(NO_MATCH)
    pool.grow(table, 9)
    assert (len(table.blocks), pool.used, pool.available) == (2, 2, 2)
    pool.grow(table, 16)
    assert len(table.blocks) == 2
    pool.release(table)
    assert (pool.used, pool.available, pool.stats.alloc_total_blocks) == (0, 4, 2)


def test_mistakes_of_the_caller_are_caught() -> None:
    pool = BlockPool(4, 8)
    table = pool.hold(NO_MATCH)
    with pytest.raises(BlockAccountingError):
        pool.grow(table, 33)
    pool.release(table)
    with pytest.raises(BlockAccountingError):
        pool.release(table)
    with pytest.raises(BlockAccountingError):
        pool.grow(table, 1)


def test_a_prompt_finds_what_another_computed() -> None:
    pool = BlockPool(16, SIZE, ReuseIndex(SIZE))
    prompt = list(range(11))
    first, found = open_table(pool, prompt)
    assert found == 0
    keep(pool, first, prompt)
    assert (pool.used, pool.cached, pool.available) == (0, 3, 16)
    # Two full blocks, and two tokens of the third: the last token is always computed.
    again, found = open_table(pool, prompt)
    assert found == 10
    assert again.blocks[:2] == [15 - 15, 1]
    assert again.blocks[2] not in (0, 1, 2)
    other, found = open_table(pool, [0, 1, 2, 3, 4, 5, 99, 7, 8])
    assert (found, other.blocks[0]) == (6, again.blocks[0])
    # The third blocks were found in part only: they are copies.
    assert (pool.stats.reused_blocks, pool.stats.missed_blocks) == (2 + 1, 3 + 1 + 2)
    assert pool.stats.hit_rate == 3 / 9


def test_salts_keep_prompts_apart() -> None:
    pool = BlockPool(16, SIZE, ReuseIndex(SIZE))
    prompt = list(range(9))
    keep(pool, open_table(pool, prompt, b"a")[0], prompt, b"a")
    assert open_table(pool, prompt, b"b")[1] == 0
    assert open_table(pool, prompt, b"a")[1] == 8


def test_without_partial_reuse_only_full_blocks_are_found() -> None:
    pool = BlockPool(16, SIZE, ReuseIndex(SIZE, enable_partial_reuse=False))
    prompt = list(range(11))
    keep(pool, open_table(pool, prompt)[0], prompt)
    assert pool.cached == 2
    assert open_table(pool, [*range(7), 99, 100])[1] == 4


def test_the_least_recently_used_goes_first_and_its_end_before_its_beginning() -> None:
    pool = BlockPool(4, SIZE, ReuseIndex(SIZE))
    old, new = [1] * 8, [2] * 8
    for prompt in (old, new):
        keep(pool, open_table(pool, prompt)[0], prompt)
    third, found = open_table(pool, [3] * 4)
    assert found == 0
    pool.release(third)
    # The old prompt lost its second block, and the new one nothing.
    assert len(pool.match(old, chain(ROOT, old, SIZE), ROOT).blocks) == 1
    assert len(pool.match([*new, 9], chain(ROOT, new, SIZE), ROOT).blocks) == 2


def test_a_fork_shares_full_blocks_and_copies_the_last() -> None:
    pool = BlockPool(8, SIZE)
    table = pool.hold(NO_MATCH)
    pool.grow(table, 6)
    twin = pool.fork(table, 6)
    assert twin.blocks[0] == table.blocks[0]
    assert pool.take_copies() == [(table.blocks[1], twin.blocks[1], 2)]
    assert (pool.used, pool.owned(table), pool.owned(twin)) == (3, 1, 1)
    even = pool.fork(table, 4)
    assert (even.blocks, pool.take_copies()) == (table.blocks[:1], [])
    for one in (table, twin, even):
        pool.release(one)
    assert pool.used == 0


def test_copying_takes_the_first_tokens_of_a_block() -> None:
    cache = PagedCache(2, 3, SIZE, 1, 2)
    cache.keys[1][0:4] = 7.0
    cache.copy(0, 2, 3)
    assert cache.keys[1][8:12, 0, 0].tolist() == [7.0, 7.0, 7.0, 0.0]


@settings(max_examples=150, deadline=None)
@given(
    num_blocks=st.integers(3, 12),
    actions=st.lists(
        st.tuples(
            st.sampled_from(["open", "grow", "fork", "keep", "release"]),
            st.integers(0, 40),
            st.lists(st.integers(0, 1), min_size=1, max_size=9),
        ),
        max_size=60,
    ),
    reuse=st.booleans(),
    window=st.none() | st.builds(CacheWindow, st.integers(1, 12), st.integers(0, 6)),
    num_host_blocks=st.integers(0, 5),
)
def test_no_sequence_of_actions_leaks_or_mixes_blocks(
    num_blocks: int,
    actions: list[tuple[str, int, list[int]]],
    reuse: bool,
    window: CacheWindow | None,
    num_host_blocks: int,
) -> None:
    """Against a cache that remembers what was written to each token of each block."""
    pool = BlockPool(
        num_blocks, SIZE, ReuseIndex(SIZE) if reuse else None, window=window, num_host_blocks=num_host_blocks
    )
    written: dict[int, list[tuple[int, ...]]] = {}
    tables: list[tuple[BlockTable, list[int]]] = []

    def write(table: BlockTable, tokens: list[int], first: int) -> None:
        for position in range(first, len(tokens)):
            block = written.setdefault(table.blocks[position // SIZE], [()] * SIZE)
            block[position % SIZE] = tuple(tokens[: position + 1])

    def copy_due() -> None:
        for source, target, count in pool.take_copies():
            written[target] = [*written[source][:count], *[()] * (SIZE - count)]

    def seen(held: list[int]) -> list[int]:
        """The positions that the next query sees."""
        if window is None:
            return list(range(len(held)))
        latest = len(held) + 1 - window.tokens
        return [one for one in range(len(held)) if one < window.sink_tokens or one >= latest]

    for action, number, tokens in actions:
        if action == "open":
            match = pool.match(tokens, chain(ROOT, tokens, SIZE), ROOT)
            if pool.cost(match, blocks_for(len(tokens), SIZE)) > pool.available:
                continue
            table = pool.hold(match)
            pool.fill(table, match, len(tokens))
            copy_due()
            write(table, tokens, match.tokens(SIZE))
            tables.append((table, tokens))
        elif tables:
            place = number % len(tables)
            table, held = tables[place]
            if action == "grow" and pool.available:
                tables[place] = (table, [*held, number % 2])
                pool.trim(table, len(held))
                pool.grow(table, len(held) + 1)
                copy_due()
                write(table, tables[place][1], len(held))
            elif action == "fork" and pool.available:
                twin = pool.fork(table, len(held))
                copy_due()
                tables.append((twin, list(held)))
            elif action in ("keep", "release"):
                tables.pop(place)
                if action == "keep":
                    pool.store(table, held, chain(ROOT, held, SIZE), ROOT, ended=True)
                pool.release(table)
        for table, held in tables:
            # Every position that is still seen holds what was computed for exactly these tokens.
            for position in seen(held):
                assert written[table.blocks[position // SIZE]][position % SIZE] == tuple(held[: position + 1])
        assert pool.used == len({block for table, _ in tables for block in table.blocks} - {GONE})
        assert pool.used + pool.available == num_blocks
        assert 0 <= pool.used_host <= num_host_blocks
    for table, _ in tables:
        pool.release(table)
    assert (pool.used, pool.available) == (0, num_blocks)
