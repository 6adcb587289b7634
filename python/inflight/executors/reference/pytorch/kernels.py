"""The array seam's kernels in Triton the language; each computes what its namesake in `operations` does.

Small batches are bound by launches and large ones by memory: so what lies between two matrix products is
one kernel, and attention reads a cache block in one piece. Nothing here allocates by the values of a
tensor, so that an iteration can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inflight.executors.reference.families.family import Activation

from .operations import CONTEXT_TILE, Context, Shape, Tensor, add_layer_norm, choose_experts
from .operations import activate as _activate
from .operations import linear as _library_linear

__all__ = [
    "activate",
    "add_layer_norm",
    "add_rms_norm",
    "context_attention",
    "experts",
    "generation_attention",
    "linear",
    "prepare",
    "rotate_and_store",
]

#: Shares of a context that are attended at once, where there are too few sequences to fill the device.
_MOST_SPLITS = 16

#: Heads that one program rotates.
_ROTATED_HEADS = 8

#: Inputs that one program of a matrix-vector product holds at once.
_VECTOR_TILE = 1024


@triton.jit(do_not_specialize=["count"])
def _prepare(
    inputs,
    chosen,
    block_tables,
    table_width,
    token_ids,
    cache_slots,
    count,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < count
    known = tl.load(inputs + row, mask=inside, other=0)
    source = tl.load(inputs + count + row, mask=inside, other=-1)
    position = tl.load(inputs + 2 * count + row, mask=inside, other=0)
    slot = tl.load(inputs + 3 * count + row, mask=inside, other=0)
    block = tl.load(inputs + 4 * count + row, mask=inside, other=0)
    token = tl.load(chosen + source, mask=inside & (source >= 0), other=0)
    tl.store(token_ids + row, tl.where(source >= 0, token, known), mask=inside)
    tl.store(cache_slots + row, block * BLOCK_SIZE + position % BLOCK_SIZE, mask=inside)
    tl.store(block_tables + slot.to(tl.int64) * table_width + position // BLOCK_SIZE, block, mask=inside)


def prepare(
    inputs: Tensor, chosen: Tensor, block_tables: Tensor, tokens_per_block: int
) -> tuple[Tensor, Tensor]:
    count = inputs.shape[1]
    token_ids, cache_slots = torch.empty((2, count), dtype=torch.int32, device=inputs.device)
    _prepare[(triton.cdiv(count, 128),)](
        inputs,
        chosen,
        block_tables,
        block_tables.stride(0),
        token_ids,
        cache_slots,
        count,
        BLOCK_SIZE=tokens_per_block,
        BLOCK=128,
    )
    return token_ids, cache_slots


@triton.jit
def _matrix_vector(
    x,
    weight,
    bias,
    out,
    width,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    TILE: tl.constexpr,
    BIAS: tl.constexpr,
):
    rows = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = rows < width
    columns = tl.arange(0, TILE)
    sums = tl.zeros((OUTPUTS, TILE), tl.float32)
    for start in range(0, INPUTS, TILE):
        place = start + columns
        inputs = tl.load(x + place, mask=place < INPUTS, other=0.0).to(tl.float32)
        reach = rows[:, None].to(tl.int64) * INPUTS + place[None, :]
        factors = tl.load(weight + reach, mask=inside[:, None] & (place < INPUTS)[None, :], other=0.0)
        sums += factors.to(tl.float32) * inputs[None, :]
    product = tl.sum(sums, axis=1)
    if BIAS:
        product += tl.load(bias + rows, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + rows, product.to(out.dtype.element_ty), mask=inside)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """One row is bound by reading the weights: a matrix-vector product reads them at 90 % of the memory's
    speed where the library's small products reach 60 to 85 %."""
    outputs, inputs = weight.shape
    if x.shape[0] != 1 or x.dtype == torch.float32:
        return _library_linear(x, weight, bias)
    out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    _matrix_vector[(triton.cdiv(outputs, 2),)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        outputs,
        INPUTS=inputs,
        OUTPUTS=2,
        TILE=_VECTOR_TILE,
        BIAS=bias is not None,
        num_warps=4,
    )
    return out


