"""The pool's accounts where sequences share blocks: costs, second tables, windows, and the host's blocks."""

from __future__ import annotations

import pytest

from inflight.executors.reference.core.blocks import GONE, BlockAccountingError, BlockPool, BlockTable
from inflight.executors.reference.core.cache_changes import Origin
from inflight.executors.reference.core.reuse import (
    DEFAULT_RETENTION,
    NO_MATCH,
    Match,
    Retention,
    ReuseIndex,
    chain,
    root,
)
from inflight.executors.reference.core.window import CacheWindow

SIZE = 4
ROOT = root()


def found(pool: BlockPool, tokens: list[int]) -> Match:
    return pool.match(tokens, chain(ROOT, tokens, SIZE), ROOT)


def opened(pool: BlockPool, tokens: list[int]) -> BlockTable:
    match = found(pool, tokens)
    table = pool.hold(match)
    pool.fill(table, match, len(tokens))
    return table


def computed(
    pool: BlockPool, tokens: list[int], retention: Retention = DEFAULT_RETENTION, *, ended: bool = True
) -> BlockTable:
    """A table of tokens that are computed and can be found."""
    table = opened(pool, tokens)
    pool.store(table, tokens, chain(ROOT, tokens, SIZE), ROOT, lambda _: retention, ended=ended)
    return table


PROMPT = list(range(10, 22))


def test_what_is_in_use_costs_nothing_and_what_is_cached_costs_as_much_as_free() -> None:
    pool = BlockPool(8, SIZE, ReuseIndex(SIZE))
    table = computed(pool, PROMPT)
    match = found(pool, [*PROMPT, 1])
    assert (match.blocks, match.partial) == ((0, 1, 2), None)
    assert pool.cost(match, 4) == 1
    pool.release(table)
    assert pool.cost(match, 4) == 4
    # A block that is to be copied stays meanwhile, and costs one more only if nobody uses it.
    partly = found(pool, [*PROMPT[:10], 1, 1])
    assert (partly.blocks, partly.partial) == ((0, 1), 2)
    assert pool.cost(partly, 3) == 4
    held = pool.hold(Match((2,)))
    assert pool.cost(partly, 3) == 3
    pool.release(held)


def test_with_a_window_what_becomes_shared_is_counted_twice() -> None:
    pool = BlockPool(8, SIZE, ReuseIndex(SIZE), window=CacheWindow(100))
    tables = [computed(pool, PROMPT)]
    match = found(pool, [*PROMPT, 1])
    assert pool.cost(match, 4) == 4 + 3
    tables.append(pool.hold(match))
    assert pool.cost(match, 4) == 4
    for one in tables:
        pool.release(one)
    assert pool.cost(match, 4) == 4


def test_with_a_window_what_is_copied_stays_meanwhile() -> None:
    pool = BlockPool(8, SIZE, ReuseIndex(SIZE), window=CacheWindow(100))
    pool.release(computed(pool, PROMPT))
    assert pool.cost(found(pool, [*PROMPT[:10], 1, 1]), 3) == 3 + 1


def test_a_context_counts_as_found_and_missed() -> None:
    pool = BlockPool(8, SIZE, ReuseIndex(SIZE))
    computed(pool, PROMPT)
    match = found(pool, [*PROMPT[:8], 1, 2, 3, 4, 5])
    table = pool.hold(match)
    # Of five blocks some are taken now, and never fewer than were found.
    pool.fill(table, match, 20, now=4)
    assert len(table.blocks) == 2
    pool.grow(table, 20)
    stats = pool.stats
    assert (stats.reused_blocks, stats.missed_blocks) == (2, 3 + 3)
    assert (stats.alloc_new_blocks, stats.alloc_total_blocks) == (3 + 3, 3 + 5)
    assert (table.found, table.taken) == (2, 3)


def test_a_partly_found_block_is_copied_and_then_as_free_as_before() -> None:
    pool = BlockPool(8, SIZE, ReuseIndex(SIZE))
    pool.release(computed(pool, PROMPT))
    table = opened(pool, [*PROMPT[:10], 1, 1])
    assert pool.take_copies() == [(2, table.blocks[2], 2)]
    assert pool.take_copies() == []
    assert (pool.used, pool.cached) == (3, 1)
    pool.release(table)
    # What was not stored of it is free.
    assert (pool.used, pool.cached, pool.available) == (0, 3, 8)


