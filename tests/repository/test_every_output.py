"""What only executors with every capability give and take, carried by a real Triton."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from support import real_triton
from support.asking import Asking, curl, generate, one
from support.triton import inputs, tensor

PROMPT = [3, 4, 5]
BODY = {"input_ids": PROMPT, "input_lengths": 3, "request_output_len": 4, "exclude_input_in_output": True}
#: What the executor of `full` answers for two beams; see `full_executor`.
EXPECTED: dict[str, Any] = {
    "output_ids": [[[0, -1], [1, 1]]],
    "sequence_length": [[1, 2]],
    "output_log_probs": [[[-0.5, -1.0], [-0.5, -0.5]]],
    "cum_log_probs": [[-7.0, -7.0]],
    "acceptance_rate": [[0.25]],
    "arrival_time_ns": [[2**40]],
    "first_scheduled_time_ns": [[2**40 + 1]],
    "first_token_time_ns": [[2**40 + 2]],
    "last_token_time_ns": [[2**40 + 3]],
    "kv_cache_alloc_new_blocks": [[1]],
    "kv_cache_reused_blocks": [[2]],
    "kv_cache_alloc_total_blocks": [[3]],
    "total_accepted_draft_tokens": [[4]],
    "total_draft_tokens": [[5]],
    "num_output_tokens": [[3]],
    "inflight_finish_reason": [[3, 3]],
    "inflight_cached_tokens": [[2]],
    "inflight_prompt_log_probs": [[-2.0, -2.0, -2.0]],
}


def test_every_output_is_carried(triton: real_triton.Triton) -> None:
    flags = ["return_log_probs", "return_context_logits", "return_generation_logits", "return_perf_metrics"]
    made = [
        *inputs(PROMPT, 4, beam_width=2, inflight_num_prompt_log_probs=0, exclude_input_in_output=True),
        *(tensor(name, [[True]], "BOOL") for name in [*flags, "return_num_output_tokens"]),
    ]
    stream = Asking(triton, "full")
    try:
        stream.ask("all", made)
        (result,) = stream.answers()["all"]
    finally:
        stream.close()
    for name, value in EXPECTED.items():
        assert result.as_numpy(name).tolist() == value, name
    # As the config declares them, and not as the executor made them.
    context, generation = result.as_numpy("context_logits"), result.as_numpy("generation_logits")
    assert (context.dtype, context.shape) == (np.float16, (1, 3, 16))
    assert context.ravel().tolist() == list(range(48))
    assert (generation.dtype, generation.shape) == (np.float16, (1, 2, 2, 16))


def test_what_only_the_executor_reads_reaches_it(triton: real_triton.Triton) -> None:
    sent: dict[str, tuple[Any, str]] = {
        "lora_task_id": ([[7]], "UINT64"),
        "lora_weights": (np.ones((1, 2, 3), np.float16), "FP16"),
        "lora_config": ([[[1, 2, 3]]], "INT32"),
        "guided_decoding_guide_type": ([[b"json_schema"]], "BYTES"),
        "guided_decoding_guide": ([[b"{}"]], "BYTES"),
        "draft_input_ids": ([[8, 9]], "INT32"),
        "retention_token_range_starts": ([[0]], "INT32"),
        "context_phase_params": (np.array([[1, 2]], np.uint8), "UINT8"),
        "embedding_bias": (np.arange(16, dtype=np.float32)[None], "FP32"),
        "inflight_logit_bias_ids": ([[5]], "INT32"),
        "inflight_logit_bias_values": ([[-1.5]], "FP32"),
        "inflight_min_p": ([[0.5]], "FP32"),
        "runtime_top_p_reset_ids": ([[6]], "INT32"),
        "early_stopping": ([[True]], "BOOL"),
        "seed": ([[2**63]], "UINT64"),
        "stop_words_list": ([[[5, 6, 7], [1, 3, -1]]], "INT32"),
    }
    stream = Asking(triton, "full")
    try:
        stream.ask(
            "all",
            [*inputs(PROMPT, 4), *(tensor(name, *value) for name, value in sent.items())],
            parameters={"request_type": "generation_only"},
        )
        (result,) = stream.answers()["all"]
    finally:
        stream.close()
    found = json.loads(result.as_numpy("context_phase_params").tobytes())
    assert found["tensors"] == {
        "lora_task_id": ["UINT64", [1], (7).to_bytes(8, "little").hex()],
        "lora_weights": ["FP16", [2, 3], np.ones(6, np.float16).tobytes().hex()],
        "lora_config": ["INT32", [1, 3], np.array([1, 2, 3], np.int32).tobytes().hex()],
        "guided_decoding_guide_type": ["BYTES", [1], (b"\x0b\0\0\0json_schema").hex()],
        "guided_decoding_guide": ["BYTES", [1], (b"\x02\0\0\0{}").hex()],
        "draft_input_ids": ["INT32", [2], np.array([8, 9], np.int32).tobytes().hex()],
        "retention_token_range_starts": ["INT32", [1], "00000000"],
        "context_phase_params": ["UINT8", [2], "0102"],
        "request_type": ["BYTES", [1], (b"\x0f\0\0\0generation_only").hex()],
    }
    assert found["embedding_bias"] == list(range(16))
    assert found["logit_bias"] == [[5, -1.5]]
    assert found["stop_words"] == [[5], [6, 7]]
    sampling = found["sampling_config"]
    assert {name: sampling[name] for name in ("min_p", "top_p_reset_ids", "early_stopping", "seed")} == {
        "min_p": 0.5,
        "top_p_reset_ids": 6,
        "early_stopping": 1,
        "seed": 2**63,
    }


@pytest.mark.parametrize(("level", "scaled"), [(1, 0.99), (50, 0.5), (100, 0.0)])
def test_a_priority_over_http_becomes_the_executors_scale(
    triton: real_triton.Triton, level: int, scaled: float
) -> None:
    answer = generate(triton, "full", {**BODY, "priority": level})
    found = json.loads(bytes(answer["context_phase_params"]))
    assert found["tensors"] == {"priority": ["FP32", [1], np.float32(scaled).tobytes().hex()]}


def test_a_context_phase_that_leaves_nothing_is_an_error(triton: real_triton.Triton) -> None:
    """The executor of `full` leaves nothing of a prompt of one token."""
    context = {**BODY, "request_type": "context_only"}
    assert generate(triton, "full", context)["context_phase_params"]
    _, text = curl(triton, "models/full/generate", {**context, "input_ids": [3], "input_lengths": 1})
    assert "without `context_phase_params`" in text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"beam_width": 2, "streaming": True}, "streaming is not supported with `beam_width` `2`"),
        ({"beam_width": 5}, "`beam_width` has value `5`, expected `1` to `4`"),
        ({"request_type": "both"}, "`request_type` is `both`, expected one of"),
        ({"priority": 0.5}, "`priority` is `0.5`, expected a whole number"),
        ({"priority": 101}, "`priority` is `101`, expected a whole number"),
    ],
)
def test_what_has_no_such_value_is_refused(
    triton: real_triton.Triton, changes: dict[str, Any], reason: str
) -> None:
    status, text = curl(triton, "models/full/generate", {**BODY, **changes})
    assert status == 400
    assert reason in text


def test_a_broken_executor_says_so_until_it_is_loaded_again(triton: real_triton.Triton) -> None:
    for prompt in ([13], PROMPT):
        stream = Asking(triton, "full")
        try:
            stream.ask("broken", inputs(prompt, 2))
            assert "the executor failed: the device is gone" in stream.refusal()
        finally:
            stream.close()
    for action in ("unload", "load"):
        status, text = curl(triton, f"repository/models/full/{action}")
        assert status == 200, text
    stream = Asking(triton, "full")
    try:
        stream.ask("again", inputs(PROMPT, 2))
        (result,) = stream.answers()["again"]
        assert one(result, "inflight_finish_reason") == 3
    finally:
        stream.close()
