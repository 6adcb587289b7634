"""Attention of one new token a sequence over the paged cache, in Triton the language.

Contexts differ in length by a factor of hundreds, and one program for each would wait for the longest. So a
plan, made once an iteration on the device, cuts long contexts into chunks of about the same size: `plan`
knows nothing of layers, and `attend` follows it in each. What rows read together with others, at the
beginning of their contexts, `prefix_kernels` finds and attends to: it is not in these chunks, and joined with
them. Sizes follow from the number of rows alone, so that an iteration can be captured in a CUDA graph. Layers
with a window, whose contexts are short, and single rows have `attention_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from . import prefix_kernels
from .common_prefixes import LEAST_ROWS
from .operations import AttentionShape, Tables, Tensor
from .prefix_kernels import MOST_CHUNKS, Prefixes, chunk_keys, prefix_keys
from .softcap_kernels import cap_scores

#: Programs that the chunks beyond the first of each row are at most: some for each multiprocessor. Those that
#: a plan does not need cost time, too, which shows where there are few rows.
_MORE_PROGRAMS, _MORE_PROGRAMS_OF_FEW = 1024, 512
#: Chunks of a row at most.
_MOST_CHUNKS = 32
#: Keys of a chunk at least, where rows alone fill the device, and where they do not.
_LEAST_KEYS, _LEAST_KEYS_OF_FEW = 512, 64
#: Parts of a row that are joined at a time, and where rows may have many.
_JOINED, _JOINED_OF_MANY = 8, 32
#: Rows times key heads that fill the device, and up to which they are few.
_FULL, _FEW = 256, 127


@dataclass(frozen=True, slots=True)
class Plan:
    """Which program attends to what; int32 on the device."""

    #: How many chunks there are, then the row of each.
    chunks: Tensor
    #: By row: its first chunk, the keys of its chunks, the first of these keys, its first part, and how many
    #: parts come before those of its chunks, from what it reads together with others.
    rows: Tensor
    #: By row and key head, how many of its chunks have been attended to; zero between layers.
    counters: Tensor
    #: What chunks give, for who joins them: by part and head. Those of a row follow each other, first what it
    #: reads together with others.
    parts: Tensor
    maxima: Tensor
    sums: Tensor
    #: Chunks at most, and parts of a row that are joined at a time.
    most: int
    joined: int
    #: What rows read together, where it was looked for.
    prefixes: Prefixes | None
    #: How many sets of rows there are, the keys that each reads, and the sets.
    listed: Tensor


@triton.jit(do_not_specialize=["count", "most_sets"])
def _plan(
    positions,
    set_counts,
    common,
    listed,
    chunks,
    rows,
    counters,
    count,
    most_sets,
    MORE: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    TILE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    KV_HEADS_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    PREFIXES: tl.constexpr,
    PARTS: tl.constexpr,
    LEAST_TOGETHER: tl.constexpr,
    MOST_TOGETHER: tl.constexpr,
):
    row = tl.arange(0, ROWS)
    inside = row < count
    length = tl.load(positions + row, mask=inside, other=-1) + 1
    together = tl.zeros_like(length)
    keys_together = 0
    if PREFIXES:
        keys_together = chunk_keys(length, PARTS, LEAST_TOGETHER, MOST_TOGETHER)
        together = _together(set_counts, common, row, inside, count, MOST_TOGETHER)
        _list(set_counts, listed, keys_together, most_sets, MOST_TOGETHER)
    begin = together * keys_together
    alone = length - begin
    share = tl.maximum(tl.cdiv(tl.sum(alone, axis=0), MORE), LEAST)
    size = tl.cdiv(tl.maximum(share, tl.cdiv(alone, MOST)), TILE) * TILE
    own = tl.where(inside, tl.cdiv(alone, size), 0)
    first = tl.cumsum(own, axis=0) - own
    tl.store(chunks, tl.sum(own, axis=0))
    tl.store(rows + row, first, mask=inside)
    tl.store(rows + count + row, size, mask=inside)
    tl.store(rows + 2 * count + row, begin, mask=inside)
    tl.store(rows + 3 * count + row, first + tl.cumsum(together, axis=0) - together, mask=inside)
    tl.store(rows + 4 * count + row, together, mask=inside)
    for chunk in range(tl.max(own, axis=0)):
        tl.store(chunks + 1 + first + chunk, row, mask=chunk < own)
    heads = tl.arange(0, KV_HEADS_PADDED)
    reach = row[:, None] * KV_HEADS + heads[None, :]
    tl.store(counters + reach, tl.zeros_like(reach), mask=inside[:, None] & (heads < KV_HEADS)[None, :])


@triton.jit
def _together(set_counts, common, row, inside, count, MOST: tl.constexpr):
    """How many chunks from its beginning each row reads together with others."""
    together = tl.where(inside, MOST, 0)
    chunk = 0
    sets = tl.load(set_counts)
    while sets > 0:
        chunks = chunk + tl.arange(0, 8)
        reach = chunks[:, None] * count + row[None, :]
        own = tl.load(common + reach, mask=inside[None, :], other=0)
        together = tl.minimum(together, tl.min(tl.where(own > 0, MOST, chunks[:, None]), axis=0))
        chunk += 8
        sets = tl.load(set_counts + chunk, mask=chunk < MOST, other=0)
    return tl.minimum(together, chunk)


@triton.jit
def _list(set_counts, listed, size, most_sets, MOST: tl.constexpr):
    """The sets of all chunks."""
    chunk = tl.arange(0, MOST)
    sets = tl.load(set_counts + chunk)
    first = tl.cumsum(sets, axis=0) - sets
    tl.store(listed, tl.sum(sets, axis=0))
    tl.store(listed + 1, size)
    for one in range(tl.max(sets, axis=0)):
        tl.store(listed + 2 + first + one, chunk * most_sets + one, mask=one < sets)


def plan(positions: Tensor, shape: AttentionShape, tables: Tables | None = None) -> Plan | None:
    """How generation rows at these positions are attended to; None where all are alike. What their
    ``tables`` have in common is read together."""
    rows = positions.shape[0]
    if rows < 2 or shape.slopes is not None or shape.value_dim is not None:
        return None
    programs = rows * shape.kv_heads
    more = max(1, (_MORE_PROGRAMS if programs > _FEW else _MORE_PROGRAMS_OF_FEW) // shape.kv_heads)
    most = rows + more
    device = positions.device
    found = None
    if tables is not None and rows >= LEAST_ROWS and prefix_keys(shape) is not None:
        found = prefix_kernels.find(positions, tables, shape)
    chunks = torch.empty(1 + most, dtype=torch.int32, device=device)
    by_row = torch.empty((5, rows), dtype=torch.int32, device=device)
    counters = torch.empty(rows * shape.kv_heads, dtype=torch.int32, device=device)
    sets = 0 if found is None else MOST_CHUNKS * found.sets
    listed = torch.empty(2 + sets, dtype=torch.int32, device=device)
    most_parts = most + (0 if found is None else 2 * found.parts)
    parts = torch.empty((most_parts, shape.heads, shape.head_dim), dtype=torch.float32, device=device)
    maxima, sums = torch.empty((2, most_parts, shape.heads), dtype=torch.float32, device=device)
    tile, _, _ = _cut(programs, shape)
    _plan[(1,)](
        positions,
        positions if found is None else found.counts,
        positions if found is None else found.common,
        listed,
        chunks,
        by_row,
        counters,
        rows,
        1 if found is None else found.sets,
        MORE=more,
        LEAST=_LEAST_KEYS if programs >= _FULL else _LEAST_KEYS_OF_FEW,
        MOST=_MOST_CHUNKS,
        TILE=tile,
        KV_HEADS=shape.kv_heads,
        KV_HEADS_PADDED=triton.next_power_of_2(shape.kv_heads),
        ROWS=triton.next_power_of_2(rows),
        PREFIXES=found is not None,
        PARTS=1 if found is None else found.parts,
        LEAST_TOGETHER=prefix_kernels.LEAST_KEYS,
        MOST_TOGETHER=MOST_CHUNKS,
        num_warps=4,
    )
    many = found is not None and found.parts >= _JOINED * rows
    joined = _JOINED_OF_MANY if many else _JOINED
    return Plan(chunks, by_row, counters, parts, maxima, sums, most, joined, found, listed)


@triton.jit(do_not_specialize=["count"])
def _attend(
    queries,
    keys,
    values,
    block_tables,
    slots,
    positions,
    chunks,
    rows,
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
    JOINED: tl.constexpr,
    PREFIXES: tl.constexpr,
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
    row = tl.load(chunks + 1 + item).to(tl.int64)
    first_part = tl.load(rows + row)
    chunk = item - first_part
    size = tl.load(rows + count + row)
    begin_of_own, together = 0, 0
    if PREFIXES:
        begin_of_own = tl.load(rows + 2 * count + row)
        first_part = tl.load(rows + 3 * count + row)
        together = tl.load(rows + 4 * count + row)
    length = tl.load(positions + row) + 1
    table = block_tables + tl.load(slots + row).to(tl.int64) * table_width
    begin = begin_of_own + chunk * size
    end = tl.minimum(begin + size, length)
    own = tl.cdiv(length - begin_of_own, size)

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
        if chunk == 0:
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
    if own + together == 1:
        mixed = mixed / total[:, None]
        tl.store(
            out + head_rows[:, None] * HEAD_DIM + columns[None, :],
            mixed.to(out.dtype.element_ty),
            mask=query_inside,
        )
    else:
        part = ((first_part + together + chunk) * KV_HEADS + kv_head) * SHARED + query_heads
        tl.store(parts + part[:, None] * HEAD_DIM + columns[None, :], mixed, mask=query_inside)
        tl.store(maxima + part, maximum, mask=query_heads < SHARED)
        tl.store(sums + part, total, mask=query_heads < SHARED)
        # All of the program's threads have stored before one of them reports it.
        tl.debug_barrier()
        counter = counters + row * KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") == own - 1:
            tl.store(counter, 0)
            _join(
                parts,
                maxima,
                sums,
                out,
                row,
                kv_head,
                first_part,
                together + own,
                KV_HEADS,
                SHARED,
                HEAD_DIM,
                PADDED,
                JOINED,
            )


@triton.jit
def _join(
    parts,
    maxima,
    sums,
    out,
    row,
    kv_head,
    first,
    count,
    KV_HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    JOINED: tl.constexpr,
):
    """The output of a row's queries from its parts. Read past the first cache, which other multiprocessors do
    not write."""
    columns = tl.arange(0, PADDED)
    for head in range(SHARED):
        highest = -1e30
        total = 0.0
        mixed = tl.zeros((PADDED,), tl.float32)
        for start in range(0, count, JOINED):
            place = start + tl.arange(0, JOINED)
            there = place < count
            part = ((first + place) * KV_HEADS + kv_head) * SHARED + head
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


def _cut(programs: int, shape: AttentionShape) -> tuple[int, int, int]:
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
    shape: AttentionShape,
    sink_scores: Tensor | None = None,
) -> Tensor:
    """One new token a sequence, as `operations.generation_attention` has it without a window."""
    rows = queries.shape[0]
    shared = shape.heads // shape.kv_heads
    tile, warps, stages = _cut(rows * shape.kv_heads, shape)
    out = torch.empty_like(queries)
    if plan.prefixes is not None:
        parts = plan.parts, plan.maxima, plan.sums
        prefix_kernels.attend(
            queries, keys, values, block_tables, slots, plan.prefixes, plan.rows, plan.listed, parts, shape
        )
    _attend[(plan.most, shape.kv_heads)](
        queries,
        keys,
        values,
        block_tables,
        slots,
        positions,
        plan.chunks,
        plan.rows,
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
        JOINED=plan.joined,
        PREFIXES=plan.prefixes is not None,
        SCORED_SINKS=sink_scores is not None,
        PRECISION="ieee" if queries.dtype == torch.float32 else "tf32",
        CAP=shape.softcap or 0.0,
        num_warps=warps,
        num_stages=stages,
    )
    return out
