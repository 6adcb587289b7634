"""Servers of other makers, which a gateway only watches: what it says of them, and within which time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from support.engine_server import (
    BLOCKS,
    METRICS,
    METRICS_PATH,
    EngineServer,
    Publisher,
    engine_server,
    removed,
    stored,
)
from support.http import get, post
from support.processes import InflightProcess, wait_until
from support.servers import MODEL_NAME, Server, Start

#: Of what is wrong with a server, and until it is seen.
NAMED_WITHIN_S = 2.0
#: What a test's own machine may add to that.
SLACK_S = 1.0


def health(gateway: str) -> dict[str, dict[str, Any]]:
    """What is said of each server, by its address."""
    workers = get(gateway, "/health/ready").json().get("workers", [])
    return {worker["address"]: worker for worker in workers}


def cache_reason(gateway: str, server: EngineServer) -> str:
    return str(health(gateway)[server.address].get("cache", ""))


def is_ready(gateway: str, server: EngineServer) -> bool:
    return bool(health(gateway).get(server.address, {}).get("ready"))


def known_cache(gateway: str) -> Any:
    """How full the cache of the only server's only model is; `None`: that is not known."""
    (worker,) = get(gateway, "/console/status").json()["workers"]
    return worker["models"][0].get("cache") if worker["models"] else None


def named_within(what: str, is_so: Callable[[], bool]) -> None:
    """Waits until it is so, which must be seen within the bound."""
    began = time.monotonic()
    wait_until(what, is_so)
    assert time.monotonic() - began < NAMED_WITHIN_S + SLACK_S, what


@pytest.fixture
def vllm() -> Iterator[EngineServer]:
    with engine_server("vllm") as server:
        yield server


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    one = Publisher()
    try:
        yield one
    finally:
        one.end()