@pytest.mark.parametrize("index", [None, ReuseIndex(SIZE)], ids=["alone", "with an index"])
def test_a_second_table_keeps_blocks_after_the_first_is_gone(index: ReuseIndex | None) -> None:
    pool = BlockPool(8, SIZE, index)
    table = opened(pool, PROMPT)
    kept = pool.keep(table, 9)
    assert kept is not None
    assert (kept.blocks, kept.stored) == ([0, 1, 2], 3)
    assert (pool.owned(table), pool.used) == (0, 3)
    pool.release(table)
    assert (pool.owned(kept), pool.used) == (3, 3)
    pool.release(kept)
    assert pool.used == 0


def test_blocks_that_are_not_all_there_are_not_kept() -> None:
    pool = BlockPool(8, SIZE, window=CacheWindow(4))
    table = opened(pool, PROMPT)
    assert pool.keep(table, 0) is None
    assert pool.keep(table, 13) is None
    pool.trim(table, 11)
    assert table.blocks == [GONE, GONE, 2]
    # From the fifth token on the second block would be read.
    assert pool.keep(table, 5) is None
    assert pool.used == 1
    kept = pool.keep(table, 12)
    assert kept is not None
    assert kept.blocks == [2]
    assert pool.owned(table) == 0


@pytest.mark.parametrize(
    ("window", "tokens", "places"),
    [
        (None, 0, []),
        (None, 9, [0, 1, 2]),
        (CacheWindow(4), 9, [1, 2]),
        (CacheWindow(4, sink_tokens=1), 9, [0, 1, 2]),
        (CacheWindow(4, sink_tokens=1), 13, [0, 2, 3]),
        (CacheWindow(4), 4, [0]),
    ],
)
def test_the_blocks_that_are_still_read(window: CacheWindow | None, tokens: int, places: list[int]) -> None:
    assert BlockPool(8, SIZE, window=window).needed(tokens) == places


def test_only_what_is_needed_is_taken_for_what_comes_from_elsewhere() -> None:
    pool = BlockPool(8, SIZE, window=CacheWindow(4, sink_tokens=1))
    table = pool.hold(NO_MATCH)
    pool.reserve(table, 13)
    assert table.blocks == [0, GONE, 1, 2]
    assert (table.trimmed, pool.used, table.taken) == (2, 3, 3)
    # What it has it keeps.
    pool.reserve(table, 16)
    assert table.blocks == [0, GONE, 1, 2]
    pool.release(table)
    assert pool.used == 0


def test_a_window_gives_back_what_it_leaves_once() -> None:
    pool = BlockPool(8, SIZE, window=CacheWindow(4))
    table = opened(pool, PROMPT)
    pool.trim(table, 6)
    assert (table.blocks, table.trimmed, pool.used) == ([0, 1, 2], 0, 3)
    pool.trim(table, 7)
    assert (table.blocks, table.trimmed, pool.used) == ([GONE, 1, 2], 1, 2)
    pool.trim(table, 7)
    pool.trim(table, 0)
    assert (table.blocks, table.trimmed, pool.used) == ([GONE, 1, 2], 1, 2)
    twin = pool.fork(table, 12)
    assert (twin.blocks, twin.trimmed) == ([GONE, 1, 2], 1)
    pool.release(table)
    pool.release(twin)
    assert pool.used == 0


def test_a_table_is_released_once() -> None:
    pool = BlockPool(1, SIZE)
    table = opened(pool, [1])
    pool.release(table)
    with pytest.raises(BlockAccountingError, match=r"^a block table was released twice$"):
        pool.release(table)


def test_a_fork_stores_no_block_again() -> None:
    pool = BlockPool(8, SIZE, ReuseIndex(SIZE))
    table = computed(pool, PROMPT, ended=False)
    assert table.stored == 3
    assert pool.fork(table, 6).stored == 1
    table.stored = 0
    assert pool.fork(table, 6).stored == 0


