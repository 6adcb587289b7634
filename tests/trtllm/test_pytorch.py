"""The PyTorch runtime's adapter over the double: rows back, statistics, cancels, failures."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.errors import UserMistake
from inflight.executors.base import FinishReason, OutputConfig, Request, SamplingConfig, StatusCode
from inflight.executors.tensorrt_llm import pytorch, pytorch_start
from inflight.executors.tensorrt_llm.health import EngineFailed
from support import double
from trtllm.harness import (
    await_until_broken,
    collect,
    passed,
    request_of,
)
from trtllm.pytorch_setup import start, write_adapter, write_checkpoint

BOTH_LINES = True


def test_rows_are_deltas_and_end_once(pytorch_executor: Any) -> None:
    several = SamplingConfig(num_return_sequences=2)
    pytorch_executor.enqueue(
        [
            Request(client_id=1, input_token_ids=[10], max_tokens=3),
            Request(client_id=2, input_token_ids=[20], max_tokens=9, end_id=23),
            Request(client_id=3, input_token_ids=[30], max_tokens=9, stop_words=[[31, 32]], streaming=False),
            Request(client_id=4, input_token_ids=[40], max_tokens=2, sampling_config=several),
        ]
    )
    rows = collect(pytorch_executor, 1, 2, 3, 4)
    assert [token for row in rows[1] for token in row.tokens] == [11, 12, 13]
    assert rows[1][-1].reason is FinishReason.LENGTH
    assert [token for row in rows[2] for token in row.tokens] == [21, 22]
    assert rows[2][-1].reason is FinishReason.END_ID
    assert [(row.tokens, row.reason) for row in rows[3]] == [([31, 32], FinishReason.STOP_WORDS)]
    texts = {index: [t for row in rows[4] if row.sequence == index for t in row.tokens] for index in range(2)}
    assert texts == {0: [41, 42], 1: [42, 43]}
    assert all(sum(row.final for row in rows[at]) == 1 for at in rows)


def test_every_sequence_has_its_own_reason(pytorch_executor: Any) -> None:
    several = SamplingConfig(num_return_sequences=2)
    common: dict[str, Any] = {"sampling_config": several}
    pytorch_executor.enqueue(
        [
            # One sequence is ahead of the other by a token.
            Request(client_id=1, input_token_ids=[20], max_tokens=9, end_id=24, **common),
            Request(client_id=2, input_token_ids=[30], max_tokens=3, stop_words=[[32, 33]], **common),
            Request(client_id=3, input_token_ids=[40], max_tokens=2, **common),
        ]
    )
    rows = collect(pytorch_executor, 1, 2, 3)
    ends = {at: {row.sequence: row.reason for row in rows[at] if row.reason} for at in rows}
    assert ends == {
        1: dict.fromkeys((0, 1), FinishReason.END_ID),
        2: dict.fromkeys((0, 1), FinishReason.STOP_WORDS),
        3: dict.fromkeys((0, 1), FinishReason.LENGTH),
    }


def test_logits_come_with_their_tokens(pytorch_executor: Any) -> None:
    wanted = OutputConfig(return_generation_logits=True)
    pytorch_executor.enqueue(
        [Request(client_id=1, input_token_ids=[8], max_tokens=3, output_config=wanted, streaming=False)]
    )
    [row] = collect(pytorch_executor, 1)[1]
    logits = row.tensors["generation_logits"]
    assert logits.shape == (1, len(row.tokens), double.WIDTH)
    held = np.frombuffer(logits.data, "<f4").reshape(logits.shape)[0, :, : double.VOCAB]
    assert held.argmax(axis=1).tolist() == row.tokens


def test_beams_come_whole_at_the_end(beams_executor: Any) -> None:
    beams_executor.enqueue(
        [
            Request(
                client_id=1,
                input_token_ids=[8],
                max_tokens=2,
                sampling_config=SamplingConfig(beam_width=2),
                output_config=OutputConfig(return_generation_logits=True),
                streaming=False,
            )
        ]
    )
    rows = collect(beams_executor, 1)[1]
    assert [(row.sequence, row.tokens, row.final) for row in rows] == [
        (0, [9, 10], False),
        (1, [9, 10], True),
    ]
    assert rows[1].tensors["generation_logits"].shape == (2, 2, double.WIDTH)


@pytest.mark.parametrize("width", [1, 3])
def test_a_width_that_the_engine_does_not_run_is_refused_before_it_sees_it(
    beams_executor: Any, width: int
) -> None:
    other = SamplingConfig(beam_width=width)
    beams_executor.enqueue(
        [Request(client_id=1, input_token_ids=[8], max_tokens=2, sampling_config=other, streaming=False)]
    )
    [row] = collect(beams_executor, 1)[1]
    assert row.errors == [
        (
            StatusCode.INVALID_ARGUMENT,
            f"`beam_width` is `{width}`, and this worker serves `2` only, its `max_beam_width`",
        )
    ]
    # The engine lives, and answers what the worker proves itself ready with.
    greedy = SamplingConfig(top_k=1)
    beams_executor.enqueue([Request(client_id=2, input_token_ids=[8], max_tokens=1, sampling_config=greedy)])
    assert [(row.tokens, row.final) for row in collect(beams_executor, 2)[2]] == [([9], True)]


def test_log_probabilities_of_beams_are_refused(beams_executor: Any) -> None:
    given = {
        "sampling_config": SamplingConfig(beam_width=2),
        "output_config": OutputConfig(return_log_probs=True),
        "streaming": False,
    }
    beams_executor.enqueue([request_of(given)])
    [row] = collect(beams_executor, 9)[9]
    assert "not supported together with beam search" in row.errors[0][1]


def test_tokens_that_the_cache_had_are_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    with double.installed():
        made = start(tmp_path, enable_kv_cache_reuse=True)
        made.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=3)])
        rows = collect(made, 1)[1]
        capabilities = made.info().capabilities
        made.shutdown()
    assert [row.cached for row in rows] == [[double.CACHED], [], []]
    # The logits of what the cache has are not computed.
    assert not {"prompt_log_probs", "context_logits"} & set(capabilities)


@pytest.mark.parametrize("wanted", [{"num_prompt_log_probs": 1}, {"return_context_logits": True}])
def test_logits_that_lack_a_part_of_the_prompt_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]
) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    with double.installed():
        made = start(tmp_path, enable_kv_cache_reuse=True)
        made.enqueue([request_of({"output_config": OutputConfig(**wanted)})])
        [row] = collect(made, 9)[9]
        made.shutdown()
    assert row.errors == [
        (StatusCode.INTERNAL, "TensorRT-LLM returned the logits of `1` of the prompt's `3` tokens")
    ]


def log_probability(logit: float) -> float:
    """Of a token in the double's logits: 4 for the best, 2 for the next, 0 for the others."""
    return float(logit - np.log(np.exp(4.0) + np.exp(2.0) + double.VOCAB - 2))


