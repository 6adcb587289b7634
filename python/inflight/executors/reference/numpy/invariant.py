"""Products and attention that give a token the same bits whatever is computed with it.

BLAS picks its kernels, and with them the order of its sums, by the sizes of the matrices. Here no size
depends on the batch: a product is taken row by row, and attention query by query over one run of keys at a
time. The runs' sums are added in order of position, and what a query does not see adds exact zeros. So a
token's values do not depend on other rows, on chunks, on what the cache had, or on whether it was part of a
prompt. They still depend on the processor's type, which selects the kernels, and on the size of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inflight.executors.reference.model.array_types import Float32, Int

from .arrays import MASKED, MAX_SCORES, capped
from .batch import Batch

#: Keys that are taken at once, where the blocks of a sequence are all there; more where blocks are larger.
_RUN = 128


def linear(x: Float32, weight: Float32, bias: Float32 | None = None) -> Float32:
    """As `arrays.linear`, each row by itself."""
    product: Float32 = np.matmul(x[:, None], weight.T)[:, 0]
    if bias is not None:
        product += bias
    return product


def by_head(x: Float32, weight: Float32) -> Float32:
    """As `arrays.by_head`, each row by itself."""
    product: Float32 = np.matmul(x[:, :, None], weight)[:, :, 0]
    return product


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that attend together: of one sequence, or one of each."""

    rows: Int
    positions: Int
    #: ``[rows, blocks]``, or ``[1, blocks]`` of one sequence; whole runs of blocks.
    block_table: Int
    #: The position of each key ``[rows or 1, keys]``.
    places: Int
    #: Keys that are taken at once.
    run: int
    #: Positions below it are seen beyond the window.
    sink_tokens: int = 0


def parts(batch: Batch, tokens_per_block: int) -> list[Part]:
    """How a batch attends."""
    found = [
        _part(
            group.rows,
            group.lengths - 1,
            group.block_table,
            group.places,
            tokens_per_block,
            group.sink_tokens,
        )
        for group in batch.generation
    ]
    for span in batch.context:
        rows, places = np.arange(span.start, span.stop), None if span.places is None else span.places[None]
        positions = batch.positions[rows]
        found.append(_part(rows, positions, span.block_table, places, tokens_per_block, span.sink_tokens))
    return found


def _part(rows: Int, positions: Int, table: Int, places: Int | None, size: int, sink_tokens: int) -> Part:
    if places is not None:
        # Blocks may be missing: only what is in one block is sure to stay together.
        return Part(rows, positions, table, places, size, sink_tokens)
    blocks = max(1, _RUN // size)
    table = np.pad(table, ((0, 0), (0, -table.shape[1] % blocks)))
    return Part(rows, positions, table, np.arange(table.shape[1] * size)[None], blocks * size, sink_tokens)


def attention(
    queries: Float32,
    keys: Float32,
    values: Float32,
    part: Part,
    scale: float,
    window: int | None = None,
    slopes: Float32 | None = None,
    sink_scores: Float32 | None = None,
    softcap: float | None = None,
) -> Float32:
    """Causal attention of ``queries [T, heads, head_dim]`` over whole runs of keys ``[T or 1, keys, kv_heads,
    head_dim]``. With ``slopes [heads]`` scores fall with the distance (ALiBi). With ``softcap`` they are
    capped first. ``sink_scores [heads]`` count besides those of the keys."""
    positions, places, run = part.positions, part.places, part.run
    out = np.empty((*queries.shape[:2], values.shape[-1]), dtype=np.float32)
    heads, shares = queries.shape[1], len(keys) == 1
    step = max(1, MAX_SCORES // (heads * keys.shape[1]))
    for start in range(0, len(queries), step):
        rows = slice(start, start + step)
        own, count = slice(None) if shares else rows, keys.shape[1]
        if shares:
            # Only runs that some query of the slice sees; the others would add zeros.
            last = np.flatnonzero(places[0] <= positions[rows].max())[-1]
            count = (int(last) // run + 1) * run
        there = places[slice(None) if len(places) == 1 else rows, :count]
        distances = there - positions[rows, None]
        hidden = distances > 0
        if window is not None:
            hidden |= (distances <= -window) & (there >= part.sink_tokens)
        out[rows] = _attend(
            queries[rows] * np.float32(scale),
            keys[own, :count],
            values[own, :count],
            np.where(hidden, MASKED, np.float32(0.0)),
            run,
            None if slopes is None else slopes[:, None] * distances[:, None].astype(np.float32),
            sink_scores,
            softcap=softcap,
        )
    return out


def _attend(
    queries: Float32,
    keys: Float32,
    values: Float32,
    mask: Float32,
    run: int,
    fall: Float32 | None,
    sink_scores: Float32 | None,
    *,
    softcap: float | None,
) -> Float32:
    """One slice; ``mask [T, keys]`` and ``fall [T, heads, keys]`` are added to the scores."""
    rows, heads, head_dim = queries.shape
    kv_heads, runs = keys.shape[2], keys.shape[1] // run
    keys, values = (one.reshape(-1, runs, run, kv_heads, one.shape[-1]) for one in (keys, values))
    grouped = queries.reshape(rows, kv_heads, 1, -1, head_dim)
    scores = np.matmul(grouped, keys.transpose(0, 3, 1, 4, 2))  # [T, kv_heads, runs, group, run]
    if softcap is not None:
        capped(scores, softcap)
    if fall is not None:
        scores += fall.reshape(rows, kv_heads, -1, runs, run).transpose(0, 1, 3, 2, 4)
    scores += mask.reshape(rows, 1, runs, 1, run)
    highest = scores.max(axis=(2, 4), keepdims=True)
    if sink_scores is not None:
        sinks = sink_scores.reshape(1, kv_heads, 1, -1, 1)
        highest = np.maximum(highest, sinks)
    scores -= highest
    weights = np.exp(scores, out=scores)
    products = np.matmul(weights, values.transpose(0, 3, 1, 2, 4))
    sums = weights.sum(axis=-1, keepdims=True)
    mixed: Float32 = products[:, :, 0]
    total = sums[:, :, 0]
    for place in range(1, runs):
        mixed += products[:, :, place]
        total += sums[:, :, place]
    if sink_scores is not None:
        total += np.exp(sinks - highest)[:, :, 0]
    mixed /= total
    return mixed.reshape(rows, heads, -1)
