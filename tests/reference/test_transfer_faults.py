"""Transfers that fail: at each step the prompt is computed instead, with the same tokens, and no block stays
held longer than its time.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from inflight.executors.base import FinishReason
from inflight.executors.reference.core.context_phase import unpack
from inflight.executors.reference.transfer import receiving, wire

from .support import VOCAB_SIZE, AllTold, collect
from .support import unpack as unpack_rows
from .transferring import (
    PATIENCE_S,
    SIZE,
    TIMEOUT_MS,
    Act,
    Asking,
    hang,
    leave,
    offered,
    pair,
    passing,
    peer,
    phase,
    single,
)

PROMPT = [3 + (11 * place) % 50 for place in range(61)]
#: One block a piece.
PIECES: dict[str, Any] = {"max_tokens_in_buffer": SIZE}
#: What is sent before the first piece.
HEAD = wire.GREETING_BYTES + wire.ANSWER_BYTES


@pytest.fixture(scope="module", params=["llama", "mistral_window"])
def model(request: pytest.FixtureRequest) -> str:
    # Before any prompt is held: on a GPU a worker takes longer to start than most holds last.
    expected(request.param)
    return str(request.param)


@lru_cache(maxsize=2)
def expected(name: str) -> list[int]:
    """What one worker makes of the prompt."""
    with single(name) as whole:
        return whole.ask(PROMPT).tokens


#: Of a worker whose waiting is not what a test is about: longer than any test.
PATIENT_MS = int(1e3 * PATIENCE_S)


def check(
    name: str, context: Asking, generation: Asking, params: bytes, reason: str, *, frees: bool = True
) -> dict[str, Any]:
    """A generation worker's answer is right although the transfer was not. Without ``frees`` the context
    worker waits longer than the test for somebody who fetches the rest."""
    answer = generation.generate(PROMPT, params)
    assert (answer.error, answer.tokens) == (None, expected(name))
    transferred = generation.transferred()
    assert transferred[reason] == 1, transferred
    generation.wait_until_free(1.0)
    if frees and reason != "unreachable":
        context.wait_until_free(10 * TIMEOUT_MS / 1e3)
    return transferred


def test_the_context_worker_is_gone(model: str) -> None:
    with pair(model) as [context, generation]:
        told = context.context(PROMPT)
        context.executor.shutdown()
        assert check(model, context, generation, told.params, "unreachable")["blocks"] == 0


def test_nobody_asks_in_time(model: str) -> None:
    with pair(model) as [context, generation]:
        told = context.context(PROMPT)
        assert context.used
        assert context.wait_until_free(2 * TIMEOUT_MS / 1e3) > TIMEOUT_MS / 2e3
        check(model, context, generation, told.params, "gone")


@pytest.mark.parametrize("bytes_sent", [0, 5, wire.GREETING_BYTES, HEAD - 1, HEAD, HEAD + 7])
def test_the_connection_is_cut_before_a_block(model: str, bytes_sent: int) -> None:
    with pair(model, kv_transfer_timeout_ms=PATIENT_MS, **PIECES) as [context, generation]:
        told = context.context(PROMPT)
        with peer(passing(told.params, bytes_sent, leave)) as between:
            params = offered(told.params, addresses=between.addresses)
            assert check(model, context, generation, params, "cut", frees=False)["blocks"] == 0
            assert between.connections == 1


@pytest.mark.parametrize(("then", "reason"), [(leave, "cut"), (hang, "timeout")])
def test_some_blocks_come_and_others_do_not(
    model: str, then: Callable[[socket.socket], None], reason: str
) -> None:
    # The context worker's hold outlives the test, and who is not silent is waited for.
    waits = {"kv_transfer_timeout_ms": TIMEOUT_MS if reason == "timeout" else PATIENT_MS}
    with pair(model, waits, kv_transfer_timeout_ms=PATIENT_MS, **PIECES) as [context, generation]:
        told = context.context(PROMPT)
        store = context.executor._engine.handover._store  # type: ignore[union-attr]
        sent = HEAD + 2 * (wire.PIECE_BYTES + store.block_bytes) + 3
        with peer(passing(told.params, sent, then)) as between:
            params = offered(told.params, addresses=between.addresses)
            assert check(model, context, generation, params, reason, frees=False)["blocks"] == 2


@pytest.mark.parametrize("cut", [None, 0])
def test_a_long_prompt_comes_in_parts(model: str, cut: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By four connections, one of which may end early: what came before it is used."""
    monkeypatch.setattr(receiving, "_PART_BYTES", 1)
    with pair(model, kv_transfer_timeout_ms=PATIENT_MS, **PIECES) as [context, generation]:
        told = context.context(PROMPT)
        params = told.params
        if cut is None:
            assert generation.generate(PROMPT, params).tokens == expected(model)
            assert generation.transferred().keys() == {"blocks"}
            context.wait_until_free(TIMEOUT_MS / 2e3)
            return
        store = context.executor._engine.handover._store  # type: ignore[union-attr]
        sent = HEAD + cut * (wire.PIECE_BYTES + store.block_bytes) + 1
        with peer(passing(params, sent, leave)) as between:
            params = offered(params, addresses=between.addresses)
            check(model, context, generation, params, "cut", frees=False)
            between.wait_until_connected(2)


