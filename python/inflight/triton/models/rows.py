"""One row of the core model's inputs: checked against what the executor can do, and read by type.

Owns what each tensor needs of the executor. Pure; knows no request. The Rust twin of the table is
`crates/worker/src/model/inputs.rs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from inflight.executors.base import ModelInfo, NamedTensor, StatusCode
from inflight.triton.models.python_backend import BadRequest, Inputs
from inflight.triton.models.text import unpack_words

#: The least number of FP32 above zero.
ABOVE_ZERO = float(np.finfo(np.float32).tiny)

#: Values that ask for nothing, which an executor without the capability may therefore be sent.
_NEUTRAL: dict[str, Callable[[np.ndarray[Any, Any]], bool]] = {
    "never": lambda value: False,  # noqa: ARG005
    "empty": lambda value: value.size == 0,
    # Preprocessing makes one decoder id where there is no decoder text.
    "single": lambda value: value.size <= 1,
    "zero": lambda value: value.size == 1 and value.item() == 0,
    "one": lambda value: value.size == 1 and value.item() == 1,
    "zero_or_one": lambda value: value.size == 1 and value.item() in (0, 1),
    "negative": lambda value: value.size == 1 and value.item() < 0,
}


def _needs(table: str) -> dict[str, tuple[str, str]]:
    rows = (line.split() for line in table.strip().splitlines())
    return {name: (capability, neutral) for names, capability, neutral in rows for name in names.split("/")}


#: Tensor -> the capability it needs (`crates/kserve/src/capability.rs`), and the values that need none.
NEEDS = _needs("""
encoder_input_features encoder empty
encoder_output_lengths encoder zero
decoder_input_ids encoder single
decoder_input_lengths encoder zero_or_one
num_return_sequences num_return_sequences one
draft_input_ids/draft_logits draft_tokens empty
draft_acceptance_threshold draft_tokens never
bad_words_list bad_words empty
embedding_bias/inflight_logit_bias_ids/inflight_logit_bias_values embedding_bias empty
beam_width beam_search one
runtime_top_p_min top_p_decay zero
runtime_top_p_decay top_p_decay one
runtime_top_p_reset_ids top_p_decay negative
len_penalty/early_stopping beam_search zero_or_one
beam_search_diversity_rate beam_search zero
repetition_penalty penalties one
presence_penalty/frequency_penalty penalties zero
min_tokens min_tokens zero_or_one
return_log_probs log_probs zero
return_context_logits context_logits zero
return_generation_logits generation_logits zero
return_perf_metrics perf_metrics zero
prompt_embedding_table/prompt_table_extra_ids prompt_tuning empty
prompt_vocab_size prompt_tuning zero
cross_attention_mask cross_attention empty
skip_cross_attn_blocks cross_attention zero
mrope_rotary_cos_sin mrope empty
mrope_position_deltas mrope never
lora_task_id lora never
lora_weights/lora_config lora empty
context_phase_params context_phase empty
retention_token_range_starts/retention_token_range_ends kv_cache_retention empty
retention_token_range_priorities/retention_token_range_durations_ms kv_cache_retention empty
retention_decode_priority/retention_decode_duration_ms kv_cache_retention never
guided_decoding_guide_type/guided_decoding_guide guided_decoding never
lookahead_window_size/lookahead_ngram_size/lookahead_verification_set_size lookahead never
no_repeat_ngram_size no_repeat_ngram_size zero
inflight_min_p min_p zero
inflight_num_top_log_probs top_log_probs zero
inflight_num_prompt_log_probs prompt_log_probs never
""")

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


class Row:
    """One row of the inputs, without what the executor cannot do and was not asked for."""

    def __init__(self, inputs: Inputs, row: int, info: ModelInfo) -> None:
        self._values: dict[str, np.ndarray[Any, Any]] = {}
        self._info = info
        for name in inputs.arrays:
            value = inputs.row(name, row)
            if value is None:
                continue
            capability, neutral = NEEDS.get(name, ("", ""))
            if capability and capability not in info.capabilities:
                if _NEUTRAL[neutral](value):
                    continue
                raise BadRequest(
                    f"`{name}` needs `{capability}`, which the executor `{info.executor}` does not have",
                    StatusCode.UNIMPLEMENTED,
                )
            self._values[name] = value

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        """A tensor of any length; none where it is absent or empty."""
        value = self._values.get(name)
        return None if value is None or value.size == 0 else value

    def number(self, name: str, low: float = -math.inf, high: float = math.inf) -> Any:
        """A scalar within its bounds, or `None`."""
        value = self.array(name)
        if value is None:
            return None
        number = value.reshape(-1)[0].item()
        if not math.isfinite(number) or not low <= number <= high:
            raise BadRequest(f"`{name}` is `{number}`; it must be {_bounds(low, high)}")
        return int(number) if isinstance(number, bool) else number

    def token(self, name: str) -> int | None:
        """A token id; one below 0 stands for none."""
        id = self.number(name)
        if id is None or id < 0:
            return None
        if id >= self._info.vocab_size:
            raise self._outside(name, id)
        return int(id)

    def words(self, name: str) -> list[list[int]]:
        """A list of words."""
        packed = self.array(name)
        if packed is None:
            return []
        if packed.ndim != 2 or packed.shape[0] != 2:
            raise BadRequest(f"`{name}` has shape `{packed.shape}`, not [2, n]")
        try:
            words = unpack_words(packed)
        except ValueError as problem:
            raise BadRequest(f"`{name}`: {problem}") from problem
        for word in words:
            self.within_vocabulary(name, word)
        return words

    def within_vocabulary(self, name: str, ids: list[int]) -> None:
        """Raises `BadRequest` for an id that is no token's."""
        bad = next((id for id in ids if not 0 <= id < self._info.vocab_size), None)
        if bad is not None:
            raise self._outside(name, bad)

    def others(self, read: frozenset[str]) -> list[NamedTensor]:
        """What was sent besides the tensors in `read`."""
        return [named(name, value) for name, value in self._values.items() if name not in read]

    def _outside(self, name: str, id: int) -> BadRequest:
        return BadRequest(
            f"`{name}` holds `{id}`, which is outside the vocabulary of `{self._info.vocab_size}`"
        )


def named(name: str, value: np.ndarray[Any, Any]) -> NamedTensor:
    """A tensor as the executor protocol packs it."""
    if value.dtype == np.object_:
        parts = [bytes(item) for item in value.reshape(-1)]
        data = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    else:
        data = np.ascontiguousarray(value).tobytes()
    return NamedTensor(name, _DATATYPES.get(str(value.dtype), str(value.dtype)), value.shape or (1,), data)


def _bounds(low: float, high: float) -> str:
    if math.isfinite(high):
        return f"{low:g} to {high:g}" if math.isfinite(low) else f"at most {high:g}"
    if not math.isfinite(low):
        return "a finite number"
    return "above 0" if low == ABOVE_ZERO else f"at least {low:g}"
