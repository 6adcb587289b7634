"""Pairs of executors that hand prompts over, and peers between them that misbehave."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from inflight.executors.base import FinishReason, NamedTensor
from inflight.executors.reference import create
from inflight.executors.reference.core.context_phase import ContextPhase, pack, unpack
from inflight.executors.reference.executor import ReferenceExecutor

from .support import FIXTURES, AllTold, collect, request
from .support import unpack as rows

SIZE = 4
TIMEOUT_MS = 400
#: Of everything that a test waits for.
PATIENCE_S = 20.0

_CONTEXT = "context_phase_params"


def phase(kind: str, params: bytes = b"") -> list[NamedTensor]:
    """The tensors of a request type."""
    tensors = [NamedTensor("request_type", "BYTES", (1,), len(kind).to_bytes(4, "little") + kind.encode())]
    return tensors + ([NamedTensor(_CONTEXT, "UINT8", (len(params),), params)] if params else [])


def start(name: str = "llama", **options: Any) -> ReferenceExecutor:
    """An executor over a fixture, on NumPy with the same bits for a token whatever is computed with it; with
    `INFLIGHT_TEST_DEVICE` in the environment, on PyTorch there."""
    device = os.environ.get("INFLIGHT_TEST_DEVICE")
    own: dict[str, Any] = {"batch_invariant": True, "backend": "numpy"}
    if device is not None:
        own = {"device": device, "backend": "pytorch", "dtype": "float32"}
    own |= {"tokens_per_block": SIZE, "max_batch_size": 8, "max_tokens_in_paged_kv_cache": 2400}
    subject = create(FIXTURES / name, **(own | options))
    assert isinstance(subject, ReferenceExecutor)
    return subject


@dataclass
class Answer:
    """All that one request was told."""

    tokens: list[int] = field(default_factory=list)
    reason: FinishReason = FinishReason.NOT_FINISHED
    error: str | None = None
    log_probs: list[float] = field(default_factory=list)
    #: Of all tokens, one after the other.
    top_ids: list[int] = field(default_factory=list)
    rows: int = 0
    params: bytes = b""


class Asking:
    """Sends one request after the other to an executor."""

    def __init__(self, executor: ReferenceExecutor) -> None:
        self.executor = executor
        self._ids = iter(range(1, 1000))

    def send(self, prompt: Sequence[int], max_tokens: int = 12, **fields: Any) -> int:
        """Queues a request; returns its id."""
        asked = request(next(self._ids), prompt, max_tokens, **fields)
        self.executor.enqueue([asked])
        return asked.client_id

    def wait(self, client_id: int) -> Answer:
        """All of the request that was sent last."""
        told: AllTold = {}
        answer = Answer()
        deadline = time.monotonic() + PATIENCE_S
        while not any(one.final for one in told.values()):
            assert time.monotonic() < deadline, "no answer"
            batch = self.executor.await_responses(1.0)
            collect(rows(batch), told)
            for _, tensor in batch.tensors:
                if tensor.name == _CONTEXT:
                    answer.params = tensor.data
            answer.log_probs += np.frombuffer(batch.log_probs, "<f4").tolist()
            answer.top_ids += np.frombuffer(batch.top_log_prob_ids, "<i4").tolist()
            for _, _, text in batch.errors:
                answer.error = text
        one = told[client_id, 0]
        answer.tokens, answer.reason, answer.rows = one.tokens, one.finish_reason, one.rows
        return answer

    def drain(self) -> None:
        """Until the request that was sent last has its final row."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(one.final for one in rows(self.executor.await_responses(1.0))):
            assert time.monotonic() < deadline, "no answer"

    def ask(self, prompt: Sequence[int], max_tokens: int = 12, **fields: Any) -> Answer:
        return self.wait(self.send(prompt, max_tokens, **fields))

    def context(self, prompt: Sequence[int], max_tokens: int = 12, **fields: Any) -> Answer:
        """The context phase of a request."""
        return self.ask(prompt, max_tokens, tensors=phase("context_only"), **fields)

    def generate(self, prompt: Sequence[int], params: bytes, max_tokens: int = 12, **fields: Any) -> Answer:
        """The rest of it."""
        return self.ask(prompt, max_tokens, tensors=phase("generation_only", params), **fields)

    @property
    def used(self) -> int:
        """Blocks of the cache that somebody has."""
        return self.executor._engine.pool.used

    def transferred(self) -> dict[str, Any]:
        """What the statistics say of transfers."""
        handover = self.executor._engine.handover
        assert handover is not None
        transfers = handover.transfers
        return {"blocks": transfers.blocks, **transfers.fallbacks}

    def wait_until_free(self, within_s: float = 2.0) -> float:
        """Until no block is used; returns the seconds that it took."""
        started = time.monotonic()
        while self.used:
            assert time.monotonic() < started + within_s, f"{self.used} blocks are used"
            time.sleep(0.002)
        return time.monotonic() - started


@contextmanager
def pair(
    name: str = "llama", other: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[list[Asking]]:
    """Two workers that exchange blocks; ``other`` are options of the second that differ."""
    asked = {"cache_transceiver_backend": "tcp", "kv_transfer_timeout_ms": TIMEOUT_MS, **options}
    with ExitStack() as stack:
        workers = []
        for more in ({}, dict(other or {})):
            executor = start(name, **(asked | more))
            stack.callback(executor.shutdown)
            workers.append(Asking(executor))
        yield workers


@contextmanager
def single(name: str = "llama", **options: Any) -> Iterator[Asking]:
    """One worker that computes whole requests."""
    executor = start(name, **options)
    try:
        yield Asking(executor)
    finally:
        executor.shutdown()


def offered(params: bytes, **changes: Any) -> bytes:
    """The same params with another offer, as whoever has no key may write them."""
    told = unpack(params, b"")
    assert told.offer is not None
    return pack(ContextPhase(told.first, told.reason, replace(told.offer, **changes)), b"")


#: What a peer does with a connection.
Act = Callable[[socket.socket], None]


class Peer:
    """Listens where a context worker is expected, and does with each connection what a test wants."""

    def __init__(self, act: Act) -> None:
        self._act = act
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connections = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        return (self._listener.getsockname(),)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            self._act(connection)

    def wait_until_connected(self, count: int) -> None:
        """Until so many connections were accepted: a receiver may be through before it hears of it."""
        deadline = time.monotonic() + PATIENCE_S
        while self.connections < count:
            assert time.monotonic() < deadline, f"{self.connections} connections"
            time.sleep(0.002)

    def close(self) -> None:
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def peer(act: Act) -> Iterator[Peer]:
    listening = Peer(act)
    try:
        yield listening
    finally:
        listening.close()


def passing(params: bytes, most: int, then: Act) -> Act:
    """Stands between: passes ``most`` bytes of what the worker in ``params`` sends, and then does what a test
    wants with the receiver's connection."""
    told = unpack(params, b"")
    assert told.offer is not None
    [address] = told.offer.addresses

    def act(receiver: socket.socket) -> None:
        with socket.create_connection(address) as sender:

            def back() -> None:
                with suppress(OSError):
                    while data := receiver.recv(1 << 16):
                        sender.sendall(data)

            threading.Thread(target=back, daemon=True).start()
            left = most
            while left and (data := sender.recv(min(left, 1 << 16))):
                receiver.sendall(data)
                left -= len(data)
            then(receiver)

    return act


def hang(_: socket.socket) -> None:
    """Sends nothing more."""
    time.sleep(PATIENCE_S)


def leave(connection: socket.socket) -> None:
    """Ends the connection."""
    connection.shutdown(socket.SHUT_RDWR)
