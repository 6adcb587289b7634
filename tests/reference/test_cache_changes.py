"""What the reference engine reports of its cache, against what its cache holds."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field
from typing import Any

import pytest

from inflight.executors.base import CacheChange, CacheChanges, NamedTensor, Request
from inflight.executors.reference.core.cache_changes import ChangeLog
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.iteration import Iteration

from .support import engine, request, run
from .test_capacity import PROMPT, salted

SIZE = 4

#: A block as routers know it: its sequence's adapter and salt, and all tokens up to its end.
Known = tuple[int | None, bytes, tuple[int, ...]]


@dataclass
class Router:
    """Blocks by their names, and where they are."""

    known: dict[int, Known] = field(default_factory=dict)
    level: dict[int, int] = field(default_factory=dict)

    def read(self, changes: CacheChanges | None) -> None:
        if changes is None:
            return
        names, parents = array("Q", changes.names), array("Q", changes.parents)
        tokens = array("i", changes.token_ids)
        firsts = {number: (adapter, salt) for number, adapter, salt in changes.firsts}
        stored = 0
        for kind, name in zip(changes.kinds, names, strict=True):
            if kind == CacheChange.STORED:
                own = tuple(tokens[stored * SIZE : (stored + 1) * SIZE])
                if stored in firsts:
                    adapter, salt = firsts[stored]
                    self.known[name] = (adapter, salt, own)
                elif parents[stored] in self.known:
                    adapter, salt, before = self.known[parents[stored]]
                    self.known[name] = (adapter, salt, before + own)
                self.level[name] = 0
                stored += 1
            elif kind == CacheChange.REMOVED:
                del self.level[name]
            else:
                self.level[name] = int(kind == CacheChange.MOVED_TO_HOST)
        assert stored == len(parents) == len(tokens) // SIZE


def full_blocks(subject: Engine) -> dict[int, int]:
    """Names and levels of what can be found."""
    index = subject.pool._index
    assert index is not None
    return {
        int.from_bytes(content.hash[:8], "little"): int(block >= subject.pool.num_blocks)
        for block, content in index._content.items()
        if len(content.tokens) == SIZE and max(content.tokens) < 1 << 31
    }


def log_of(subject: Engine) -> ChangeLog:
    log = subject.pool.log_changes()
    assert log is not None
    return log


def test_blocks_are_reported_with_their_beginning() -> None:
    subject = engine()
    log = log_of(subject)
    told = run(subject, [request(1, PROMPT, 9, tensors=salted("a"))])[1, 0]
    router = Router()
    router.read(log.take())
    whole = [*PROMPT, *told.tokens[:-1]]
    expected = {(None, b"a", tuple(whole[:end])) for end in range(SIZE, len(whole) + 1, SIZE)}
    assert set(router.known.values()) == expected
    assert router.level == full_blocks(subject)
    # All of it is found, and nothing changes.
    run(subject, [request(2, PROMPT, 1, tensors=salted("a"))])
    assert log.take() is None


def test_without_reuse_nothing_is_reported() -> None:
    assert engine(reuse=False).pool.log_changes() is None


@pytest.mark.parametrize("num_host_blocks", [0, 12])
@pytest.mark.parametrize("seed", range(4))
def test_changes_come_to_what_the_cache_holds(seed: int, num_host_blocks: int) -> None:
    chosen = random.Random(seed)
    subject = engine(num_blocks=40, num_host_blocks=num_host_blocks, max_batch_size=3)
    log, router = log_of(subject), Router()
    key = 0
    for _ in range(40):
        iteration = Iteration()
        subject.add([_any_request(chosen, key := key + 1) for _ in range(chosen.randrange(3))], iteration)
        if chosen.random() < 0.1:
            subject.cancel([key], iteration)
        for _ in range(chosen.randrange(6)):
            subject.step(Iteration())
            router.read(log.take())
            assert router.level == full_blocks(subject)
    while subject.has_work:
        subject.step(Iteration())
    router.read(log.take())
    assert router.level == full_blocks(subject)
    assert 1 in router.level.values() or not num_host_blocks
    # A router that finds a prompt's blocks finds what the cache does.
    held = {router.known[name] for name in router.level if name in router.known}
    for adapter, salt, tokens in held:
        assert adapter is None
        assert len(tokens) % SIZE == 0
        told = run(subject, [request(key := key + 1, [*tokens, 1], 1, tensors=_salt(salt))])[key, 0]
        reachable = all((adapter, salt, tokens[:end]) in held for end in range(SIZE, len(tokens), SIZE))
        assert (told.cached_tokens[0] >= len(tokens)) is reachable
        # What that has changed is not of interest.
        break


def _salt(salt: bytes) -> list[NamedTensor]:
    return salted(salt.decode()) if salt else []


def _any_request(chosen: random.Random, key: int) -> Request:
    prompt = [chosen.randrange(2, 4)] * chosen.randrange(1, 20)
    prompt += [chosen.randrange(60) for _ in range(chosen.randrange(16))]
    options: dict[str, Any] = {}
    if chosen.random() < 0.3:
        options["sampling"] = {"num_return_sequences": 2, "top_p": 0.9, "seed": key}
    return request(key, prompt, chosen.randrange(1, 12), tensors=_salt(chosen.choice([b"", b"s"])), **options)
