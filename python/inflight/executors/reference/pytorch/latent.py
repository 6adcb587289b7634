"""Latent attention on PyTorch: from a layer's products to the queries that meet the cache, and from what was
mixed of the vectors to the values of heads.

Owns what is particular to it, as `numpy.latent` has it. Attention itself is `operations`' and
`latent_kernels`'.
"""

from __future__ import annotations

from types import ModuleType

import torch

from inflight.executors.reference.model.layers import LatentLayer
from inflight.model.latent import Latent

from .operations import Tensor


def store(
    made: Tensor,
    layer: LatentLayer[Tensor],
    latent: Latent,
    epsilon: float,
    positions: Tensor,
    tables: tuple[Tensor, Tensor],
    cache_slots: Tensor,
    keys: Tensor,
    ops: ModuleType,
) -> Tensor:
    """Writes the keys of rows to the cache, from what the layer's first product ``made [T, ...]``; their
    queries ``[T, heads, cached_dim]``."""
    queries, latents = made.split((made.shape[1] - latent.cached_dim, latent.cached_dim), dim=-1)
    if layer.query_norm is not None and layer.query_up is not None:
        normed = ops.add_rms_norm(queries.contiguous(), None, layer.query_norm, epsilon)
        queries = ops.linear(normed, layer.query_up)
    queries = queries.reshape(len(made), -1, latent.query_dim)
    meeting = made.new_empty((*queries.shape[:2], latent.cached_dim))
    torch.bmm(
        queries[..., : latent.key_dim].transpose(0, 1),
        layer.key_up,
        out=meeting[..., : latent.rank].transpose(0, 1),
    )
    ops.turn_latent(queries, latents, layer.norm, epsilon, positions, tables, cache_slots, keys, meeting)
    return meeting


def values(mixed: Tensor, layer: LatentLayer[Tensor]) -> Tensor:
    """Values ``[T, heads x value_dim]`` from what heads took of the vectors ``[T, heads, rank]``."""
    made = mixed.new_empty((*mixed.shape[:2], layer.value_up.shape[1]))
    torch.bmm(mixed.transpose(0, 1), layer.value_up.mT, out=made.transpose(0, 1))
    return made.flatten(1)
