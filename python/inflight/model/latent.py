"""Sizes of latent attention in `config.json`: DeepSeek's, in whose cache a token has one short vector, from
which the keys and values of all heads follow. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight.model.values import bad_value, integer


@dataclass(frozen=True, slots=True)
class Latent:
    """Numbers of a token and of a head."""

    #: Of the vector, the values included: `kv_lora_rank`.
    rank: int
    #: Of a key behind them, turned by the position: `qk_rope_head_dim`.
    rotary_dim: int
    #: Of a head's query that meets the vector, and of its value.
    key_dim: int
    value_dim: int
    #: Of a vector from which the queries follow; 0: they follow from the hidden state.
    query_rank: int

    @property
    def cached_dim(self) -> int:
        """What the cache holds of a token."""
        return self.rank + self.rotary_dim

    @property
    def query_dim(self) -> int:
        """A head's query."""
        return self.key_dim + self.rotary_dim


def parse_latent(values: Mapping[str, Any]) -> Latent | None:
    """The sizes in the values of a config; None: attention is not latent. Errors: `CheckpointError`."""
    if values.get("kv_lora_rank") is None:
        return None
    rotary_dim = integer(values, "qk_rope_head_dim")
    if rotary_dim % 2:
        raise bad_value("qk_rope_head_dim", rotary_dim, "an even number")
    return Latent(
        rank=integer(values, "kv_lora_rank"),
        rotary_dim=rotary_dim,
        key_dim=integer(values, "qk_nope_head_dim"),
        value_dim=integer(values, "v_head_dim"),
        query_rank=integer(values, "q_lora_rank", 0),
    )
