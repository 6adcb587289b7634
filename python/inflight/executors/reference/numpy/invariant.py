"""Products and attention that give a token the same bits whatever is computed with it.

BLAS picks its kernels, and with them the order of its sums, by the sizes of the matrices. Here no size
depends on the batch: a product is taken row by row, and attention query by query over one block of the cache
at a time. The blocks' sums are added in order of position, and what a query does not see adds exact zeros. So
a token's values do not depend on other rows, on chunks, on what the cache had, or on whether it was part of a
prompt. They still depend on the processor's type, which selects the kernels, and on the size of blocks.
"""

from __future__ import annotations

import numpy as np

from inflight.executors.reference.model.array_types import Float32, Int

#: Attention scores held at once, as in `arrays`.
_MAX_SCORES = 1 << 19

_MASKED = np.float32(-1e30)


def linear(x: Float32, weight: Float32, bias: Float32 | None = None) -> Float32:
    """As `arrays.linear`, each row by itself."""
    product: Float32 = np.matmul(x[:, None], weight.T)[:, 0]
    if bias is not None:
        product += bias
    return product


def attention(
    queries: Float32,
    keys: Float32,
    values: Float32,
    positions: Int,
    places: Int,
    tokens_per_block: int,
    scale: float,
    window: int | None = None,
    sink_tokens: int = 0,
    slopes: Float32 | None = None,
) -> Float32:
    """Causal attention of ``queries [T, heads, head_dim]`` at ``positions [T]`` over whole blocks of keys
    ``[T, keys, kv_heads, head_dim]`` at ``places [T, keys]``; of one sequence, both are ``[1, ...]``.
    Positions below ``sink_tokens`` are seen beyond the window; with ``slopes [heads]`` scores fall with the
    distance (ALiBi)."""
    out = np.empty_like(queries)
    heads, shares = queries.shape[1], len(keys) == 1
    step = max(1, _MAX_SCORES // (heads * keys.shape[1]))
    for start in range(0, len(queries), step):
        rows = slice(start, start + step)
        own, count = slice(None) if shares else rows, keys.shape[1]
        if shares:
            # Only blocks that some query of the slice sees; the others would add zeros.
            last = np.flatnonzero(places[0] <= positions[rows].max())[-1]
            count = (int(last) // tokens_per_block + 1) * tokens_per_block
        distances = places[own, :count] - positions[rows, None]
        hidden = distances > 0
        if window is not None:
            hidden |= (distances <= -window) & (places[own, :count] >= sink_tokens)
        out[rows] = _attend(
            queries[rows] * np.float32(scale),
            keys[own, :count],
            values[own, :count],
            np.where(hidden, _MASKED, np.float32(0.0)),
            tokens_per_block,
            None if slopes is None else slopes[:, None] * distances[:, None].astype(np.float32),
        )
    return out


def _attend(
    queries: Float32, keys: Float32, values: Float32, mask: Float32, size: int, fall: Float32 | None
) -> Float32:
    """One slice; ``mask [T, keys]`` and ``fall [T, heads, keys]`` are added to the scores."""
    rows, heads, head_dim = queries.shape
    kv_heads, blocks = keys.shape[2], keys.shape[1] // size
    keys, values = (one.reshape(-1, blocks, size, kv_heads, head_dim) for one in (keys, values))
    grouped = queries.reshape(rows, kv_heads, 1, -1, head_dim)
    scores = np.matmul(grouped, keys.transpose(0, 3, 1, 4, 2))  # [T, kv_heads, blocks, group, size]
    if fall is not None:
        scores += fall.reshape(rows, kv_heads, -1, blocks, size).transpose(0, 1, 3, 2, 4)
    scores += mask.reshape(rows, 1, blocks, 1, size)
    scores -= scores.max(axis=(2, 4), keepdims=True)
    weights = np.exp(scores, out=scores)
    parts = np.matmul(weights, values.transpose(0, 3, 1, 2, 4))
    sums = weights.sum(axis=-1, keepdims=True)
    mixed: Float32 = parts[:, :, 0]
    total = sums[:, :, 0]
    for block in range(1, blocks):
        mixed += parts[:, :, block]
        total += sums[:, :, block]
    mixed /= total
    return mixed.reshape(rows, heads, head_dim)
