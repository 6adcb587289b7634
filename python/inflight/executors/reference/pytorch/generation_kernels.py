"""Attention of one new token a sequence over the paged cache, in Triton the language.

Contexts differ in length by a factor of hundreds, and one program for each would wait for the longest. So a
plan, made once an iteration on the device, cuts long contexts into chunks of about the same size: `plan`
knows nothing of layers, and `attend` follows it in each. Sizes follow from the number of rows alone, so that
an iteration can be captured in a CUDA graph. Layers with a window, whose contexts are short, and single rows
have `attention_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .operations import Shape, Tensor
from .softcap_kernels import cap_scores

#: Programs that the chunks beyond the first of each row are at most: some for each multiprocessor. Those that
#: a plan does not need cost time, too, which shows where there are few rows.
_MORE_PROGRAMS, _MORE_PROGRAMS_OF_FEW = 1024, 512
#: Chunks of a row at most.
_MOST_CHUNKS = 32
#: Keys of a chunk at least, where rows alone fill the device, and where they do not.
_LEAST_KEYS, _LEAST_KEYS_OF_FEW = 512, 64
#: Rows times key heads that fill the device, and up to which they are few.
_FULL, _FEW = 256, 127


@dataclass(frozen=True, slots=True)
class Plan:
    """Which program attends to what; int32 on the device."""

    #: How many chunks there are, then the first chunk and the keys a chunk of each row, then the row of each
    #: chunk.
    chunks: Tensor
    #: By row and key head, how many of its chunks have been attended to; zero between layers.
    counters: Tensor
    #: What chunks give, for who joins them: by chunk and head.
    parts: Tensor
    maxima: Tensor
    sums: Tensor
    #: Chunks at most.
    most: int


@triton.jit(do_not_specialize=["count"])
def _plan(
    positions,
    chunks,
    counters,
    count,
    MORE: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    TILE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    KV_HEADS_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.arange(0, ROWS)
    inside = row < count
    length = tl.load(positions + row, mask=inside, other=-1) + 1
    share = tl.maximum(tl.cdiv(tl.sum(length, axis=0), MORE), LEAST)
    size = tl.cdiv(tl.maximum(share, tl.cdiv(length, MOST)), TILE) * TILE
    own = tl.where(inside, tl.cdiv(length, size), 0)
    first = tl.cumsum(own, axis=0) - own
    tl.store(chunks, tl.sum(own, axis=0))
    tl.store(chunks + 1 + row, first, mask=inside)
    tl.store(chunks + 1 + count + row, size, mask=inside)
    for chunk in range(tl.max(own, axis=0)):
        tl.store(chunks + 1 + 2 * count + first + chunk, row, mask=chunk < own)
    heads = tl.arange(0, KV_HEADS_PADDED)
    reach = row[:, None] * KV_HEADS + heads[None, :]
    tl.store(counters + reach, tl.zeros_like(reach), mask=inside[:, None] & (heads < KV_HEADS)[None, :])


def plan(positions: Tensor, shape: Shape) -> Plan | None:
    """How generation rows at these positions are attended to; None where all are alike."""
    rows = positions.shape[0]
    if rows < 2 or shape.slopes is not None or shape.value_dim is not None:
        return None
    programs = rows * shape.kv_heads
    more = max(1, (_MORE_PROGRAMS if programs > _FEW else _MORE_PROGRAMS_OF_FEW) // shape.kv_heads)
    most = rows + more
    device = positions.device
    chunks = torch.empty(1 + 2 * rows + most, dtype=torch.int32, device=device)
    counters = torch.empty(rows * shape.kv_heads, dtype=torch.int32, device=device)
    parts = torch.empty((most, shape.heads, shape.head_dim), dtype=torch.float32, device=device)
    maxima, sums = torch.empty((2, most, shape.heads), dtype=torch.float32, device=device)
    tile, _, _ = _cut(programs, shape)
    _plan[(1,)](
        positions,
        chunks,
        counters,
        rows,
        MORE=more,
        LEAST=_LEAST_KEYS if programs >= _FULL else _LEAST_KEYS_OF_FEW,
        MOST=_MOST_CHUNKS,
        TILE=tile,
        KV_HEADS=shape.kv_heads,
        KV_HEADS_PADDED=triton.next_power_of_2(shape.kv_heads),
        ROWS=triton.next_power_of_2(rows),
        num_warps=4,
    )
    return Plan(chunks, counters, parts, maxima, sums, most)


@triton.jit(do_not_specialize=["count"])
def _attend(
    queries,
    keys,
    values,
    block_tables,
    slots,
    positions,
    chunks,
    counters,
    parts,
    maxima,
    sums,
    out,
    sink_scores,
    scale,
    table_width,
    count,
    KV_HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    SHARED_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    SCORED_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    CAP: tl.constexpr,
):
    """One chunk of a sequence's keys, for the queries that read one key head. Scores are in base 2. The
    program that is the last of its row and key head joins what all of them gave."""
    item = tl.program_id(0)
    kv_head = tl.program_id(1)
    if item >= tl.load(chunks):
        return
    row = tl.load(chunks + 1 + 2 * count + item).to(tl.int64)
    first = tl.load(chunks + 1 + row)
    size = tl.load(chunks + 1 + count + row)
    length = tl.load(positions + row) + 1
    table = block_tables + tl.load(slots + row).to(tl.int64) * table_width
    begin = (item - first) * size
    end = tl.minimum(begin + size, length)
    own = tl.cdiv(length, size)

    query_heads = tl.arange(0, SHARED_PADDED)
    columns = tl.arange(0, PADDED)
    head_rows = row * KV_HEADS * SHARED + kv_head * SHARED + query_heads
    query_inside = (query_heads < SHARED)[:, None] & (columns < HEAD_DIM)[None, :]
    query = tl.load(queries + head_rows[:, None] * HEAD_DIM + columns[None, :], mask=query_inside, other=0.0)

    maximum = tl.full((SHARED_PADDED,), -1e30, tl.float32)
    total = tl.zeros((SHARED_PADDED,), tl.float32)
    mixed = tl.zeros((SHARED_PADDED, PADDED), tl.float32)
    if SCORED_SINKS:  # noqa: SIM102 -- a choice of the compiler's
        # Counted as a key whose value is zero, by the first chunk.
        if item == first:
            own_sinks = sink_scores + kv_head * SHARED + query_heads
            maximum = tl.load(own_sinks, mask=query_heads < SHARED, other=0.0) * 1.4426950408889634
            total += 1.0
    for start in range(begin, end, TILE):
        place = start + tl.arange(0, TILE)
        inside = place < end
        block = tl.load(table + place // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        base = ((block * KV_HEADS + kv_head) * BLOCK_SIZE + place % BLOCK_SIZE) * HEAD_DIM
        reach = base[:, None] + columns[None, :]
        loaded = inside[:, None] & (columns < HEAD_DIM)[None, :]
        key = tl.load(keys + reach, mask=loaded, other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        if CAP > 0:
            scores = cap_scores(scores, CAP)
        scores = tl.where(inside[None, :], scores, -1e30)
        higher = tl.maximum(maximum, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        correction = tl.exp2(maximum - higher)
        total = total * correction + tl.sum(weights, axis=1)
        value = tl.load(values + reach, mask=loaded, other=0.0).to(query.dtype)
        mixed = mixed * correction[:, None]
        mixed += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
        maximum = higher
    if own == 1:
        mixed = mixed / total[:, None]
        tl.store(
            out + head_rows[:, None] * HEAD_DIM + columns[None, :],
            mixed.to(out.dtype.element_ty),
            mask=query_inside,
        )
    else:
        part = (item * KV_HEADS + kv_head) * SHARED + query_heads
        tl.store(parts + part[:, None] * HEAD_DIM + columns[None, :], mixed, mask=query_inside)
        tl.store(maxima + part, maximum, mask=query_heads < SHARED)
        tl.store(sums + part, total, mask=query_heads < SHARED)
        # All of the program's threads have stored before one of them reports it.
        tl.debug_barrier()
        counter = counters + row * KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") == own - 1:
            tl.store(counter, 0)
            _join(parts, maxima, sums, out, row, kv_head, first, own, KV_HEADS, SHARED, HEAD_DIM, PADDED)


@triton.jit
def _join(
    parts,
    maxima,
    sums,
    out,
    row,
    kv_head,
    first,
    own,
    KV_HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
):
    """The output of a row's queries from what its chunks gave. Read past the first cache, which other
    multiprocessors do not write."""
    columns = tl.arange(0, PADDED)
    for head in range(SHARED):
        highest = -1e30
        total = 0.0
        mixed = tl.zeros((PADDED,), tl.float32)
        for start in range(0, own, 8):
            chunk = start + tl.arange(0, 8)
            there = chunk < own
            part = ((first + chunk) * KV_HEADS + kv_head) * SHARED + head
            maximum = tl.load(maxima + part, mask=there, other=-1e30, cache_modifier=".cg")
            higher = tl.maximum(highest, tl.max(maximum, axis=0))
            weights = tl.where(there, tl.exp2(maximum - higher), 0.0)
            correction = tl.exp2(highest - higher)
            sum_of = tl.load(sums + part, mask=there, other=0.0, cache_modifier=".cg")
            total = total * correction + tl.sum(weights * sum_of, axis=0)
            reach = part[:, None] * HEAD_DIM + columns[None, :]
            inside = there[:, None] & (columns < HEAD_DIM)[None, :]
            loaded = tl.load(parts + reach, mask=inside, other=0.0, cache_modifier=".cg")
            mixed = mixed * correction + tl.sum(loaded * weights[:, None], axis=0)
            highest = higher
        target = (row * KV_HEADS * SHARED + kv_head * SHARED + head) * HEAD_DIM + columns
        tl.store(out + target, (mixed / total).to(out.dtype.element_ty), mask=columns < HEAD_DIM)


@triton.jit
def merge_splits(
    parts,
    maxima,
    sums,
    out,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The output of a head of a row, from what a fixed number of shares of its context gave."""
    head_row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLITS)
    columns = tl.arange(0, PADDED)
    inside = columns < HEAD_DIM
    maximum = tl.load(maxima + head_row * SPLITS + splits)
    weights = tl.exp2(maximum - tl.max(maximum, axis=0))
    total = tl.sum(weights * tl.load(sums + head_row * SPLITS + splits), axis=0)
    reach = (head_row * SPLITS + splits)[:, None] * HEAD_DIM + columns[None, :]
    mixed = tl.sum(tl.load(parts + reach, mask=inside[None, :], other=0.0) * weights[:, None], axis=0) / total
    tl.store(out + head_row * HEAD_DIM + columns, mixed.to(out.dtype.element_ty), mask=inside)


