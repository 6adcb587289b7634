"""Attention of prompts over the paged cache on NVIDIA's Hopper, in Gluon, Triton's language with explicit
layouts.

A program stays on a multiprocessor and takes parts of tiles one after the other. One of its warps has the
copy engine fetch queries, and keys and values by blocks, of the next parts as well where there is room. Two
groups of four warps have a query head each, and compute the scores of the next piece of keys while they
weigh the values of the last one. Owns what runs on the device; `hopper` launches it, where it can run. Does
not know windows, sinks or biases, nor heads of other than 128 numbers of 16 bits.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

#: Numbers of a head, which are fetched and multiplied in two halves: a row of one is what the copy engine
#: permutes at a time, so that blocks lie one behind the other as one operand.
HEAD_DIM = gl.constexpr(128)
HALF = gl.constexpr(64)
#: Rows of a tile: those of one group of warps.
ROWS = gl.constexpr(64)
#: Tiles whose queries have room.
TILES = gl.constexpr(2)


@gluon.jit
def _items(cuts, groups):
    """How many parts this program takes."""
    items = gl.load(cuts) * groups
    programs = gl.num_programs(0)
    turns = items // programs
    return turns + (_place(turns) - turns * programs < items - turns * programs).to(gl.int32)


@gluon.jit
def _place(turn):
    """Which of all parts it takes then: forwards and backwards by turns, since long ones come first."""
    program, programs = gl.program_id(0), gl.num_programs(0)
    return turn * programs + gl.where(turn % 2 == 0, program, programs - 1 - program)


@gluon.jit
def _part(turn, cuts, tile_positions, tile_counts, tiles, groups, KEYS: gl.constexpr):
    """Part, group of heads and tile, with the tile's first position and rows, the pieces of the part from
    one to before another, and how many parts the tile has."""
    place = _place(turn)
    item = gl.load(cuts) - 1 - place // groups
    group = place % groups
    tile = gl.load(cuts + 1 + 2 * tiles + item)
    first = gl.load(cuts + 1 + tile)
    size = gl.load(cuts + 1 + tiles + tile)
    position = gl.load(tile_positions + tile)
    count = gl.load(tile_counts + tile)
    pieces = gl.cdiv(position + count, KEYS)
    begin = (item - first) * size
    return item, group, tile, position, count, begin, gl.minimum(begin + size, pieces), gl.cdiv(pieces, size)


@gluon.jit
def _fetch_piece(
    source, table, piece, last, kv_head, ready, buffers, slot,
    KV_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr, BLOCKS: gl.constexpr,
):  # fmt: skip
    """A piece's keys, or values; behind the ``last`` block of a sequence, that one again."""
    mbarrier.expect(ready, BLOCKS * BLOCK_SIZE * HEAD_DIM * 2)
    for part in gl.static_range(BLOCKS):
        block = gl.load(table + gl.minimum(piece * BLOCKS + part, last))
        row = (block * KV_HEADS + kv_head) * BLOCK_SIZE
        for half in gl.static_range(2):
            buffer = buffers.index((slot * 2 + half) * BLOCKS + part)
            tma.async_copy_global_to_shared(source, [row, half * HALF], ready, buffer)


