"""TensorRT-LLM's events of its KV cache, as the worker's reports have them."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from inflight.executors.base import CacheChange, CacheChanges
from inflight.executors.tensorrt_llm.cache_events import CacheEventReader, first_block_hash

FIRST, ADAPTED, SECOND = 924206229973855, 1405807694910447675, 2728178455351807326


def block(name: Any, tokens: list[int], **more: Any) -> dict[str, Any]:
    extra = more.pop("extra", 0)
    made = [{"type": "unique_token", "token_id": token, "token_extra_id": extra} for token in tokens]
    return {
        "type": "stored_block",
        "block_hash": name,
        "tokens": made,
        "cache_level": 0,
        "priority": 35,
    } | more


def stored(parent: Any, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}


def events(*data: dict[str, Any], first: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [{"event_id": first + number, "data": one, **more} for number, one in enumerate(data)]


def rows(changes: CacheChanges | None) -> list[tuple[int, int]]:
    assert changes is not None
    return list(zip(changes.kinds, array("Q", changes.names), strict=True))


@pytest.mark.parametrize(
    ("tokens", "adapter", "expected"),
    [
        ([1, 2, 3, 4], None, FIRST),
        ([1, 2, 3, 4], 7, ADAPTED),
        (list(range(32)), None, 17461474797406555673),
    ],
)
def test_first_blocks_hash_as_in_tensorrt_llm(tokens: list[int], adapter: int | None, expected: int) -> None:
    assert first_block_hash(tokens, adapter) == expected


def test_a_chain_moves_and_goes() -> None:
    reader = CacheEventReader(4)
    level = {"type": "event_diff", "new_value": 1, "old_value": 0}
    changes = reader.read(
        events(
            {"type": "created", "num_blocks_per_cache_level": [8, 2]},
            stored(None, block(FIRST, [1, 2, 3, 4]), block(SECOND, [5, 6, 7, 8])),
            {"type": "updated", "block_hash": SECOND, "cache_level": level, "priority": None},
            {"type": "updated", "block_hash": FIRST, "cache_level": None, "priority": {"new_value": 1}},
            {"type": "removed", "block_hashes": [SECOND, FIRST]},
        )
    )
    assert rows(changes) == [
        (CacheChange.STORED, FIRST),
        (CacheChange.STORED, SECOND),
        (CacheChange.MOVED_TO_HOST, SECOND),
        (CacheChange.REMOVED, SECOND),
        (CacheChange.REMOVED, FIRST),
    ]
    assert changes is not None
    assert list(array("Q", changes.parents)) == [0, FIRST]
    assert list(array("i", changes.token_ids)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert changes.firsts == ((0, None, b""),)
    assert reader.read([]) is None


def test_adapters_are_known_by_the_hash_and_salts_left_out() -> None:
    reader = CacheEventReader(4, adapters=[5, 7])
    salted = 8961321873627678067
    changes = reader.read(
        events(
            stored(None, block(salted, [1, 2, 3, 4])),
            stored(None, block(ADAPTED, [1, 2, 3, 4])),
            # Of an adapter that nobody announced, not full, and with a prompt table.
            stored(None, block(first_block_hash([1, 2, 3, 4], 6), [1, 2, 3, 4])),
            stored(FIRST, block(1, [5])),
            stored(FIRST, block(2, [5, 6, 7, 8], extra=3)),
        )
    )
    assert rows(changes) == [(CacheChange.STORED, ADAPTED)]
    assert changes is not None
    assert changes.firsts == ((0, 7, b""),)


def test_missing_events_clear_all() -> None:
    reader = CacheEventReader(4)
    one = stored(None, block(FIRST, [1, 2, 3, 4]))
    assert rows(reader.read(events(one, first=3))) == [(CacheChange.STORED, FIRST)]
    assert rows(reader.read(events(one, first=5))) == [(CacheChange.CLEARED, 0), (CacheChange.STORED, FIRST)]


def test_other_ranks_and_shorter_windows_are_left_out() -> None:
    reader = CacheEventReader(4)
    created = {"type": "created", "num_blocks_per_cache_level": [8]}
    one = stored(None, block(FIRST, [1, 2, 3, 4]))
    assert reader.read(events(created, window_size=4096)) is None
    assert reader.read(events(one, first=1, window_size=512)) is None
    assert reader.read(events(one, attention_dp_rank=1)) is None
    told = reader.read(events(one, first=2, window_size=4096, attention_dp_rank=0))
    assert rows(told) == [(CacheChange.STORED, FIRST)]


def test_blocks_that_are_named_by_text_are_followed() -> None:
    reader = CacheEventReader(4)
    told = reader.read(
        events(stored("ab", block("cd", [5, 6, 7, 8])), {"type": "removed", "block_hashes": ["cd"]})
    )
    [(_, name), (kind, removed)] = rows(told)
    assert (kind, removed) == (CacheChange.REMOVED, name)
