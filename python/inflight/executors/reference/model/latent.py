"""Latent attention, DeepSeek's: of each token the cache holds one short vector, from which the keys and
values of all heads follow.

Owns the names and shapes of its tensors. Attention is computed on the vectors themselves, as DeepSeek-V2's
report has it: a head's queries are turned into the space of the vectors, and what it takes from them is
turned back. So it is that of many query heads over one key head, whose values are the first numbers of its
keys. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from inflight.model.latent import Latent

#: Names within a layer; the vectors of keys and of queries have norms.
QUERY, QUERY_DOWN, QUERY_UP = "self_attn.q_proj", "self_attn.q_a_proj", "self_attn.q_b_proj"
QUERY_NORM, NORM = "self_attn.q_a_layernorm", "self_attn.kv_a_layernorm"
DOWN, UP = "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj"


def latent_tensors(
    latent: Latent, prefix: str, hidden: int, heads: int
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a layer's tensors of attention, but for the output's."""
    if latent.query_rank:
        yield f"{prefix}.{QUERY_DOWN}.weight", (latent.query_rank, hidden)
        yield f"{prefix}.{QUERY_NORM}.weight", (latent.query_rank,)
        yield f"{prefix}.{QUERY_UP}.weight", (heads * latent.query_dim, latent.query_rank)
    else:
        yield f"{prefix}.{QUERY}.weight", (heads * latent.query_dim, hidden)
    yield f"{prefix}.{DOWN}.weight", (latent.cached_dim, hidden)
    yield f"{prefix}.{NORM}.weight", (latent.rank,)
    yield f"{prefix}.{UP}.weight", (heads * (latent.key_dim + latent.value_dim), latent.rank)