def test_blocks_are_worth_what_their_first_tokens_are() -> None:
    pool = BlockPool(8, SIZE, ReuseIndex(SIZE, event_buffer_max_size=9))
    table = opened(pool, PROMPT[:10])
    asked: list[int] = []

    def worth(position: int) -> Retention:
        asked.append(position)
        return Retention(position)

    log = pool.log_changes()
    assert log is not None
    tokens, hashes = PROMPT[:10], chain(ROOT, PROMPT[:10], SIZE)
    pool.store(table, tokens[:7], hashes, ROOT, worth, origin=Origin(3, b"s"))
    assert (asked, table.stored) == ([0], 1)
    pool.store(table, tokens, hashes, ROOT, worth, ended=True, origin=Origin(3, b"s"))
    assert (asked, table.stored) == ([0, 4, 8], 2)
    changes = log.take()
    assert changes is not None
    # The first block alone says whose it is, and a part of a block has no name.
    assert (len(changes.kinds), changes.firsts) == (2, ((0, 3, b"s"),))
    events = [event["data"] for event in pool.take_events()]
    assert [event["blocks"][0]["tokens"] for event in events] == [tokens[:4], tokens[4:8], tokens[8:]]
    assert [event["blocks"][0]["priority"] for event in events] == [0, 4, 8]
    parents = [ROOT, hashes[0], hashes[1]]
    assert [event["parent_hash"] for event in events] == [
        int.from_bytes(one[:8], "little") for one in parents
    ]


def test_the_latest_user_says_what_a_block_is_worth_unless_it_does_not_care() -> None:
    index = ReuseIndex(SIZE)
    pool = BlockPool(8, SIZE, index)
    computed(pool, PROMPT[:4], Retention(80))
    for retention, priority in ((DEFAULT_RETENTION, 80), (Retention(10), 10)):
        table = pool.hold(found(pool, PROMPT[:5]))
        table.stored = 0
        worth = {0: retention}
        pool.store(table, PROMPT[:4], chain(ROOT, PROMPT[:4], SIZE), ROOT, worth.__getitem__)
        assert index.priority(0) == priority
        pool.release(table)


def test_nothing_is_found_behind_a_block_that_left_the_window_unseen() -> None:
    pool = BlockPool(8, SIZE, ReuseIndex(SIZE), window=CacheWindow(4))
    table = opened(pool, PROMPT)
    pool.trim(table, 11)
    pool.store(table, PROMPT, chain(ROOT, PROMPT, SIZE), ROOT)
    assert table.stored == 0
    pool.release(table)
    assert pool.cached == 0


def test_without_an_index_nothing_is_found_or_reported() -> None:
    pool = BlockPool(2, SIZE)
    table = computed(pool, PROMPT[:5])
    assert (pool.reuses, pool.cached, pool.take_events(), pool.log_changes()) == (False, 0, [], None)
    pool.release(table)
    assert pool.available == 2
    pool.refresh(5.0)
    assert (pool.num_host_blocks, pool.used_host) == (0, 0)
    assert BlockPool(2, SIZE, ReuseIndex(SIZE)).reuses


def test_a_priority_ends_by_the_time_that_the_pool_is_given() -> None:
    index = ReuseIndex(SIZE)
    pool = BlockPool(8, SIZE, index)
    computed(pool, PROMPT[:4], Retention(80, duration_s=3.0))
    pool.refresh(2.9)
    assert index.priority(0) == 80
    pool.refresh(3.0)
    assert index.priority(0) == 35


def with_host(num_blocks: int, num_host_blocks: int, least: int = 35) -> BlockPool:
    index = ReuseIndex(SIZE)
    return BlockPool(num_blocks, SIZE, index, num_host_blocks=num_host_blocks, offload_min_priority=least)


