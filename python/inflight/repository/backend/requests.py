"""One row of the core model's tensors to one executor request. Pure; owns which tensor feeds which field.

The Rust twin is `crates/worker/src/request/build.rs`. What an executor cannot do it refuses itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inflight.executors.base import ModelInfo, NamedTensor, OutputConfig, Request, SamplingConfig
from inflight.repository.backend.text import unpack_words
from inflight.repository.backend.triton import BadRequest, Inputs

#: Scalar tensor -> field of SamplingConfig.
_SAMPLING = {
    "beam_width": "beam_width",
    "num_return_sequences": "num_return_sequences",
    "temperature": "temperature",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "runtime_top_p_min": "top_p_min",
    "runtime_top_p_decay": "top_p_decay",
    "runtime_top_p_reset_ids": "top_p_reset_ids",
    "len_penalty": "length_penalty",
    "early_stopping": "early_stopping",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
    "beam_search_diversity_rate": "beam_search_diversity_rate",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}
_OUTPUT = ("return_log_probs", "return_context_logits", "return_generation_logits", "return_perf_metrics")
#: Handled here or in the model; everything else goes to the executor as it is.
_HANDLED = frozenset(
    [
        "input_ids",
        "input_lengths",
        "request_output_len",
        "end_id",
        "pad_id",
        "stop_words_list",
        "bad_words_list",
        "embedding_bias",
        "exclude_input_in_output",
        "stop",
        "streaming",
        "return_num_input_tokens",
        "return_num_output_tokens",
    ]
)
_DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int32": "INT32",
    "int64": "INT64",
    "uint64": "UINT64",
    "float16": "FP16",
    "float32": "FP32",
    "object": "BYTES",
}


def build(inputs: Inputs, row: int, client_id: int, streaming: bool, info: ModelInfo) -> Request:
    """The request of a row. Raises `ValueError` naming the tensor that is wrong."""
    request = Request(
        client_id=client_id,
        input_token_ids=_prompt(inputs, row, info),
        max_tokens=int(inputs.scalar("request_output_len", row, 0)),
        streaming=streaming,
        sampling_config=SamplingConfig(),
        output_config=OutputConfig(**{name: bool(inputs.scalar(name, row, False)) for name in _OUTPUT}),
        end_id=_token(inputs, "end_id", row, info),
        pad_id=_token(inputs, "pad_id", row, info),
        stop_words=_words(inputs, "stop_words_list", row, info),
        bad_words=_words(inputs, "bad_words_list", row, info),
    )
    if request.max_tokens < 1:
        raise BadRequest(f"`request_output_len` is `{request.max_tokens}`; it must be at least 1")
    total = len(request.input_token_ids) + request.max_tokens
    if total > info.max_seq_len:
        raise BadRequest(
            f"`{len(request.input_token_ids)}` prompt tokens and `{request.max_tokens}` to generate are more "
            f"than the `{info.max_seq_len}` that fit a sequence"
        )
    for name, field in _SAMPLING.items():
        value = inputs.scalar(name, row)
        # NVIDIA's backend takes a top-p of 0 or less for "not set".
        if value is not None and not (name == "runtime_top_p" and value <= 0):
            setattr(request.sampling_config, field, int(value) if isinstance(value, bool) else value)
    bias = inputs.row("embedding_bias", row)
    if bias is not None and bias.size:
        if bias.size != info.vocab_size:
            raise BadRequest(f"`embedding_bias` has `{bias.size}` values, not `{info.vocab_size}`")
        request.embedding_bias = np.ascontiguousarray(bias, np.float32).tobytes()
    request.tensors = _passed(inputs, row, info)
    return request


def _prompt(inputs: Inputs, row: int, info: ModelInfo) -> list[int]:
    ids = inputs.row("input_ids", row)
    length = int(inputs.scalar("input_lengths", row, 0))
    if ids is None or not 0 < length <= ids.size:
        raise BadRequest(
            f"`input_lengths` is `{length}` and `input_ids` has `{0 if ids is None else ids.size}`"
        )
    prompt: list[int] = ids.reshape(-1)[:length].tolist()
    if length > min(info.max_input_len, info.max_seq_len):
        raise BadRequest(f"the prompt has `{length}` tokens; `{info.max_input_len}` fit")
    last = 2**31 if "prompt_embedding_table" in inputs else info.vocab_size
    bad = next((id for id in prompt if not 0 <= id < last), None)
    if bad is not None:
        raise BadRequest(f"`input_ids` holds `{bad}`, which is outside the vocabulary of `{info.vocab_size}`")
    return prompt


def _token(inputs: Inputs, name: str, row: int, info: ModelInfo) -> int | None:
    id = inputs.scalar(name, row)
    if id is None or id < 0:
        return None
    if id >= info.vocab_size:
        raise BadRequest(f"`{name}` is `{id}`, which is outside the vocabulary of `{info.vocab_size}`")
    return int(id)


def _words(inputs: Inputs, name: str, row: int, info: ModelInfo) -> list[list[int]]:
    packed = inputs.row(name, row)
    if packed is None or packed.size == 0:
        return []
    if packed.ndim != 2 or packed.shape[0] != 2:
        raise BadRequest(f"`{name}` has shape `{packed.shape}`, not [2, n]")
    try:
        words = unpack_words(packed)
    except ValueError as problem:
        raise BadRequest(f"`{name}`: {problem}") from problem
    bad = next((id for word in words for id in word if not 0 <= id < info.vocab_size), None)
    if bad is not None:
        raise BadRequest(f"`{name}` holds `{bad}`, which is outside the vocabulary of `{info.vocab_size}`")
    return words


def _passed(inputs: Inputs, row: int, info: ModelInfo) -> list[NamedTensor]:
    tensors = []
    for name in inputs.arrays:
        if name in _HANDLED or name in _SAMPLING or name in _OUTPUT:
            continue
        # Preprocessing always makes decoder ids; without an encoder they mean nothing.
        if name.startswith("decoder_input_") and "encoder" not in info.capabilities:
            continue
        value = inputs.row(name, row)
        if value is None or value.size == 0:
            continue
        tensors.append(_named(name, value))
    return tensors


def _named(name: str, value: np.ndarray[Any, Any]) -> NamedTensor:
    if value.dtype == np.object_:
        parts = [bytes(item) for item in value.reshape(-1)]
        data = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    else:
        data = np.ascontiguousarray(value).tobytes()
    return NamedTensor(name, _DATATYPES.get(str(value.dtype), str(value.dtype)), value.shape or (1,), data)
