"""Latent attention on NumPy: from a layer's products to the queries and keys that meet, and from what was
mixed of the vectors to the values of heads.

Owns what is particular to it; attention itself is `arrays`' and `invariant`'s.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from inflight.executors.reference.model.array_types import Float32
from inflight.executors.reference.model.layers import LatentLayer
from inflight.model.latent import Latent

from .arrays import Linear, rms_norm, rope

#: ``[T, heads, in]`` times ``[heads, in, out]``.
ByHead = Callable[[Float32, Float32], Float32]


def queries_and_keys(
    made: Float32,
    layer: LatentLayer[Float32],
    latent: Latent,
    turns: tuple[Float32, Float32],
    epsilon: float,
    linear: Linear,
    by_head: ByHead,
) -> tuple[Float32, Float32]:
    """Queries ``[T, heads, cached_dim]`` and keys ``[T, 1, cached_dim]``, from what the layer's first product
    ``made [T, ...]``."""
    queries, vectors = made[:, : -latent.cached_dim], made[:, -latent.cached_dim :]
    if layer.query_norm is not None and layer.query_up is not None:
        queries = linear(rms_norm(queries, layer.query_norm, epsilon), layer.query_up)
    queries = queries.reshape(len(made), -1, latent.query_dim)
    meeting = by_head(queries[..., : latent.key_dim], layer.key_up)
    turned = _turned(queries[..., latent.key_dim :], turns)
    kept = rms_norm(vectors[:, : latent.rank], layer.norm, epsilon)
    keys = np.concatenate((kept[:, None], _turned(vectors[:, None, latent.rank :], turns)), axis=-1)
    return np.concatenate((meeting, turned), axis=-1), keys


def _turned(x: Float32, turns: tuple[Float32, Float32]) -> Float32:
    """Pairs lie next to each other in what the products give."""
    return rope(np.concatenate((x[..., ::2], x[..., 1::2]), axis=-1), *turns)


def values(mixed: Float32, layer: LatentLayer[Float32], by_head: ByHead) -> Float32:
    """Values ``[T, heads x value_dim]`` from what heads took of the vectors ``[T, heads, rank]``."""
    return by_head(mixed, layer.value_up.transpose(0, 2, 1)).reshape(len(mixed), -1)
