"""The executor's threads: waiting without work, cancelling, statistics, failing and ending."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.errors import UserMistake
from inflight.executors.base import Executor, FinishReason, NamedTensor
from inflight.executors.reference import create
from inflight.executors.reference.core.engine import Engine

from .support import FIXTURES, AllTold, collect, read_config, request, unpack

PROMPT = [3, 4, 5, 6]
WITHOUT_GPU = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="the GPU can be used")


@pytest.fixture
def executor() -> Iterator[Executor]:
    subject = create(FIXTURES / "llama", max_batch_size=8)
    yield subject
    subject.shutdown()


def drain(subject: Executor, count: int, told: AllTold | None = None) -> AllTold:
    """Waits until ``count`` requests are final."""
    told = {} if told is None else told
    deadline = time.monotonic() + 60
    while sum(one.final for one in told.values()) < count:
        assert time.monotonic() < deadline
        collect(unpack(subject.await_responses(5.0)), told)
    return told


def test_requests_from_several_threads_are_all_answered(executor: Executor) -> None:
    threads = [
        threading.Thread(
            target=executor.enqueue, args=([request(10 * thread + one, PROMPT, 5) for one in range(5)],)
        )
        for thread in range(4)
    ]
    for thread in threads:
        thread.start()
    told = drain(executor, 20)
    assert len({tuple(one.tokens) for one in told.values()}) == 1
    assert all(one.finish_reason == FinishReason.LENGTH for one in told.values())


def test_a_refusal_is_an_errored_final_row(executor: Executor) -> None:
    executor.enqueue([request(1, []), request(2, PROMPT, 2)])
    errors: list[tuple[int, int, str]] = []
    told: AllTold = {}
    while sum(one.final for one in told.values()) < 2:
        batch = executor.await_responses(5.0)
        collect(unpack(batch), told)
        errors.extend(batch.errors)
    assert [(code, "empty" in text) for _, code, text in errors] == [(3, True)]
    assert len(told[2, 0].tokens) == 2


def test_waiting_ends_at_its_time(executor: Executor) -> None:
    started = time.monotonic()
    assert unpack(executor.await_responses(0.05)) == []
    assert 0.04 < time.monotonic() - started < 5
    assert unpack(executor.await_responses(0.0)) == []


def test_an_idle_executor_uses_no_processor(executor: Executor) -> None:
    executor.enqueue([request(1, PROMPT, 2)])
    drain(executor, 1)
    time.sleep(0.1)
    before = time.process_time()
    executor.await_responses(0.5)
    assert time.process_time() - before < 0.1


def test_the_active_count_is_exact_after_a_cancel(executor: Executor) -> None:
    executor.enqueue([request(1, PROMPT, 200), request(2, PROMPT, 200)])
    told = collect(unpack(executor.await_responses(5.0)))
    executor.cancel([1, 2, 99])
    drain(executor, 2, told)
    assert all(one.finish_reason == FinishReason.CANCELLED for one in told.values())
    # Rows and statistics of an iteration come out together: no waiting, the last one is true already.
    last = executor.stats()[-1]
    assert (last["numActiveRequests"], last["numQueuedRequests"], last["numCompletedRequests"]) == (0, 0, 2)
    assert last["kvCacheStats"]["usedNumBlocks"] == 0
    assert executor.stats() == []


def test_statistics_add_up(executor: Executor) -> None:
    executor.enqueue([request(client_id, PROMPT, 4) for client_id in range(3)])
    drain(executor, 3)
    stats = list(executor.stats())
    assert sum(one.get("numNewActiveRequests", 0) for one in stats) == 3
    assert sum(one.get("numCompletedRequests", 0) for one in stats) == 3
    assert sum(one["inflightBatchingStats"]["numCtxTokens"] for one in stats) == 3 * len(PROMPT)
    assert sum(one["inflightBatchingStats"]["numGenRequests"] for one in stats) == 3 * 3
    assert [one["iter"] for one in stats] == list(range(1, len(stats) + 1))
    cache = stats[-1]["kvCacheStats"]
    assert cache["freeNumBlocks"] + cache["usedNumBlocks"] == cache["maxNumBlocks"]


def test_statistics_are_bounded(executor: Executor) -> None:
    for client_id in range(12):
        executor.enqueue([request(client_id, PROMPT, 100)])
        drain(executor, 1)
    stats = executor.stats()
    assert len(stats) == 1000
    assert stats[-1]["iter"] >= 1200


def test_shutdown_answers_what_is_in_flight_and_what_comes_late() -> None:
    subject = create(FIXTURES / "llama")
    subject.enqueue([request(1, PROMPT, 250)])
    told = collect(unpack(subject.await_responses(5.0)))
    subject.shutdown()
    subject.enqueue([request(2, PROMPT, 5)])
    late: list[tuple[int, int, str]] = []
    while sum(one.final for one in told.values()) < 2:
        batch = subject.await_responses(5.0)
        collect(unpack(batch), told)
        late.extend(batch.errors)
    assert told[1, 0].finish_reason == FinishReason.CANCELLED
    assert [code for _, code, _ in late] == [14]
    assert unpack(subject.await_responses(60.0)) == []
    subject.shutdown()


def test_a_broken_engine_is_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError("no more")

    subject = create(FIXTURES / "llama")
    monkeypatch.setattr(Engine, "step", fail)
    subject.enqueue([request(1, PROMPT, 5)])
    with pytest.raises(RuntimeError, match="no more"):
        subject.await_responses(5.0)
    with pytest.raises(RuntimeError, match="no more"):
        subject.enqueue([request(2, PROMPT, 5)])
    subject.shutdown()


#: `IterationStats.to_json_str` of TensorRT-LLM 1.2.
ITERATION_KEYS = (
    "timestamp iter iterLatencyMS newActiveRequestsQueueLatencyMS numNewActiveRequests numActiveRequests"
    " numQueuedRequests numCompletedRequests maxNumActiveRequests maxBatchSizeStatic"
    " maxBatchSizeTunerRecommended maxBatchSizeRuntime maxNumTokensStatic maxNumTokensTunerRecommended"
    " maxNumTokensRuntime gpuMemUsage cpuMemUsage pinnedMemUsage kvCacheStats staticBatchingStats"
    " inflightBatchingStats specDecodingStats"
)


def test_statistics_have_tensorrt_llms_names_and_waiting_times(executor: Executor) -> None:
    # Eight sequences run and four wait until those are through.
    executor.enqueue([request(key, PROMPT, 6) for key in range(12)])
    drain(executor, 12)
    stats = list(executor.stats())
    assert {*ITERATION_KEYS.split()} <= stats[-1].keys()
    waited = sum(one.get("newActiveRequestsQueueLatencyMS", 0) for one in stats)
    assert waited > stats[1]["iterLatencyMS"]
    whole, latest = stats[-1]["kvCacheStats"], stats[-1]["kvCacheIterationStats"]["256"]
    assert 0 <= latest["iterReusedBlocks"] <= whole["reusedBlocks"]
    assert latest["primaryMaxNumBlocks"] == whole["maxNumBlocks"]


def test_of_all_but_the_latest_iteration_statistics_have_what_adds_up(executor: Executor) -> None:
    executor.enqueue([request(1, PROMPT, 4)])
    drain(executor, 1)
    first, *between, last = executor.stats()
    assert first["numNewActiveRequests"] == 1
    assert [[*one] for one in between] == [["iter", "iterLatencyMS", "inflightBatchingStats"]] * len(between)
    assert last["numCompletedRequests"] == 1
    assert {*ITERATION_KEYS.split()} <= last.keys()


def metrics_of(subject: Executor, *requests: Any) -> dict[int, list[dict[str, float]]]:
    """The metrics of each row that has some, by client id."""
    subject.enqueue(requests)
    told: dict[int, list[dict[str, float]]] = {one.client_id: [] for one in requests}
    finals = 0
    while finals < len(requests):
        batch = subject.await_responses(5.0)
        rows = unpack(batch)
        finals += sum(row.final for row in rows)
        for number, row in enumerate(rows):
            values = {
                tensor.name: np.frombuffer(
                    tensor.data, {"INT64": "<i8", "INT32": "<i4", "FP32": "<f4"}[kind]
                )[0]
                for place, tensor in batch.tensors
                if place == number and (kind := tensor.datatype)
            }
            if values:
                told[row.client_id].append(values)
    return told


def test_a_request_is_told_what_it_took(executor: Executor) -> None:
    asked = {"return_perf_metrics": True}
    prompt = [3 + token % 50 for token in range(70)]
    drafts = [NamedTensor("draft_input_ids", "INT32", (2,), np.array([9, 9], "<i4").tobytes())]
    told = metrics_of(
        executor,
        request(1, prompt, 4, output=asked),
        request(2, PROMPT, 4),
        request(3, PROMPT, 6, output=asked, streaming=False, tensors=drafts),
    )
    assert (len(told[1]), len(told[2]), len(told[3])) == (4, 0, 1)
    times = [
        [row[f"{name}_time_ns"] for name in ("arrival", "first_scheduled", "first_token", "last_token")]
        for row in told[1]
    ]
    assert all(row == sorted(row) for row in times)
    assert len({row[2] for row in times}) == 1
    assert len({row[3] for row in times}) == 4
    blocks = [f"kv_cache_{name}_blocks" for name in ("alloc_total", "alloc_new", "reused")]
    assert [told[1][-1][name] for name in blocks] == [3, 3, 0]
    # Clients read every name, whether there were drafts or not.
    drafted = ("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens")
    assert [told[1][-1][name] for name in drafted] == [0, 0, 0]
    assert (told[3][0]["total_draft_tokens"], told[3][0]["acceptance_rate"]) == (1, 0.0)
    # Two blocks of 32 are found, and what is left is copied into a new one.
    again = metrics_of(executor, request(4, prompt, 4, output=asked))
    assert [again[4][-1][name] for name in blocks] == [3, 1, 2]


def test_a_draft_model_is_loaded_beside_the_model() -> None:
    subject = create(FIXTURES / "llama", speculative_model=str(FIXTURES / "llama"), max_draft_len=3)
    try:
        told = metrics_of(subject, request(1, PROMPT, 9, output={"return_perf_metrics": True}))
        assert told[1][-1]["total_accepted_draft_tokens"] >= 6
        stats = subject.stats()
        drafting = [one["specDecodingStats"] for one in stats if "specDecodingStats" in one]
        assert sum(one["numAcceptedTokens"] for one in drafting) >= 6
        assert 0 < max(one["draftOverhead"] for one in drafting) < 1
    finally:
        subject.shutdown()


@pytest.mark.parametrize(("model", "words"), [("gone", "does not exist"), ("other", "vocabulary")])
def test_a_draft_model_that_does_not_fit_is_named(model: str, words: str, tmp_path: Path) -> None:
    directory = tmp_path / model
    if model != "gone":
        shutil.copytree(FIXTURES / "llama", directory)
        values = read_config("llama") | {"vocab_size": 65}
        (directory / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserMistake, match=words):
        create(FIXTURES / "llama", speculative_model=str(directory), max_draft_len=3)


def test_info_tells_the_truth(executor: Executor) -> None:
    info = executor.info()
    assert (info.executor, info.vocab_size, info.max_seq_len) == ("reference", 64, 256)
    assert (info.max_input_len, info.max_batch_size, info.max_beam_width) == (255, 8, 4)
    # The fixture has no tokenizer, which guides would need.
    assert {"beam_search", "draft_tokens"} < set(info.capabilities)
    assert not {"guided_decoding", "mrope"} & set(info.capabilities)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"device": "cuda"}, "CUDA|cuda|GPU", marks=WITHOUT_GPU),
        ({"batch": 3}, "`batch`"),
        ({"device": "cpu", "tokens_per_block": 2**50}, "memory"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserMistake, match=words):
        create(FIXTURES / "llama", **options)


def test_the_cache_bounds_the_sequence() -> None:
    subject = create(FIXTURES / "llama", max_tokens_in_paged_kv_cache=100, tokens_per_block=16)
    subject.shutdown()
    assert (subject.info().max_seq_len, subject.info().tokens_per_block) == (96, 16)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match="nowhere"):
        create(tmp_path / "nowhere")


def test_weights_of_another_configuration_are_refused(tmp_path: Path) -> None:
    import json

    shutil.copytree(FIXTURES / "llama", tmp_path / "model")
    changed = read_config("llama") | {"intermediate_size": 96}
    (tmp_path / "model" / "config.json").write_text(json.dumps(changed))
    with pytest.raises(UserMistake, match=r"gate_proj.*\[48, 32\].*\[96, 32\]"):
        create(tmp_path / "model")


def test_a_small_model_runs_on_one_thread_and_the_import_is_light() -> None:
    script = """
import os, sys
from inflight.executors.reference import create
assert "numpy" not in sys.modules
subject = create(sys.argv[1], "cpu", backend="numpy")
assert "numpy" in sys.modules and "OPENBLAS_NUM_THREADS" not in os.environ
print(len(os.listdir("/proc/self/task")))
subject.shutdown()
"""
    environment = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", script, str(FIXTURES / "llama")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    # The main thread and the engine's.
    assert done.stdout == "2\n"


def test_workers_are_alike_only_where_options_change_no_answer() -> None:
    def identity(name: str, **options: Any) -> str:
        subject = create(FIXTURES / name, "cpu", backend="numpy", **options)
        subject.shutdown()
        return subject.info().weights

    usual = identity("llama")
    assert identity("llama", max_seq_len=32, max_batch_size=2, enable_kv_cache_reuse=True) == usual
    windowed = identity("llama", max_attention_window_size="8")
    assert len({usual, windowed, identity("llama", max_attention_window_size="8", sink_token_length=2)}) == 3
    # LongRoPE turns by other angles where sequences may be longer than the training's, 32 tokens.
    long = identity("phi3_long")
    assert identity("phi3_long", max_seq_len=33) == long != identity("phi3_long", max_seq_len=32)
