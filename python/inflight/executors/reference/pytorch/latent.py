"""Latent attention on PyTorch: from a layer's products to the queries and keys that meet, and from what was
mixed of the vectors to the values of heads.

Owns what is particular to it, as `numpy.latent` has it. Attention itself is `operations`' and
`latent_kernels`'.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from inflight.executors.reference.model.layers import LatentLayer
from inflight.model.latent import Latent

from .operations import Tensor, rotate

#: Rows with unit root mean square, times a weight.
Norm = Callable[[Tensor, Tensor], Tensor]
#: Rows times a matrix transposed.
Linear = Callable[[Tensor, Tensor], Tensor]


def queries_and_keys(
    made: Tensor,
    layer: LatentLayer[Tensor],
    latent: Latent,
    positions: Tensor,
    tables: tuple[Tensor, Tensor],
    norm: Norm,
    linear: Linear,
) -> tuple[Tensor, Tensor]:
    """Queries ``[T, heads, cached_dim]`` and keys ``[T, 1, cached_dim]``, from what the layer's first product
    ``made [T, ...]``."""
    queries, vectors, turning = made.split(
        (made.shape[1] - latent.cached_dim, latent.rank, latent.rotary_dim), dim=-1
    )
    if layer.query_norm is not None and layer.query_up is not None:
        queries = linear(norm(queries.contiguous(), layer.query_norm), layer.query_up)
    queries = queries.reshape(len(made), -1, latent.query_dim)
    cosines, sines = (table[positions.long()][:, None] for table in tables)
    meeting = torch.bmm(queries[..., : latent.key_dim].transpose(0, 1), layer.key_up).transpose(0, 1)
    turned = rotate(_apart(queries[..., latent.key_dim :]), cosines, sines)
    kept = norm(vectors.contiguous(), layer.norm)
    keys = torch.cat((kept[:, None], rotate(_apart(turning[:, None]), cosines, sines)), -1)
    return torch.cat((meeting, turned), -1), keys


def _apart(x: Tensor) -> Tensor:
    """Pairs lie next to each other in what the products give, and in halves here."""
    return torch.cat((x[..., ::2], x[..., 1::2]), -1)


def values(mixed: Tensor, layer: LatentLayer[Tensor]) -> Tensor:
    """Values ``[T, heads x value_dim]`` from what heads took of the vectors ``[T, heads, rank]``."""
    return torch.bmm(mixed.transpose(0, 1), layer.value_up.mT).transpose(0, 1).reshape(len(mixed), -1)
