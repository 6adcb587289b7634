"""Every input to its exact field of an engine's request, and the inputs that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inflight.executors.base import NamedTensor, OutputConfig, Request, SamplingConfig, StatusCode
from inflight.executors.tensorrt_llm import convert, fields
from support import double
from trtllm.harness import (
    BIAS,
    GUIDES,
    PHASE_TENSOR,
    RETAINED,
    RETENTION,
    collect,
    guide_tensors,
    passed,
    request_of,
    tensor,
)

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
        {"kv_cache_retention_config": {"class": "KvCacheRetentionConfig", **RETAINED}},
    ),
    *(
        (
            {"guided_decoding_guide_type", "guided_decoding_guide"},
            {"tensors": guide_tensors(wire, GUIDES[wire])},
            {
                "guided_decoding_params": {
                    "class": "GuidedDecodingParams",
                    "guide_type": member,
                    "guide": GUIDES[wire],
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
    (
        {"inflight_cache_salt"},
        {"tensors": [passed("inflight_cache_salt", "BYTES", (1,), "tenant")]},
        {"cache_salt_id": convert.salt_id(passed("inflight_cache_salt", "BYTES", (1,), "tenant"))},
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
    held = double.REQUESTS[-1].dump()
    for name, value in expected.items():
        assert held[name] == value, name
    # Nothing else arrives.
    usual = {"client_id", "input_token_ids", "max_tokens", "streaming", "sampling_config", "output_config"}
    assert set(held) - usual == set(expected) - usual


def test_the_cases_cover_the_table() -> None:
    covered = set().union(*(about for about, _, _ in CASES))
    elsewhere = {field.tensor for field in fields.FIELDS if not isinstance(field.engines, fields.Target)}
    assert covered | elsewhere == {field.tensor for field in fields.FIELDS}


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
