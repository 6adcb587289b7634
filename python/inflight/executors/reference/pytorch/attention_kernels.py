"""Attention of new tokens over the paged cache in Triton the language, as `operations` has it in plain
PyTorch.

Reads a cache block in one piece; numbers of an FP8 cache are widened where they are read. Generation of one
row, or within a window, splits every context over programs where there are too few sequences to fill the
device; `generation_kernels` has the rest, and `context_kernels` the prompts. Nothing here allocates by the
values of a tensor, so that an iteration can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import latent_kernels
from .generation_kernels import Plan, attend, merge_splits
from .operations import AttentionShape, Tensor
from .softcap_kernels import cap_scores

#: Shares of a context that are attended at once, where there are too few sequences to fill the device.
_MOST_SPLITS = 16


@triton.jit
def _generation_attention(
    queries,
    keys,
    values,
    block_tables,
    slots,
    positions,
    out,
    maxima,
    sums,
    slopes,
    sink_scores,
    scale,
    table_width,
    KV_HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    SHARED_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    ALIBI: tl.constexpr,
    SCORED_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    CAP: tl.constexpr,
):
    """A share of one sequence's keys, for the queries that read one key head. Scores are in base 2."""
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(positions + row) + 1
    table = block_tables + tl.load(slots + row).to(tl.int64) * table_width
    lowest = 0
    if WINDOW > 0:
        # Sinks are counted as if they lay right before the window.
        lowest = tl.maximum(length - WINDOW - SINKS, 0)
    share = tl.cdiv(tl.cdiv(length - lowest, SPLITS), TILE) * TILE
    begin = lowest + split * share
    end = tl.minimum(begin + share, length)

    query_heads = tl.arange(0, SHARED_PADDED)
    columns = tl.arange(0, PADDED)
    head_rows = row * KV_HEADS * SHARED + kv_head * SHARED + query_heads
    query_inside = (query_heads < SHARED)[:, None] & (columns < HEAD_DIM)[None, :]
    query = tl.load(queries + head_rows[:, None] * HEAD_DIM + columns[None, :], mask=query_inside, other=0.0)

    maximum = tl.full((SHARED_PADDED,), -1e30, tl.float32)
    total = tl.zeros((SHARED_PADDED,), tl.float32)
    mixed = tl.zeros((SHARED_PADDED, PADDED), tl.float32)
    if SCORED_SINKS:  # noqa: SIM102 -- a choice of the compiler's
        # Counted as a key whose value is zero, by the first share.
        if split == 0:
            own_sinks = sink_scores + kv_head * SHARED + query_heads
            maximum = tl.load(own_sinks, mask=query_heads < SHARED, other=0.0) * 1.4426950408889634
            total += 1.0
    for start in range(begin, end, TILE):
        place = start + tl.arange(0, TILE)
        inside = place < end
        if SINKS > 0:
            place = tl.where(place < lowest + SINKS, place - lowest, place)
        block = tl.load(table + place // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        base = ((block * KV_HEADS + kv_head) * BLOCK_SIZE + place % BLOCK_SIZE) * HEAD_DIM
        reach = base[:, None] + columns[None, :]
        loaded = inside[:, None] & (columns < HEAD_DIM)[None, :]
        key = tl.load(keys + reach, mask=loaded, other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        if CAP > 0:
            scores = cap_scores(scores, CAP)
        if ALIBI:
            slope = tl.load(slopes + kv_head * SHARED + query_heads, mask=query_heads < SHARED, other=0.0)
            scores += slope[:, None] * (place + 1 - length).to(tl.float32)[None, :] * 1.4426950408889634
        scores = tl.where(inside[None, :], scores, -1e30)
        higher = tl.maximum(maximum, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        correction = tl.exp2(maximum - higher)
        total = total * correction + tl.sum(weights, axis=1)
        value = tl.load(values + reach, mask=loaded, other=0.0).to(query.dtype)
        mixed = mixed * correction[:, None]
        mixed += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
        maximum = higher
    if SPLITS == 1:
        mixed = mixed / total[:, None]
        tl.store(
            out + head_rows[:, None] * HEAD_DIM + columns[None, :],
            mixed.to(out.dtype.element_ty),
            mask=query_inside,
        )
    else:
        part = head_rows * SPLITS + split
        tl.store(out + part[:, None] * HEAD_DIM + columns[None, :], mixed, mask=query_inside)
        tl.store(maxima + part, maximum, mask=query_heads < SHARED)
        tl.store(sums + part, total, mask=query_heads < SHARED)


def _generation_plan(programs: int) -> tuple[int, int, int, int]:
    """Splits of the context, keys a tile, warps and pipeline stages for so many sequences x key heads.

    Measured on an H200 at 193 keys a sequence: the best of each is within 25 % of reading its bytes once.
    """
    if programs >= 1024:
        return 1, 32, 1, 4
    if programs > 128:
        return 1, 64, 2, 3
    return min(_MOST_SPLITS, triton.next_power_of_2(triton.cdiv(128, programs))), 32, 4, 2


def generation_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    positions: Tensor,
    window: int | None,
    shape: AttentionShape,
    plan: Plan | None,
    sink_scores: Tensor | None = None,
) -> Tensor:
    if shape.value_dim is not None:
        return latent_kernels.generation(queries, keys, values, block_tables, slots, positions, shape)
    if plan is not None and window is None:
        return attend(queries, keys, values, block_tables, slots, positions, plan, shape, sink_scores)
    rows = queries.shape[0]
    shared = shape.heads // shape.kv_heads
    splits, tile, warps, stages = _generation_plan(rows * shape.kv_heads)
    out = torch.empty_like(queries)
    parts, maxima, sums = out, out, out
    if splits > 1:
        parts = torch.empty(
            (rows, shape.heads, splits, shape.head_dim), dtype=torch.float32, device=out.device
        )
        maxima, sums = torch.empty((2, rows, shape.heads, splits), dtype=torch.float32, device=out.device)
    padded = max(16, triton.next_power_of_2(shape.head_dim))
    _generation_attention[(rows, shape.kv_heads, splits)](
        queries,
        keys,
        values,
        block_tables,
        slots,
        positions,
        parts,
        maxima,
        sums,
        queries if shape.slopes is None else shape.slopes,
        queries if sink_scores is None else sink_scores,
        shape.scale * 1.4426950408889634,
        block_tables.stride(0),
        KV_HEADS=shape.kv_heads,
        SHARED=shared,
        SHARED_PADDED=max(16, triton.next_power_of_2(shared)),
        HEAD_DIM=shape.head_dim,
        PADDED=padded,
        BLOCK_SIZE=shape.tokens_per_block,
        TILE=tile,
        SPLITS=splits,
        WINDOW=window or 0,
        SINKS=shape.sink_tokens if window else 0,
        ALIBI=shape.slopes is not None,
        SCORED_SINKS=sink_scores is not None,
        PRECISION=_precision(queries),
        CAP=shape.softcap or 0.0,
        num_warps=warps,
        num_stages=stages,
    )
    if splits > 1:
        merge_splits[(rows * shape.heads,)](
            parts, maxima, sums, out, HEAD_DIM=shape.head_dim, PADDED=padded, SPLITS=splits, num_warps=2
        )
    return out


def _precision(x: Tensor) -> str:
    """float32 is multiplied as float32 and not as tf32."""
    return "ieee" if x.dtype == torch.float32 else "tf32"