@triton.jit
def _add_rms_norm(
    x, delta, weight, out, epsilon, WIDTH: tl.constexpr, PADDED: tl.constexpr, ADD: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, PADDED)
    inside = columns < WIDTH
    values = tl.load(x + row + columns, mask=inside, other=0.0)
    if ADD:
        values += tl.load(delta + row + columns, mask=inside, other=0.0)
        tl.store(x + row + columns, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / WIDTH + epsilon)
    factors = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + columns, (wide * scale * factors).to(values.dtype), mask=inside)


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    width = x.shape[-1]
    out = torch.empty_like(x)
    padded = triton.next_power_of_2(width)
    _add_rms_norm[(x.shape[0],)](
        x,
        x if delta is None else delta,
        weight,
        out,
        epsilon,
        WIDTH=width,
        PADDED=padded,
        ADD=delta is not None,
        num_warps=8 if padded >= 4096 else 4,
    )
    return out


@triton.jit
def _silu_gate(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + columns, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + columns, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    gated = wide * tl.sigmoid(wide) * up.to(tl.float32)
    tl.store(out + row * WIDTH + columns, gated.to(gate.dtype), mask=inside)


def activate(x: Tensor, activation: Activation, gated: bool) -> Tensor:
    """Other activations than Llama's are PyTorch's own operations."""
    if activation != "silu" or not gated:
        return _activate(x, activation, gated)
    rows, width = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    _silu_gate[(rows, triton.cdiv(width, 1024))](x, out, WIDTH=width, BLOCK=1024)
    return out


def experts(
    x: Tensor, scores: Tensor, gate_up: Tensor, down: Tensor, chosen: int, activation: Activation
) -> Tensor:
    """Every expert computes every row, since a graph cannot choose: a batch of some rows reads all experts'
    weights anyway, which is what its time goes to."""
    best, shares = choose_experts(scores, chosen)
    by_expert = torch.zeros(scores.shape, dtype=torch.float32, device=x.device)
    by_expert.scatter_(1, best, shares)
    mixed = torch.zeros_like(x, dtype=torch.float32)
    for expert in range(scores.shape[1]):
        inner = activate(_library_linear(x, gate_up[expert]), activation, True)
        mixed += _library_linear(inner, down[expert]) * by_expert[:, expert, None]
    return mixed.to(x.dtype)


@triton.jit
def _rotate_and_store(
    qkv,
    positions,
    cache_slots,
    cosines,
    sines,
    query_norm,
    key_norm,
    epsilon,
    queries,
    keys,
    values,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr,
    GROUP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)[:, None]
    columns = tl.arange(0, PADDED)[None, :]
    present = head < HEADS + 2 * KV_HEADS
    inside = (columns < HALF) & present
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * 2 * HALF
    first = tl.load(source + columns, mask=inside, other=0.0)
    second = tl.load(source + HALF + columns, mask=inside, other=0.0)
    slot = tl.load(cache_slots + row).to(tl.int64)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    is_query, is_key = head < HEADS, (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = (head >= HEADS + KV_HEADS) & present
    wide, wide_second = first.to(tl.float32), second.to(tl.float32)
    if NORM:
        squares = tl.sum(wide * wide, axis=1) + tl.sum(wide_second * wide_second, axis=1)
        scale = tl.rsqrt(squares / (2 * HALF) + epsilon)[:, None]
        own = columns < HALF
        factors = tl.where(
            is_query,
            tl.load(query_norm + columns, mask=own, other=0.0),
            tl.load(key_norm + columns, mask=own, other=0.0),
        )
        factors_second = tl.where(
            is_query,
            tl.load(query_norm + HALF + columns, mask=own, other=0.0),
            tl.load(key_norm + HALF + columns, mask=own, other=0.0),
        )
        wide = (wide * scale * factors).to(first.dtype).to(tl.float32)
        wide_second = (wide_second * scale * factors_second).to(first.dtype).to(tl.float32)
    angle = tl.load(positions + row).to(tl.int64) * HALF
    cosine = tl.load(cosines + angle + columns, mask=columns < HALF, other=0.0)
    sine = tl.load(sines + angle + columns, mask=columns < HALF, other=0.0)
    rotated = (wide * cosine - wide_second * sine).to(first.dtype)
    rotated_second = (wide_second * cosine + wide * sine).to(first.dtype)
    query = queries + (row * HEADS + head) * 2 * HALF + columns
    tl.store(query, rotated, mask=inside & is_query)
    tl.store(query + HALF, rotated_second, mask=inside & is_query)
    kept = ((block * KV_HEADS + (head - HEADS) % KV_HEADS) * BLOCK_SIZE + offset) * 2 * HALF + columns
    tl.store(keys + kept, rotated, mask=inside & is_key)
    tl.store(keys + kept + HALF, rotated_second, mask=inside & is_key)
    tl.store(values + kept, first, mask=inside & is_value)
    tl.store(values + kept + HALF, second, mask=inside & is_value)


def rotate_and_store(
    qkv: Tensor,
    positions: Tensor,
    cache_slots: Tensor,
    tables: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    epsilon: float,
    keys: Tensor,
    values: Tensor,
    shape: Shape,
) -> Tensor:
    rows, half = qkv.shape[0], shape.head_dim // 2
    queries = torch.empty((rows, shape.heads, shape.head_dim), dtype=qkv.dtype, device=qkv.device)
    query_norm, key_norm = norms if norms is not None else (qkv, qkv)
    _rotate_and_store[(rows, triton.cdiv(shape.heads + 2 * shape.kv_heads, _ROTATED_HEADS))](
        qkv,
        positions,
        cache_slots,
        *tables,
        query_norm,
        key_norm,
        epsilon,
        queries,
        keys,
        values,
        HEADS=shape.heads,
        KV_HEADS=shape.kv_heads,
        HALF=half,
        PADDED=triton.next_power_of_2(half),
        BLOCK_SIZE=shape.tokens_per_block,
        NORM=norms is not None,
        GROUP=_ROTATED_HEADS,
        num_warps=2,
    )
    return queries


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
    PRECISION: tl.constexpr,
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
    for start in range(begin, end, TILE):
        place = start + tl.arange(0, TILE)
        inside = place < end
        if SINKS > 0:
            place = tl.where(place < lowest + SINKS, place - lowest, place)
        block = tl.load(table + place // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        base = ((block * KV_HEADS + kv_head) * BLOCK_SIZE + place % BLOCK_SIZE) * HEAD_DIM
        reach = base[:, None] + columns[None, :]
        loaded = inside[:, None] & (columns < HEAD_DIM)[None, :]
        key = tl.load(keys + reach, mask=loaded, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        if ALIBI:
            slope = tl.load(slopes + kv_head * SHARED + query_heads, mask=query_heads < SHARED, other=0.0)
            scores += slope[:, None] * (place + 1 - length).to(tl.float32)[None, :] * 1.4426950408889634
        scores = tl.where(inside[None, :], scores, -1e30)
        higher = tl.maximum(maximum, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        correction = tl.exp2(maximum - higher)
        total = total * correction + tl.sum(weights, axis=1)
        value = tl.load(values + reach, mask=loaded, other=0.0)
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


@triton.jit
def _merge_splits(
    parts,
    maxima,
    sums,
    out,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    SPLITS: tl.constexpr,
):
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
    shape: Shape,
) -> Tensor:
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
        PRECISION=_precision(queries),
        num_warps=warps,
        num_stages=stages,
    )
    if splits > 1:
        _merge_splits[(rows * shape.heads,)](
            parts, maxima, sums, out, HEAD_DIM=shape.head_dim, PADDED=padded, SPLITS=splits, num_warps=2
        )
    return out


@triton.jit
def _context_attention(
    queries,
    keys,
    values,
    block_tables,
    tile_rows,
    tile_slots,
    tile_positions,
    tile_counts,
    out,
    slopes,
    scale,
    table_width,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    ALIBI: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of a chunk's rows, for one query head. Scores are in base 2."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    first_row = tl.load(tile_rows + tile).to(tl.int64)
    position = tl.load(tile_positions + tile)
    count = tl.load(tile_counts + tile)
    table = block_tables + tl.load(tile_slots + tile).to(tl.int64) * table_width

    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED)
    query_reach = ((first_row + rows) * HEADS + head)[:, None] * HEAD_DIM + columns[None, :]
    query_inside = (rows < count)[:, None] & (columns < HEAD_DIM)[None, :]
    query = tl.load(queries + query_reach, mask=query_inside, other=0.0)
    own = position + rows

    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(position + 1 - WINDOW - SINKS, 0)
        if SINKS == 0:
            begin = begin // TILE * TILE
    end = position + count
    maximum = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, PADDED), tl.float32)
    for start in range(begin, end, TILE):
        place = start + tl.arange(0, TILE)
        inside = place < end
        if SINKS > 0:
            # As if the sinks lay right before what the tile's first row sees.
            place = tl.where(place < begin + SINKS, place - begin, place)
        block = tl.load(table + place // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        base = ((block * KV_HEADS + kv_head) * BLOCK_SIZE + place % BLOCK_SIZE) * HEAD_DIM
        reach = base[:, None] + columns[None, :]
        loaded = inside[:, None] & (columns < HEAD_DIM)[None, :]
        key = tl.load(keys + reach, mask=loaded, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        if ALIBI:
            distance = (place[None, :] - own[:, None]).to(tl.float32)
            scores += tl.load(slopes + head) * distance * 1.4426950408889634
        seen = (place[None, :] <= own[:, None]) & inside[None, :]
        if SINKS > 0:
            seen &= (place[None, :] > own[:, None] - WINDOW) | (place[None, :] < SINKS)
        elif WINDOW > 0:
            seen &= place[None, :] > own[:, None] - WINDOW
        scores = tl.where(seen, scores, -1e30)
        higher = tl.maximum(maximum, tl.max(scores, axis=1))
        # A row that sees nothing of a tile must not count its masked scores.
        weights = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0)
        correction = tl.exp2(maximum - higher)
        total = total * correction + tl.sum(weights, axis=1)
        value = tl.load(values + reach, mask=loaded, other=0.0)
        mixed = mixed * correction[:, None]
        mixed += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
        maximum = higher
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + query_reach, mixed.to(out.dtype.element_ty), mask=query_inside)


def context_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    context: Context,
    window: int | None,
    shape: Shape,
    out: Tensor,
) -> None:
    tiles = context.rows.shape[0]
    _context_attention[(tiles, shape.heads)](
        queries,
        keys,
        values,
        block_tables,
        context.rows,
        context.slots,
        context.positions,
        context.counts,
        out,
        queries if shape.slopes is None else shape.slopes,
        shape.scale * 1.4426950408889634,
        block_tables.stride(0),
        HEADS=shape.heads,
        KV_HEADS=shape.kv_heads,
        HEAD_DIM=shape.head_dim,
        PADDED=max(16, triton.next_power_of_2(shape.head_dim)),
        BLOCK_SIZE=shape.tokens_per_block,
        ROWS=CONTEXT_TILE,
        TILE=64,
        WINDOW=window or 0,
        SINKS=shape.sink_tokens if window else 0,
        ALIBI=shape.slopes is not None,
        PRECISION=_precision(queries),
        num_warps=4,
        num_stages=2,
    )


def _precision(x: Tensor) -> str:
    """float32 is multiplied as float32 and not as tf32."""
    return "ieee" if x.dtype == torch.float32 else "tf32"
