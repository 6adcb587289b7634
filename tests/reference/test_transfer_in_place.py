"""Blocks that are copied out of the cache of another worker of this host: what that changes, and that each
fault of it leaves the tokens as they are.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from inflight.executors.base import FinishReason
from inflight.executors.reference.core.block_store import CannotOpenError, Export
from inflight.executors.reference.core.context_phase import unpack
from inflight.executors.reference.numpy.cache import PagedCache
from inflight.executors.reference.transfer import local, receiving, wire
from inflight.executors.reference.transfer.neighbors import Neighbors

from .support import FIXTURES
from .transferring import PATIENCE_S, TIMEOUT_MS, Asking, offered, pair, passing, peer, phase, single

PROMPT = [3 + (11 * place) % 50 for place in range(61)]

pytestmark = pytest.mark.skipif(not local.is_supported(), reason="no sockets that name their user")


@pytest.fixture(autouse=True)
def _one_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "_COPIED_BYTES", 1)


@pytest.fixture(scope="module", params=["llama", "mistral_window"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def neighbors(
    name: str = "llama", other: dict[str, Any] | None = None, **options: Any
) -> Iterator[list[Asking]]:
    """A pair in one host, which does not give up before the test does."""
    waits = {"kv_transfer_timeout_ms": int(1e3 * PATIENCE_S)}
    own = {"cache_transceiver_backend": "default", **waits, **options}
    with pair(name, other, **own) as workers:
        yield workers


def handover(worker: Asking) -> Any:
    return worker.executor._engine.handover


def opened(worker: Asking) -> Neighbors:
    found: Neighbors = handover(worker)._receiver._neighbors
    return found


def wait_until_closed(worker: Asking) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(opened(worker)):
        assert time.monotonic() < deadline, "the memory of a worker that has ended is open"
        time.sleep(0.002)


def no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not come in place fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)


def before_copy(worker: Asking, number: int, act: Callable[[], object], *, after: bool = False) -> None:
    """Has something happen before, or after, a worker's copy of that number."""
    store = handover(worker)._store
    opens = store.open

    def wrapped(export: Export) -> Any:
        blocks = opens(export)
        fetch, left = blocks.fetch, iter(range(1000))

        def fetched(theirs: Sequence[int], ours: Sequence[int], fence: Any) -> None:
            due = next(left) == number
            if due and not after:
                act()
            fetch(theirs, ours, fence)
            if due and after:
                act()

        blocks.fetch = fetched
        return blocks

    store.open = wrapped


def is_right(name: str, generation: Asking, params: bytes) -> None:
    with single(name) as whole:
        expected = whole.ask(PROMPT).tokens
    answer = generation.generate(PROMPT, params)
    assert (answer.error, answer.tokens) == (None, expected)


