"""What is found out about a long prompt outside the engine: it is what the engine would find, and is used."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import pytest

from inflight.executors.base import NamedTensor, Request
from inflight.executors.reference.core import prompt_facts, reuse
from inflight.executors.reference.core.blocks import BlockAccountingError, BlockPool
from inflight.executors.reference.core.eviction import EvictionOrder
from inflight.executors.reference.core.prompt_facts import PromptFacts, find_facts
from inflight.executors.reference.core.reuse import ReuseIndex

from .transferring import single

LONG = 2048


def text(name: str, value: bytes) -> NamedTensor:
    return NamedTensor(name, "BYTES", (1,), len(value).to_bytes(4, "little") + value)


@pytest.mark.parametrize("size", [4, 32, 500, 4096])
@pytest.mark.parametrize("tokens", [LONG, LONG + 1, 5000, 8191])
def test_they_are_those_of_the_whole_prompt(tokens: int, size: int) -> None:
    draw = random.Random(tokens * size)
    prompt = [draw.randrange(1, 1 << 20) for _ in range(tokens)]
    asked = Request(1, prompt, 1, tensors=[text("inflight_cache_salt", b"salt")])
    facts = find_facts(asked, size, lambda: bool(draw.randrange(2)))
    expected = reuse.chain(reuse.root(b"salt"), prompt, size)
    assert facts == PromptFacts(min(prompt), max(prompt), tuple(expected))


@pytest.mark.parametrize(
    ("prompt", "tensors"),
    [
        ([7] * (LONG - 1), []),
        ([7] * LONG, [NamedTensor("lora_task_id", "UINT64", (1,), bytes(8))]),
        ([7] * LONG, [text("nobody_knows_this", b"")]),
    ],
)
def test_there_are_none(prompt: list[int], tensors: list[NamedTensor]) -> None:
    """Of short prompts, where more than the tokens counts, and of what is refused."""
    assert find_facts(Request(1, prompt, 1, tensors=tensors), 4, lambda: False) is None


def test_the_engine_uses_them_and_finds_the_same_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [3 + (7 * place) % 50 for place in range(61)]
    with single() as plain:
        expected = plain.ask(prompt).tokens
    monkeypatch.setattr(prompt_facts, "_LONG_TOKENS", 16)
    monkeypatch.setattr(prompt_facts, "_AT_ONCE", 8)
    with single() as subject:
        engine = subject.executor._engine
        hashed: list[int] = []
        chain = reuse.chain

        def noted(parent: bytes, tokens: Any, size: int) -> list[bytes]:
            hashed.append(len(tokens))
            return chain(parent, tokens, size)

        assert subject.ask(prompt).tokens == expected
        monkeypatch.setattr("inflight.executors.reference.core.planner.reuse.chain", noted)
        stored = engine.pool.stats.reused_blocks
        assert subject.ask(prompt).tokens == expected
        assert engine.pool.stats.reused_blocks == stored + len(prompt) // 4
        # Outside, at most so many tokens at once; in the engine, what is behind the last full block.
        assert max(hashed) <= 12
        assert subject.ask([3] * 20 + [10**6]).error is not None


def test_unused_blocks_are_taken_in_the_order_of_their_worth() -> None:
    def filled() -> EvictionOrder:
        order = EvictionOrder()
        for block, priority in enumerate([35, 10, 35, 10, 90]):
            order.add(block, priority)
        return order

    one_by_one, order = [], filled()
    while (first := order.first()) is not None:
        order.discard(first, [35, 10, 35, 10, 90][first])
        one_by_one.append(first)
    for count in range(7):
        order = filled()
        assert order.take(count) == one_by_one[:count]
        assert len(order) == max(0, 5 - count)
        assert order.take(9) == one_by_one[count:]
    assert OrderedDict() == order._by_priority


def test_many_blocks_are_taken_as_one_after_the_other() -> None:
    pool = BlockPool(6, 4, ReuseIndex(4))
    first = pool.hold(reuse.NO_MATCH)
    pool.grow(first, 16)
    tokens = list(range(16))
    pool.store(first, tokens, reuse.chain(reuse.root(), tokens, 4), reuse.root())
    assert first.blocks == [0, 1, 2, 3]
    pool.release(first)
    second = pool.hold(reuse.NO_MATCH)
    pool.grow(second, 16)
    # What is free first, then of the others the end of the sequence.
    assert second.blocks == [4, 5, 3, 2]
    assert pool.available == 2
    with pytest.raises(BlockAccountingError):
        pool.grow(second, 28)
