"""Sliding windows, sink tokens and the host's level of the cache: what is given back is never missed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inflight.executors.base import Request
from inflight.executors.reference.core.admission import Bounds
from inflight.executors.reference.core.blocks import BlockPool
from inflight.executors.reference.core.drafts import LookupConfig
from inflight.executors.reference.core.engine import Engine
from inflight.executors.reference.core.iteration import Iteration
from inflight.executors.reference.core.options import limit_windows, parse_options
from inflight.executors.reference.core.reuse import ReuseIndex
from inflight.executors.reference.core.scheduler import CapacitySchedulerPolicy, Limits
from inflight.executors.reference.core.window import CacheWindow
from inflight.executors.reference.model.array_types import Float32
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.numpy import arrays
from inflight.executors.reference.numpy.batch import Span, build_batch
from inflight.executors.reference.numpy.cache import PagedCache
from inflight.executors.reference.numpy.model import load_model

from .support import FIXTURES, AllTold, TorchSettings, collect, engine, request, run
from .test_capacity import CountingRunner

LONG = [(7 * token) % 61 + 3 for token in range(90)]

#: Options, and the fixture that they limit.
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"max_attention_window_size": "9"}),
    ("llama", {"max_attention_window_size": "13", "sink_token_length": 5}),
    ("llama", {"max_attention_window_size": "8,24", "sink_token_length": 3}),
    ("llama", {"max_attention_window_size": "10,1000", "sink_token_length": 3}),
    ("mistral_window", {}),
    ("mistral_window", {"max_attention_window_size": "7", "sink_token_length": 4}),
    ("qwen3", {"max_attention_window_size": "1"}),
    ("gemma2", {"max_attention_window_size": "20", "sink_token_length": 3}),
    ("gemma3", {"max_attention_window_size": "20"}),
    ("gpt_oss", {}),
    ("gpt_oss", {"max_attention_window_size": "20", "sink_token_length": 3}),
]


def settings(kind: str) -> TorchSettings | None:
    """How the runner of that name computes; None: NumPy, or what the environment says."""
    if kind == "numpy":
        return None
    pytest.importorskip("torch", reason="pip install 'inflight-llm[torch]'")
    if kind == "kernels":
        if "TRITON_INTERPRET" not in os.environ:
            pytest.skip("run with TRITON_INTERPRET=1 for the kernels")
        from inflight.executors.reference.pytorch import kernels

        return TorchSettings(kernels=kernels)
    return TorchSettings()


def dense_logits(name: str, options: dict[str, Any], tokens: list[int]) -> Float32:
    """The logits of each position by one product over all positions, with a mask for what is not seen."""
    config = limit_windows(load_config(FIXTURES / name), parse_options(options))
    model = load_model(FIXTURES / name, None, config)
    cache = PagedCache(config.num_layers, 1, len(tokens), config.num_kv_heads, config.head_dim)

    def attend(
        queries: Float32,
        keys: Float32,
        values: Float32,
        _first: int,
        window: int | None,
        scale: float,
        _places: Any,
        _sink_tokens: int,
        _slopes: Any,
        sink_scores: Float32 | None,
        softcap: float | None = None,
    ) -> npt.NDArray[np.float32]:
        shared = queries.shape[1] // keys.shape[1]
        keys, values = np.repeat(keys, shared, axis=1), np.repeat(values, shared, axis=1)
        scores = np.einsum("qhd,khd->hqk", queries, keys) * scale
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        for query in range(len(queries)):
            for key in range(len(keys)):
                near = window is None or key > query - window or key < config.sink_tokens
                if key > query or not near:
                    scores[:, query, key] = -np.inf
        if sink_scores is not None:
            own = np.broadcast_to(sink_scores[:, None, None], (*scores.shape[:2], 1))
            scores = np.concatenate((scores, own), axis=-1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        weights = weights[..., : len(keys)]
        mixed: npt.NDArray[np.float32] = np.einsum("hqk,khd->qhd", weights, values).astype(np.float32)
        return mixed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "context_attention", attend)
        batch = build_batch([], [Span(tokens, 0, [0])], len(tokens))
        return model.logits(model.forward(batch, cache, np.arange(len(tokens))))


# Of Triton's interpreter: spare rows hold whatever was in their memory, and nobody reads what becomes of it.
@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("runner", ["numpy", "operations", "kernels"])
@pytest.mark.parametrize(("name", "options"), KINDS)
@pytest.mark.parametrize("max_num_tokens", [16, 256])
def test_what_a_window_hides_is_what_a_dense_mask_hides(
    name: str, options: dict[str, Any], max_num_tokens: int, runner: str
) -> None:
    asked = {"return_context_logits": True, "return_generation_logits": True}
    subject = engine(
        name, attention=options, max_num_tokens=max_num_tokens, max_batch_size=8, torch=settings(runner)
    )
    # Triton's interpreter takes a second for a token.
    prompt, most = (LONG[:35], 3) if runner == "kernels" else (LONG, 20)
    requests = [request(1, prompt, most, output=asked), request(2, LONG[:3], most, output=asked)]
    told = run(subject, requests)
    for one in requests:
        answer = told[one.client_id, 0]
        assert answer.context_logits is not None
        tokens = [*one.input_token_ids, *answer.tokens[:-1]]
        given = np.concatenate([answer.context_logits[:-1], answer.logits])
        np.testing.assert_allclose(given, dense_logits(name, options, tokens), atol=2e-3)
    assert subject.pool.used == 0


def run_within(subject: Engine, requests: list[Request]) -> tuple[AllTold, int, int]:
    """What was told, the most blocks in use at once, and how often a sequence was paused."""
    iteration = Iteration()
    subject.add(requests, iteration)
    told = collect(iteration.rows)
    most = pauses = 0
    while subject.has_work:
        iteration = Iteration()
        subject.step(iteration)
        most, pauses = max(most, subject.pool.used), pauses + iteration.paused
        collect(iteration.rows, told)
    return told, most, pauses


def test_blocks_are_given_back_once_they_leave_the_window() -> None:
    options = {"max_attention_window_size": "16", "sink_token_length": 4}
    subject = engine(attention=options, max_num_tokens=8, max_batch_size=4, num_blocks=8)
    # 110 tokens in a cache of 32: a block of sinks, and twelve and eight tokens in at most six blocks.
    told, most, _ = run_within(subject, [request(1, LONG, 20)])
    assert most <= 7
    ample = engine(attention=options, num_blocks=100)
    assert told[1, 0].tokens == run(ample, [request(1, LONG, 20)])[1, 0].tokens
    without = engine(num_blocks=100)
    # All 27 blocks, and one more where the next iteration is planned before the last token is known.
    assert run_within(without, [request(1, LONG, 20)])[1] == 26 + without.depth


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_host_blocks", [0, 10])
def test_windows_reuse_beams_and_drafts_in_little_room_change_no_token(
    policy: CapacitySchedulerPolicy, depth: int, num_host_blocks: int
) -> None:
    """Prompts that begin alike, longer than the window, in a cache that holds a few of them."""
    options = {"max_attention_window_size": "12", "sink_token_length": 2}
    requests = [
        request(
            key,
            [*LONG[: 20 + 7 * (key % 3)], 5 + key],
            [24, 8, 40][key % 3],
            sampling={"beam_width": 2} if key % 5 == 4 else {},
            streaming=key % 5 != 4,
        )
        for key in range(12)
    ]
    lookup = LookupConfig(max_draft_len=3, max_matching_ngram_size=2)
    subject = engine(
        attention=options,
        max_num_tokens=16,
        max_batch_size=6,
        num_blocks=26,
        policy=policy,
        depth=depth,
        lookup=lookup if depth == 1 else None,
        num_host_blocks=num_host_blocks,
    )
    told, most, pauses = run_within(subject, requests)
    assert most <= 26
    assert (pauses > 0) == (policy is CapacitySchedulerPolicy.MAX_UTILIZATION)
    assert (subject.pool.used, subject.pool.available) == (0, 26)
    for one in requests:
        alone = run(engine(attention=options, reuse=False), [one])
        for key, answer in alone.items():
            assert told[key].tokens == answer.tokens


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_no_mix_of_requests_asks_for_a_block_that_is_not_there(policy: CapacitySchedulerPolicy) -> None:
    """Prompts that share their beginnings, in a cache of four windows; a mistake would raise."""
    draw = np.random.default_rng(3)
    limits = Limits(16, 32, policy)
    window = CacheWindow(12, 2, 32)
    pool = BlockPool(60, 4, ReuseIndex(4), window=window, num_host_blocks=20)
    bounds = Bounds(
        64, 400, 60, 4, 400, None, policy is CapacitySchedulerPolicy.MAX_UTILIZATION, window=window
    )
    subject = Engine(CountingRunner(), pool, limits, bounds)
    added = finals = 0
    while added < 1500 or subject.has_work:
        iteration = Iteration()
        while added < 1500 and subject.num_waiting < 20:
            prompt = [3 + int(draw.integers(2)), *[7] * int(draw.integers(1, 150)), int(draw.integers(3, 6))]
            subject.add([request(added, prompt, int(draw.integers(1, 60)))], iteration)
            added += 1
        if draw.random() < 0.1:
            subject.cancel([added - int(draw.integers(1, 20))], iteration)
        subject.step(iteration)
        assert pool.used <= 60
        assert all(row.error is None for row in iteration.rows)
        finals += sum(row.final for row in iteration.rows)
    assert finals == 1500
    assert (pool.used, pool.available) == (0, 60)


# The host's level.


@pytest.mark.parametrize("runner", ["numpy", "operations"])
def test_what_was_crowded_out_comes_back_from_the_host(runner: str) -> None:
    torch = settings(runner)
    prompts = [[3 + key, *LONG[key : key + 39]] for key in range(6)]
    ample = engine(torch=torch)
    expected = [run(ample, [request(1, prompt, 6)])[1, 0].tokens for prompt in prompts]
    for num_host_blocks, found in ((0, 0), (60, 39)):
        subject = engine(num_blocks=24, num_host_blocks=num_host_blocks, max_seq_len=60, torch=torch)
        for _ in range(3):
            for prompt, tokens in zip(prompts, expected, strict=True):
                told = run(subject, [request(1, prompt, 6)])[1, 0]
                assert told.tokens == tokens
        assert told.cached_tokens == [found]
        stats = subject.pool.stats
        assert (stats.offloaded_blocks > 20) == (stats.onboarded_blocks > 20) == (num_host_blocks > 0)
        assert subject.pool.used_host <= num_host_blocks
        moves = [event["data"] for event in subject.pool.take_events() if event["data"]["type"] == "updated"]
        assert {one["cache_level"]["new_value"] for one in moves} == ({0, 1} if num_host_blocks else set())


def test_two_that_find_the_same_host_block_share_what_comes_back() -> None:
    subject = engine(num_blocks=24, num_host_blocks=60, max_seq_len=60)
    run(subject, [request(1, LONG[:40], 2)])
    for key in range(4):
        run(subject, [request(1, [3 + key] * 40, 2)])
    before = subject.pool.stats.onboarded_blocks
    told = run(subject, [request(1, [*LONG[:38], 5], 4), request(2, [*LONG[:38], 6], 4)])
    # The end of the ninth block differs: it is copied for each.
    assert subject.pool.stats.onboarded_blocks - before == 9
    assert [told[key, 0].cached_tokens for key in (1, 2)] == [[38], [38]]
    for key in (1, 2):
        alone = run(engine(), [request(1, [*LONG[:38], 4 + key], 4)])[1, 0].tokens
        assert told[key, 0].tokens == alone
    assert subject.pool.used == 0
