"""Baichuan and Baichuan2: queries, keys and values in one matrix. The 13B models have linear biases (ALiBi)
instead of rotary embeddings, and the second generation a head whose rows have unit length (NormHead).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .family import Family, Names

if TYPE_CHECKING:
    from inflight.executors.reference.config import ModelConfig

#: The vocabulary of the first generation, which its configs are told by.
_FIRST_VOCABULARY = 64000


def _adjust(config: ModelConfig, values: Mapping[str, Any]) -> ModelConfig:
    """The rotary models read `max_position_embeddings`, the others only `model_max_length`."""
    config = replace(config, unit_head=config.vocab_size != _FIRST_VOCABULARY)
    if values.get("max_position_embeddings") is None:
        config = replace(config, positions="alibi", rope=None, alibi_slopes=_slopes(config.num_heads))
    return config


def _slopes(heads: int) -> tuple[float, ...]:
    """As "Train Short, Test Long" has them: a geometric sequence for a power of two, and for other numbers
    every second of the next longer one."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (place + 1) / power) for place in range(power)]
    slopes += [2.0 ** (-4.0 * (2 * place + 1) / power) for place in range(heads - power)]
    return tuple(slopes)


BAICHUAN = Family(
    ("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    Names(qkv=("self_attn.W_pack",)),
    adjust=_adjust,
)
