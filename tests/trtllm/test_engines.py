"""The engines' adapter over the doubles: every input to its exact field, rows back, failures."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.errors import UserMistake
from inflight.executors.base import (
    FinishReason,
    NamedTensor,
    OutputConfig,
    Request,
    ResponseBatch,
    SamplingConfig,
    StatusCode,
)
from inflight.executors.tensorrt_llm import convert, fields
from inflight.executors.tensorrt_llm.engine_config import EngineDirectory
from inflight.executors.tensorrt_llm.engines import create_engines
from inflight.executors.tensorrt_llm.health import EngineFailed
from inflight.executors.tensorrt_llm.options import parse
from trtllm import doubles, simulation

BUILD = {
    "max_seq_len": 128,
    "max_input_len": 100,
    "max_batch_size": 8,
    "max_num_tokens": 256,
    "max_beam_width": 2,
    "gather_context_logits": True,
    "max_prompt_embedding_table_size": 4,
    "max_draft_len": 4,
    "use_mrope": True,
    "plugin_config": {"lora_plugin": "auto", "tokens_per_block": 64},
}


def write_engine(directory: Path, ranks: int = 1, **build: Any) -> Path:
    directory.mkdir(exist_ok=True)
    config = {
        "version": "1.2.1",
        "pretrained_config": {"vocab_size": simulation.VOCAB, "mapping": {"world_size": ranks}},
        "build_config": BUILD | build,
    }
    (directory / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        (directory / f"rank{rank}.engine").write_bytes(b"engine")
    return directory


OPTIONS = {
    "max_beam_width": 2,
    "guided_decoding_backend": "xgrammar",
    "gather_generation_logits": True,
    "decoding_mode": "lookahead",
    "lookahead_window_size": 4,
    "lookahead_ngram_size": 4,
    "lookahead_verification_set_size": 4,
    "cache_transceiver_backend": "MPI",
}


def start(tmp_path: Path, **options: Any) -> Any:
    directory = EngineDirectory.read(write_engine(tmp_path / "engine"))
    return create_engines(directory, parse(OPTIONS | options, "engines", {}), "1.2.1")


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Any]:
    with doubles.installed():
        made = start(tmp_path)
        yield made
        made.shutdown()


def request_of(given: dict[str, Any]) -> Request:
    """A small request with what a case is about."""
    fields_: dict[str, Any] = {"client_id": 9, "input_token_ids": [10, 11, 12], "max_tokens": 3}
    return Request(**(fields_ | given))


class Row:
    def __init__(self, batch: ResponseBatch, row: int) -> None:
        begin, end = struct.unpack_from("<2I", batch.token_offsets, 4 * row)
        self.client_id = struct.unpack_from("<Q", batch.client_ids, 8 * row)[0]
        self.sequence = struct.unpack_from("<i", batch.sequence_index, 4 * row)[0]
        self.tokens = list(np.frombuffer(batch.token_ids, "<i4")[begin:end])
        self.reason = FinishReason(batch.finish_reasons[row])
        self.final = bool(batch.finals[row])
        self.errors = [(code, text) for at, code, text in batch.errors if at == row]
        self.tensors = {tensor.name: tensor for at, tensor in batch.tensors if at == row}
        self.prompt = [entry[1:] for entry in batch.prompt_log_probs if entry[0] == row]
        self.cached = [tokens for at, tokens in batch.cached_tokens if at == row]
        self.log_probs: list[float] = []
        taken = 0
        for at in np.frombuffer(batch.log_prob_rows, "<u4"):
            size = int(np.diff(np.frombuffer(batch.token_offsets, "<u4"))[at])
            if at == row:
                self.log_probs = np.frombuffer(batch.log_probs, "<f4")[taken : taken + size].tolist()
            taken += size


def collect(executor: Any, *client_ids: int, patience_s: float = 10.0) -> dict[int, list[Row]]:
    """The rows of these requests up to their finals."""
    found: dict[int, list[Row]] = {client_id: [] for client_id in client_ids}
    deadline = time.monotonic() + patience_s
    while not all(rows and rows[-1].final for rows in found.values()):
        assert time.monotonic() < deadline, f"no final row: {found}"
        batch = executor.await_responses(0.5)
        for row in range(len(batch.finals)):
            one = Row(batch, row)
            found[one.client_id].append(one)
    return found


def await_until_broken(executor: Any) -> None:
    """Awaits until that raises, for ten seconds at most."""
    for _ in range(100):
        executor.await_responses(0.1)


def passed(name: str, datatype: str, shape: tuple[int, ...], *values: Any) -> NamedTensor:
    if datatype == "BYTES":
        data = values[0].encode()
        return NamedTensor(name, datatype, shape, struct.pack("<I", len(data)) + data)
    kinds = {
        "FP16": "<f2",
        "FP32": "<f4",
        "INT32": "<i4",
        "INT64": "<i8",
        "UINT64": "<u8",
        "BOOL": "?",
        "UINT8": "u1",
    }
    return NamedTensor(name, datatype, shape, np.array(values, dtype=kinds[datatype]).tobytes())


def tensor(dtype: str, *values: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(np.array(values).shape), "values": list(values)}


RETENTION = [
    passed("retention_token_range_starts", "INT32", (2,), 0, 3),
    passed("retention_token_range_ends", "INT32", (2,), 3, -1),
    passed("retention_token_range_priorities", "INT32", (2,), 90, 10),
    passed("retention_token_range_durations_ms", "INT32", (2,), 500, -1),
    passed("retention_decode_priority", "INT32", (1,), 5),
    passed("retention_decode_duration_ms", "INT32", (1,), 250),
]
PHASE = convert.pack_context_phase([5], 77, b"\x01\x02", [6])
PHASE_TENSOR = NamedTensor("context_phase_params", "UINT8", (len(PHASE),), PHASE)
BIAS = np.zeros(simulation.VOCAB, dtype="<f4")
BIAS[3] = 1.5

#: Inputs that the case is about, what the worker makes of them, what the double's Request must hold.
CASES: list[tuple[set[str], dict[str, Any], dict[str, Any]]] = [
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
        {"end_id": 2, "pad_id": 1, "stop_words": [[40, 41], [50]], "bad_words": [[60]]},
        {
            "input_token_ids": [10, 11, 12],
            "max_tokens": 3,
            "streaming": True,
            "end_id": 2,
            "pad_id": 1,
            "stop_words": [[40, 41], [50]],
            "bad_words": [[60]],
        },
    ),
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
        {
            "sampling_config": SamplingConfig(
                num_return_sequences=2,
                top_k=4,
                top_p=0.5,
                top_p_min=0.25,
                top_p_decay=0.75,
                top_p_reset_ids=3,
                min_p=0.1,
                seed=2**63 + 1,
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
        },
        {
            "sampling_config": {
                "class": "SamplingConfig",
                "beam_width": 1,
                "num_return_sequences": 2,
                "top_k": 4,
                "top_p": 0.5,
                "top_p_min": 0.25,
                "top_p_decay": 0.75,
                "top_p_reset_ids": 3,
                "min_p": 0.1,
                "seed": 2**63 + 1,
                "temperature": 0.25,
                "min_tokens": 2,
                "beam_search_diversity_rate": 0.5,
                "repetition_penalty": 1.5,
                "presence_penalty": 0.5,
                "frequency_penalty": -0.5,
                "length_penalty": 1.25,
                "early_stopping": 1,
                "no_repeat_ngram_size": 3,
            }
        },
    ),
    (
        {"beam_width"},
        {"sampling_config": SamplingConfig(beam_width=2), "streaming": False},
        {"sampling_config": {"class": "SamplingConfig", "beam_width": 2}},
    ),
    (
        {"return_log_probs", "return_context_logits", "return_generation_logits", "return_perf_metrics"},
        {"output_config": OutputConfig(True, True, True, True)},
        {
            "output_config": {
                "class": "OutputConfig",
                "return_log_probs": True,
                "return_context_logits": True,
                "return_generation_logits": True,
                "return_perf_metrics": True,
                "exclude_input_from_output": True,
            }
        },
    ),
    (
        {"inflight_num_top_log_probs"},
        {"output_config": OutputConfig(num_top_log_probs=2)},
        {
            "output_config": {
                "class": "OutputConfig",
                "return_generation_logits": True,
                "exclude_input_from_output": True,
            }
        },
    ),
    (
        {"inflight_num_prompt_log_probs"},
        {"output_config": OutputConfig(num_prompt_log_probs=0)},
        {
            "output_config": {
                "class": "OutputConfig",
                "return_context_logits": True,
                "exclude_input_from_output": True,
            }
        },
    ),
    (
        {"embedding_bias", "inflight_logit_bias_ids", "inflight_logit_bias_values"},
        {"embedding_bias": BIAS.tobytes(), "logit_bias": [(3, 0.5), (4, -1.0)]},
        {
            "embedding_bias": tensor(
                "float32", *(BIAS + np.eye(1, 96, 3)[0] * 0.5 - np.eye(1, 96, 4)[0]).tolist()
            )
        },
    ),
    (
        {"draft_input_ids", "draft_logits", "draft_acceptance_threshold"},
        {
            "tensors": [
                passed("draft_input_ids", "INT32", (2,), 13, 14),
                passed("draft_logits", "FP32", (2, 1), 0.5, 1.5),
                passed("draft_acceptance_threshold", "FP32", (1,), 0.5),
            ]
        },
        {
            "external_draft_tokens_config": {
                "class": "ExternalDraftTokensConfig",
                "tokens": [13, 14],
                "logits": tensor("float32", [0.5], [1.5]),
                "acceptance_threshold": 0.5,
            }
        },
    ),
    (
        {"prompt_embedding_table", "prompt_table_extra_ids", "prompt_vocab_size"},
        {
            "tensors": [
                passed("prompt_embedding_table", "FP16", (1, 2), 0.5, 2.0),
                passed("prompt_table_extra_ids", "UINT64", (3,), 1, 2, 3),
                passed("prompt_vocab_size", "INT32", (1,), 1),
            ]
        },
        {
            "prompt_tuning_config": {
                "class": "PromptTuningConfig",
                "embedding_table": tensor("float16", [0.5, 2.0]),
                "input_token_extra_ids": [1, 2, 3],
            }
        },
    ),
    (
        {"lora_task_id", "lora_weights", "lora_config"},
        {
            "tensors": [
                passed("lora_task_id", "UINT64", (1,), 2**40),
                passed("lora_weights", "FP16", (1, 2), 1.0, 2.0),
                passed("lora_config", "INT32", (1, 3), 0, 1, 8),
            ]
        },
        {
            "lora_config": {
                "class": "LoraConfig",
                "task_id": 2**40,
                "weights": tensor("float16", [1.0, 2.0]),
                "config": tensor("int32", [0, 1, 8]),
            }
        },
    ),
    (
        {"lora_task_id"},
        {"tensors": [passed("lora_task_id", "UINT64", (1,), 7)]},
        {"lora_config": {"class": "LoraConfig", "task_id": 7}},
    ),
    (
        {"mrope_rotary_cos_sin", "mrope_position_deltas"},
        {
            "tensors": [
                passed("mrope_rotary_cos_sin", "FP32", (2,), 0.5, 0.25),
                passed("mrope_position_deltas", "INT64", (1,), -3),
            ]
        },
        {
            "mrope_config": {
                "class": "MropeConfig",
                "mrope_rotary_cos_sin": tensor("float32", 0.5, 0.25),
                "mrope_position_deltas": -3,
            }
        },
    ),
    (
        {tensor.name for tensor in RETENTION},
        {"tensors": RETENTION},
        {
            "kv_cache_retention_config": {
                "class": "KvCacheRetentionConfig",
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
    *(
        (
            {"guided_decoding_guide_type", "guided_decoding_guide"},
            {
                "tensors": [
                    passed("guided_decoding_guide_type", "BYTES", (1,), wire),
                    passed("guided_decoding_guide", "BYTES", (1,), "a+é"),
                ]
            },
            {
                "guided_decoding_params": {
                    "class": "GuidedDecodingParams",
                    "guide_type": member,
                    "guide": "a+é",
                }
            },
        )
        for wire, member in (
            ("json_schema", "JSON_SCHEMA"),
            ("regex", "REGEX"),
            ("ebnf_grammar", "EBNF_GRAMMAR"),
            ("structural_tag", "STRUCTURAL_TAG"),
        )
    ),
    (
        {"guided_decoding_guide_type"},
        {"tensors": [passed("guided_decoding_guide_type", "BYTES", (1,), "json")]},
        {"guided_decoding_params": {"class": "GuidedDecodingParams", "guide_type": "JSON"}},
    ),
    (
        {"lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"},
        {
            "tensors": [
                passed("lookahead_window_size", "INT32", (1,), 3),
                passed("lookahead_ngram_size", "INT32", (1,), 2),
                passed("lookahead_verification_set_size", "INT32", (1,), 1),
            ]
        },
        {
            "lookahead_config": {
                "class": "LookaheadDecodingConfig",
                "max_window_size": 3,
                "max_ngram_size": 2,
                "max_verification_set_size": 1,
            }
        },
    ),
    (
        {"context_phase_params"},
        {"tensors": [PHASE_TENSOR]},
        {
            "context_phase_params": {
                "class": "ContextPhaseParams",
                "first_gen_tokens": [5],
                "req_id": 77,
                "opaque_state": "0102",
                "draft_tokens": [6],
            },
            "type": "REQUEST_TYPE_GENERATION_ONLY",
        },
    ),
    (
        {"request_type"},
        {"tensors": [passed("request_type", "BYTES", (1,), "context_only")]},
        {"type": "REQUEST_TYPE_CONTEXT_ONLY"},
    ),
    ({"priority"}, {"tensors": [passed("priority", "FP32", (1,), 0.75)]}, {"priority": 0.75}),
    (
        {
            "decoder_input_ids",
            "decoder_input_lengths",
            "encoder_input_features",
            "encoder_output_lengths",
            "cross_attention_mask",
            "skip_cross_attn_blocks",
        },
        {
            "tensors": [
                passed("decoder_input_ids", "INT32", (3,), 1, 2, 0),
                passed("decoder_input_lengths", "INT32", (1,), 2),
                passed("encoder_input_features", "FP16", (1, 2), 0.5, 1.0),
                passed("encoder_output_lengths", "INT32", (1,), 9),
                passed("cross_attention_mask", "BOOL", (1, 2), True, False),
                passed("skip_cross_attn_blocks", "BOOL", (1,), True),
            ]
        },
        {
            "input_token_ids": [1, 2],
            "encoder_input_token_ids": [10, 11, 12],
            "encoder_input_features": tensor("float16", [0.5, 1.0]),
            "encoder_output_length": 9,
            "cross_attention_mask": tensor("bool", [True, False]),
            "skip_cross_attn_blocks": tensor("bool", True),
        },
    ),
]


@pytest.mark.parametrize(
    ("about", "given", "expected"), CASES, ids=lambda value: "-".join(sorted(value))[:60]
)
def test_every_input_reaches_its_field(
    executor: Any, about: set[str], given: dict[str, Any], expected: dict[str, Any]
) -> None:
    executor.enqueue([request_of(given)])
    rows = collect(executor, 9)[9]
    assert not rows[-1].errors
    held = simulation.REQUESTS[-1].dump()
    for name, value in expected.items():
        assert held[name] == value, name
    # Nothing else arrives.
    usual = {"client_id", "input_token_ids", "max_tokens", "streaming", "sampling_config", "output_config"}
    assert set(held) - usual == set(expected) - usual


def test_the_cases_cover_the_table() -> None:
    covered = set().union(*(about for about, _, _ in CASES))
    worker = {field.tensor for field in fields.FIELDS if field.engines is None}
    assert covered | worker == {field.tensor for field in fields.FIELDS}


def test_streaming_rows_are_deltas_and_end_once(executor: Any) -> None:
    executor.enqueue(
        [
            Request(client_id=1, input_token_ids=[10], max_tokens=3),
            Request(client_id=2, input_token_ids=[20], max_tokens=9, end_id=23),
            Request(client_id=3, input_token_ids=[30], max_tokens=9, stop_words=[[31, 32]], streaming=False),
        ]
    )
    rows = collect(executor, 1, 2, 3)
    assert [row.tokens for row in rows[1]] == [[11], [12], [13]]
    assert rows[1][-1].reason is FinishReason.LENGTH
    assert [token for row in rows[2] for token in row.tokens] == [21, 22]
    assert rows[2][-1].reason is FinishReason.END_ID
    assert [(row.tokens, row.reason) for row in rows[3]] == [([31, 32], FinishReason.STOP_WORDS)]
    assert [sum(row.final for row in rows[at]) for at in (1, 2, 3)] == [1, 1, 1]


def test_sequences_and_beams_have_their_index(executor: Any) -> None:
    several, beams = SamplingConfig(num_return_sequences=3), SamplingConfig(beam_width=2)
    executor.enqueue(
        [
            Request(client_id=1, input_token_ids=[10], max_tokens=2, sampling_config=several),
            Request(client_id=2, input_token_ids=[20], max_tokens=2, sampling_config=beams, streaming=False),
        ]
    )
    rows = collect(executor, 1, 2)
    texts = {index: [t for row in rows[1] if row.sequence == index for t in row.tokens] for index in range(3)}
    assert texts == {0: [11, 12], 1: [12, 13], 2: [13, 14]}
    assert [(row.sequence, row.tokens, row.final) for row in rows[2]] == [
        (0, [21, 22], False),
        (1, [21, 22], True),
    ]


def test_log_probs_come_as_deltas_with_alternatives_and_the_prompts(executor: Any) -> None:
    wanted = OutputConfig(return_log_probs=True, num_top_log_probs=2, num_prompt_log_probs=1)
    executor.enqueue([Request(client_id=1, input_token_ids=[8, 16], max_tokens=2, output_config=wanted)])
    batches: list[ResponseBatch] = []
    while not batches or not batches[-1].finals[-1]:
        batch = executor.await_responses(1.0)
        if batch.finals:
            batches.append(batch)
    rows = [Row(batch, row) for batch in batches for row in range(len(batch.finals))]
    assert [row.log_probs for row in rows] == [[-17 / 64], [-18 / 64]]
    assert np.frombuffer(batches[0].top_log_prob_ids, "<i4")[:2].tolist() == [17, 18]
    assert [len(row.prompt) for row in rows] == [1, 0]
    values, width, ids, tops = rows[0].prompt[0]
    log_probs = np.frombuffer(values, "<f4")
    assert width == 1
    assert np.isnan(log_probs[0])
    assert np.frombuffer(ids, "<i4").tolist() == [-1, 16]
    assert log_probs[1] == pytest.approx(np.frombuffer(tops, "<f4")[1])


def test_large_outputs_come_under_their_triton_names(executor: Any) -> None:
    everything = OutputConfig(True, True, True, True)
    executor.enqueue(
        [
            Request(
                client_id=1, input_token_ids=[8, 16], max_tokens=2, output_config=everything, streaming=False
            )
        ]
    )
    tensors = collect(executor, 1)[1][-1].tensors
    assert tensors["context_logits"].shape == (2, simulation.VOCAB)
    assert tensors["generation_logits"].shape == (1, 2, simulation.VOCAB)
    assert np.frombuffer(tensors["cum_log_probs"].data, "<f4").tolist() == [-35 / 64]
    assert struct.unpack("<q", tensors["last_token_time_ns"].data) == (4000,)
    assert struct.unpack("<i", tensors["kv_cache_alloc_total_blocks"].data) == (5,)


def test_a_context_phase_is_handed_on(executor: Any) -> None:
    kind = passed("request_type", "BYTES", (1,), "context_only")
    executor.enqueue([Request(client_id=1, input_token_ids=[8], max_tokens=5, tensors=[kind])])
    row = collect(executor, 1)[1][-1]
    blob = row.tensors["context_phase_params"]
    executor.enqueue([Request(client_id=2, input_token_ids=[8], max_tokens=1, tensors=[blob])])
    collect(executor, 2)
    params = simulation.REQUESTS[-1].dump()["context_phase_params"]
    assert (params["first_gen_tokens"], params["opaque_state"]) == ([9], b"\x00state".hex())


def test_a_cancelled_request_gets_its_final_row(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=50)])
    executor.cancel([1, 777])
    last = collect(executor, 1)[1][-1]
    assert (last.reason, last.final) == (FinishReason.CANCELLED, True)
    executor.cancel([1])


def test_one_refusal_leaves_the_others_alone(executor: Any) -> None:
    guide = passed("guided_decoding_guide_type", "BYTES", (1,), "yaml")
    executor.enqueue(
        [
            Request(client_id=1, input_token_ids=[10], max_tokens=1),
            Request(client_id=2, input_token_ids=[simulation.REFUSE], max_tokens=1),
            Request(client_id=3, input_token_ids=[10], max_tokens=1, tensors=[guide]),
            Request(client_id=4, input_token_ids=[simulation.ERROR], max_tokens=1),
            Request(client_id=5, input_token_ids=[30], max_tokens=1),
        ]
    )
    rows = collect(executor, 1, 2, 3, 4, 5)
    assert [row.tokens for row in rows[1]] == [[11]]
    assert [row.tokens for row in rows[5]] == [[31]]
    assert rows[2][0].errors == [
        (StatusCode.INVALID_ARGUMENT, "RuntimeError: Prompt length exceeds maximum input length")
    ]
    assert "`yaml`" in rows[3][0].errors[0][1]
    assert rows[4][0].errors[0][0] == StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([passed("lora_weights", "FP16", (1, 1), 1.0)], "`lora_weights` was sent without `lora_config`"),
        (RETENTION[:1], "`retention_token_range_*` inputs differ in length"),
        ([passed("lookahead_ngram_size", "INT32", (1,), 1)], "without `lookahead_window_size`"),
        ([NamedTensor("context_phase_params", "UINT8", (3,), b"abc")], "`context_phase_params`"),
        ([passed("lora_task_id", "UINT64", (2,), 1, 2)], "`lora_task_id` has `2` values"),
        ([NamedTensor("guided_decoding_guide_type", "BYTES", (1,), b"\xff")], "is not one string"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(executor: Any, tensors: list[NamedTensor], words: str) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=1, tensors=tensors)])
    [row] = collect(executor, 1)[1]
    assert row.errors[0][0] == StatusCode.INVALID_ARGUMENT
    assert words in row.errors[0][1]


def test_a_broken_engine_raises_with_its_reason(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[simulation.CRASH], max_tokens=1)])
    with pytest.raises(EngineFailed, match=r"giving responses: RuntimeError.*illegal memory access$"):
        await_until_broken(executor)


def test_a_dead_rank_is_noticed(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[simulation.SILENCE], max_tokens=1)])
    simulation.ENGINES[-1]._sim.stop()
    with pytest.raises(EngineFailed, match="one of its ranks has died"):
        await_until_broken(executor)


def test_statistics_are_the_engines_json(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=3)])
    collect(executor, 1)
    stats = list(executor.stats())
    assert [one["iter"] for one in stats[:2]] == [1, 2]
    assert stats[0]["maxNumActiveRequests"] == 8


def test_an_optional_name_that_is_missing_turns_its_capability_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with doubles.installed({"LoraConfig", "SamplingConfig(min_p)", "Result.generation_logits"}):
        made = start(tmp_path)
        capabilities = made.info().capabilities
        made.shutdown()
    assert "lora" not in capabilities
    assert "min_p" not in capabilities
    assert not {"generation_logits", "top_log_probs"} & set(capabilities)
    assert "prompt_tuning" in capabilities
    assert "`LoraConfig`: `lora` is off" in caplog.text


@pytest.mark.parametrize(
    "missing",
    [
        "Request(client_id)",
        "Result.is_final",
        "OutputConfig(exclude_input_from_output)",
        "Executor.cancel_request",
    ],
)
def test_a_needed_name_that_is_missing_is_a_refusal(tmp_path: Path, missing: str) -> None:
    with doubles.installed({missing}), pytest.raises(UserMistake) as raised:
        start(tmp_path)
    assert f"`{missing}`" in raised.value.what


def test_ranks_above_zero_stay_until_the_leader_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    directory = EngineDirectory.read(write_engine(tmp_path / "engine", ranks=2))
    with doubles.installed(), pytest.raises(SystemExit) as raised:
        create_engines(directory, parse({}, "engines", {}), "1.2.1")
    assert raised.value.code == 0
    # It was built, and left through the engine's own shutdown.
    assert simulation.ENGINES[-1]._sim.stopped