def test_what_would_be_forgotten_moves_to_the_host_and_comes_back() -> None:
    pool = with_host(2, 2)
    pool.release(computed(pool, PROMPT[:8]))
    other = opened(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    # The end goes first; host blocks have the numbers after the cache's.
    assert pool.take_copies() == [(1, 2, SIZE), (0, 3, SIZE)]
    assert (pool.used_host, pool.stats.offloaded_blocks) == (2, 2)
    pool.release(other)
    match = found(pool, [*PROMPT[:8], 1])
    assert match.blocks == (3, 2)
    table = pool.hold(match)
    pool.fill(table, match, 8)
    assert pool.take_copies() == [(3, table.blocks[0], SIZE), (2, table.blocks[1], SIZE)]
    assert (pool.used_host, pool.stats.onboarded_blocks) == (0, 2)
    assert sorted(table.blocks) == [0, 1]
    pool.release(table)
    assert (pool.used, pool.cached) == (0, 2)


def test_a_host_block_that_two_prompts_find_comes_back_once() -> None:
    pool = with_host(3, 1)
    pool.release(computed(pool, PROMPT[:4]))
    pool.release(opened(pool, list(range(12))))
    assert (pool.used_host, len(pool.take_copies())) == (1, 1)
    match = found(pool, [*PROMPT[:4], 1])
    tables = [pool.hold(match), pool.hold(match)]
    for table in tables:
        pool.fill(table, match, 4)
    assert tables[0].blocks == tables[1].blocks
    assert pool.stats.onboarded_blocks == 1
    assert (pool.used, pool.owned(tables[0])) == (1, 0)
    pool.release(tables[0])
    assert pool.owned(tables[1]) == 1


def test_a_host_block_costs_no_more_where_it_is_copied_and_comes_back_for_it() -> None:
    pool = with_host(3, 1)
    pool.release(computed(pool, PROMPT[:4]))
    pool.release(opened(pool, list(range(12))))
    pool.take_copies()
    partly, whole = found(pool, PROMPT[:4]), found(pool, [*PROMPT[:4], 1])
    assert (partly.partial, whole.blocks) == (3, (3,))
    assert pool.cost(partly, 1) == 1
    first, second = pool.hold(whole), pool.hold(partly)
    pool.fill(first, whole, 4)
    pool.fill(second, partly, 4)
    # The second copies from where the first has brought it.
    assert pool.take_copies() == [(3, first.blocks[0], SIZE), (first.blocks[0], second.blocks[0], 3)]
    pool.release(first)
    pool.release(second)
    assert (pool.used, pool.used_host) == (0, 0)


def test_a_place_on_the_host_is_used_again_and_again() -> None:
    pool = with_host(1, 1)
    pool.release(computed(pool, PROMPT[:4]))
    for _ in range(3):
        pool.release(opened(pool, [1]))
        match = found(pool, [*PROMPT[:4], 1])
        assert (match.blocks, pool.used, pool.used_host) == ((1,), 0, 1)
        table = pool.hold(match)
        pool.fill(table, match, 4)
        assert (pool.owned(table), pool.used, pool.used_host) == (1, 1, 0)
        assert pool.take_copies() == [(0, 1, SIZE), (1, 0, SIZE)]
        pool.release(table)


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        pytest.param(50, 60, "second", id="worth more takes the place"),
        pytest.param(50, 50, "second", id="so does what is worth as much"),
        pytest.param(60, 50, "first", id="worth less is forgotten"),
        pytest.param(60, 34, "first", id="so is what may not go there"),
        pytest.param(34, 35, "second", id="which leaves the place to others"),
    ],
)
def test_the_host_keeps_what_is_worth_most(first: int, second: int, kept: str) -> None:
    pool = with_host(1, 1)
    for place, priority in enumerate((first, second)):
        pool.release(computed(pool, [place] * 4, Retention(priority)))
    pool.release(opened(pool, [9, 9]))
    remains = [bool(found(pool, [place] * 5).blocks) for place in range(2)]
    assert remains == [kept == "first", kept == "second"]
    assert pool.used_host == 1


def test_blocks_are_taken_together_as_they_are_one_by_one() -> None:
    together, one_by_one = BlockPool(6, SIZE, ReuseIndex(SIZE)), with_host(6, 0)
    for pool in (together, one_by_one):
        pool.release(computed(pool, PROMPT[:8]))
        table = pool.hold(NO_MATCH)
        pool.grow(table, 20)
        # The free ones first, those that were freed last before others; then the end of what is cached.
        assert table.blocks == [2, 3, 4, 5, 1]
        assert (pool.used, pool.cached, pool.available) == (5, 1, 1)
        with pytest.raises(BlockAccountingError, match="2 blocks asked and 1 available"):
            pool.grow(table, 28)
        pool.grow(table, 24)
        assert pool.available == 0
        pool.release(table)
        assert pool.available == 6