@gluon.jit
def _fetch(
    queries, keys, values, query_buffers, key_buffers, value_buffers,
    query_ready, query_empty, key_ready, key_empty, value_ready, value_empty,
    block_tables, tile_rows, tile_slots, tile_positions, tile_counts, cuts, table_width, tiles,
    HEADS: gl.constexpr, KV_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr, KEYS: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """What one warp does: queries of each part, with those of other tiles where its own has fewer rows, and
    its keys and values from the last piece to the first."""
    groups: gl.constexpr = HEADS // 2
    BLOCKS: gl.constexpr = KEYS // BLOCK_SIZE
    done = 0
    for turn in range(_items(cuts, groups)):
        _, group, tile, position, count, begin, end, _ = _part(
            turn, cuts, tile_positions, tile_counts, tiles, groups, KEYS
        )
        kv_head = group * 2 // (HEADS // KV_HEADS)
        table = block_tables + gl.load(tile_slots + tile).to(gl.int64) * table_width
        last = (position + count - 1) // BLOCK_SIZE
        room, room_phase = turn % TILES, turn // TILES & 1
        first_row = gl.load(tile_rows + tile)
        mbarrier.wait(query_empty.index(room), room_phase ^ 1)
        mbarrier.expect(query_ready.index(room), 2 * ROWS * HEAD_DIM * 2)
        for quarter in gl.static_range(4):
            tma.async_copy_global_to_shared(
                queries, [first_row, group * 2 * HEAD_DIM + quarter * HALF], query_ready.index(room),
                query_buffers.index(room * 4 + quarter),
            )  # fmt: skip
        for back in range(end - begin):
            slot, phase = (done + back) % STAGES, (done + back) // STAGES & 1
            piece = end - 1 - back
            mbarrier.wait(key_empty.index(slot), phase ^ 1)
            _fetch_piece(
                keys, table, piece, last, kv_head, key_ready.index(slot), key_buffers, slot,
                KV_HEADS, BLOCK_SIZE, BLOCKS,
            )  # fmt: skip
            mbarrier.wait(value_empty.index(slot), phase ^ 1)
            _fetch_piece(
                values, table, piece, last, kv_head, value_ready.index(slot), value_buffers, slot,
                KV_HEADS, BLOCK_SIZE, BLOCKS,
            )  # fmt: skip
        done += end - begin


@gluon.jit
def _sums(weights):
    """Of what each thread has of a row: a quarter."""
    return gl.sum(gl.sum(gl.reshape(weights, [ROWS, weights.shape[1] // 8, 4, 2]), axis=3), axis=1)


@gluon.jit
def _score(queries, query, keys, slot, SCORES: gl.constexpr):
    """Begins to multiply; to be waited for."""
    KEYS: gl.constexpr = keys.shape[1]
    nothing = gl.zeros([ROWS, KEYS], gl.float32, layout=SCORES)
    first, second = keys.index(slot * 2).permute((1, 0)), keys.index(slot * 2 + 1).permute((1, 0))
    scores = warpgroup_mma(queries.index(query), first, nothing, use_acc=False, is_async=True)
    return warpgroup_mma(queries.index(query + 1), second, scores, is_async=True)


@gluon.jit
def _weigh(scores, maximum, total, place, own, scale, MASKED: gl.constexpr):
    """Weights of a piece, in base 2, and what all before them is to be multiplied by."""
    if MASKED:
        seen = place[None, :] <= own[:, None]
        scores = gl.where(seen, scores, -1e30)
    higher = gl.maximum(maximum, gl.max(scores, axis=1) * scale)
    weights = gl.exp2(scores * scale - higher[:, None])
    if MASKED:
        # A row that sees nothing of a piece must not count its masked scores.
        weights = gl.where(seen, weights, 0.0)
    correction = gl.exp2(maximum - higher)
    by_thread = gl.convert_layout(correction, gl.SliceLayout(1, total.type.layout))
    return weights, higher, total * by_thread[:, None] + _sums(weights), correction


@gluon.jit
def _continue(
    first, stop, end, done, query_buffers, query, keys, values, key_ready, key_empty, value_ready,
    value_empty, weights, maximum, total, low, high, own, columns, scale,
    KEYS: gl.constexpr, STAGES: gl.constexpr, MASKED: gl.constexpr,
    SCORES: gl.constexpr, MIXED: gl.constexpr, WEIGHTS: gl.constexpr,
):  # fmt: skip
    """The pieces from the ``first`` to before ``stop``, counted from the end: scores of each while the values
    of the one before are mixed by their ``weights``."""
    for back in range(first, stop):
        slot, phase = (done + back) % STAGES, (done + back) // STAGES & 1
        before, phase_before = (done + back - 1) % STAGES, (done + back - 1) // STAGES & 1
        mbarrier.wait(key_ready.index(slot), phase)
        scores = _score(query_buffers, query, keys, slot, SCORES)
        mbarrier.wait(value_ready.index(before), phase_before)
        low = warpgroup_mma(weights, values.index(before * 2), low, is_async=True)
        high = warpgroup_mma(weights, values.index(before * 2 + 1), high, is_async=True)
        scores = warpgroup_mma_wait(2, deps=[scores])
        mbarrier.arrive(key_empty.index(slot))
        wide, maximum, total, correction = _weigh(
            scores, maximum, total, (end - 1 - back) * KEYS + columns, own, scale, MASKED
        )
        fresh = gl.convert_layout(wide.to(weights.dtype), WEIGHTS)
        # Sums are never negative and nothing is stored. But without it the assembler moves all that was
        # just computed behind the wait, where the matrix unit has nothing to do meanwhile.
        total = gl.inline_asm_elementwise(
            "{ .reg .pred p; .reg .b32 a; setp.lt.f32 p, $1, 0f00000000; mov.b32 a, 0;"
            " @p st.volatile.shared.f32 [a], $1; mov.f32 $0, $1; }",
            "=f,f", [total], dtype=gl.float32, is_pure=False, pack=1,
        )  # fmt: skip
        low, high, weights, fresh = warpgroup_mma_wait(0, deps=[low, high, weights, fresh])
        mbarrier.arrive(value_empty.index(before))
        factor = gl.convert_layout(correction, gl.SliceLayout(1, MIXED))[:, None]
        low = low * factor
        high = high * factor
        weights = fresh
    return weights, maximum, total, low, high


@gluon.jit
def _blank(values, slot, seen, KEYS: gl.constexpr, LOADED: gl.constexpr):
    """Zeros for values from a row on: what nobody wrote may be no number, and weighs nothing."""
    rows = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LOADED))
    for half in gl.static_range(2):
        value = values.index(slot * 2 + half).load(LOADED)
        values.index(slot * 2 + half).store(gl.where((rows < seen)[:, None], value, 0.0).to(value.dtype))
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def _mix(
    query_buffers, key_buffers, value_buffers,
    query_ready, query_empty, key_ready, key_empty, value_ready, value_empty,
    tile_rows, tile_positions, tile_counts, cuts, parts, maxima, sums, out, scale, tiles,
    HEADS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, which: gl.constexpr,
):  # fmt: skip
    """What four warps do: attention of one of the two heads."""
    groups: gl.constexpr = HEADS // 2
    dtype: gl.constexpr = out.dtype.element_ty
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    MIXED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, MIXED, 2)
    LOADED: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    keys = key_buffers._reinterpret(dtype, [STAGES * 2, KEYS, HALF], SHARED)
    values = value_buffers._reinterpret(dtype, [STAGES * 2, KEYS, HALF], SHARED)
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LOADED))
    column = gl.arange(0, HALF, layout=gl.SliceLayout(0, LOADED))
    places = gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
    columns = gl.arange(0, KEYS, layout=gl.SliceLayout(0, SCORES))
    mixed_rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, MIXED))
    mixed_column = gl.arange(0, HALF, layout=gl.SliceLayout(0, MIXED))
    done = 0
    for turn in range(_items(cuts, groups)):
        item, group, tile, position, count, begin, end, own_parts = _part(
            turn, cuts, tile_positions, tile_counts, tiles, groups, KEYS
        )
        first_row = gl.load(tile_rows + tile).to(gl.int64)
        head = group * 2 + which
        room, room_phase = turn % TILES, turn // TILES & 1
        query = room * 4 + which * 2
        mbarrier.wait(query_ready.index(room), room_phase)
        own = position + places
        maximum = gl.full([ROWS], -1e30, gl.float32, layout=gl.SliceLayout(1, SCORES))
        total = _sums(gl.zeros([ROWS, KEYS], gl.float32, layout=SCORES))
        low = gl.zeros([ROWS, HALF], gl.float32, layout=MIXED)
        high = gl.zeros([ROWS, HALF], gl.float32, layout=MIXED)
        turns = end - begin
        # Every row sees all of what lies before the first one.
        masked = gl.minimum(gl.maximum(end - gl.maximum((position + 1) // KEYS, begin), 1), turns)
        slot, phase = done % STAGES, done // STAGES & 1
        mbarrier.wait(key_ready.index(slot), phase)
        scores = warpgroup_mma_wait(0, deps=[_score(query_buffers, query, keys, slot, SCORES)])
        mbarrier.arrive(key_empty.index(slot))
        wide, maximum, total, _ = _weigh(
            scores, maximum, total, (end - 1) * KEYS + columns, own, scale, True
        )  # fmt: skip
        weights = gl.convert_layout(wide.to(dtype), WEIGHTS)
        if end * KEYS > position + count:
            mbarrier.wait(value_ready.index(slot), phase)
            _blank(values, slot, position + count - (end - 1) * KEYS, KEYS, LOADED)
        weights, maximum, total, low, high = _continue(
            1, masked, end, done, query_buffers, query, keys, values, key_ready, key_empty, value_ready,
            value_empty, weights, maximum, total, low, high, own, columns, scale,
            KEYS, STAGES, True, SCORES, MIXED, WEIGHTS,
        )  # fmt: skip
        weights, maximum, total, low, high = _continue(
            masked, turns, end, done, query_buffers, query, keys, values, key_ready, key_empty, value_ready,
            value_empty, weights, maximum, total, low, high, own, columns, scale,
            KEYS, STAGES, False, SCORES, MIXED, WEIGHTS,
        )  # fmt: skip
        mbarrier.arrive(query_empty.index(room))
        done += turns
        slot, phase = (done - 1) % STAGES, (done - 1) // STAGES & 1
        mbarrier.wait(value_ready.index(slot), phase)
        low = warpgroup_mma(weights, values.index(slot * 2), low, is_async=True)
        high = warpgroup_mma(weights, values.index(slot * 2 + 1), high, is_async=True)
        low, high, weights = warpgroup_mma_wait(0, deps=[low, high, weights])
        mbarrier.arrive(value_empty.index(slot))

        whole = gl.convert_layout(gl.sum(total, axis=1), gl.SliceLayout(1, SCORES))
        if own_parts == 1:
            share = gl.convert_layout(1.0 / gl.where(whole > 0, whole, 1.0), gl.SliceLayout(1, MIXED))
            # As a thread's numbers lie behind each other in memory.
            low_out = gl.convert_layout((low * share[:, None]).to(dtype), LOADED)
            high_out = gl.convert_layout((high * share[:, None]).to(dtype), LOADED)
            written = ((first_row + rows) * HEADS + head)[:, None] * HEAD_DIM + column[None, :]
            gl.store(out + written, low_out, mask=(rows < count)[:, None])
            gl.store(out + written + HALF, high_out, mask=(rows < count)[:, None])
        else:
            part = (item * groups + group).to(gl.int64) * (2 * ROWS) + which * ROWS
            kept = (part + mixed_rows)[:, None] * HEAD_DIM + mixed_column[None, :]
            gl.store(parts + kept, low)
            gl.store(parts + kept + HALF, high)
            gl.store(maxima + part + places, maximum)
            gl.store(sums + part + places, whole)


@gluon.jit(do_not_specialize=["tiles"])
def attend_parts(
    queries, keys, values, block_tables, tile_rows, tile_slots, tile_positions, tile_counts,
    cuts, parts, maxima, sums, out, scale, table_width, tiles,
    HEADS: gl.constexpr, KV_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr,
    KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As `context_kernels._attend_parts`, with two heads together and pieces of ``KEYS`` keys. Descriptors:
    queries, of ``[T, HEADS x 128]`` in boxes of ``ROWS`` by ``HALF``; keys and values, of
    ``[blocks x KV_HEADS x BLOCK_SIZE, 128]`` in boxes of a block by ``HALF``."""
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    BLOCKS: gl.constexpr = KEYS // BLOCK_SIZE
    dtype: gl.constexpr = out.dtype.element_ty
    key_buffers = gl.allocate_shared_memory(dtype, [STAGES * 2 * BLOCKS, BLOCK_SIZE, HALF], SHARED)
    value_buffers = gl.allocate_shared_memory(dtype, [STAGES * 2 * BLOCKS, BLOCK_SIZE, HALF], SHARED)
    query_buffers = gl.allocate_shared_memory(dtype, [TILES * 4, ROWS, HALF], SHARED)
    query_ready = gl.allocate_shared_memory(gl.int64, [TILES, 1], mbarrier.MBarrierLayout())
    query_empty = gl.allocate_shared_memory(gl.int64, [TILES, 1], mbarrier.MBarrierLayout())
    key_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    key_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    value_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    value_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for room in gl.static_range(TILES):
        mbarrier.init(query_ready.index(room), count=1)
        mbarrier.init(query_empty.index(room), count=2)
    for slot in gl.static_range(STAGES):
        mbarrier.init(key_ready.index(slot), count=1)
        mbarrier.init(key_empty.index(slot), count=2)
        mbarrier.init(value_ready.index(slot), count=1)
        mbarrier.init(value_empty.index(slot), count=2)
    gl.warp_specialize(
        [
            (_mix, (
                query_buffers, key_buffers, value_buffers,
                query_ready, query_empty, key_ready, key_empty, value_ready, value_empty,
                tile_rows, tile_positions, tile_counts, cuts, parts, maxima, sums, out, scale, tiles,
                HEADS, KEYS, STAGES, 0,
            )),
            (_mix, (
                query_buffers, key_buffers, value_buffers,
                query_ready, query_empty, key_ready, key_empty, value_ready, value_empty,
                tile_rows, tile_positions, tile_counts, cuts, parts, maxima, sums, out, scale, tiles,
                HEADS, KEYS, STAGES, 1,
            )),
            (_fetch, (
                queries, keys, values, query_buffers, key_buffers, value_buffers,
                query_ready, query_empty, key_ready, key_empty, value_ready, value_empty,
                block_tables, tile_rows, tile_slots, tile_positions, tile_counts, cuts, table_width, tiles,
                HEADS, KV_HEADS, BLOCK_SIZE, KEYS, STAGES,
            )),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
