"""Attention of prompts over the paged cache, in Triton the language.

A chunk's rows go tile by tile. Where there are few tiles, or a few more than the device takes at a time, one
program for each would leave most of the device idle: a few rows behind a long context would take as long as
thousands. So a plan, made once an iteration on the device, cuts the keys of tiles into parts of about the
same size: `plan` knows nothing of layers, and `context_attention` follows it in each. Layers with a window,
whose contexts are short, and models with linear biases take one program for each tile. Sizes follow from the
number of tiles alone, so that an iteration can be captured in a CUDA graph. Where `hopper` has faster kernels
for them, these attend to the parts.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from . import hopper, latent_kernels
from .operations import CONTEXT_TILE, AttentionShape, Context, Tensor
from .softcap_kernels import cap_scores

#: Keys of a piece: tiles are cut between two of them. Fewer with more than 128 numbers a head, so that
#: two programs fit in the shared memory of a multiprocessor.
_KEYS, _KEYS_OF_WIDE = 64, 32
#: Parts of a tile at most.
_MOST_PARTS = 32
#: To join a part takes as long as so many pieces.
_JOINING = 4
#: Programs that a multiprocessor runs at a time, with two query heads each and with one.
_AT_A_TIME, _AT_A_TIME_ALONE = 2, 3
#: Parts of an iteration that is cut at most, and those beyond one a tile, in terms of what the device takes
#: at a time: with more tiles there is little to gain.
_MOST_CUT, _MORE_PARTS = 8, 4
#: Rows that a program joins.
_JOINED_ROWS = 32
#: Programs that fill the device: with fewer, each should be short.
_FULL = 128


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """Which program attends to what; int32 on the device."""

    #: How many parts there are, then the first part and the pieces a part of each tile, then the tile of each
    #: part.
    cuts: Tensor
    #: What parts of a tile give, for who joins them: by part, group of heads and row.
    parts: Tensor
    maxima: Tensor
    sums: Tensor
    #: Parts at most, and how many tiles are joined at a time.
    most: int
    at_a_time: int
    #: Keys of a piece, and whether `hopper` attends to the parts.
    keys: int
    on_hopper: bool


@triton.jit(do_not_specialize=["tiles"])
def _plan(
    tile_positions,
    tile_counts,
    cuts,
    tiles,
    AT_A_TIME: tl.constexpr,
    MORE: tl.constexpr,
    MOST: tl.constexpr,
    MOST_CUT: tl.constexpr,
    JOINING: tl.constexpr,
    KEYS: tl.constexpr,
    TILES: tl.constexpr,
):
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    count = tl.load(tile_counts + tile, mask=inside, other=0)
    keys = tl.where(count > 0, tl.load(tile_positions + tile, mask=inside, other=0) + count, 0)
    pieces = tl.cdiv(keys, KEYS)
    used = tl.sum((pieces > 0).to(tl.int32), axis=0)
    longest = tl.max(pieces, axis=0)
    evenly = tl.cdiv(tl.sum(pieces, axis=0), AT_A_TIME)
    # The size of parts with which the last program ends soonest: they take turns, or follow where one ends.
    size = tl.maximum(longest, 1)
    soonest = tl.minimum(tl.cdiv(used, AT_A_TIME) * size, evenly + size)
    for most in range(2, MOST + 1):
        smaller = tl.maximum(tl.cdiv(longest, most), 1)
        own = tl.cdiv(pieces, smaller)
        parts = tl.sum(own, axis=0)
        cut = tl.sum(tl.where(own > 1, own, 0), axis=0)
        ends = tl.minimum(tl.cdiv(parts, AT_A_TIME) * smaller, evenly + smaller)
        ends += tl.cdiv(cut * JOINING, AT_A_TIME)
        is_sooner = (ends < soonest) & (parts <= used + MORE) & (parts <= MOST_CUT)
        size = tl.where(is_sooner, smaller, size)
        soonest = tl.where(is_sooner, ends, soonest)
    own = tl.cdiv(pieces, size)
    own_size = tl.cdiv(pieces, tl.maximum(own, 1))
    own = tl.where(pieces > 0, tl.cdiv(pieces, tl.maximum(own_size, 1)), 0)
    first = tl.cumsum(own, axis=0) - own
    tl.store(cuts, tl.sum(own, axis=0))
    tl.store(cuts + 1 + tile, first, mask=inside)
    tl.store(cuts + 1 + tiles + tile, own_size, mask=inside)
    for part in range(tl.max(own, axis=0)):
        tl.store(cuts + 1 + 2 * tiles + first + part, tile, mask=part < own)


def plan(
    context: Context, shape: AttentionShape, element_size: int, narrow: bool = False
) -> ContextPlan | None:
    """How the tiles of an iteration's prompts are attended to where no window is; None: a program each.
    ``narrow``: the cache's numbers have fewer bytes than those of queries."""
    if shape.slopes is not None or shape.value_dim is not None:
        return None
    device = context.rows.device
    tiles = context.rows.shape[0]
    together = _heads_together(shape, element_size)
    groups = shape.heads // together
    on_hopper = hopper.is_usable(device, shape, element_size, narrow)
    programs = 1 if on_hopper else _AT_A_TIME if together == 2 else _AT_A_TIME_ALONE
    at_a_time = max(1, programs * _multiprocessors(device) // groups)
    keys = hopper.KEYS if on_hopper else _keys(shape)
    more, most_cut = _MORE_PARTS * at_a_time, _MOST_CUT * at_a_time
    most = tiles + more
    cuts = torch.empty(1 + 2 * tiles + most, dtype=torch.int32, device=device)
    # Only an iteration that is cut has something to join.
    rows = min(most, most_cut) * groups * CONTEXT_TILE * together
    parts = torch.empty((rows, shape.head_dim), dtype=torch.float32, device=device)
    maxima, sums = torch.empty((2, rows), dtype=torch.float32, device=device)
    _plan[(1,)](
        context.positions,
        context.counts,
        cuts,
        tiles,
        AT_A_TIME=at_a_time,
        MORE=more,
        MOST=_MOST_PARTS,
        MOST_CUT=most_cut,
        JOINING=_JOINING * _KEYS // keys,
        KEYS=keys,
        TILES=triton.next_power_of_2(tiles),
        num_warps=4,
    )
    return ContextPlan(cuts, parts, maxima, sums, most, at_a_time, keys, on_hopper)


@functools.cache
def _multiprocessors(device: Tensor) -> int:
    if device.type != "cuda":  # Triton's interpreter
        return 8
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _keys(shape: AttentionShape) -> int:
    return _KEYS if shape.head_dim <= 128 else _KEYS_OF_WIDE


def _heads_together(shape: AttentionShape, element_size: int) -> int:
    """Query heads that a program computes: keys and values are read once for all of them.

    In 16 bits, with 128 numbers a head, two are 1.2 to 1.3 times as fast as one on an H200, and four are
    slower than two. More numbers a head, or 32 bits, leave too few registers for two.
    """
    shared = shape.heads // shape.kv_heads
    return 2 if shared % 2 == 0 and shape.head_dim <= 128 and element_size == 2 else 1


@triton.jit
def _see_all(
    query,
    keys,
    values,
    table,
    kv_head,
    begin,
    end,
    maximum,
    total,
    mixed,
    scale,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
    CAP: tl.constexpr,
):
    """Whole pieces of keys, from one to before another, that every row sees."""
    columns = tl.arange(0, PADDED)
    for piece in range(begin, end):
        place = piece * TILE + tl.arange(0, TILE)
        block = tl.load(table + place // BLOCK_SIZE).to(tl.int64)
        base = ((block * KV_HEADS + kv_head) * BLOCK_SIZE + place % BLOCK_SIZE) * HEAD_DIM
        reach = base[:, None] + columns[None, :]
        if HEAD_DIM == PADDED:
            key = tl.load(keys + reach).to(query.dtype)
        else:
            key = tl.load(keys + reach, mask=columns[None, :] < HEAD_DIM, other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        if CAP > 0:
            scores = cap_scores(scores * scale, CAP)
            higher = tl.maximum(maximum, tl.max(scores, axis=1))
            weights = tl.exp2(scores - higher[:, None])
        else:
            higher = tl.maximum(maximum, tl.max(scores, axis=1) * scale)
            weights = tl.exp2(scores * scale - higher[:, None])
        correction = tl.exp2(maximum - higher)
        total = total * correction + tl.sum(weights, axis=1)
        if HEAD_DIM == PADDED:
            value = tl.load(values + reach).to(query.dtype)
        else:
            value = tl.load(values + reach, mask=columns[None, :] < HEAD_DIM, other=0.0).to(query.dtype)
        mixed = mixed * correction[:, None]
        mixed += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
        maximum = higher
    return maximum, total, mixed


@triton.jit
def _see_some(
    query,
    keys,
    values,
    table,
    kv_head,
    heads,
    own,
    begin,
    end,
    first,
    maximum,
    total,
    mixed,
    slopes,
    scale,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    ALIBI: tl.constexpr,
    PRECISION: tl.constexpr,
    CAP: tl.constexpr,
):
    """Keys of which a row sees those that are not after it and lie in its window, or are sinks, which count
    as if they lay from ``first`` on."""
    columns = tl.arange(0, PADDED)
    for start in range(begin, end, TILE):
        place = start + tl.arange(0, TILE)
        inside = place < end
        if SINKS > 0:
            place = tl.where(place < first + SINKS, place - first, place)
        block = tl.load(table + place // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        base = ((block * KV_HEADS + kv_head) * BLOCK_SIZE + place % BLOCK_SIZE) * HEAD_DIM
        reach = base[:, None] + columns[None, :]
        loaded = inside[:, None] & (columns < HEAD_DIM)[None, :]
        key = tl.load(keys + reach, mask=loaded, other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
        if CAP > 0:
            scores = cap_scores(scores, CAP)
        if ALIBI:
            distance = (place[None, :] - own[:, None]).to(tl.float32)
            scores += tl.load(slopes + heads)[:, None] * distance * 1.4426950408889634
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
        value = tl.load(values + reach, mask=loaded, other=0.0).to(query.dtype)
        mixed = mixed * correction[:, None]
        mixed += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
        maximum = higher
    return maximum, total, mixed


@triton.jit
def _attend_tiles(
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
    sink_scores,
    scale,
    table_width,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TOGETHER: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    ALIBI: tl.constexpr,
    SCORED_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    CAP: tl.constexpr,
):
    """One tile of a chunk's rows, for ``TOGETHER`` query heads that read one key head, head after head.
    Scores are in base 2."""
    tile = tl.program_id(0)
    first_head = tl.program_id(1) * TOGETHER
    kv_head = first_head // (HEADS // KV_HEADS)
    first_row = tl.load(tile_rows + tile).to(tl.int64)
    position = tl.load(tile_positions + tile)
    count = tl.load(tile_counts + tile)
    table = block_tables + tl.load(tile_slots + tile).to(tl.int64) * table_width

    rows = tl.arange(0, ROWS * TOGETHER) % ROWS
    heads = first_head + tl.arange(0, ROWS * TOGETHER) // ROWS
    columns = tl.arange(0, PADDED)
    query_reach = ((first_row + rows) * HEADS + heads)[:, None] * HEAD_DIM + columns[None, :]
    query_inside = (rows < count)[:, None] & (columns < HEAD_DIM)[None, :]
    query = tl.load(queries + query_reach, mask=query_inside, other=0.0)

    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(position + 1 - WINDOW - SINKS, 0)
        if SINKS == 0:
            begin = begin // TILE * TILE
    maximum = tl.full((ROWS * TOGETHER,), -1e30, tl.float32)
    total = tl.zeros((ROWS * TOGETHER,), tl.float32)
    mixed = tl.zeros((ROWS * TOGETHER, PADDED), tl.float32)
    if SCORED_SINKS:
        # Counted as a key whose value is zero.
        maximum = tl.load(sink_scores + heads) * 1.4426950408889634
        total += 1.0
    if (WINDOW == 0) & (not ALIBI):
        # Every row sees all of what lies before the first one.
        clear = (position + 1) // TILE
        begin = clear * TILE
        maximum, total, mixed = _see_all(
            query, keys, values, table, kv_head, 0, clear, maximum, total, mixed,
            scale, KV_HEADS, HEAD_DIM, PADDED, BLOCK_SIZE, TILE, PRECISION,
            CAP=CAP,
        )  # fmt: skip
    maximum, total, mixed = _see_some(
        query, keys, values, table, kv_head, heads, position + rows, begin, position + count, begin,
        maximum, total, mixed, slopes, scale,
        KV_HEADS, HEAD_DIM, PADDED, BLOCK_SIZE, TILE, WINDOW, SINKS, ALIBI, PRECISION,
        CAP=CAP,
    )  # fmt: skip
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + query_reach, mixed.to(out.dtype.element_ty), mask=query_inside)


@triton.jit(do_not_specialize=["tiles"])
def _attend_parts(
    queries,
    keys,
    values,
    block_tables,
    tile_rows,
    tile_slots,
    tile_positions,
    tile_counts,
    cuts,
    parts,
    maxima,
    sums,
    out,
    sink_scores,
    scale,
    table_width,
    tiles,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TOGETHER: tl.constexpr,
    TILE: tl.constexpr,
    SCORED_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    CAP: tl.constexpr,
):
    """A part of a tile's keys, otherwise as `_attend_tiles`; `_join` makes the output of what was cut."""
    # The last tile of a chunk sees most: it begins first.
    item = tl.load(cuts) - 1 - tl.program_id(0)
    if item < 0:
        return
    group = tl.program_id(1)
    groups = HEADS // TOGETHER
    tile = tl.load(cuts + 1 + 2 * tiles + item)
    first = tl.load(cuts + 1 + tile)
    size = tl.load(cuts + 1 + tiles + tile)
    first_head = group * TOGETHER
    kv_head = first_head // (HEADS // KV_HEADS)
    first_row = tl.load(tile_rows + tile).to(tl.int64)
    position = tl.load(tile_positions + tile)
    count = tl.load(tile_counts + tile)
    table = block_tables + tl.load(tile_slots + tile).to(tl.int64) * table_width
    begin = (item - first) * size
    end = tl.minimum(begin + size, tl.cdiv(position + count, TILE))

    places = tl.arange(0, ROWS * TOGETHER)
    rows = places % ROWS
    heads = first_head + places // ROWS
    columns = tl.arange(0, PADDED)
    query_reach = ((first_row + rows) * HEADS + heads)[:, None] * HEAD_DIM + columns[None, :]
    query_inside = (rows < count)[:, None] & (columns < HEAD_DIM)[None, :]
    query = tl.load(queries + query_reach, mask=query_inside, other=0.0)

    maximum = tl.full((ROWS * TOGETHER,), -1e30, tl.float32)
    total = tl.zeros((ROWS * TOGETHER,), tl.float32)
    mixed = tl.zeros((ROWS * TOGETHER, PADDED), tl.float32)
    if SCORED_SINKS:  # noqa: SIM102 -- a choice of the compiler's
        # Counted as a key whose value is zero, by the first part.
        if item == first:
            maximum = tl.load(sink_scores + heads) * 1.4426950408889634
            total += 1.0
    # Every row sees all of what lies before the first one.
    clear = (position + 1) // TILE
    maximum, total, mixed = _see_all(
        query, keys, values, table, kv_head, begin, tl.minimum(end, clear), maximum, total, mixed,
        scale, KV_HEADS, HEAD_DIM, PADDED, BLOCK_SIZE, TILE, PRECISION,
        CAP=CAP,
    )  # fmt: skip
    maximum, total, mixed = _see_some(
        query, keys, values, table, kv_head, heads, position + rows, tl.maximum(begin, clear) * TILE,
        tl.minimum(end * TILE, position + count), 0, maximum, total, mixed, queries, scale,
        KV_HEADS, HEAD_DIM, PADDED, BLOCK_SIZE, TILE, 0, 0, False, PRECISION,
        CAP=CAP,
    )  # fmt: skip
    # Read again: what would be kept over the loops is taken from what they need.
    tile = tl.load(cuts + 1 + 2 * tiles + item, volatile=True)
    count = tl.load(tile_counts + tile, volatile=True)
    first_row = tl.load(tile_rows + tile, volatile=True).to(tl.int64)
    pieces = tl.cdiv(tl.load(tile_positions + tile, volatile=True) + count, TILE)
    own = tl.cdiv(pieces, tl.load(cuts + 1 + tiles + tile, volatile=True))
    query_reach = ((first_row + rows) * HEADS + heads)[:, None] * HEAD_DIM + columns[None, :]
    query_inside = (rows < count)[:, None] & (columns < HEAD_DIM)[None, :]
    if own == 1:
        mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + query_reach, mixed.to(out.dtype.element_ty), mask=query_inside)
    else:
        part = (item * groups + group).to(tl.int64) * (ROWS * TOGETHER) + places
        tl.store(
            parts + part[:, None] * HEAD_DIM + columns[None, :], mixed, mask=(columns < HEAD_DIM)[None, :]
        )
        tl.store(maxima + part, maximum)
        tl.store(sums + part, total)


@triton.jit(do_not_specialize=["tiles"])
def _join(
    tile_rows,
    tile_positions,
    tile_counts,
    cuts,
    parts,
    maxima,
    sums,
    out,
    tiles,
    joined,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    TOGETHER: tl.constexpr,
    TILE: tl.constexpr,
    OWN: tl.constexpr,
):
    """``OWN`` rows of tiles that were cut, from what their parts gave; of the first ``joined`` tiles."""
    group = tl.program_id(1)
    groups = HEADS // TOGETHER
    places = tl.program_id(2) * OWN + tl.arange(0, OWN)
    columns = tl.arange(0, PADDED)
    inside = (columns < HEAD_DIM)[None, :]
    for tile in range(tl.program_id(0), joined, tl.num_programs(0)):
        count = tl.load(tile_counts + tile)
        size = tl.load(cuts + 1 + tiles + tile)
        pieces = tl.where(count > 0, tl.cdiv(tl.load(tile_positions + tile) + count, TILE), 0)
        own = tl.cdiv(pieces, tl.maximum(size, 1))
        if own > 1:
            first = tl.load(cuts + 1 + tile)
            maximum = tl.full((OWN,), -1e30, tl.float32)
            total = tl.zeros((OWN,), tl.float32)
            mixed = tl.zeros((OWN, PADDED), tl.float32)
            for item in range(first, first + own):
                part = (item * groups + group).to(tl.int64) * (ROWS * TOGETHER) + places
                given = tl.load(maxima + part)
                higher = tl.maximum(maximum, given)
                correction = tl.exp2(maximum - higher)
                weight = tl.exp2(given - higher)
                total = total * correction + weight * tl.load(sums + part)
                loaded = tl.load(parts + part[:, None] * HEAD_DIM + columns[None, :], mask=inside, other=0.0)
                mixed = mixed * correction[:, None] + loaded * weight[:, None]
                maximum = higher
            rows = tl.load(tile_rows + tile).to(tl.int64) + places % ROWS
            heads = group * TOGETHER + places // ROWS
            mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
            reach = (rows * HEADS + heads)[:, None] * HEAD_DIM + columns[None, :]
            written = (places % ROWS < count)[:, None] & inside
            tl.store(out + reach, mixed.to(out.dtype.element_ty), mask=written)


def context_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    context: Context,
    window: int | None,
    shape: AttentionShape,
    plan: ContextPlan | None,
    out: Tensor,
    sink_scores: Tensor | None = None,
) -> None:
    """Chunks of prompts, as `operations.context_attention` has it."""
    if shape.value_dim is not None:
        latent_kernels.prompts(queries, keys, block_tables, context, shape, out)
        return
    tiles = context.rows.shape[0]
    together = _heads_together(shape, queries.element_size())
    scale = shape.scale * 1.4426950408889634
    tile = (context.rows, context.slots, context.positions, context.counts)
    common = {
        "HEADS": shape.heads,
        "KV_HEADS": shape.kv_heads,
        "HEAD_DIM": shape.head_dim,
        "PADDED": max(16, triton.next_power_of_2(shape.head_dim)),
        "BLOCK_SIZE": shape.tokens_per_block,
        "ROWS": CONTEXT_TILE,
        "TILE": _keys(shape),
        "PRECISION": "ieee" if queries.dtype == torch.float32 else "tf32",
        "CAP": shape.softcap or 0.0,
        "num_warps": 4,
        "num_stages": 2,
    }
    width = block_tables.stride(0)
    has_sinks, sinks = (False, queries) if sink_scores is None else (True, sink_scores)
    if plan is not None and window is None:
        made = (plan.cuts, plan.parts, plan.maxima, plan.sums)
        if plan.on_hopper:
            programs = _multiprocessors(queries.device)
            hopper.attend(queries, keys, values, block_tables, context, shape, made, programs, out)
        else:
            _attend_parts[(plan.most, shape.heads // together)](
                queries, keys, values, block_tables, *tile, *made, out, sinks, scale, width, tiles,
                TOGETHER=together, SCORED_SINKS=has_sinks, **common,
            )  # fmt: skip
        grid = (plan.at_a_time, shape.heads // together, CONTEXT_TILE * together // _JOINED_ROWS)
        _join[grid](
            context.rows, context.positions, context.counts,
            *made, out, tiles, min(tiles, _MOST_CUT * plan.at_a_time),
            HEADS=shape.heads, HEAD_DIM=shape.head_dim, PADDED=common["PADDED"], ROWS=CONTEXT_TILE,
            TOGETHER=together, TILE=plan.keys, OWN=_JOINED_ROWS, num_warps=4,
        )  # fmt: skip
        return
    if tiles * shape.heads // together < _FULL:
        together = 1
    _attend_tiles[(tiles, shape.heads // together)](
        queries, keys, values, block_tables, *tile,
        out, queries if shape.slopes is None else shape.slopes, sinks, scale, width,
        TOGETHER=together, WINDOW=window or 0, SINKS=shape.sink_tokens if window else 0,
        ALIBI=shape.slopes is not None, SCORED_SINKS=has_sinks, **common,
    )  # fmt: skip