@pytest.mark.parametrize("size", [0, 1, 24, 4096])
def test_a_peer_sends_rubbish(model: str, size: int) -> None:
    def act(connection: socket.socket) -> None:
        connection.sendall(os.urandom(size))
        if size < 24:
            return
        connection.settimeout(2)
        connection.recv(64)

    with pair(model) as [context, generation], peer(act) as rubbish:
        told = context.context(PROMPT)
        params = offered(told.params, addresses=rubbish.addresses)
        check(model, context, generation, params, "cut" if size < 24 else "protocol")


@pytest.mark.parametrize(
    ("status", "block_bytes", "piece"),
    [
        (0, 1 << 60, None),
        (7, None, None),
        (0, None, (1 << 31, 1 << 62)),
        (0, None, (1, 5)),
        (0, None, (99, None)),
    ],
)
def test_a_peer_that_greets_well_lies_about_sizes(
    model: str, status: int, block_bytes: int | None, piece: tuple[int, int | None] | None
) -> None:
    with pair(model) as [context, generation]:
        own = context.executor._engine.handover._store.block_bytes  # type: ignore[union-attr]

        def act(connection: socket.socket) -> None:
            greeting, _ = wire.greeting()
            connection.sendall(greeting)
            connection.recv(wire.REQUEST_BYTES)
            size = own if block_bytes is None else block_bytes
            connection.sendall(wire._ANSWER.pack(status, size) + bytes(32))
            if piece is not None:
                count, total = piece
                connection.sendall(wire.piece(count, count * own if total is None else total))
            connection.recv(1)

        with peer(act) as liar:
            told = context.context(PROMPT)
            check(model, context, generation, offered(told.params, addresses=liar.addresses), "protocol")


def test_a_peer_that_says_nothing_costs_its_time_and_no_more(model: str) -> None:
    with pair(model) as [context, generation], peer(hang) as silent:
        told = context.context(PROMPT)
        started = time.monotonic()
        check(model, context, generation, offered(told.params, addresses=silent.addresses), "timeout")
        assert time.monotonic() - started < 10 * TIMEOUT_MS / 1e3


def test_a_trickle_ends_too(model: str) -> None:
    def act(connection: socket.socket) -> None:
        greeting, _ = wire.greeting()
        connection.sendall(greeting)
        for _ in range(10_000):
            connection.sendall(b"\0")
            time.sleep(0.02)

    with pair(model, kv_transfer_timeout_ms=60) as [context, generation], peer(act) as slow:
        told = context.context(PROMPT)
        check(model, context, generation, offered(told.params, addresses=slow.addresses), "timeout")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": bytes(16)}, "gone"),
        ({"weights": "other"}, "other_model"),
        ({"layout": "other"}, "other_model"),
        ({"tokens": 60}, "other_prompt"),
        ({"content": bytes(16)}, "other_prompt"),
        ({"addresses": (("192.0.2.1", 80),)}, "not_loopback"),
        ({"addresses": (("localhost", 80),)}, "not_loopback"),
        ({"addresses": (("127.0.0.1", 1),)}, "unreachable"),
    ],
)
def test_falsified_params(model: str, change: dict[str, Any], reason: str) -> None:
    with pair(model) as [context, generation]:
        told = context.context(PROMPT)
        check(model, context, generation, offered(told.params, **change), reason)


def test_blocks_of_another_prompt_are_not_taken(model: str) -> None:
    with pair(model) as [context, generation]:
        other = context.context(list(reversed(PROMPT)))
        first = context.context(PROMPT)
        mixed = offered(first.params, id=unpack(other.params, b"").offer.id)  # type: ignore[union-attr]
        # Nobody but a client that falsifies params gets here, and what it gets is its own: with a key,
        # not even that.
        answer = generation.generate(PROMPT, mixed)
        assert answer.error is None


def keys(tmp_path: Path, *texts: str) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        path = tmp_path / f"key{number}"
        path.write_text(text + "\n")
        files.append({"cache_transceiver_key_file": str(path)})
    return files


