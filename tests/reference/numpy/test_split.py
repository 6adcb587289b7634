"""A model that is split over ranks computes what the whole one does; here the ranks are threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from inflight.errors import UserMistake
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.split import parts, require_splittable
from inflight.executors.reference.model.tensors import required_tensors
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights
from inflight.executors.reference.numpy.batch import Span, build_batch
from inflight.executors.reference.numpy.cache import PagedCache
from inflight.executors.reference.numpy.model import load_model
from reference.support import FIXTURES, expected

NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/expected.npz"))
TOKENS_PER_BLOCK = 4


class Threads:
    """The communicators of ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=30)
        self._parts: list[Any] = [None] * size

    def everybodys(self, rank: int, array: Any) -> list[Any]:
        self._parts[rank] = array.copy()
        self._barrier.wait()
        taken = list(self._parts)
        self._barrier.wait()
        return taken


class ThreadCommunicator:
    """Implements `communicator.Communicator`."""

    def __init__(self, threads: Threads, rank: int, size: int) -> None:
        self._threads, self.rank, self.size = threads, rank, size

    def all_reduce(self, array: Any) -> Any:
        array[...] = sum(self._threads.everybodys(self.rank, array))
        return array

    def all_gather(self, part: Any) -> Any:
        return np.concatenate(self._threads.everybodys(self.rank, part), axis=1)


def splits() -> list[tuple[str, int]]:
    """Every fixture by every number of ranks that divides it."""
    found = []
    for name in NAMES:
        for size in (2, 3, 4):
            try:
                require_splittable(load_config(FIXTURES / name), size)
            except UserMistake:
                continue
            found.append((name, size))
    return found


def test_the_fixtures_reach_every_way_to_split() -> None:
    chosen = splits()
    # Key heads on several ranks, a vocabulary that does not divide, fused and transposed matrices.
    assert {("llama", 4), ("baichuan2_alibi", 3), ("phi3_window", 2), ("gpt2", 2), ("qwen2_tied", 2)} <= set(
        chosen
    )
    # Experts in a matrix each, and all of them in one.
    assert {("mixtral", 4), ("qwen3_moe", 2), ("gpt_oss", 4)} <= set(chosen)


@pytest.mark.parametrize(("name", "size"), splits())
def test_ranks_together_compute_what_transformers_does(name: str, size: int) -> None:
    token_ids, logits = expected(name)
    threads = Threads(size)
    blocks = list(range(-(-len(token_ids) // TOKENS_PER_BLOCK)))

    def compute(rank: int) -> Any:
        model = load_model(FIXTURES / name, communicator=ThreadCommunicator(threads, rank, size))
        cache = PagedCache.of(model.config, len(blocks), TOKENS_PER_BLOCK)
        found = []
        for tokens in (range(len(token_ids) - 1), [len(token_ids) - 1]):
            span = Span([token_ids[place] for place in tokens], tokens[0], blocks)
            batch = build_batch(*(([], [span]) if tokens[0] == 0 else ([span], [])), TOKENS_PER_BLOCK)
            found.append(model.logits(model.forward(batch, cache, np.arange(len(tokens)))))
        return np.concatenate(found)

    with ThreadPoolExecutor(size) as pool:
        for found in pool.map(compute, range(size)):
            np.testing.assert_allclose(found, logits, atol=1e-4)


@pytest.mark.parametrize(("name", "size"), splits())
def test_ranks_give_a_token_the_same_bits(name: str, size: int) -> None:
    """Those of an invariant model, whether the last tokens are part of the prompt or are generated."""
    token_ids, _ = expected(name)
    threads = Threads(size)
    blocks = list(range(-(-len(token_ids) // TOKENS_PER_BLOCK)))

    def compute(rank: int) -> Any:
        communicator = ThreadCommunicator(threads, rank, size)
        model = load_model(FIXTURES / name, communicator=communicator, batch_invariant=True)
        found = []
        for count in (len(token_ids), len(token_ids) - 5):
            cache = PagedCache.of(model.config, len(blocks), TOKENS_PER_BLOCK)
            prompt = build_batch([], [Span(token_ids[:count], 0, blocks)], TOKENS_PER_BLOCK)
            parts = [model.logits(model.forward(prompt, cache, np.arange(count)))]
            for place in range(count, len(token_ids)):
                one = build_batch([Span([token_ids[place]], place, blocks)], [], TOKENS_PER_BLOCK)
                parts.append(model.logits(model.forward(one, cache, np.arange(1))))
            found.append(np.concatenate(parts))
        return found

    with ThreadPoolExecutor(size) as pool:
        for whole, rest in pool.map(compute, range(size)):
            assert np.array_equal(whole, rest)


@pytest.mark.parametrize(("name", "size"), splits())
def test_every_rank_reads_its_part_of_the_large_tensors_only(name: str, size: int) -> None:
    config = load_config(FIXTURES / name)
    whole = CheckpointWeights.of(config, find_weights(FIXTURES / name))
    large = [tensor for tensor, shape in required_tensors(config) if len(shape) > 1]
    large = [tensor for tensor in large if not tensor.startswith((config.names.embedding, "transformer.wpe"))]
    # What makes the vectors of latent attention is whole everywhere.
    large = [tensor for tensor in large if not tensor.endswith(("q_a_proj.weight", "with_mqa.weight"))]
    total = sum(len(whole.raw(tensor)[1]) for tensor in large)
    for rank in range(size):
        own = CheckpointWeights.of(config, find_weights(FIXTURES / name), parts(config, rank, size))
        # A key head that several ranks share, and the padding of a vocabulary, are a little more.
        assert sum(len(own.raw(tensor)[1]) for tensor in large) <= 1.2 * total / size


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("llama", 3, "the model's `4` attention heads cannot be split over `3` ranks"),
        ("baichuan2_alibi", 4, "the model's `6` attention heads cannot be split over `4` ranks"),
        ("mixtral", 3, "the model's `4` attention heads cannot be split over `3` ranks"),
    ],
)
def test_what_cannot_be_split_is_refused_in_a_sentence(name: str, size: int, says: str) -> None:
    with pytest.raises(UserMistake) as refused:
        require_splittable(load_config(FIXTURES / name), size)
    assert says in refused.value.what
    assert "start" in (refused.value.remedy or "")
