"""The engine over PyTorch says what it says over NumPy; on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest

from inflight.executors.base import FinishReason, Request
from inflight.executors.reference.core.drafts import LookupConfig
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.model.lora import Adapter, Delta, Slot
from reference.support import FIXTURES, AllTold, Told, collect, engine, expected, request, run, torch_engine

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
)
DEVICES = ["cpu", CUDA]
PROMPT = [3, 4, 5, 6]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(one.parent.name for one in FIXTURES.glob("*/expected.npz")))
def test_log_probs_of_a_prompt_are_those_of_transformers(name: str, device: str) -> None:
    token_ids, logits = expected(name)
    reference = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    asked = {"num_prompt_log_probs": 3, "return_log_probs": True, "num_top_log_probs": 2}
    for tokens in (256, 8):
        subject = torch_engine(name, device, max_num_tokens=tokens, max_batch_size=4)
        told = run(subject, [request(9, [5] * 10), request(1, token_ids, 3, output=asked)])[1, 0]
        [row] = told.prompt_rows
        assert row.prompt is not None
        np.testing.assert_allclose(
            row.prompt.values[1:], reference[np.arange(len(token_ids) - 1), token_ids[1:]], atol=2e-4
        )
        assert told.log_probs[0] == pytest.approx(float(reference[-1].max()), abs=2e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_agrees_within_its_rounding(dtype: str, device: str) -> None:
    token_ids, logits = expected("llama")
    reference = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    asked = {"num_prompt_log_probs": 0, "return_log_probs": True}
    told = run(torch_engine("llama", device, dtype=dtype), [request(1, token_ids, 8, output=asked)])[1, 0]
    [row] = told.prompt_rows
    assert row.prompt is not None
    exact = reference[np.arange(len(token_ids) - 1), token_ids[1:]]
    # Eight bits of bf16, eleven of fp16, through a few layers.
    error = np.linalg.norm(row.prompt.values[1:] - exact) / np.linalg.norm(exact)
    assert error < (2e-2 if dtype == "bfloat16" else 2e-3)
    assert len(told.tokens) == 8


def test_the_log_says_when_the_adapters_of_an_iteration_take_too_much(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from inflight.executors.reference.pytorch.adapters import DeviceAdapters

    down, up = np.ones((2, 8), np.float32), np.ones((8, 2), np.float32)
    both = [Adapter.of(task_id, 1, [(0, Delta(Slot("output", 0, 8, 8), down, up))]) for task_id in range(2)]
    cache = DeviceAdapters(torch.device("cpu"), torch.float32, both[0].nbytes)
    cache.hold(both[:1])
    cache.hold(both[1:])
    assert not caplog.records
    for _ in range(2):
        cache.hold(both)
    [record] = caplog.records
    assert "the 2 LoRA adapters" in record.message
    assert "lora_cache_gpu_memory_fraction" in record.message


def test_the_device_keeps_the_adapters_of_the_latest_iterations() -> None:
    from inflight.executors.reference.pytorch.adapters import DeviceAdapters

    def adapter(task_id: int) -> Adapter:
        down, up = np.ones((2, 8), np.float32), np.ones((8, 2), np.float32)
        return Adapter.of(task_id, 1, [(0, Delta(Slot("output", 0, 8, 8), down, up))])

    adapters = [adapter(task_id) for task_id in range(3)]
    cache = DeviceAdapters(torch.device("cpu"), torch.float32, 2 * adapters[0].nbytes)

    def used(*task_ids: int) -> list[int]:
        """The identities of the copies that an iteration uses."""
        rows = cache.rows([(adapters[task_id], place, 1) for place, task_id in enumerate(task_ids)]).groups
        kept.extend(one.adapter for one in rows)  # so that no identity is given twice
        return [id(one.adapter) for one in rows]

    kept: list[Any] = []
    first, second = used(0, 1)
    assert used(0) == [first]
    [third] = used(2)
    assert used(2, 0) == [third, first]
    [again] = used(1)
    assert again != second
    # An iteration has all that it needs, even where they are too many to keep.
    assert used(0, 1)[1] == again
    many = used(0, 1, 2)
    assert used(0, 1, 2) == many


@pytest.mark.parametrize("device", DEVICES)
def test_every_way_to_sample_gives_numpys_tokens(device: str) -> None:
    """The same numbers in the same order: only rounding may choose another token. On a GPU iterations are
    launched before the tokens of the ones before are known."""
    samplings: list[dict[str, Any]] = [
        {"temperature": 2.0, "top_p": 1.0},
        {"temperature": 2.0, "top_p": 0.7},
        {"temperature": 4.0, "top_k": 7},
        {"temperature": 4.0, "top_k": 20, "top_p": 0.8},
        {"temperature": 1.5, "top_p": 1.0, "min_p": 0.3},
        {"temperature": 2.0, "top_p": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.4},
        {"top_k": 1, "repetition_penalty": 5.0, "frequency_penalty": 0.5},
        {"min_tokens": 6, "top_k": 1},
        {"temperature": 2.0, "top_k": 9, "no_repeat_ngram_size": 2},
    ]
    requests = [
        request(
            100 * place + seed,
            [*PROMPT, 7 + seed],
            12,
            sampling={**sampling, "seed": seed},
            end_id=9,
            logit_bias=[(9, 4.0), (11, 2.0)] if seed % 2 else [],
            bad_words=[[13], [14, 15]] if seed % 3 == 0 else [],
        )
        for place, sampling in enumerate(samplings)
        for seed in range(6)
    ]
    subject = torch_engine("llama", device, max_batch_size=16)
    ours = run(subject, requests)
    numpys = run(engine(max_batch_size=16), requests)
    same = [ours[key].tokens == one.tokens for key, one in numpys.items()]
    assert same.count(True) >= len(same) - 1
    assert {one.finish_reason for one in ours.values()} == {FinishReason.END_ID, FinishReason.LENGTH}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["llama", "mistral_window", "qwen3"])
def test_greedy_output_is_numpys_alone_and_in_any_batch(name: str, device: str) -> None:
    draw = np.random.default_rng(5)
    requests = [
        request(
            client_id,
            draw.integers(3, 64, size=int(draw.integers(1, 60))).tolist(),
            int(draw.integers(1, 30)),
            output={"num_top_log_probs": 2, "return_log_probs": True},
        )
        for client_id in range(40)
    ]
    told = run(engine(name), requests)
    for subject in (
        torch_engine(name, device),
        torch_engine(name, device, max_batch_size=7, max_num_tokens=20),
    ):
        compare(run(subject, requests), told)


def compare(ours: dict[tuple[int, int], Told], theirs: dict[tuple[int, int], Told]) -> None:
    """Equal but for what follows a near tie of the two best tokens."""
    compared = total = 0
    for key, one in theirs.items():
        total += len(one.tokens)
        for place, (token, other) in enumerate(zip(one.tokens, ours[key].tokens, strict=True)):
            if token != other:
                assert abs(one.top_values[place][0] - one.top_values[place][1]) < 1e-3
                break
            compared += 1
            assert ours[key].log_probs[place] == pytest.approx(one.log_probs[place], abs=1e-3)
    assert compared > 0.95 * total


@pytest.mark.parametrize("device", DEVICES)
def test_a_seed_says_the_same_alone_and_among_others(device: str) -> None:
    def asked(client_id: int) -> Request:
        sampling = {"top_p": 0.95, "seed": client_id, "temperature": 2.0}
        return request(client_id, PROMPT, 16, sampling=sampling)

    together = run(torch_engine("llama", device), [asked(client_id) for client_id in range(20)])
    subject = torch_engine("llama", device)
    for client_id in range(20):
        assert run(subject, [asked(client_id)])[client_id, 0].tokens == together[client_id, 0].tokens


@pytest.mark.parametrize("device", DEVICES)
def test_sequences_that_end_early_leave_nothing_behind(device: str) -> None:
    subject: Engine = torch_engine("llama", device, num_blocks=40, max_batch_size=5, max_num_tokens=16)
    draw = np.random.default_rng(3)
    requests = [
        request(
            client_id,
            draw.integers(3, 64, size=int(draw.integers(1, 30))).tolist(),
            int(draw.integers(1, 20)),
            sampling={"top_p": 1.0, "temperature": 5.0, "seed": client_id},
            end_id=int(draw.integers(3, 64)),
        )
        for client_id in range(60)
    ]
    told = run(subject, requests)
    assert all(one.final for one in told.values())
    assert (subject.pool.used, subject.pool.available) == (0, 40)
    alone = torch_engine("llama", device, num_blocks=40)
    for one in itertools.islice(requests, 0, 60, 7):
        assert run(alone, [one])[one.client_id, 0].tokens == told[one.client_id, 0].tokens


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
# Spare rows hold whatever the memory held.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value|All-NaN slice) encountered:RuntimeWarning")
@pytest.mark.skipif(
    "TRITON_INTERPRET" not in os.environ, reason="run with TRITON_INTERPRET=1 for the kernels"
)
@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "mistral_window",
        "qwen3",
        "gpt2",
        "mixtral",
        "qwen3_moe",
        "gemma",
        "gemma2",
        "gemma3",
        "baichuan2_alibi",
        "phi3_long",
        "gpt_oss",
        "deepseek_v2",
        "deepseek_v3",
    ],
)
def test_the_kernels_compute_what_the_operations_do(name: str) -> None:
    from inflight.executors.reference.pytorch import kernels

    requests = [request(one, [3 + one, 4, 5] * (1 + 9 * one), 4) for one in range(3)]
    ours = run(torch_engine(name, kernels=kernels), requests)
    plain = run(torch_engine(name), requests)
    assert {key: one.tokens for key, one in ours.items()} == {key: one.tokens for key, one in plain.items()}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [0, 20])
def test_guesses_are_rows_that_change_no_token(device: str, rows: int) -> None:
    """With room for a guess now and then, and for all of them."""
    asked = {"return_log_probs": True, "num_top_log_probs": 2}
    kinds: list[dict[str, Any]] = [{}, {"temperature": 1.5, "seed": 7}, {"top_p": 0.8, "seed": 8}]
    requests = [
        request(key, [5 + key, *PROMPT, 5 + key, *PROMPT[:2]], 40, sampling=kinds[key % 3], output=asked)
        for key in range(5)
    ]
    plain = run(engine(), requests)
    lookup = LookupConfig(max_draft_len=4, max_matching_ngram_size=2)
    subject = torch_engine("llama", device, lookup=lookup, max_batch_size=4, max_rows=rows)
    iteration = Iteration()
    subject.add(requests, iteration)
    told: AllTold = {}
    accepted = 0
    while subject.has_work:
        collect(iteration.rows, told)
        iteration = Iteration()
        subject.step(iteration)
        accepted += iteration.accepted_tokens
    collect(iteration.rows, told)
    for key, one in plain.items():
        assert told[key].tokens == one.tokens
        assert told[key].log_probs == pytest.approx(one.log_probs, abs=1e-3)
    assert accepted > 20
    assert subject.pool.used == 0
