"""Every input to its exact keyword of the PyTorch runtime."""

from __future__ import annotations

import hashlib
import io
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inflight.executors.base import OutputConfig, SamplingConfig
from inflight.executors.reasoning import Marks
from inflight.executors.tensorrt_llm import fields
from inflight.executors.tensorrt_llm.fields import Target
from inflight.executors.tensorrt_llm.thinking import ThinkingBudget
from support import double
from support.pictures import picture
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

BOTH_LINES = True


def dump(call: dict[str, Any]) -> dict[str, Any]:
    held = {name: value for name, value in call.items() if value is not None}
    return {name: value.dump() if isinstance(value, double.Double) else value for name, value in held.items()}


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

PICTURE = picture()

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
        {"output_config": OutputConfig(True, True, True, True), "streaming": False},
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
        {"logprobs": 3, "return_context_logits": True},
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
            {"tensors": guide_tensors(wire, GUIDES.get(wire, "x"))},
            {"guided_decoding": {"class": "GuidedDecodingParams", keyword: value}},
            {},
        )
        for wire, keyword, value in (
            ("json", "json_object", True),
            ("json_schema", "json", GUIDES["json_schema"]),
            ("regex", "regex", GUIDES["regex"]),
            ("ebnf_grammar", "grammar", GUIDES["ebnf_grammar"]),
            ("structural_tag", "structural_tag", GUIDES["structural_tag"]),
        )
    ),
    (
        {tensor.name for tensor in RETENTION},
        {"tensors": RETENTION},
        {},
        {"kv_cache_retention_config": RETAINED},
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
        {"inflight_images"},
        {"tensors": [passed("inflight_images", "BYTES", (1,), PICTURE)]},
        {},
        {
            "inputs": {
                "prompt_token_ids": [10, 11, 12],
                "multi_modal_data": {"image": [Image.open(io.BytesIO(PICTURE)).convert("RGB")]},
            },
            "cache_salt": hashlib.sha256(struct.pack("<I", len(PICTURE)) + PICTURE).hexdigest(),
        },
    ),
    (
        {"inflight_thinking_budget", "inflight_thinking_start_ids", "inflight_thinking_end_ids"},
        {
            "tensors": [
                passed("inflight_thinking_budget", "INT32", (1,), 5),
                passed("inflight_thinking_start_ids", "INT32", (1,), 20),
                passed("inflight_thinking_end_ids", "INT32", (2,), 21, 22),
            ]
        },
        {"logits_processor": ThinkingBudget(5, Marks((20,), (21, 22)), 3, lags=False)},
        {},
    ),
    ({"priority"}, {"tensors": [passed("priority", "FP32", (1,), 0.75)]}, {}, {"priority": 0.75}),
    (
        {"inflight_cache_salt"},
        {"tensors": [passed("inflight_cache_salt", "BYTES", (1,), "tenant")]},
        {},
        {"cache_salt": "tenant"},
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
    request: pytest.FixtureRequest,
    line: str,
    about: set[str],
    given: dict[str, Any],
    params: dict[str, Any],
    call: dict[str, Any],
) -> None:
    # A worker serves one width, and the older sampler no alternatives.
    of = {"beam_width": "beams_executor", "inflight_num_top_log_probs": "plain_executor"}
    made = request.getfixturevalue(next((of[name] for name in about if name in of), "pytorch_executor"))
    if line == "1.2.1" and about == {"priority"}:
        assert "priority" not in made.info().capabilities
        return
    made.enqueue([request_of(given)])
    assert not collect(made, 9)[9][-1].errors
    held = dump(double.REQUESTS[-1])
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
    sampling = double.REQUESTS[-1]["sampling_params"]
    if "stop_words_list" in about:
        assert (sampling._stop_word_ids, sampling._bad_word_ids) == ([[40, 41]], [[61, 62]])
        # Without texts the words would not count.
        assert (len(sampling.stop), len(sampling.bad)) == (1, 1)


def test_the_cases_cover_what_the_runtime_supports() -> None:
    covered = set().union(*(about for about, *_ in CASES))
    supported = {field.tensor for field in fields.FIELDS if isinstance(field.pytorch, Target)}
    assert covered == supported
