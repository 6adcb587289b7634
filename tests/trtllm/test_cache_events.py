"""Events of the PyTorch runtime's KV cache: what TensorRT-LLM reports, as it reports it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from inflight.executors.base import CacheChange, CacheChanges
from inflight.executors.tensorrt_llm.cache_events import first_block_hash
from support import double
from trtllm.harness import collect, request_of
from trtllm.pytorch_setup import start

BOTH_LINES = True

ON = {"event_buffer_max_size": 4, "enable_kv_cache_reuse": True}


def wait_for_events(executor: Any, count: int) -> Sequence[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    deadline = time.monotonic() + 10.0
    while len(found) < count and time.monotonic() < deadline:
        found += executor.kv_cache_events()
    return found


def test_stored_blocks_are_reported_once_and_in_order(tmp_path: Path) -> None:
    with double.installed():
        made = start(tmp_path, **ON)
        assert list(made.kv_cache_events()) == []
        for client_id, token in ((1, 20), (2, 30)):
            made.enqueue([request_of({"client_id": client_id, "input_token_ids": [10, token]})])
            collect(made, client_id)
        found = wait_for_events(made, 2)
        assert list(made.kv_cache_events()) == []
        # Reading them takes nothing from the statistics.
        assert made.stats()
        made.shutdown()
        assert made.kv_cache_events() == ()
    assert [event["event_id"] for event in found] == [0, 1]
    stored = [event["data"]["blocks"][0]["tokens"] for event in found]
    assert [[token["token_id"] for token in tokens] for tokens in stored] == [[10, 20], [10, 30]]


@pytest.mark.parametrize(
    "options", [{}, {**ON, "event_buffer_max_size": 0}, {**ON, "enable_kv_cache_reuse": False}]
)
def test_without_room_or_reuse_there_are_none(tmp_path: Path, options: dict[str, Any]) -> None:
    with double.installed():
        made = start(tmp_path, **options)
        made.enqueue([request_of({})])
        collect(made, 9)
        assert made.kv_cache_events() == ()
        made.shutdown()


@pytest.mark.parametrize("error", [IndexError("empty"), asyncio.QueueEmpty()])
def test_an_empty_queue_that_raises_is_an_empty_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def some(timeout: float | None = 2) -> Any:
        assert timeout
        # A list of events, as some versions give.
        yield [{"event_id": 1}, {"event_id": 2}]
        raise error

    with double.installed():
        monkeypatch.setattr(
            sys.modules["tensorrt_llm"].LLM, "get_kv_cache_events_async", lambda _, timeout: some(timeout)
        )
        made = start(tmp_path, **ON)
        assert list(made.kv_cache_events()) == [{"event_id": 1}, {"event_id": 2}]
        made.shutdown()


def test_events_that_cannot_be_read_are_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Any, timeout: float | None = 2) -> Any:
        raise RuntimeError(f"no queue within {timeout}")

    with double.installed():
        monkeypatch.setattr(sys.modules["tensorrt_llm"].LLM, "get_kv_cache_events_async", broken)
        made = start(tmp_path, **ON)
        assert [made.kv_cache_events() for _ in range(2)] == [(), ()]
        made.enqueue([request_of({})])
        assert not collect(made, 9)[9][-1].errors
        made.shutdown()
    assert caplog.text.count("reports no events of its KV cache: RuntimeError: no queue") == 1


def test_the_worker_gets_what_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 32
    tokens = [{"token_id": token, "token_extra_id": 0} for token in range(size)]
    name = first_block_hash(range(size), None)
    block = {"block_hash": name, "tokens": tokens, "cache_level": 0}
    waiting: list[Any] = [
        {"event_id": 0, "data": {"type": "stored", "parent_hash": None, "blocks": [block]}},
        {"event_id": 1, "data": {"type": "removed", "block_hashes": [name]}},
        {"event_id": 2, "data": {"type": "stored"}},
    ]

    async def some(timeout: float | None = 2) -> Any:
        assert timeout
        if waiting:
            yield waiting.pop(0)

    told: list[CacheChanges] = []
    with double.installed():
        monkeypatch.setattr(
            sys.modules["tensorrt_llm"].LLM, "get_kv_cache_events_async", lambda _, timeout: some(timeout)
        )
        made = start(tmp_path, **ON)
        assert made.info().tokens_per_block == size
        assert "cache_events" in made.info().capabilities
        assert made.report_cache(told.append) == (0, 0)
        deadline = time.monotonic() + 10.0
        while len(told) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        made.shutdown()
    # What cannot be read ends the reports, and what they said.
    assert [one.kinds for one in told] == [
        bytes([CacheChange.STORED]),
        bytes([CacheChange.REMOVED]),
        bytes([CacheChange.CLEARED]),
    ]
    assert told[0].firsts == ((0, None, b""),)


def test_without_events_nothing_is_announced(tmp_path: Path) -> None:
    with double.installed():
        made = start(tmp_path)
        assert "cache_events" not in made.info().capabilities
        made.shutdown()
