"""Baichuan and Baichuan2: queries, keys and values in one matrix. The 13B models have linear biases (ALiBi)
instead of rotary embeddings, and the second generation a head whose rows have unit length (NormHead).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.model.config import ModelFacts

from .family import Family, Names, Variant

#: The vocabulary size of the first generation, by which its configs are recognized.
_FIRST_VOCABULARY = 64000


def _variant(facts: ModelFacts, values: Mapping[str, Any]) -> Variant:
    """The rotary models read `max_position_embeddings`, the others only `model_max_length`."""
    return Variant(
        positions="alibi" if values.get("max_position_embeddings") is None else "rotary",
        unit_head=facts.vocab_size != _FIRST_VOCABULARY,
    )


BAICHUAN = Family(
    ("BaichuanForCausalLM", "BaiChuanForCausalLM"),
    Names(qkv=("self_attn.W_pack",)),
    variant=_variant,
)