@pytest.mark.parametrize("copied_bytes", [1, 20_000, 1 << 30])
def test_blocks_are_copied_and_given_back(
    model: str, copied_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, a few at a time, and all at once."""
    monkeypatch.setattr(receiving, "_COPIED_BYTES", copied_bytes)
    with neighbors(model) as [context, generation]:
        told = context.context(PROMPT)
        assert context.used
        no_connections(monkeypatch)
        is_right(model, generation, told.params)
        assert generation.transferred().keys() == {"blocks"}
        assert generation.transferred()["blocks"] > 0
        context.wait_until_free()
        generation.wait_until_free()
        # The next one finds it open.
        assert len(opened(generation)) == 1
        again = context.context(PROMPT[::-1])
        assert generation.generate(PROMPT[::-1], again.params).error is None
        assert generation.transferred().keys() == {"blocks"}
        assert len(opened(generation)) == 1


def test_a_worker_that_wants_connections_gets_them(model: str) -> None:
    for first, second in (("tcp", "default"), ("default", "tcp")):
        asked = {"cache_transceiver_backend": second}
        with neighbors(model, asked, cache_transceiver_backend=first) as [context, generation]:
            is_right(model, generation, context.context(PROMPT).params)
            assert generation.transferred().keys() == {"blocks"}
            assert second == "tcp" or len(opened(generation)) == 0


@pytest.mark.parametrize("error", [CannotOpenError("no way"), OSError("no memory"), ZeroDivisionError()])
def test_a_cache_that_cannot_be_opened_comes_through_connections(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Export) -> None:
        raise error

    with neighbors() as [context, generation], caplog.at_level(logging.WARNING, "inflight.reference"):
        handover(generation)._store.open = refuse
        for prompt in (PROMPT, PROMPT[::-1], PROMPT[1:]):
            told = context.context(prompt)
            assert generation.generate(prompt, told.params).error is None
        assert generation.transferred().keys() == {"blocks"}
        lines = [one for one in caplog.messages if "using tcp" in one]
        assert len(lines) == 1, caplog.messages
        context.wait_until_free()


def test_a_hold_that_ends_meanwhile_makes_the_last_copy_void(model: str) -> None:
    """What was copied before the worker said that it still held is used; the rest is computed."""
    with neighbors(model) as [context, generation]:
        told = context.context(PROMPT)
        holds = handover(context).holds

        def end() -> None:
            [hold] = holds._by_id.values()
            with holds._lock:
                hold.deadline_s = hold.latest_s = 0.0
            holds._wake()
            context.wait_until_free(PATIENCE_S)

        before_copy(generation, 1, end)
        is_right(model, generation, told.params)
        assert generation.transferred() == {"blocks": 1, "gone": 1}
        generation.wait_until_free()


def test_a_hold_lasts_while_somebody_copies() -> None:
    """Each copy and each answer takes most of the time that a hold has."""
    with neighbors("llama", {"kv_transfer_timeout_ms": 20_000}, kv_transfer_timeout_ms=1500) as workers:
        [context, generation] = workers
        told = context.context(PROMPT)
        for number in (0, 1, 2):
            before_copy(generation, number, lambda: time.sleep(0.8))
        is_right("llama", generation, told.params)
        assert generation.transferred().keys() == {"blocks"}


@pytest.mark.parametrize("after", [False, True])
def test_the_context_worker_ends_meanwhile(model: str, after: bool) -> None:
    with neighbors(model) as [context, generation]:
        told = context.context(PROMPT)
        before_copy(generation, 1, context.executor.shutdown, after=after)
        is_right(model, generation, told.params)
        assert generation.transferred() == {"blocks": 1, "cut": 1}
        generation.wait_until_free()
        wait_until_closed(generation)


def test_a_worker_that_ended_before_is_not_asked(model: str) -> None:
    with neighbors(model) as [context, generation]:
        first, second = context.context(PROMPT[1:]), context.context(PROMPT)
        generation.generate(PROMPT[1:], first.params)
        context.executor.shutdown()
        is_right(model, generation, second.params)
        assert generation.transferred()["unreachable"] == 1


def test_a_later_worker_at_the_address_is_not_taken_for_the_one_before(model: str) -> None:
    """Whose memory may still be open when the next one answers."""
    with neighbors(model) as [context, generation]:
        first, second = context.context(PROMPT[1:]), context.context(PROMPT)
        generation.generate(PROMPT[1:], first.params)
        lender: Any = context.executor._transceiver._lender  # type: ignore[union-attr]
        lender._instance = os.urandom(local.INSTANCE_BYTES)
        is_right(model, generation, second.params)
        assert generation.transferred()["gone"] == 1


@pytest.mark.parametrize("number", [1 << 31, 2400])
def test_a_worker_that_names_blocks_which_it_does_not_have(model: str, number: int) -> None:
    with neighbors(model) as [context, generation]:
        told = context.context(PROMPT)
        [hold] = handover(context).holds._by_id.values()
        hold.blocks = (hold.blocks[0], number, *hold.blocks[2:])
        is_right(model, generation, told.params)
        assert generation.transferred() == {"blocks": 1, "failed": 1}
        context.wait_until_free(PATIENCE_S * 2)


@pytest.mark.parametrize("after", [False, True])
def test_a_request_is_cancelled_while_its_blocks_come(model: str, after: bool) -> None:
    with neighbors(model) as [context, generation]:
        told = context.context(PROMPT)
        before_copy(generation, 1, lambda: generation.executor.cancel([1]), after=after)
        sent = generation.send(PROMPT, tensors=phase("generation_only", told.params))
        assert generation.wait(sent).reason == FinishReason.CANCELLED
        generation.wait_until_free()
        assert not handover(generation).fetches


def keyed(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / text[:4]
    path.write_text(text)
    return {"cache_transceiver_key_file": str(path)}


def test_keys(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = keyed(tmp_path, "0123456789abcdef"), keyed(tmp_path, "fedcba9876543210")
    with neighbors(model, two, **one) as [context, generation]:
        told = context.context(PROMPT)
        is_right(model, generation, told.params)
        assert generation.transferred() == {"blocks": 0, "unauthenticated": 1}
    with neighbors(model, **one) as [context, generation]:
        told = context.context(PROMPT)
        # A client that has no key changes nothing of them, and no cache is opened without it.
        [address] = unpack(told.params, b"").offer.addresses  # type: ignore[union-attr]
        line = local.connect(address, 5)
        assert line is not None
        with line, pytest.raises(wire.Failed, match="unauthenticated"):
            wire.ask(wire.Line(line, 5, 5), local.WHOLE_CACHE, b"another key here", 0)
        no_connections(monkeypatch)
        is_right(model, generation, told.params)
        assert generation.transferred().keys() == {"blocks"}


def test_another_user_gets_nothing(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither end shares memory with it."""
    with neighbors(model) as [context, generation]:
        told = context.context(PROMPT)
        [address] = unpack(told.params, b"").offer.addresses  # type: ignore[union-attr]
        line = local.connect(address, 5)
        assert line is not None
        with line:
            monkeypatch.setattr(local, "is_own", lambda _: False)
            assert local.connect(address, 5) is None
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(local._name(address))
                assert other.recv(1) == b""
        is_right(model, generation, told.params)
        assert len(opened(generation)) == 0
        assert generation.transferred().keys() == {"blocks"}


@pytest.mark.parametrize(
    ("export", "text"),
    [
        (Export(b""), "not a cache"),
        (Export(bytes(8), 0), "not a cache|are not|mapped"),
        (Export(b"\xff" * 8, 0), "not a cache|are not|mapped"),
    ],
)
def test_an_export_that_lies(export: Export, text: str) -> None:
    with neighbors() as [_, generation], pytest.raises(CannotOpenError, match=text):
        handover(generation)._store.open(export)


OPEN = """
import sys
from inflight.executors.reference import create
options = {"backend": "numpy", "tokens_per_block": 4, "cache_transceiver_backend": "default"}
subject = create(sys.argv[1], "cpu", **options)
print(*subject._transceiver.handover._addresses[0], flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif("INFLIGHT_TEST_DEVICE" in os.environ, reason="the other process is on NumPy")
def test_a_process_ends_although_its_cache_is_open() -> None:
    """Without a shutdown of the executor, and while another worker has its cache open."""
    with subprocess.Popen(
        [sys.executable, "-c", OPEN, str(FIXTURES / "llama")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        host, port = child.stdout.readline().decode().split()
        with neighbors("llama") as [_, generation]:
            with opened(generation).at((host, int(port))) as neighbor:
                assert neighbor is not None
                child.stdin.close()
                assert child.wait(PATIENCE_S) == 0
            wait_until_closed(generation)


def test_a_cache_that_is_too_large_to_share_says_so_as_any_other() -> None:
    with pytest.raises(MemoryError):
        PagedCache(1 << 20, 1 << 20, 64, 64, 64, shared=True)


@pytest.mark.parametrize("silent", [True, False])
def test_somebody_else_has_the_name(model: str, silent: bool) -> None:
    """A process of the same user that answers nothing, or rubbish."""

    with neighbors(model, {"kv_transfer_timeout_ms": TIMEOUT_MS}) as [context, generation]:
        told = context.context(PROMPT)
        with peer(passing(told.params, 1 << 30, lambda _: None)) as between:
            with local.listen(between.addresses[0]) as listener:
                listener.listen()
                params = offered(told.params, addresses=between.addresses)
                sent = generation.send(PROMPT, tensors=phase("generation_only", params))
                connection, _ = listener.accept()
                with connection:
                    if not silent:
                        connection.sendall(os.urandom(200))
                    answer = generation.wait(sent)
            assert answer.error is None
            assert between.connections > 0
            assert generation.transferred().keys() <= {"blocks", "timeout"}
