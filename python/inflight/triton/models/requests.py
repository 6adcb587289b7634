"""One row of the core model's tensors to one executor request, every value within the model's limits.

Pure; owns which tensor feeds which field, and the bounds of its values. The Rust twin is
`crates/worker/src/request/build.rs`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from inflight.executors.base import (
    ModelInfo,
    NamedTensor,
    OutputConfig,
    Request,
    SamplingConfig,
    StatusCode,
)
from inflight.triton.models.python_backend import BadRequest, Inputs
from inflight.triton.models.rows import ABOVE_ZERO, Row, named

#: Sequences of one prompt at most, as the worker has it.
MAX_SEQUENCES = 128
#: Alternatives reported for each token at most, as the worker has it.
MAX_TOP_LOG_PROBS = 100
#: Token ids with a bias at most, as the worker has it.
MAX_LOGIT_BIAS = 4096
#: Triton's words; the first is what a request without the parameter asks for.
REQUEST_TYPES = ("context_and_generation", "context_only", "generation_only")
#: Levels of the parameter `priority`, as the worker has them; 1 goes first.
PRIORITY_LEVELS = 100
#: A gRPC message's length is a signed 32-bit number.
MAX_OUTPUT_BYTES = 2**31 - 1


@dataclass(frozen=True)
class Number:
    """A scalar of the sampling configuration and its bounds; both belong to it."""

    field: str
    low: float = -math.inf
    high: float = math.inf


_SAMPLING = {
    "beam_width": Number("beam_width", 1),
    "num_return_sequences": Number("num_return_sequences", 1, MAX_SEQUENCES),
    "temperature": Number("temperature", 0),
    "runtime_top_k": Number("top_k", 0),
    "runtime_top_p": Number("top_p", high=1),
    "runtime_top_p_min": Number("top_p_min", 0, 1),
    "runtime_top_p_decay": Number("top_p_decay", 0, 1),
    "len_penalty": Number("length_penalty"),
    "early_stopping": Number("early_stopping", 0, 1),
    "repetition_penalty": Number("repetition_penalty", ABOVE_ZERO),
    "min_tokens": Number("min_tokens", 0),
    "beam_search_diversity_rate": Number("beam_search_diversity_rate", 0),
    "presence_penalty": Number("presence_penalty"),
    "frequency_penalty": Number("frequency_penalty"),
    "seed": Number("seed", 0),
    "no_repeat_ngram_size": Number("no_repeat_ngram_size", 0),
    "inflight_min_p": Number("min_p", 0, 1),
}
_OUTPUT = ("return_log_probs", "return_context_logits", "return_generation_logits", "return_perf_metrics")
#: Read below or by the model; everything else goes to the executor as it is.
_READ = frozenset(
    [
        "input_ids",
        "input_lengths",
        "request_output_len",
        "end_id",
        "pad_id",
        "stop_words_list",
        "bad_words_list",
        "embedding_bias",
        "runtime_top_p_reset_ids",
        "inflight_num_top_log_probs",
        "inflight_num_prompt_log_probs",
        "inflight_logit_bias_ids",
        "inflight_logit_bias_values",
        "exclude_input_in_output",
        "stop",
        "streaming",
        "return_num_input_tokens",
        "return_num_output_tokens",
        *_SAMPLING,
        *_OUTPUT,
    ]
)


def build(
    inputs: Inputs, number: int, client_id: int, info: ModelInfo, parameters: Mapping[str, Any]
) -> Request:
    """The request of a row. `parameters` are those of the KServe request.

    Raises `BadRequest` naming the tensor that is wrong or beyond the executor.
    """
    inputs.required("request_output_len")
    row = Row(inputs, number, info)
    request = Request(
        client_id=client_id,
        input_token_ids=_prompt(row, info),
        max_tokens=int(row.number("request_output_len", 1) or 0),
        # Switches hold for the whole batch, as the first row has them.
        streaming=bool(inputs.scalar("streaming", 0, False)),
        sampling_config=SamplingConfig(),
        output_config=OutputConfig(**{name: bool(inputs.scalar(name, 0, False)) for name in _OUTPUT}),
        end_id=row.token("end_id"),
        pad_id=row.token("pad_id"),
        stop_words=row.words("stop_words_list"),
        bad_words=row.words("bad_words_list"),
    )
    config = request.sampling_config
    for name, bounds in _SAMPLING.items():
        value = row.number(name, bounds.low, bounds.high)
        # NVIDIA's backend takes a top-p of 0 or less for "not set".
        if value is not None and not (name == "runtime_top_p" and value <= 0):
            setattr(config, bounds.field, value)
    config.top_p_reset_ids = row.token("runtime_top_p_reset_ids")
    if config.beam_width > info.max_beam_width:
        raise BadRequest(f"`beam_width` is `{config.beam_width}`; it must be 1 to {info.max_beam_width}")
    if request.streaming and config.beam_width > 1:
        raise BadRequest(
            f"streaming is not supported with a `beam_width` of `{config.beam_width}`",
            StatusCode.UNIMPLEMENTED,
        )
    output = request.output_config
    output.num_top_log_probs = int(row.number("inflight_num_top_log_probs", 0, MAX_TOP_LOG_PROBS) or 0)
    output.num_prompt_log_probs = row.number("inflight_num_prompt_log_probs", 0, MAX_TOP_LOG_PROBS)
    _bias(row, request, info)
    request.tensors = row.others(_READ) + _parameters(parameters, info)
    _lengths(request, info)
    return request


def _prompt(row: Row, info: ModelInfo) -> list[int]:
    ids = row.array("input_ids")
    length = int(row.number("input_lengths") or 0)
    held = 0 if ids is None else ids.size
    if not 0 <= length <= held:
        raise BadRequest(f"`input_lengths` is `{length}` and `input_ids` has `{held}`")
    if length > min(info.max_input_len, info.max_seq_len):
        raise BadRequest(f"the prompt has `{length}` tokens; `{info.max_input_len}` fit")
    if ids is None or not length:
        if row.array("encoder_input_features") is None:
            raise BadRequest("the prompt in `input_ids` is empty; send at least one token")
        return []
    prompt: list[int] = ids.reshape(-1)[:length].tolist()
    # A prompt table's virtual tokens have ids from the vocabulary's size on.
    if row.array("prompt_embedding_table") is None or min(prompt) < 0:
        row.within_vocabulary("input_ids", prompt)
    return prompt


def _bias(row: Row, request: Request, info: ModelInfo) -> None:
    dense = row.array("embedding_bias")
    if dense is not None:
        if dense.size != info.vocab_size:
            raise BadRequest(f"`embedding_bias` has `{dense.size}` values, not `{info.vocab_size}`")
        # Minus infinity bans a token; not-a-number would spoil every one.
        if np.isnan(dense).any():
            raise BadRequest("`embedding_bias` holds a value that is no number")
        request.embedding_bias = np.ascontiguousarray(dense, np.float32).tobytes()
    ids, values = row.array("inflight_logit_bias_ids"), row.array("inflight_logit_bias_values")
    counts = [0 if one is None else one.size for one in (ids, values)]
    if counts[0] != counts[1] or counts[0] > MAX_LOGIT_BIAS:
        raise BadRequest(
            f"`inflight_logit_bias_ids` has `{counts[0]}` ids and `inflight_logit_bias_values` `{counts[1]}` "
            f"values; send as many of each, at most {MAX_LOGIT_BIAS}"
        )
    if ids is not None and values is not None:
        if np.isnan(values).any():
            raise BadRequest("`inflight_logit_bias_values` holds a value that is no number")
        row.within_vocabulary("inflight_logit_bias_ids", ids.reshape(-1).tolist())
        request.logit_bias = list(zip(ids.reshape(-1).tolist(), values.reshape(-1).tolist(), strict=True))


def _parameters(parameters: Mapping[str, Any], info: ModelInfo) -> list[NamedTensor]:
    """The KServe parameters that an executor knows, under the names that it knows them by."""
    passed = []
    kind = parameters.get("request_type")
    if kind is not None:
        if kind not in REQUEST_TYPES:
            words = "`, `".join(REQUEST_TYPES)
            raise BadRequest(f"the parameter `request_type` is `{kind}`; it must be one of `{words}`")
        if "context_phase" in info.capabilities:
            passed.append(named("request_type", np.array([kind.encode()], np.object_)))
        elif kind != REQUEST_TYPES[0]:
            raise _beyond("request_type", "context_phase", info)
    # Triton's own scheduler takes a gRPC request's priority away; over HTTP it comes here.
    level = parameters.get("priority", 0)
    if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= PRIORITY_LEVELS:
        raise BadRequest(
            f"the parameter `priority` is `{level}`; it must be a whole number from 1 (first) to "
            f"{PRIORITY_LEVELS}, or 0"
        )
    if level:
        if "priority" not in info.capabilities:
            raise _beyond("priority", "priority", info)
        # Triton's levels, 1 first, to an executor's scale, 1.0 first.
        scaled = (PRIORITY_LEVELS - level) / PRIORITY_LEVELS
        passed.append(named("priority", np.array([scaled], np.float32)))
    return passed


def _beyond(name: str, capability: str, info: ModelInfo) -> BadRequest:
    return BadRequest(
        f"the parameter `{name}` needs `{capability}`, which the executor `{info.executor}` does not have",
        StatusCode.UNIMPLEMENTED,
    )


def _lengths(request: Request, info: ModelInfo) -> None:
    """Raises `BadRequest` for a sequence or an output that is too long."""
    prompt = len(request.input_token_ids)
    if prompt + request.max_tokens > info.max_seq_len:
        raise BadRequest(
            f"`{prompt}` prompt tokens and `{request.max_tokens}` to generate are more than the "
            f"`{info.max_seq_len}` that fit a sequence"
        )
    generated = (1 if request.streaming else request.max_tokens) * request.sampling_config.beam_width
    output = request.output_config
    for wanted, name, tokens in (
        (output.return_context_logits, "context_logits", prompt),
        (output.return_generation_logits, "generation_logits", generated),
    ):
        size = tokens * info.vocab_size * 4
        if wanted and size > MAX_OUTPUT_BYTES:
            raise BadRequest(f"`{name}` would take `{size}` bytes; a response holds {MAX_OUTPUT_BYTES}")
