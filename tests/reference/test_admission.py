"""What one request may ask, and TensorRT-LLM's defaults for what it leaves out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inflight.executors.base import NamedTensor, StatusCode
from inflight.executors.reference.core.admission import Bounds, admit
from inflight.executors.reference.core.refusal import Refused

from .support import request


def named_ids(*ids: int) -> NamedTensor:
    return NamedTensor("inflight_log_prob_ids", "INT32", (len(ids),), np.array(ids, "<i4").tobytes())


DRAFT = NamedTensor("draft_input_ids", "INT32", (1,), bytes(4))
BOUNDS = Bounds(vocab_size=64, max_seq_len=32, num_blocks=6, tokens_per_block=4, max_queue_size=9)


def test_a_request_that_says_nothing_is_greedy_with_a_fixed_seed() -> None:
    parameters = admit(request(1, [1, 2]), BOUNDS).parameters
    assert parameters.greedy
    assert (parameters.seed, parameters.temperature, parameters.min_tokens) == (0, 1.0, 0)
    assert not parameters.penalizes


@pytest.mark.parametrize(
    ("sampling", "greedy"),
    [
        ({"temperature": 1.0}, True),
        ({"temperature": 1.0, "top_p": 1.0}, False),
        ({"temperature": 0.0, "top_p": 0.9}, True),
        ({"temperature": 1e-9, "top_p": 0.9, "top_k": 40}, True),
        ({"top_k": 1, "top_p": 0.9}, True),
        ({"top_k": 5}, False),
        ({"top_k": 0, "top_p": 0.0}, True),
        ({"top_k": 5, "top_p": 0.0}, False),
        ({"top_k": 0, "top_p": 0.5}, False),
    ],
)
def test_when_sampling_is_greedy(sampling: dict[str, Any], greedy: bool) -> None:
    assert admit(request(1, [1], sampling=sampling), BOUNDS).parameters.greedy == greedy


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "clipped", "blocks"),
    [(4, 1, 1, 1), (4, 2, 2, 2), (4, 5, 5, 2), (4, 0, 0, 1), (24, 1, 1, 6)],
)
def test_length_and_blocks(prompt: int, max_tokens: int, clipped: int, blocks: int) -> None:
    admitted = admit(request(1, [1] * prompt, max_tokens), BOUNDS)
    assert (admitted.max_tokens, admitted.blocks) == (clipped, blocks)


def test_an_absurd_max_tokens_is_clipped_to_the_sequence() -> None:
    roomy = Bounds(vocab_size=64, max_seq_len=32, num_blocks=8, tokens_per_block=4, max_queue_size=9)
    assert admit(request(1, [1] * 20, 2**32 - 1), roomy).max_tokens == 12


def test_dense_and_sparse_bias_add_up() -> None:
    dense = np.zeros(64, dtype="<f4")
    dense[[3, 5]] = [1.0, -np.inf]
    parameters = admit(
        request(1, [1], embedding_bias=dense.tobytes(), logit_bias=[(3, 2.0), (7, -1.0)]), BOUNDS
    ).parameters
    assert parameters.bias_ids is not None
    assert parameters.bias_values is not None
    pairs = zip(parameters.bias_ids.tolist(), parameters.bias_values.tolist(), strict=True)
    assert dict(pairs) == {3: 3.0, 5: -math.inf, 7: -1.0}


def test_the_ending_tokens_are_the_end_and_single_stop_words() -> None:
    parameters = admit(request(1, [1], end_id=2, stop_words=[[9], [3, 4], [5]]), BOUNDS).parameters
    assert parameters.ending_ids == (2, 5, 9)
    assert admit(request(1, [1], end_id=-1), BOUNDS).parameters.ending_ids == ()
    assert admit(request(1, [1], end_id=64), BOUNDS).parameters.ending_ids == ()


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"prompt": []}, StatusCode.INVALID_ARGUMENT, "empty"),
        ({"prompt": [1] * 32}, StatusCode.INVALID_ARGUMENT, "32 tokens"),
        ({"prompt": [1, 64]}, StatusCode.INVALID_ARGUMENT, "`64`"),
        ({"prompt": [-1, 1]}, StatusCode.INVALID_ARGUMENT, "`-1`"),
        ({"prompt": [1] * 20, "max_tokens": 12}, StatusCode.RESOURCE_EXHAUSTED, "8 cache blocks"),
        ({"sampling": {"temperature": -1.0}}, StatusCode.INVALID_ARGUMENT, "temperature"),
        ({"sampling": {"temperature": math.nan}}, StatusCode.INVALID_ARGUMENT, "temperature"),
        ({"sampling": {"temperature": math.inf}}, StatusCode.INVALID_ARGUMENT, "temperature"),
        ({"sampling": {"top_p": 1.5}}, StatusCode.INVALID_ARGUMENT, "top_p"),
        ({"sampling": {"top_p": math.nan}}, StatusCode.INVALID_ARGUMENT, "top_p"),
        ({"sampling": {"top_k": -1}}, StatusCode.INVALID_ARGUMENT, "top_k"),
        ({"sampling": {"min_p": 2.0}}, StatusCode.INVALID_ARGUMENT, "min_p"),
        ({"sampling": {"min_tokens": -1}}, StatusCode.INVALID_ARGUMENT, "min_tokens"),
        ({"sampling": {"repetition_penalty": 0.0}}, StatusCode.INVALID_ARGUMENT, "repetition_penalty"),
        ({"sampling": {"presence_penalty": math.nan}}, StatusCode.INVALID_ARGUMENT, "presence_penalty"),
        ({"sampling": {"frequency_penalty": math.inf}}, StatusCode.INVALID_ARGUMENT, "frequency_penalty"),
        ({"sampling": {"num_return_sequences": 0}}, StatusCode.INVALID_ARGUMENT, "num_return_sequences"),
        ({"sampling": {"beam_width": 2}}, StatusCode.INVALID_ARGUMENT, "between 1 and 1"),
        ({"sampling": {"no_repeat_ngram_size": -1}}, StatusCode.INVALID_ARGUMENT, "no_repeat_ngram_size"),
        ({"output": {"num_top_log_probs": 65}}, StatusCode.INVALID_ARGUMENT, "65"),
        ({"output": {"num_prompt_log_probs": 65}}, StatusCode.INVALID_ARGUMENT, "65"),
        ({"bad_words": [[1]] * 1025}, StatusCode.INVALID_ARGUMENT, "1025 words"),
        ({"sampling": {"seed": -1}}, StatusCode.INVALID_ARGUMENT, "seed"),
        ({"bad_words": [[]]}, StatusCode.INVALID_ARGUMENT, "bad_words"),
        ({"stop_words": [[64]]}, StatusCode.INVALID_ARGUMENT, "stop_words"),
        ({"embedding_bias": bytes(8)}, StatusCode.INVALID_ARGUMENT, "embedding_bias"),
        ({"embedding_bias": np.full(64, np.nan, "<f4").tobytes()}, StatusCode.INVALID_ARGUMENT, "finite"),
        ({"logit_bias": [(64, 1.0)]}, StatusCode.INVALID_ARGUMENT, "`64`"),
        ({"logit_bias": [(1, math.inf)]}, StatusCode.INVALID_ARGUMENT, "finite"),
        ({"tensors": [named_ids(1, 64)]}, StatusCode.INVALID_ARGUMENT, "`64`"),
        ({"tensors": [named_ids(1, 2)]}, StatusCode.INVALID_ARGUMENT, "send the number of ids"),
        (
            {"tensors": [NamedTensor("mrope_position_deltas", "INT64", (1,), bytes(8))]},
            StatusCode.UNIMPLEMENTED,
            "mrope_position_deltas",
        ),
    ],
)
def test_refusals_say_what_was_wrong(fields: dict[str, Any], code: StatusCode, words: str) -> None:
    prompt = fields.pop("prompt", [1, 2])
    with pytest.raises(Refused) as caught:
        admit(request(1, prompt, **fields), BOUNDS)
    assert caught.value.code == code
    assert words in caught.value.text


BEAMS = replace(BOUNDS, max_beam_width=4)
DRAFT_LOGITS = NamedTensor("draft_logits", "FP32", (1, 3), bytes(12))


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"sampling": {"beam_width": 5}, "streaming": False}, StatusCode.INVALID_ARGUMENT, "1 and 4"),
        ({"sampling": {"beam_width": 2}}, StatusCode.INVALID_ARGUMENT, "`streaming` as false"),
        (
            {"sampling": {"beam_width": 2, "num_return_sequences": 3}, "streaming": False},
            StatusCode.INVALID_ARGUMENT,
            "`3` of 2 beams",
        ),
        (
            {"sampling": {"beam_width": 4}, "streaming": False, "max_tokens": 20},
            StatusCode.RESOURCE_EXHAUSTED,
            "24 cache blocks",
        ),
        (
            {"sampling": {"beam_width": 2}, "streaming": False, "tensors": [DRAFT]},
            StatusCode.UNIMPLEMENTED,
            "draft_input_ids",
        ),
        ({"sampling": {"top_p_decay": 0.0}}, StatusCode.INVALID_ARGUMENT, "top_p_decay"),
        ({"tensors": [DRAFT, DRAFT_LOGITS]}, StatusCode.INVALID_ARGUMENT, r"\[1, 3\]"),
        ({"tensors": [DRAFT_LOGITS]}, StatusCode.INVALID_ARGUMENT, "without draft_input_ids"),
    ],
)
def test_refusals_of_beams_and_drafts(fields: dict[str, Any], code: StatusCode, words: str) -> None:
    with pytest.raises(Refused, match=words) as caught:
        admit(request(1, [1, 2], fields.pop("max_tokens", 8), **fields), BEAMS)
    assert caught.value.code == code


def test_the_logits_of_a_request_are_bounded() -> None:
    large = replace(BEAMS, vocab_size=10**6, max_seq_len=1000, num_blocks=999)
    asked = {"return_context_logits": True, "return_generation_logits": True}
    with pytest.raises(Refused, match="200 tokens take 762 MiB"):
        admit(request(1, [1] * 100, 100, output=asked), large)