def test_every_token_of_a_prompt_has_its_log_probability(pytorch_executor: Any) -> None:
    wanted = OutputConfig(num_prompt_log_probs=1)
    given = {"input_token_ids": [10, 11, 40, 41], "output_config": wanted}
    pytorch_executor.enqueue([request_of(given)])
    rows = collect(pytorch_executor, 9)[9]
    [(values, width, ids, _)] = [entry for row in rows for entry in row.prompt]
    found = np.frombuffer(values, "<f4")
    assert np.isnan(found[0])
    assert found[1:].tolist() == pytest.approx([log_probability(4.0)] * 3, rel=1e-5)
    assert (width, np.frombuffer(ids, "<i4").tolist()) == (1, [-1, 11, 40, 41])


def test_a_cancelled_request_gets_its_final_row(pytorch_executor: Any) -> None:
    pytorch_executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=90)])
    pytorch_executor.cancel([1, 777])
    last = collect(pytorch_executor, 1)[1][-1]
    assert (last.reason, last.final) == (FinishReason.CANCELLED, True)


def test_a_queued_request_ends_when_it_is_cancelled(pytorch_executor: Any) -> None:
    silent = [
        Request(client_id=at, input_token_ids=[double.SILENCE], max_tokens=1)
        for at in range(1, double.SLOTS + 1)
    ]
    queued = Request(client_id=99, input_token_ids=[10], max_tokens=9)
    pytorch_executor.enqueue([*silent, queued])
    pytorch_executor.cancel([99])
    assert [row.reason for row in collect(pytorch_executor, 99)[99]] == [FinishReason.CANCELLED]


def test_all_sequences_of_a_request_end_with_it(pytorch_executor: Any) -> None:
    several = SamplingConfig(num_return_sequences=2)
    pytorch_executor.enqueue(
        [Request(client_id=1, input_token_ids=[10], max_tokens=300, sampling_config=several)]
    )
    pytorch_executor.cancel([1])
    rows = collect(pytorch_executor, 1)[1]
    assert (rows[-1].reason, rows[-1].final) == (FinishReason.CANCELLED, True)
    # What the engine still answers goes nowhere.
    pytorch_executor.enqueue([Request(client_id=2, input_token_ids=[10], max_tokens=3)])
    assert [token for row in collect(pytorch_executor, 2)[2] for token in row.tokens] == [11, 12, 13]