def _cut(programs: int, shape: Shape) -> tuple[int, int, int]:
    """Keys a tile, warps and pipeline stages for so many sequences x key heads, measured on an H200: the best
    for long contexts, and within 6 % of it for contexts of 256 tokens. With more than 128 numbers a
    head, tiles are no larger than shared memory."""
    if programs <= _FEW:
        return 64, 2, 3
    return (128 if shape.head_dim <= 128 else 64, 4, 2) if programs < 4096 else (32, 1, 4)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    positions: Tensor,
    plan: Plan,
    shape: Shape,
    sink_scores: Tensor | None = None,
) -> Tensor:
    """One new token a sequence, as `operations.generation_attention` has it without a window."""
    rows = queries.shape[0]
    shared = shape.heads // shape.kv_heads
    tile, warps, stages = _cut(rows * shape.kv_heads, shape)
    out = torch.empty_like(queries)
    _attend[(plan.most, shape.kv_heads)](
        queries,
        keys,
        values,
        block_tables,
        slots,
        positions,
        plan.chunks,
        plan.counters,
        plan.parts,
        plan.maxima,
        plan.sums,
        out,
        queries if sink_scores is None else sink_scores,
        shape.scale * 1.4426950408889634,
        block_tables.stride(0),
        rows,
        KV_HEADS=shape.kv_heads,
        SHARED=shared,
        SHARED_PADDED=max(16, triton.next_power_of_2(shared)),
        HEAD_DIM=shape.head_dim,
        PADDED=max(16, triton.next_power_of_2(shape.head_dim)),
        BLOCK_SIZE=shape.tokens_per_block,
        TILE=tile,
        SCORED_SINKS=sink_scores is not None,
        PRECISION="ieee" if queries.dtype == torch.float32 else "tf32",
        CAP=shape.softcap or 0.0,
        num_warps=warps,
        num_stages=stages,
    )
    return out
