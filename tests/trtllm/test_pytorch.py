"""The PyTorch runtime's adapter over the doubles: every input to its exact keyword, rows back by the tap and
by the public path, failures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.errors import UserMistake
from inflight.executors.base import FinishReason, OutputConfig, Request, SamplingConfig, StatusCode
from inflight.executors.tensorrt_llm import fields, pytorch
from inflight.executors.tensorrt_llm.fields import Target
from inflight.executors.tensorrt_llm.health import EngineFailed
from inflight.executors.tensorrt_llm.options import parse
from trtllm import doubles, simulation, simulator
from trtllm.harness import (
    BIAS,
    PHASE_TENSOR,
    RETENTION,
    await_until_broken,
    collect,
    passed,
    request_of,
    tensor,
)

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": simulator.VOCAB,
    "max_position_embeddings": 128,
}
OPTIONS = {
    "max_beam_width": 2,
    "guided_decoding_backend": "xgrammar",
    "cache_transceiver_backend": "UCX",
    "sampler_type": "TRTLLMSampler",
}


def write_checkpoint(directory: Path, **config: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    return directory


def write_adapter(folder: Path, name: str = "7", rank: int = 8) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return folder


def start(tmp_path: Path, **options: Any) -> Any:
    return pytorch.create_pytorch(
        write_checkpoint(tmp_path / "model"), parse(OPTIONS | options, "pytorch", {}), "1.2.1"
    )


@pytest.fixture(params=["tap", "public"])
def executor(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    # Set first, so that monkeypatch removes what the adapter sets.
    monkeypatch.setenv(pytorch.N_GREEDY, "1")
    monkeypatch.setenv(pytorch.SINGLE_PROCESS, "1" if request.param == "tap" else "0")
    # Relative, so that a case can name it.
    monkeypatch.chdir(tmp_path)
    write_adapter(Path("adapters"))
    with doubles.installed():
        made = start(
            tmp_path,
            batch_tap="auto" if request.param == "tap" else "off",
            lora_adapter_dir="adapters",
            lora_target_modules="attn_q,attn_v",
        )
        # As the worker's own first request.
        made.enqueue([Request(client_id=1000, input_token_ids=[8], max_tokens=1)])
        collect(made, 1000)
        assert made._tap_is_live == (request.param == "tap")
        yield made
        made.shutdown()


def dump(call: dict[str, Any]) -> dict[str, Any]:
    held = {name: value for name, value in call.items() if value is not None}
    return {
        name: value.dump() if isinstance(value, doubles.Double) else value for name, value in held.items()
    }


SAMPLING = SamplingConfig(
    num_return_sequences=2,
    top_k=4,
    top_p=0.5,
    top_p_min=0.25,
    top_p_decay=0.75,
    top_p_reset_ids=3,
    min_p=0.1,
    seed=11,
    temperature=0.25,
    min_tokens=2,
    beam_search_diversity_rate=0.5,
    repetition_penalty=1.5,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    length_penalty=1.25,
    early_stopping=1,
    no_repeat_ngram_size=3,
)

CASES: list[tuple[set[str], dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        {
            "input_ids",
            "request_output_len",
            "end_id",
            "pad_id",
            "streaming",
            "stop_words_list",
            "bad_words_list",
        },
        {"end_id": 2, "pad_id": 1, "stop_words": [[40, 41], [50]], "bad_words": [[60], [61, 62]]},
        {"max_tokens": 3, "end_id": 2, "pad_id": 1, "stop_token_ids": [50], "bad_token_ids": [60]},
        {"inputs": [10, 11, 12], "streaming": True},
    ),
    ({"end_id"}, {}, {"end_id": -1, "ignore_eos": True}, {}),
    (
        {
            "temperature",
            "runtime_top_k",
            "runtime_top_p",
            "runtime_top_p_min",
            "runtime_top_p_decay",
            "runtime_top_p_reset_ids",
            "len_penalty",
            "early_stopping",
            "repetition_penalty",
            "min_tokens",
            "beam_search_diversity_rate",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "no_repeat_ngram_size",
            "inflight_min_p",
            "num_return_sequences",
        },
        {"sampling_config": SAMPLING},
        {
            "n": 2,
            "top_k": 4,
            "top_p": 0.5,
            "top_p_min": 0.25,
            "top_p_decay": 0.75,
            "top_p_reset_ids": 3,
            "min_p": 0.1,
            "seed": 11,
            "temperature": 0.25,
            "min_tokens": 2,
            "beam_search_diversity_rate": 0.5,
            "repetition_penalty": 1.5,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "length_penalty": 1.25,
            "early_stopping": 1,
            "no_repeat_ngram_size": 3,
        },
        {},
    ),
    (
        {"beam_width"},
        {"sampling_config": SamplingConfig(beam_width=2), "streaming": False},
        {"use_beam_search": True, "best_of": 2, "n": 2},
        {},
    ),
    (
        {"return_log_probs", "return_context_logits", "return_generation_logits", "return_perf_metrics"},
        {"output_config": OutputConfig(True, True, True, True)},
        {
            "logprobs": 1,
            "return_context_logits": True,
            "return_generation_logits": True,
            "return_perf_metrics": True,
        },
        {},
    ),
    (
        {"inflight_num_top_log_probs", "inflight_num_prompt_log_probs"},
        {"output_config": OutputConfig(num_top_log_probs=3, num_prompt_log_probs=0)},
        {"logprobs": 3, "prompt_logprobs": 1},
        {},
    ),
    (
        {"embedding_bias", "inflight_logit_bias_ids", "inflight_logit_bias_values"},
        {"embedding_bias": BIAS.tobytes(), "logit_bias": [(3, 0.5)]},
        {"embedding_bias": tensor("float32", *(BIAS + np.eye(1, 96, 3)[0] * 0.5).tolist())},
        {},
    ),
    *(
        (
            {"guided_decoding_guide_type", "guided_decoding_guide"},
            {
                "tensors": [
                    passed("guided_decoding_guide_type", "BYTES", (1,), wire),
                    passed("guided_decoding_guide", "BYTES", (1,), "x"),
                ]
            },
            {"guided_decoding": {"class": "GuidedDecodingParams", keyword: value}},
            {},
        )
        for wire, keyword, value in (
            ("json", "json_object", True),
            ("json_schema", "json", "x"),
            ("regex", "regex", "x"),
            ("ebnf_grammar", "grammar", "x"),
            ("structural_tag", "structural_tag", "x"),
        )
    ),
    (
        {tensor.name for tensor in RETENTION},
        {"tensors": RETENTION},
        {},
        {
            "kv_cache_retention_config": {
                "token_range_retention_configs": [
                    {
                        "class": "TokenRangeRetentionConfig",
                        "token_start": 0,
                        "token_end": 3,
                        "priority": 90,
                        "duration_ms": {"ms": 500.0},
                    },
                    {
                        "class": "TokenRangeRetentionConfig",
                        "token_start": 3,
                        "token_end": None,
                        "priority": 10,
                        "duration_ms": None,
                    },
                ],
                "decode_retention_priority": 5,
                "decode_duration_ms": {"ms": 250.0},
            }
        },
    ),
    (
        {"lora_task_id"},
        {"tensors": [passed("lora_task_id", "UINT64", (1,), 7)]},
        {},
        {"lora_request": {"lora_name": "7", "lora_int_id": 7, "lora_path": "adapters/7"}},
    ),
    (
        {"context_phase_params"},
        {"tensors": [PHASE_TENSOR]},
        {},
        {
            "disaggregated_params": {
                "request_type": "generation_only",
                "first_gen_tokens": [5],
                "ctx_request_id": 77,
                "opaque_state": "0102",
                "draft_tokens": [6],
            }
        },
    ),
    (
        {"request_type"},
        {"tensors": [passed("request_type", "BYTES", (1,), "context_only")]},
        {},
        {"disaggregated_params": {"request_type": "context_only"}},
    ),
]


@pytest.mark.parametrize(
    ("about", "given", "params", "call"), CASES, ids=lambda value: "-".join(sorted(value))[:50]
)
def test_every_input_reaches_its_keyword(
    executor: Any, about: set[str], given: dict[str, Any], params: dict[str, Any], call: dict[str, Any]
) -> None:
    executor.enqueue([request_of(given)])
    assert not collect(executor, 9)[9][-1].errors
    held = dump(simulator.REQUESTS[-1])
    for name, value in params.items():
        assert held["sampling_params"][name] == value, name
    usual = {
        "max_tokens",
        "detokenize",
        "exclude_input_from_output",
        "include_stop_str_in_output",
        "end_id",
        "ignore_eos",
    }
    assert set(held["sampling_params"]) - usual == set(params) - usual
    for name, value in call.items():
        assert held[name] == value, name
    assert set(held) - {"inputs", "streaming", "sampling_params"} == set(call) - {"inputs", "streaming"}
    sampling = simulator.REQUESTS[-1]["sampling_params"]
    if "stop_words_list" in about:
        assert (sampling._stop_word_ids, sampling._bad_word_ids) == ([[40, 41]], [[61, 62]])
        # Without texts the words would not count.
        assert (len(sampling.stop), len(sampling.bad)) == (1, 1)


def test_the_cases_cover_what_the_runtime_supports() -> None:
    covered = set().union(*(about for about, *_ in CASES))
    supported = {field.tensor for field in fields.FIELDS if isinstance(field.pytorch, Target)}
    assert covered == supported


def test_rows_are_deltas_and_end_once(executor: Any) -> None:
    several = SamplingConfig(num_return_sequences=2)
    executor.enqueue(
        [
            Request(client_id=1, input_token_ids=[10], max_tokens=3),
            Request(client_id=2, input_token_ids=[20], max_tokens=9, end_id=23),
            Request(client_id=3, input_token_ids=[30], max_tokens=9, stop_words=[[31, 32]], streaming=False),
            Request(client_id=4, input_token_ids=[40], max_tokens=2, sampling_config=several),
        ]
    )
    rows = collect(executor, 1, 2, 3, 4)
    assert [token for row in rows[1] for token in row.tokens] == [11, 12, 13]
    assert rows[1][-1].reason is FinishReason.LENGTH
    assert [token for row in rows[2] for token in row.tokens] == [21, 22]
    assert rows[2][-1].reason is FinishReason.END_ID
    assert [(row.tokens, row.reason) for row in rows[3]] == [([31, 32], FinishReason.STOP_WORDS)]
    texts = {index: [t for row in rows[4] if row.sequence == index for t in row.tokens] for index in range(2)}
    assert texts == {0: [41, 42], 1: [42, 43]}
    assert all(sum(row.final for row in rows[at]) == 1 for at in rows)


def test_every_sequence_has_its_own_reason(executor: Any) -> None:
    several = SamplingConfig(num_return_sequences=2)
    # Rich enough for the public path on both.
    wanted = OutputConfig(return_log_probs=True)
    common: dict[str, Any] = {"sampling_config": several, "output_config": wanted}
    executor.enqueue(
        [
            # One sequence is ahead of the other by a token.
            Request(client_id=1, input_token_ids=[20], max_tokens=9, end_id=24, **common),
            Request(client_id=2, input_token_ids=[30], max_tokens=3, stop_words=[[32, 33]], **common),
            Request(client_id=3, input_token_ids=[40], max_tokens=2, **common),
        ]
    )
    rows = collect(executor, 1, 2, 3)
    ends = {at: {row.sequence: row.reason for row in rows[at] if row.reason} for at in rows}
    assert ends == {
        1: dict.fromkeys((0, 1), FinishReason.END_ID),
        2: dict.fromkeys((0, 1), FinishReason.STOP_WORDS),
        3: dict.fromkeys((0, 1), FinishReason.LENGTH),
    }


@pytest.mark.parametrize("streaming", [True, False])
def test_logits_come_with_their_tokens(executor: Any, streaming: bool) -> None:
    wanted = OutputConfig(return_generation_logits=True)
    executor.enqueue(
        [Request(client_id=1, input_token_ids=[8], max_tokens=3, output_config=wanted, streaming=streaming)]
    )
    rows = collect(executor, 1)[1]
    assert len(rows) == (3 if streaming else 1)
    for row in rows:
        logits = row.tensors["generation_logits"]
        assert logits.shape == (1, len(row.tokens), simulator.WIDTH)
        held = np.frombuffer(logits.data, "<f4").reshape(logits.shape)[0, :, : simulator.VOCAB]
        assert held.argmax(axis=1).tolist() == row.tokens


def test_beams_come_whole_at_the_end(executor: Any) -> None:
    executor.enqueue(
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
    rows = collect(executor, 1)[1]
    assert [(row.sequence, row.tokens, row.final) for row in rows] == [
        (0, [9, 10], False),
        (1, [9, 10], True),
    ]
    assert rows[1].tensors["generation_logits"].shape == (2, 2, simulator.WIDTH)


def test_tokens_that_the_cache_had_are_told_once(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=3)])
    assert [row.cached for row in collect(executor, 1)[1]] == [[simulation.CACHED], [], []]


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


def test_log_probs_come_with_their_tokens(executor: Any) -> None:
    wanted = OutputConfig(return_log_probs=True)
    executor.enqueue([Request(client_id=1, input_token_ids=[16], max_tokens=2, output_config=wanted)])
    rows = collect(executor, 1)[1]
    assert [value for row in rows for value in row.log_probs] == [-17 / 64, -18 / 64]


def test_a_cancelled_request_gets_its_final_row(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=90)])
    executor.cancel([1, 777])
    last = collect(executor, 1)[1][-1]
    assert (last.reason, last.final) == (FinishReason.CANCELLED, True)


def test_one_refusal_leaves_the_others_alone(executor: Any) -> None:
    lora = passed("lora_task_id", "UINT64", (1,), 8)
    weights = passed("lora_weights", "FP16", (1, 1), 1.0)
    executor.enqueue(
        [
            Request(client_id=1, input_token_ids=[10], max_tokens=1),
            Request(client_id=2, input_token_ids=[simulator.REFUSE], max_tokens=1),
            Request(client_id=3, input_token_ids=[10], max_tokens=1, tensors=[lora]),
            Request(client_id=4, input_token_ids=[simulator.ERROR], max_tokens=1),
            Request(client_id=5, input_token_ids=[10], max_tokens=1, tensors=[weights]),
        ]
    )
    rows = collect(executor, 1, 2, 3, 4, 5)
    assert [row.tokens for row in rows[1]] == [[11]]
    assert rows[2][0].errors == [(StatusCode.INVALID_ARGUMENT, "ValueError: The prompt is too long")]
    assert "LoRA task `8` is not in `lora_adapter_dir`" in rows[3][0].errors[0][1]
    assert "`lora_weights` cannot be taken" in rows[5][0].errors[0][1]
    assert rows[4][0].errors[0][0] == StatusCode.INVALID_ARGUMENT


def test_a_dead_engine_raises(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[simulator.CRASH], max_tokens=1)])
    with pytest.raises(EngineFailed, match="no longer takes requests"):
        await_until_broken(executor)


def test_an_error_that_all_get_breaks_the_engine(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[simulator.FAULT], max_tokens=1)])
    with pytest.raises(EngineFailed, match=r"forwardAsync.*illegal memory access was encountered"):
        await_until_broken(executor)


def test_statistics_are_handed_on(executor: Any) -> None:
    assert executor.stats()[0]["iter"] == 1


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


def test_adapters_are_in_the_configuration_and_in_the_capabilities(executor: Any) -> None:
    held = simulator.ENGINES[-1].dump()
    assert (held["enable_lora"], held["lora_config"]) == (
        True,
        {"lora_target_modules": ["attn_q", "attn_v"]},
    )
    assert "lora" in executor.info().capabilities


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


def test_an_adapter_that_comes_later_is_found(executor: Any) -> None:
    write_adapter(Path("adapters"), "9")
    task = passed("lora_task_id", "UINT64", (1,), 9)
    executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=1, tensors=[task])])
    assert not collect(executor, 1)[1][-1].errors


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
