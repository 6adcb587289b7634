"""The index of what blocks hold, alone: what is found, what is forgotten first, and what is reported."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.executors.reference.core.cache_changes import Origin
from inflight.executors.reference.core.eviction import EvictionOrder
from inflight.executors.reference.core.reuse import (
    DEFAULT_PRIORITY,
    DEFAULT_RETENTION,
    Match,
    Retention,
    RetentionPlan,
    ReuseIndex,
    chain,
    root,
    with_extra_ids,
)

SIZE = 4
ROOT = root()


def short(content_hash: bytes) -> int:
    return int.from_bytes(content_hash[:8], "little")


def store(
    index: ReuseIndex, first_block: int, tokens: list[int], retention: Retention = DEFAULT_RETENTION
) -> list[bytes]:
    """Blocks from ``first_block`` on, a full one for each four tokens; their hashes."""
    hashes = chain(ROOT, tokens, SIZE)
    for place, content_hash in enumerate(hashes):
        parent = hashes[place - 1] if place else ROOT
        own = tokens[place * SIZE : (place + 1) * SIZE]
        assert index.store(first_block + place, parent, content_hash, own, retention)
    return hashes


def match(index: ReuseIndex, tokens: list[int]) -> Match:
    return index.match(tokens, chain(ROOT, tokens, SIZE), ROOT)


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], Match((0, 1))),
        # Of two blocks that begin alike the latest is looked at first, and the longest is taken.
        ([1, 2, 3, 4, 5, 6, 7, 8], Match((0,), 1, 3)),
        ([1, 2, 3, 4, 5, 6, 90, 9], Match((0,), 2, 3)),
        ([1, 2, 3, 4, 5, 6, 70, 9], Match((0,), 2, 2)),
        ([1, 2, 3, 4, 5], Match((0,))),
        ([1, 2, 3, 4, 5, 6], Match((0,), 2, 1)),
        ([1, 2, 3], Match((), 0, 2)),
        ([1], Match()),
        ([2, 2, 3, 4, 5], Match()),
        # What the second block holds is not what it would hold behind another first one.
        ([9, 9, 9, 9, 5, 6, 7, 8, 1], Match()),
    ],
)
def test_the_longest_beginning_is_found(tokens: list[int], found: Match) -> None:
    index = ReuseIndex(SIZE)
    store(index, 0, [1, 2, 3, 4, 5, 6, 7, 8])
    parent, other = chain(ROOT, [1, 2, 3, 4, 5, 6, 90, 80], SIZE)
    assert index.store(2, parent, other, [5, 6, 90, 80], DEFAULT_RETENTION)
    assert match(index, tokens) == found
    assert found.tokens(SIZE) == SIZE * len(found.blocks) + found.partial_tokens
    assert found.whole() == Match(found.blocks)


def test_one_content_is_stored_once_and_so_is_a_block() -> None:
    index = ReuseIndex(SIZE)
    [content_hash] = store(index, 3, [1, 2, 3, 4])
    assert not index.store(5, ROOT, content_hash, [1, 2, 3, 4], DEFAULT_RETENTION)
    assert (index.holds(3), index.holds(5)) == (True, False)
    index.forget(3)
    assert not index.holds(3)
    assert match(index, [1, 2, 3, 4, 5]) == Match()
    assert index.store(5, ROOT, content_hash, [1, 2, 3, 4], DEFAULT_RETENTION)
    assert match(index, [1, 2, 3, 4, 5]) == Match((5,))


def test_only_the_latest_beginnings_are_compared() -> None:
    index = ReuseIndex(SIZE)
    for block in range(33):
        store(index, block, [1, 100 + block, 3, 4])
    assert match(index, [1, 101, 3, 9]).partial_tokens == 3
    # The first of 33 is one too many.
    assert match(index, [1, 100, 3, 9]).partial_tokens == 1


@pytest.mark.parametrize(
    ("position", "worth"),
    [(0, 80), (3, 80), (4, 20), (99, 20), (100, 5), (101, 5)],
)
def test_a_plan_says_what_tokens_are_worth(position: int, worth: int) -> None:
    plan = RetentionPlan(((0, 4, Retention(80)), (2, None, Retention(20))), Retention(5))
    assert plan.at(position, 100).priority == worth


def test_what_no_range_has_is_worth_the_usual() -> None:
    plan = RetentionPlan(((4, 8, Retention(80)),))
    assert [plan.at(position, 9) for position in (0, 8, 9)] == [DEFAULT_RETENTION] * 3
    assert plan.at(7, 9) == Retention(80)


def test_the_lowest_priority_goes_first_then_who_was_unused_first() -> None:
    index = ReuseIndex(SIZE)
    for block, priority in enumerate((50, 10, 10, 90)):
        store(index, block, [block] * SIZE, Retention(priority))
    assert index.worst() is None
    for block in (3, 0, 2, 1):
        index.unuse(block)
    assert index.num_evictable == 4
    assert index.worst() == 2
    assert index.use(2) is True
    assert index.use(2) is False
    assert index.priority(3) == 90
    assert index.evict(2) == [1, 0]
    assert [index.holds(block) for block in range(4)] == [False, False, True, True]
    assert index.evict(9) == [3]


def test_a_priority_ends_at_its_time() -> None:
    index = ReuseIndex(SIZE)
    index.refresh(100.0)
    store(index, 0, [1] * SIZE, Retention(90, duration_s=5.0))
    store(index, 1, [2] * SIZE, Retention(60))
    index.unuse(0)
    index.unuse(1)
    index.refresh(104.9)
    assert index.worst() == 1
    index.refresh(105.0)
    assert (index.worst(), index.priority(0)) == (0, DEFAULT_PRIORITY)
    assert index.num_evictable == 2
    # It has none that could end again, and what is set anew lasts.
    assert index.use(0)
    index.retain(0, Retention(70))
    index.refresh(1000.0)
    assert index.priority(0) == 70
    assert index.num_evictable == 1


@pytest.mark.parametrize("change", ["later", "for ever", "forgotten", "moved"])
def test_a_priority_that_was_set_anew_does_not_end_early(change: str) -> None:
    index = ReuseIndex(SIZE, first_host_block=4)
    store(index, 0, [1] * SIZE, Retention(90, duration_s=5.0))
    if change == "later":
        index.retain(0, Retention(80, duration_s=9.0))
    elif change == "for ever":
        index.retain(0, Retention(80))
    elif change == "moved":
        index.move(0, 4)
    else:
        index.forget(0)
        store(index, 0, [1] * SIZE, Retention(80))
    index.refresh(6.0)
    block, priority = (4, DEFAULT_PRIORITY) if change == "moved" else (0, 80)
    assert index.priority(block) == priority
    # It is in use, and the end of a priority changes nothing in that.
    assert index.worst(level=int(block == 4)) is None


def test_content_that_moves_is_found_and_evicted_where_it_is() -> None:
    index = ReuseIndex(SIZE, first_host_block=8)
    store(index, 0, [1, 2, 3, 4, 5, 6, 7, 8])
    index.move(1, 8)
    assert match(index, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == Match((0, 8))
    assert match(index, [1, 2, 3, 4, 5, 6, 9]) == Match((0,), 8, 2)
    index.unuse(8)
    assert (index.num_evictable, index.worst(), index.worst(level=1)) == (0, None, 8)
    assert index.use(8)
    index.move(8, 1)
    assert match(index, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == Match((0, 1))


def test_events_say_what_happened_in_order() -> None:
    index = ReuseIndex(SIZE, event_buffer_max_size=9, first_host_block=8)
    first, second = store(index, 0, [1, 2, 3, 4, 5, 6, 7, 7], Retention(40))
    index.move(1, 8)
    index.forget(8)

    def stored(content_hash: bytes, parent: bytes, tokens: list[int]) -> dict[str, Any]:
        block = {"block_hash": short(content_hash), "tokens": tokens, "cache_level": 0, "priority": 40}
        return {"type": "stored", "parent_hash": short(parent), "blocks": [block]}

    level = {"type": "event_diff", "old_value": 0, "new_value": 1}
    assert index.take_events() == [
        {"event_id": 1, "data": stored(first, ROOT, [1, 2, 3, 4])},
        {"event_id": 2, "data": stored(second, first, [5, 6, 7, 7])},
        {
            "event_id": 3,
            "data": {"type": "updated", "block_hash": short(second), "cache_level": level},
        },
        {"event_id": 4, "data": {"type": "removed", "block_hashes": [short(second)]}},
    ]
    assert index.take_events() == []


def test_of_too_many_events_the_latest_are_kept() -> None:
    index = ReuseIndex(SIZE, event_buffer_max_size=2)
    for block in range(3):
        store(index, block, [block] * SIZE)
    assert [event["event_id"] for event in index.take_events()] == [2, 3]


def test_events_are_numbered_though_nobody_keeps_them() -> None:
    index = ReuseIndex(SIZE)
    store(index, 0, [1] * SIZE)
    index.forget(0)
    assert index.take_events() == []
    index.event_buffer_max_size = 1
    store(index, 0, [2] * SIZE)
    assert [event["event_id"] for event in index.take_events()] == [3]


def test_changes_are_of_full_blocks_whose_tokens_have_names() -> None:
    index = ReuseIndex(SIZE, first_host_block=8)
    log = index.log_changes()
    assert index.log_changes() is log
    hashes = chain(ROOT, [1, 2, 3, 4], SIZE)
    origin = Origin(7, b"salt")
    assert index.store(0, ROOT, hashes[0], [1, 2, 3, 4], DEFAULT_RETENTION, origin)
    [part] = chain(hashes[0], [5, 6], 2)
    assert index.store(1, hashes[0], part, [5, 6], DEFAULT_RETENTION)
    virtual = [1 << 32 | 5, 6, 7, 8]
    [marked] = chain(ROOT, virtual, SIZE)
    assert index.store(2, ROOT, marked, virtual, DEFAULT_RETENTION)
    changes = log.take()
    assert changes is not None
    assert (len(changes.kinds), changes.firsts) == (1, ((0, 7, b"salt"),))
    assert changes.names == short(hashes[0]).to_bytes(8, "little")
    assert changes.parents == short(ROOT).to_bytes(8, "little")
    index.move(1, 9)
    index.forget(9)
    assert log.take() is None
    index.move(0, 8)
    index.forget(8)
    changes = log.take()
    assert changes is not None
    assert len(changes.kinds) == 2
    store(index, 3, [2**31 - 1, 1, 2, 3])
    assert log.take() is not None


def test_extra_ids_are_above_the_bits_of_a_token() -> None:
    assert with_extra_ids([1, 2, 3], []) == [1, 2, 3]
    assert with_extra_ids([1, 2, 3], [5, 6]) == [5 << 32 | 1, 6 << 32 | 2, 3]
    # Blocks without extra ids have the names that they have without any in the prompt.
    plain = chain(ROOT, [1, 2, 3, 4], SIZE)
    mixed = chain(ROOT, [1, 2, 3, 4, 7 << 32 | 5, 6, 7, 8], SIZE)
    assert mixed[0] == plain[0]
    assert mixed[1] != chain(ROOT, [1, 2, 3, 4, 5, 6, 7, 8], SIZE)[1]
    assert mixed[1] != chain(ROOT, [1, 2, 3, 4, 8 << 32 | 5, 6, 7, 8], SIZE)[1]
    assert chain(ROOT, [1 << 32 | 1, 2, 3, 4], SIZE) != plain
    # Of whatever size: an image's name has 128 bits.
    assert chain(ROOT, [1 << 159 | 1, 2, 3, 4], SIZE) != chain(ROOT, [1 << 158 | 1, 2, 3, 4], SIZE)


@pytest.mark.parametrize("extra", [0, 5 << 32], ids=["plain", "with an extra id"])
def test_a_block_has_one_name_wherever_the_counting_begins(extra: int) -> None:
    tokens = [*range(100, 108), extra | 7, *range(6)]
    whole = chain(ROOT, tokens, SIZE)
    assert len(whole) == 3
    for done in range(1, 3):
        assert chain(whole[done - 1], tokens[done * SIZE :], SIZE) == whole[done:]


def test_a_salt_is_part_of_every_name() -> None:
    assert root() == root(b"")
    assert root(b"a") != root(b"b")
    tokens = list(range(8))
    assert set(chain(root(b"a"), tokens, SIZE)).isdisjoint(chain(root(b"b"), tokens, SIZE))
    assert len(chain(ROOT, tokens[:7], SIZE)) == 1


def test_an_order_of_eviction_counts_what_it_has() -> None:
    order = EvictionOrder()
    assert (len(order), order.first(), order.take(3)) == (0, None, [])
    for block, priority in ((1, 5), (2, 3), (3, 3), (4, 3)):
        order.add(block, priority)
    assert (len(order), order.first()) == (4, 2)
    assert order.discard(1, 3) is False
    assert order.discard(9, 7) is False
    assert order.discard(2, 3) is True
    assert (len(order), order.first()) == (3, 3)
    assert order.take(1) == [3]
    assert len(order) == 2
    assert order.take(9) == [4, 1]
    assert (len(order), order.first()) == (0, None)
    for block, priority in ((1, 1), (2, 4), (3, 4), (4, 4)):
        order.add(block, priority)
    assert order.take(2) == [1, 2]
    assert order.take(9) == [3, 4]
    order.add(5, 9)
    assert order.discard(5, 9) is True
    assert order.first() is None
