"""The PyTorch runtime's adapter over the doubles: rows back by the tap and by the public path,
failures.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.errors import UserMistake
from inflight.executors.base import FinishReason, OutputConfig, Request, SamplingConfig, StatusCode
from inflight.executors.tensorrt_llm import pytorch
from inflight.executors.tensorrt_llm.health import EngineFailed
from trtllm import doubles, simulation, simulator
from trtllm.harness import (
    await_until_broken,
    collect,
    passed,
)
from trtllm.pytorch_setup import start, write_adapter, write_checkpoint


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
    # Rich enough for the public path on both.
    wanted = OutputConfig(return_log_probs=True)
    common: dict[str, Any] = {"sampling_config": several, "output_config": wanted}
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


@pytest.mark.parametrize("streaming", [True, False])
def test_logits_come_with_their_tokens(pytorch_executor: Any, streaming: bool) -> None:
    wanted = OutputConfig(return_generation_logits=True)
    pytorch_executor.enqueue(
        [Request(client_id=1, input_token_ids=[8], max_tokens=3, output_config=wanted, streaming=streaming)]
    )
    rows = collect(pytorch_executor, 1)[1]
    assert len(rows) == (3 if streaming else 1)
    for row in rows:
        logits = row.tensors["generation_logits"]
        assert logits.shape == (1, len(row.tokens), simulator.WIDTH)
        held = np.frombuffer(logits.data, "<f4").reshape(logits.shape)[0, :, : simulator.VOCAB]
        assert held.argmax(axis=1).tolist() == row.tokens


def test_beams_come_whole_at_the_end(pytorch_executor: Any) -> None:
    pytorch_executor.enqueue(
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
    rows = collect(pytorch_executor, 1)[1]
    assert [(row.sequence, row.tokens, row.final) for row in rows] == [
        (0, [9, 10], False),
        (1, [9, 10], True),
    ]
    assert rows[1].tensors["generation_logits"].shape == (2, 2, simulator.WIDTH)


def test_tokens_that_the_cache_had_are_told_once(pytorch_executor: Any) -> None:
    pytorch_executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=3)])
    assert [row.cached for row in collect(pytorch_executor, 1)[1]] == [[simulation.CACHED], [], []]


@pytest.mark.parametrize(
    ("change", "live"),
    [
        ("none", True),
        ("as in 1.0", True),
        ("deserialize_result", False),
        ("AwaitResponseHelper", False),
        ("other results", False),
    ],
)
def test_batches_are_tapped_where_they_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, live: bool
) -> None:
    monkeypatch.setenv(pytorch.N_GREEDY, "1")
    monkeypatch.setenv(pytorch.SINGLE_PROCESS, "1")
    with doubles.installed({change}) as bindings:
        if change == "other results":
            bindings.deserialize_result = lambda packed: packed  # type: ignore[attr-defined]
        if change == "as in 1.0":
            new: Any = sys.modules["tensorrt_llm.executor.base_worker"]
            old: Any = sys.modules["tensorrt_llm.executor.worker"]
            old.AwaitResponseHelper = new.AwaitResponseHelper
            del new.AwaitResponseHelper
        made = start(tmp_path)
        found = []
        for client_id in (1, 2):
            made.enqueue([Request(client_id=client_id, input_token_ids=[8], max_tokens=2)])
            found.append([row.tokens for row in collect(made, client_id)[client_id]])
        assert (found, made._tap_is_live) == ([[[9], [10]], [[9], [10]]], live)
        made.shutdown()


def test_log_probs_come_with_their_tokens(pytorch_executor: Any) -> None:
    wanted = OutputConfig(return_log_probs=True)
    pytorch_executor.enqueue([Request(client_id=1, input_token_ids=[16], max_tokens=2, output_config=wanted)])
    rows = collect(pytorch_executor, 1)[1]
    assert [value for row in rows for value in row.log_probs] == [-17 / 64, -18 / 64]


def test_a_cancelled_request_gets_its_final_row(pytorch_executor: Any) -> None:
    pytorch_executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=90)])
    pytorch_executor.cancel([1, 777])
    last = collect(pytorch_executor, 1)[1][-1]
    assert (last.reason, last.final) == (FinishReason.CANCELLED, True)


def test_one_refusal_leaves_the_others_alone(pytorch_executor: Any) -> None:
    lora = passed("lora_task_id", "UINT64", (1,), 8)
    weights = passed("lora_weights", "FP16", (1, 1), 1.0)
    pytorch_executor.enqueue(
        [
            Request(client_id=1, input_token_ids=[10], max_tokens=1),
            Request(client_id=2, input_token_ids=[simulator.REFUSE], max_tokens=1),
            Request(client_id=3, input_token_ids=[10], max_tokens=1, tensors=[lora]),
            Request(client_id=4, input_token_ids=[simulator.ERROR], max_tokens=1),
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
    pytorch_executor.enqueue([Request(client_id=1, input_token_ids=[simulator.CRASH], max_tokens=1)])
    with pytest.raises(EngineFailed, match="no longer takes requests"):
        await_until_broken(pytorch_executor)


def test_an_error_that_all_get_breaks_the_engine(pytorch_executor: Any) -> None:
    pytorch_executor.enqueue([Request(client_id=1, input_token_ids=[simulator.FAULT], max_tokens=1)])
    with pytest.raises(EngineFailed, match=r"forwardAsync.*illegal memory access was encountered"):
        await_until_broken(pytorch_executor)


def test_statistics_are_handed_on(pytorch_executor: Any) -> None:
    assert pytorch_executor.stats()[0]["iter"] == 1


def test_capabilities_follow_the_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pytorch.N_GREEDY, "1")
    monkeypatch.setenv(pytorch.SINGLE_PROCESS, "0")
    with doubles.installed():
        made = start(tmp_path, sampler_type="TorchSampler")
        capabilities = made.info().capabilities
        made.shutdown()
    assert not {"penalties", "bad_words", "lora", "draft_tokens", "encoder"} & set(capabilities)
    assert {"log_probs", "embedding_bias", "guided_decoding", "kv_cache_retention"} <= set(capabilities)


def test_what_build_wrote_is_used_and_options_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pytorch.N_GREEDY, "1")
    monkeypatch.setenv(pytorch.SINGLE_PROCESS, "0")
    written = {"max_batch_size": 16, "max_seq_len": 64, "kv_cache_config": {"dtype": "fp8"}}
    (write_checkpoint(tmp_path / "model") / "llm_args.json").write_text(json.dumps(written))
    with doubles.installed():
        made = start(tmp_path, max_batch_size=4, kv_cache_free_gpu_mem_fraction=0.5)
        arguments = simulator.ENGINES[-1].dump()
        info = made.info()
        made.shutdown()
    assert (info.max_batch_size, info.max_seq_len, info.max_input_len) == (4, 64, 63)
    assert arguments["kv_cache_config"] == {"dtype": "fp8", "free_gpu_memory_fraction": 0.5}
    # Guides are written in text.
    assert arguments["skip_tokenizer_init"] is False


def test_adapters_are_in_the_configuration_and_in_the_capabilities(pytorch_executor: Any) -> None:
    held = simulator.ENGINES[-1].dump()
    assert (held["enable_lora"], held["lora_config"]) == (
        True,
        {"lora_target_modules": ["attn_q", "attn_v"]},
    )
    assert "lora" in pytorch_executor.info().capabilities


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
    monkeypatch.setenv(pytorch.N_GREEDY, "1")
    monkeypatch.setenv(pytorch.SINGLE_PROCESS, "0")
    with doubles.installed():
        start(tmp_path, **options).shutdown()
    assert simulator.ENGINES[-1].dump().get("cuda_graph_config", "absent") == expected


@pytest.mark.parametrize(
    ("adapters", "options", "words"),
    [
        ([], {"lora_target_modules": "attn_q"}, "which is no directory"),
        (["7"], {}, "no target modules"),
        (["seven"], {"lora_target_modules": "attn_q"}, "its name is no task id"),
        (["7"], {"lora_target_modules": "attn_q", "max_lora_rank": 4}, "and `max_lora_rank` is `4`"),
    ],
)
def test_adapters_that_cannot_be_used_are_told_at_start(
    tmp_path: Path, adapters: list[str], options: dict[str, Any], words: str
) -> None:
    for name in adapters:
        write_adapter(tmp_path / "adapters", name)
    with doubles.installed(), pytest.raises(UserMistake) as raised:
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
        ("TorchLlmArgs(sampler_type)", "no argument `sampler_type`"),
    ],
)
def test_a_needed_name_that_is_missing_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, words: str
) -> None:
    monkeypatch.setenv(pytorch.N_GREEDY, "1")
    monkeypatch.setenv(pytorch.SINGLE_PROCESS, "0")
    with doubles.installed({missing}), pytest.raises(UserMistake) as raised:
        start(tmp_path)
    assert words in raised.value.what