def test_a_context_only_request_is_refused_under_the_overlap_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    with double.installed():
        made = start(tmp_path, disable_overlap_scheduler=False)
        made.enqueue([request_of({"tensors": [passed("request_type", "BYTES", (1,), "context_only")]})])
        [row] = collect(made, 9)[9]
        made.shutdown()
    assert row.errors[0][0] == StatusCode.INVALID_ARGUMENT
    assert "`disable_overlap_scheduler=true`" in row.errors[0][1]


def test_one_refusal_leaves_the_others_alone(pytorch_executor: Any) -> None:
    lora = passed("lora_task_id", "UINT64", (1,), 8)
    weights = passed("lora_weights", "FP16", (1, 1), 1.0)
    pytorch_executor.enqueue(
        [
            Request(client_id=1, input_token_ids=[10], max_tokens=1),
            Request(client_id=2, input_token_ids=[double.REFUSE], max_tokens=1),
            Request(client_id=3, input_token_ids=[10], max_tokens=1, tensors=[lora]),
            Request(client_id=4, input_token_ids=[double.ERROR], max_tokens=1),
            Request(client_id=5, input_token_ids=[10], max_tokens=1, tensors=[weights]),
        ]
    )
    rows = collect(pytorch_executor, 1, 2, 3, 4, 5)
    assert [row.tokens for row in rows[1]] == [[11]]
    assert rows[2][0].errors == [(StatusCode.INVALID_ARGUMENT, "ValueError: The prompt is too long")]
    assert "LoRA task `8` is not in `lora_adapter_dir`" in rows[3][0].errors[0][1]
    assert "`lora_weights` cannot be taken" in rows[5][0].errors[0][1]
    assert rows[4][0].errors[0][0] == StatusCode.INVALID_ARGUMENT


def test_a_dead_engine_raises(pytorch_executor: Any) -> None:
    pytorch_executor.enqueue([Request(client_id=1, input_token_ids=[double.CRASH], max_tokens=1)])
    with pytest.raises(EngineFailed, match="no longer takes requests"):
        await_until_broken(pytorch_executor)


def test_an_error_that_all_get_breaks_the_engine(pytorch_executor: Any) -> None:
    pytorch_executor.enqueue([Request(client_id=1, input_token_ids=[double.FAULT], max_tokens=1)])
    with pytest.raises(EngineFailed, match=r"forwardAsync.*illegal memory access was encountered"):
        await_until_broken(pytorch_executor)


def test_statistics_come_after_every_request(pytorch_executor: Any) -> None:
    assert list(pytorch_executor.stats()) == []
    for client_id in (1, 2):
        pytorch_executor.enqueue([Request(client_id=client_id, input_token_ids=[10], max_tokens=1)])
        collect(pytorch_executor, client_id)
        assert [stats["iter"] for stats in pytorch_executor.stats()] == [client_id]
        assert list(pytorch_executor.stats()) == []


def test_iterations_after_the_statistics_were_read_are_not_lost(pytorch_executor: Any) -> None:
    pytorch_executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=400)])
    found: list[int] = []
    rows = 0
    while rows < 400:
        rows += len(pytorch_executor.await_responses(1.0).finals)
        found += [stats["iter"] for stats in pytorch_executor.stats()]
    found += [stats["iter"] for stats in pytorch_executor.stats()]
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= 400


class Endless:
    """Statistics of an engine that iterates faster than they are read."""

    def __aiter__(self) -> Endless:
        return self

    async def __anext__(self) -> dict[str, int]:
        await asyncio.sleep(0.001)
        return {"iter": 1}


def test_statistics_that_never_run_out_are_handed_on(
    pytorch_executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(pytorch_executor._llm), "get_stats_async", lambda *_, **__: Endless())
    assert pytorch_executor.stats()[0] == {"iter": 1}


def test_statistics_that_fail_end_nothing(
    pytorch_executor: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(timeout: float | None = None) -> Any:
        raise RuntimeError("the queue broke")

    monkeypatch.setattr(type(pytorch_executor._llm), "get_stats_async", lambda _, timeout: fail(timeout))
    assert (pytorch_executor.stats(), pytorch_executor.stats()) == ((), ())
    assert caplog.text.count("the queue broke") == 1
    pytorch_executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=1)])
    assert collect(pytorch_executor, 1)[1][-1].final


def test_the_end_does_not_wait_for_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    with double.installed():
        made = start(tmp_path)
        made.enqueue([Request(client_id=1, input_token_ids=[double.SILENCE], max_tokens=1)])
        made.shutdown()
        assert double.ENGINES[-1]._sim.stopped