def test_workers_with_one_key_trust_each_other(model: str, tmp_path: Path) -> None:
    [key] = keys(tmp_path, "0123456789abcdef")
    with pair(model, **key) as [context, generation]:
        told = context.context(PROMPT)
        assert generation.generate(PROMPT, told.params).tokens == expected(model)
        assert generation.transferred().keys() == {"blocks"}
        # Of a client that has no key: not even a connection is made.
        with peer(hang) as anywhere:
            told = context.context(PROMPT[:-1])
            with pair(model) as [keyless, _]:
                params = offered(keyless.context(PROMPT[:-1]).params, addresses=anywhere.addresses)
            assert generation.generate(PROMPT[:-1], params).error is None
            assert generation.transferred()["unauthenticated"] == 1
            assert anywhere.connections == 0


def test_workers_with_two_keys_do_not(model: str, tmp_path: Path) -> None:
    one, two = keys(tmp_path, "0123456789abcdef", "fedcba9876543210")
    with pair(model, two, **one) as [context, generation]:
        check(model, context, generation, context.context(PROMPT).params, "unauthenticated")


def test_a_stranger_gets_no_blocks_of_a_worker_with_a_key(model: str, tmp_path: Path) -> None:
    [key] = keys(tmp_path, "0123456789abcdef")
    with pair(model, **key) as [context, _]:
        offer = unpack(context.context(PROMPT).params, b"").offer
        assert offer is not None
        with socket.create_connection(offer.addresses[0]) as line:
            nonce = wire.read_greeting(line.recv(wire.GREETING_BYTES))
            message, _ = wire.request(wire.Asked(offer.id, 0, 4, 4, 4), b"", nonce)
            line.sendall(message)
            status, _ = wire._ANSWER.unpack(line.recv(wire.ANSWER_BYTES)[: wire._ANSWER.size])
            assert status == wire.Status.UNAUTHENTICATED
            assert line.recv(1) == b""


@pytest.mark.parametrize("asked", [(0, 0, 1), (0, 10_000, 1), (1 << 31, 1, 1), (0, 4, 0)])
def test_a_stranger_who_asks_nonsense_is_sent_away(asked: tuple[int, int, int]) -> None:
    with pair() as [context, _]:
        offer = unpack(context.context(PROMPT).params, b"").offer
        assert offer is not None
        with socket.create_connection(offer.addresses[0]) as line:
            nonce = wire.read_greeting(line.recv(wire.GREETING_BYTES))
            message, _ = wire.request(wire.Asked(offer.id, *asked, 1), b"", nonce)
            line.sendall(message)
            status, _ = wire._ANSWER.unpack(line.recv(wire.ANSWER_BYTES)[: wire._ANSWER.size])
            assert status == wire.Status.GONE
        context.wait_until_free(2 * TIMEOUT_MS / 1e3)


def test_silent_connections_keep_nobody_else_out_for_long(model: str) -> None:
    with pair(model) as [context, generation]:
        told = context.context(PROMPT)
        [address] = unpack(told.params, b"").offer.addresses  # type: ignore[union-attr]
        lines = [socket.create_connection(address) for _ in range(20)]
        time.sleep(1.2 * TIMEOUT_MS / 1e3)
        told = context.context(PROMPT)
        assert generation.generate(PROMPT, told.params).tokens == expected(model)
        assert generation.transferred().keys() == {"blocks"}
        for line in lines:
            line.close()


@pytest.mark.parametrize("blocks", [None, 0, 1])
def test_a_request_is_cancelled_while_its_blocks_come(model: str, blocks: int | None) -> None:
    with pair(model, **PIECES) as [context, generation]:
        told = context.context(PROMPT)
        store = context.executor._engine.handover._store  # type: ignore[union-attr]
        act: Act = hang
        if blocks is not None:
            act = passing(told.params, HEAD + blocks * (wire.PIECE_BYTES + store.block_bytes) + 9, hang)
        with peer(act) as stalled:
            params = offered(told.params, addresses=stalled.addresses)
            client_id = generation.send(PROMPT, tensors=phase("generation_only", params))
            time.sleep(0.1)
            assert generation.used
            generation.executor.cancel([client_id])
            started = time.monotonic()
            assert generation.wait(client_id).reason == FinishReason.CANCELLED
            generation.wait_until_free(0.3)
            assert time.monotonic() - started < 0.35
        assert generation.transferred() == {"blocks": 0}
        assert generation.ask(PROMPT).tokens == expected(model)
        context.wait_until_free()