@pytest.mark.parametrize("maker", sorted(METRICS))
def test_each_makers_server_is_watched_and_gets_no_requests(start: Start, maker: str) -> None:
    with engine_server(maker) as server:
        gateway = start("gateway", "--port=0", f"--endpoint={server.address}/")
        address = gateway.address("http")
        wait_until("it is ready", lambda: is_ready(address, server))
        asked = post(address, "/v1/completions", {"model": server.model, "prompt": "Hi"})
        assert (asked.status, asked.error["code"]) == (404, "model_not_found")
        assert "only watched" in asked.error["message"]
        adapter = post(address, "/v1/completions", {"model": f"{server.model}:support", "prompt": "Hi"})
        assert adapter.status == 404
        assert get(address, "/v1/models").json()["data"] == []
        path = METRICS_PATH.get(maker, "/metrics")
        wait_until("its load is asked for", lambda: server.requests.count(path) > 1)
        assert set(server.requests) <= {"/v1/models", "/metrics", path}
        used = {"blocks": BLOCKS, "used": BLOCKS // 4}
        wait_until("its cache's use is known", lambda: known_cache(address) == used)
        assert "has no metrics" not in gateway.log


def test_a_model_that_is_also_at_a_worker_is_served_there(
    start: Start, fast: Server, vllm: EngineServer
) -> None:
    vllm.model = MODEL_NAME
    gateway = start("gateway", "--port=0", f"--worker={fast.grpc}", f"--endpoint={vllm.address}")
    address = gateway.address("http")
    wait_until("both are ready", lambda: [one["ready"] for one in health(address).values()] == [True, True])
    for _ in range(10):
        asked = post(address, "/v1/completions", {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 1})
        assert asked.status == 200
    assert [card["id"] for card in get(address, "/v1/models").json()["data"]][:1] == [MODEL_NAME]
    assert not any("completions" in path for path in vllm.requests)
    missing = post(address, "/v2/models/none/infer", {"inputs": []})
    assert missing.status == 404, "nothing is waited for that speaks no KServe"


def test_a_server_that_ends_or_hangs_is_not_ready_and_comes_back(start: Start, vllm: EngineServer) -> None:
    address = start("gateway", "--port=0", f"--endpoint={vllm.address}").address("http")
    wait_until("it is ready", lambda: is_ready(address, vllm))
    vllm.close()
    named_within("it is gone", lambda: not is_ready(address, vllm))
    asked = post(address, "/v1/completions", {"model": vllm.model, "prompt": "Hi"})
    assert (asked.status, "only watched" in asked.error["message"]) == (404, True)
    vllm.open()
    wait_until("it is back", lambda: is_ready(address, vllm) and known_cache(address) is not None)
    vllm.hangs.set()
    named_within("it is silent", lambda: not is_ready(address, vllm))
    named_within("its load is late", lambda: "late" in cache_reason(address, vllm))
    vllm.hangs.clear()
    wait_until("it answers again", lambda: is_ready(address, vllm) and not cache_reason(address, vllm))


def test_files_and_names_have_such_servers_too(start: Start, tmp_path: Path, vllm: EngineServer) -> None:
    file = tmp_path / "endpoints"
    file.write_text("# none yet\n")
    by_file = start("gateway", "--port=0", f"--endpoint-file={file}").address("http")
    by_name = start("gateway", "--port=0", f"--endpoint-dns=http://localhost:{vllm.port}").address("http")
    file.write_text(f"{vllm.address}\n")
    for address in (by_file, by_name):
        wait_until("it is ready", lambda address=address: is_ready(address, vllm))  # type: ignore[misc]
    wrong = start("gateway", "--port=0", "--endpoint=127.0.0.1:8000")
    assert wrong.wait() == 2
    assert "must be http://HOST:PORT" in wrong.log


def listening(start: Start, server: EngineServer, publisher: Publisher, *arguments: str) -> InflightProcess:
    """A gateway that listens to the server's events."""
    gateway = start(
        "gateway",
        "--port=0",
        f"--endpoint={server.address}",
        f"--kv-events-port={publisher.port}",
        "--kv-events-topic=kv@",
        "--log=info,inflight_upstream::watched=debug",
        *arguments,
    )
    address = gateway.address("http")
    wait_until("it is ready", lambda: is_ready(address, server))
    publisher.wait_for_subscriber()
    gateway.wait_until("the events are connected", lambda: "cache events connected" in gateway.log)
    return gateway


def taken(gateway: InflightProcess) -> tuple[int, int] | None:
    """How many blocks are named, and how many could not be, as was logged last."""
    found = re.findall(r"cache events taken.*named=(\d+).*unnamed=(\d+)", gateway.log)
    return (int(found[-1][0]), int(found[-1][1])) if found else None


def test_events_are_heard_and_a_gap_is_named(start: Start, vllm: EngineServer, publisher: Publisher) -> None:
    gateway = listening(start, vllm, publisher)
    address = gateway.address("http")
    publisher.publish(stored(1, 4))
    wait_until("blocks are known", lambda: taken(gateway) == (4, 0))
    publisher.publish(stored(5, 2, parent=4), removed(5, 1))
    publisher.publish(stored(9, 1, parent=77))
    wait_until("changes are known", lambda: taken(gateway) == (5, 1))
    assert cache_reason(address, vllm) == ""
    publisher.publish(stored(10, 1), is_lost=True)
    publisher.publish(removed(6, 1))
    named_within("the gap is named", lambda: "gaps" in cache_reason(address, vllm))
    wait_until("it is trusted again", lambda: cache_reason(address, vllm) == "")
    publisher.publish({"type": "AllBlocksCleared"})
    wait_until("all are gone", lambda: taken(gateway) == (0, 1))
    metrics = get(address, "/metrics").body.decode()
    assert re.search(r'cache_report_faults_total\{reason="gap"\} 1', metrics), metrics


def test_events_are_enough_without_metrics(start: Start, vllm: EngineServer, publisher: Publisher) -> None:
    vllm.has_metrics = False
    gateway = listening(start, vllm, publisher)
    address = gateway.address("http")
    publisher.publish(stored(1, 4))
    wait_until("blocks are known", lambda: taken(gateway) == (4, 0))
    publisher.publish(removed(1, 1), is_lost=True)
    publisher.publish(removed(4, 1))
    named_within("the gap is named", lambda: "gaps" in cache_reason(address, vllm))
    wait_until("it is trusted again", lambda: cache_reason(address, vllm) == "")
    assert gateway.log.count("has no metrics") == 1


def test_a_publisher_as_vllm_has_it_is_heard(start: Start, vllm: EngineServer) -> None:
    publisher = Publisher(zmq.PUB)
    try:
        gateway = start(
            "gateway",
            "--port=0",
            f"--endpoint={vllm.address}",
            f"--kv-events-port={publisher.port}",
            "--log=info,inflight_upstream::watched=debug",
        )

        def is_known() -> bool:
            publisher.publish(stored(1, 4))
            return taken(gateway) == (4, 0)

        wait_until("blocks are known", is_known)
        assert "unknown" not in gateway.log
    finally:
        publisher.end()


@pytest.mark.parametrize("repeats_topics", [False, True])
def test_what_was_missed_is_asked_for(
    start: Start, vllm: EngineServer, publisher: Publisher, repeats_topics: bool
) -> None:
    publisher.repeats_topics = repeats_topics
    publisher.publish(stored(1, 4))
    gateway = listening(start, vllm, publisher, f"--kv-events-replay-port={publisher.replay_port}")
    address = gateway.address("http")
    wait_until("the past is known", lambda: taken(gateway) == (4, 0))
    publisher.publish(stored(5, 1, parent=4), is_lost=True)
    publisher.publish(stored(6, 1, parent=5))
    wait_until("nothing is missing", lambda: taken(gateway) == (6, 0))
    assert "gaps" not in gateway.log
    assert cache_reason(address, vllm) == ""
    publisher.close()
    named_within("they have ended", lambda: "ended" in cache_reason(address, vllm))
    publisher.open()
    publisher.wait_for_subscriber()
    publisher.publish(stored(7, 1, parent=6))
    wait_until("they are back", lambda: taken(gateway) == (7, 0) and cache_reason(address, vllm) == "")


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", b"\x93\xcb" + b"\0" * 8 + b"\xdd\xff\xff\xff\xff", b'{"not": "MessagePack"}'],
    ids=["empty", "reserved", "endless", "json"],
)
def test_what_cannot_be_read_is_named(
    start: Start, vllm: EngineServer, publisher: Publisher, payload: bytes
) -> None:
    gateway = listening(start, vllm, publisher)
    address = gateway.address("http")
    publisher.publish(payload=payload)
    named_within("it is named", lambda: "impossible" in cache_reason(address, vllm))
    publisher.publish(stored(1, 4))
    wait_until("the next is read", lambda: taken(gateway) == (4, 0) and cache_reason(address, vllm) == "")


def test_more_than_its_cache_can_hold_is_named(
    start: Start, vllm: EngineServer, publisher: Publisher
) -> None:
    gateway = listening(start, vllm, publisher)
    address = gateway.address("http")
    publisher.publish(stored(1, BLOCKS + 2000))
    named_within("it is named", lambda: "impossible" in cache_reason(address, vllm))
    wait_until("it is heard again", lambda: cache_reason(address, vllm) == "")