def test_the_end_of_an_llm_that_hangs_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    monkeypatch.setattr(pytorch, "_SHUTDOWN_TIMEOUT_S", 0.2)
    never = threading.Event()
    with double.installed():
        made = start(tmp_path)
        monkeypatch.setattr(type(made._llm), "shutdown", lambda _: never.wait())
        made.shutdown()
        never.set()
        double.ENGINES[-1]._sim.stop()
    assert "did not shut down within 0.2 s" in caplog.text


def test_capabilities_follow_the_sampler(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    with double.installed():
        made = start(tmp_path, sampler_type="TorchSampler")
        capabilities = made.info().capabilities
        made.shutdown()
    assert not {"lora", "draft_tokens", "encoder"} & set(capabilities)
    # The only sampler of 1.3 applies them.
    assert ({"penalties", "bad_words"} <= set(capabilities)) == (line != "1.2.1")
    offered = {"log_probs", "min_tokens", "embedding_bias", "guided_decoding", "kv_cache_retention"}
    assert offered <= set(capabilities)


def test_what_build_wrote_is_used_and_options_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    written = {"max_batch_size": 16, "max_seq_len": 64, "kv_cache_config": {"dtype": "fp8"}}
    (write_checkpoint(tmp_path / "model") / "llm_args.json").write_text(json.dumps(written))
    with double.installed():
        made = start(tmp_path, max_batch_size=4, kv_cache_free_gpu_mem_fraction=0.5)
        arguments = double.ENGINES[-1].dump()
        info = made.info()
        made.shutdown()
    assert (info.max_batch_size, info.max_seq_len, info.max_input_len) == (4, 64, 63)
    assert arguments["kv_cache_config"] == {
        "dtype": "fp8",
        "free_gpu_memory_fraction": 0.5,
        "enable_block_reuse": False,
    }
    # Guides are written in text.
    assert arguments["skip_tokenizer_init"] is False


def test_adapters_are_in_the_configuration_and_in_the_capabilities(pytorch_executor: Any) -> None:
    held = double.ENGINES[-1].dump()
    assert (held["enable_lora"], held["lora_config"]) == (
        True,
        {"lora_target_modules": ["attn_q", "attn_v"]},
    )
    info = pytorch_executor.info()
    assert "lora" in info.capabilities
    assert info.adapters == (("7", 7),)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cuda_graph_mode": "false"}, None),
        ({"cuda_graph_mode": "true"}, "absent"),
        (
            {"cuda_graph_batch_sizes": "1,2", "cuda_graph_enable_padding": "true"},
            {"batch_sizes": [1, 2], "enable_padding": True},
        ),
    ],
)
def test_cuda_graphs_are_off_as_made_or_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: Any
) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    with double.installed():
        start(tmp_path, **options).shutdown()
    assert double.ENGINES[-1].dump().get("cuda_graph_config", "absent") == expected


@pytest.mark.parametrize(
    ("adapters", "options", "words"),
    [
        ([], {"lora_target_modules": "attn_q"}, "`lora_adapter_dir` must be a directory"),
        (["7"], {}, "no target modules"),
        (["seven"], {"lora_target_modules": "attn_q"}, "is not named after a LoRA task id"),
        (["7"], {"lora_target_modules": "attn_q", "max_lora_rank": 4}, "and `max_lora_rank` is `4`"),
        (
            ["7"],
            {"lora_target_modules": "attn_v"},
            "changes `q_proj`, which `lora_target_modules` does not name",
        ),
    ],
)
def test_adapters_that_cannot_be_used_are_told_at_start(
    tmp_path: Path, adapters: list[str], options: dict[str, Any], words: str
) -> None:
    for name in adapters:
        write_adapter(tmp_path / "adapters", name)
    with double.installed(), pytest.raises(UserMistake) as raised:
        start(tmp_path, lora_adapter_dir=str(tmp_path / "adapters"), **options)
    assert words in raised.value.what


def test_an_adapter_that_comes_later_is_found(pytorch_executor: Any) -> None:
    write_adapter(Path("adapters"), "9")
    task = passed("lora_task_id", "UINT64", (1,), 9)
    pytorch_executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=1, tensors=[task])])
    assert not collect(pytorch_executor, 1)[1][-1].errors


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("SamplingParams(end_id)", "`SamplingParams(end_id)`"),
        ("LLM.generate_async", "`LLM.generate_async`"),
        ("TorchLlmArgs(disable_overlap_scheduler)", "no argument `disable_overlap_scheduler`"),
    ],
)
def test_a_needed_name_that_is_missing_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, words: str
) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    with double.installed({missing}), pytest.raises(UserMistake) as raised:
        start(tmp_path)
    assert words in raised.value.what