def test_streams_go_on_while_blocks_come(model: str) -> None:
    with pair(model, kv_transfer_timeout_ms=5000) as [context, generation], peer(hang) as silent:
        told = context.context(PROMPT)
        params = offered(told.params, addresses=silent.addresses)
        waiting = generation.send(PROMPT, tensors=phase("generation_only", params))
        started = time.monotonic()
        for prompt in ([5, 6, 7], PROMPT[:30]):
            running = generation.send(prompt, 30)
            assert len(generation.wait(running).tokens) == 30
        assert time.monotonic() - started < 3
        generation.executor.cancel([waiting])
        generation.wait(waiting)


def test_transfers_that_none_begins_in_time_are_given_up(model: str) -> None:
    """More than are received at once, from a peer that says nothing."""
    with (
        pair(model, max_batch_size=32) as [context, generation],
        peer(hang) as silent,
        single(model) as whole,
    ):
        prompts = [[(place + one) % VOCAB_SIZE for place in range(20)] for one in range(20)]
        told_of = [context.context(prompt).params for prompt in prompts]
        # What is compiled when it is first needed is not what takes its time here.
        generation.ask(PROMPT, 4)
        started = time.monotonic()
        ids = []
        for prompt, params in zip(prompts, told_of, strict=True):
            silenced = offered(params, addresses=silent.addresses)
            ids.append(generation.send(prompt, 4, tensors=phase("generation_only", silenced)))
        told: AllTold = {}
        while sum(one.final for one in told.values()) < len(ids):
            collect(unpack_rows(generation.executor.await_responses(1.0)), told)
        # One after the other would take this long.
        assert time.monotonic() - started < len(prompts) * TIMEOUT_MS / 1e3
        wanted = [whole.ask(prompt, 4).tokens for prompt in prompts]
        assert [told[client_id, 0].tokens for client_id in ids] == wanted
        transferred = generation.transferred()
        assert transferred["timeout"] + transferred["busy"] == len(ids)
        assert transferred["busy"] > 0
        generation.wait_until_free()


def test_prompts_wait_while_blocks_are_held_and_no_longer() -> None:
    """A cache of little more than one prompt: the next one has it once the first is given back."""
    with pair(max_tokens_in_paged_kv_cache=100, max_seq_len=90) as [context, generation], single() as whole:
        other = [(place * 5) % VOCAB_SIZE for place in range(61)]
        told = context.context(PROMPT)
        started = time.monotonic()
        again = context.context(other)
        assert TIMEOUT_MS / 2e3 < time.monotonic() - started < 3 * TIMEOUT_MS / 1e3
        for prompt, params in ((PROMPT, told.params), (other, again.params)):
            assert generation.generate(prompt, params).tokens == whole.ask(prompt).tokens


def test_an_executor_ends_while_blocks_come(model: str) -> None:
    with pair(model, kv_transfer_timeout_ms=5000) as [context, generation], peer(hang) as silent:
        told = context.context(PROMPT)
        params = offered(told.params, addresses=silent.addresses)
        generation.send(PROMPT, tensors=phase("generation_only", params))
        time.sleep(0.1)
        started = time.monotonic()
        generation.executor.shutdown()
        context.executor.shutdown()
        assert time.monotonic() - started < 1


@pytest.mark.parametrize("seed", range(4))
def test_nothing_leaks(model: str, seed: int) -> None:
    """Contexts that are fetched, once, twice, never or in part; requests that are cancelled anywhere."""
    draw = random.Random(seed)
    with pair(model, **PIECES) as workers, peer(hang) as silent:
        context, generation = workers
        for _ in range(40):
            prompt = [draw.randrange(VOCAB_SIZE) for _ in range(draw.choice([3, 9, 30, 70]))]
            if draw.random() < 0.2:
                context.executor.cancel([context.send(prompt, tensors=phase("context_only"))])
                context.drain()
                continue
            told = context.context(prompt)
            for _ in range(draw.choice([0, 1, 1, 2])):
                params = told.params
                if unpack(params, b"").offer is not None and draw.random() < 0.4:
                    params = offered(params, addresses=silent.addresses)
                client_id = generation.send(prompt, 3, tensors=phase("generation_only", params))
                time.sleep(draw.choice([0, 0, 0.002, 0.01]))
                if draw.random() < 0.7:
                    generation.executor.cancel([client_id])
                generation.drain()
        for worker in workers:
            worker.wait_until_free(3 * TIMEOUT_MS / 1e3)
            handover = worker.executor._engine.handover
            assert handover is not None
            assert len(handover.holds) == len(handover.fetches) == 0
            assert not worker.executor._engine._planner._arriving
