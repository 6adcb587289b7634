"""Embeddings, compared with hidden states that transformers' logits lead back to: those are a linear image of
them, and the fixtures' vocabularies are larger than their hidden sizes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from inflight.executors.base import NamedTensor, StatusCode
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.extras import POOLING, read_extras
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.pooling import Pooling
from inflight.executors.reference.core.refusal import Refused
from inflight.executors.reference.core.scheduler import CapacitySchedulerPolicy
from reference.support import collect, engine, expected, model, request, run, torch_engine

NAMES = ["llama", "qwen3", "gpt2", "gemma", "gemma3", "mixtral", "mistral_window", "gpt_oss", "deepseek_v2"]


def pooled(name: str) -> list[NamedTensor]:
    return [NamedTensor(POOLING, "BYTES", (1,), len(name).to_bytes(4, "little") + name.encode())]


def oracle(name: str, pooling: str) -> tuple[list[int], npt.NDArray[np.float64]]:
    """The prompt and the embedding of a fixture."""
    tokens, logits = expected(name)
    head = np.asarray(model(name)._ends.head, dtype=np.float64)[: logits.shape[1]]
    assert np.linalg.matrix_rank(head) == head.shape[1]
    hidden = np.linalg.lstsq(head, logits.astype(np.float64).T, rcond=None)[0].T
    vector = hidden[-1] if pooling == "last" else hidden.mean(axis=0)
    return tokens, vector / np.linalg.norm(vector)


def embed(subject: Engine, prompt: list[int], pooling: str) -> npt.NDArray[np.float32]:
    told = run(subject, [request(1, prompt, 1, tensors=pooled(pooling))])[1, 0]
    assert told.error is None
    assert told.embedding is not None
    return told.embedding


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("name", NAMES)
def test_embeddings_are_those_of_the_oracle(name: str, pooling: str) -> None:
    prompt, vector = oracle(name, pooling)
    for settings in ({}, {"max_num_tokens": 5}, {"depth": 2, "max_num_tokens": 5}):
        found = embed(engine(name, **settings), prompt, pooling)  # type: ignore[arg-type]
        assert found.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(found), 1.0, rtol=1e-6)
        np.testing.assert_allclose(found, vector, atol=2e-4)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_pytorch_embeds_alike(pooling: str) -> None:
    pytest.importorskip("torch")
    prompt, vector = oracle("llama", pooling)
    found = embed(torch_engine("llama", max_num_tokens=5), prompt, pooling)
    np.testing.assert_allclose(found, vector, atol=2e-4)


def test_what_is_in_the_cache_and_who_else_runs_changes_nothing() -> None:
    prompt, vector = oracle("llama", "mean")
    subject = engine("llama")
    requests = [
        request(1, prompt, 8),
        request(2, prompt, 1, tensors=pooled("mean")),
        request(3, prompt[:5], 1, tensors=pooled("last")),
        request(4, prompt[:5], 1, tensors=pooled("mean")),
    ]
    for _ in range(2):
        told = run(subject, requests)
        np.testing.assert_allclose(told[2, 0].embedding, vector, atol=2e-4)  # type: ignore[arg-type]
        assert told[1, 0].embedding is None
        assert not np.allclose(told[3, 0].embedding, told[4, 0].embedding, atol=1e-2)  # type: ignore[arg-type]


def test_a_pause_in_the_middle_of_a_prompt_counts_nothing_twice() -> None:
    prompt, vector = oracle("llama", "mean")
    policy = CapacitySchedulerPolicy.MAX_UTILIZATION
    subject = engine("llama", num_blocks=9, max_num_tokens=3, policy=policy, reuse=False)
    # The first one generates meanwhile, and takes the blocks of whoever came last.
    subject.add([request(1, [1, 2, 3], 30)], Iteration())
    subject.add([request(2, prompt, 1, tensors=pooled("mean"))], Iteration())
    paused, found = 0, None
    while subject.has_work:
        iteration = Iteration()
        subject.step(iteration)
        paused += iteration.paused
        told = collect(iteration.rows).get((2, 0))
        found = told.embedding if told is not None else found
    assert paused == 1
    assert found is not None
    np.testing.assert_allclose(found, vector, atol=2e-4)


@pytest.mark.parametrize(
    ("pooling", "first", "stop", "rows"),
    [
        (Pooling.MEAN, 0, 4, range(4)),
        (Pooling.MEAN, 4, 12, range(4, 10)),
        (Pooling.MEAN, 10, 12, range(0)),
        (Pooling.LAST, 0, 9, range(0)),
        (Pooling.LAST, 4, 10, range(9, 10)),
        (Pooling.LAST, 9, 12, range(9, 10)),
        (Pooling.LAST, 10, 12, range(0)),
    ],
)
def test_only_rows_of_the_prompt_are_pooled(pooling: Pooling, first: int, stop: int, rows: range) -> None:
    assert list(pooling.rows(first, stop, 10)) == list(rows)


def test_another_pooling_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="inflight_pooling is `max`; use one of mean, last") as refused:
        read_extras(request(1, [1], tensors=pooled("max")))
    assert refused.value.code == StatusCode.INVALID_ARGUMENT
