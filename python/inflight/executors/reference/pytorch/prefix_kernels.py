"""Attention of generation rows to keys that several sequences have in common, which are read once for all.

Owns finding such keys by the block tables, once an iteration on the device, and attending to them. Contexts
are cut into chunks of one size, at the same places for all rows. Rows whose tables name the same blocks in a
chunk read it together, whether a prompt, a system prompt or other choices of one request put them there; a
row has in common what lies before the first chunk that it reads alone. Knows nothing of what rows read alone
or of joining the parts, which is `generation_kernels`'.

Sizes follow from the number of rows alone, so that an iteration can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .common_prefixes import LEAST_ROWS
from .operations import AttentionShape, Tables, Tensor
from .softcap_kernels import cap_scores

#: Keys of a chunk at least; a power of two, as the size always is.
LEAST_KEYS = 256
#: Chunks of a context at most.
MOST_CHUNKS = 64
#: Rows times query heads of a key head that one program computes.
_LANES = 64
_FINDING_WARPS = 4
#: Keys a tile, warps and pipeline stages, measured on an H200.
_CUT = 64, 4, 3
#: Programs of a key head, each of which takes one set of rows after the other.
_PROGRAMS = 32


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Which rows read which chunks together; int32 on the device."""

    #: Sets of each chunk.
    counts: Tensor
    #: By chunk and row: whether the row reads the chunk together with others; and the rows, those of one set
    #: after the other.
    common: Tensor
    order: Tensor
    #: By chunk and set: the first of its rows in ``order``, and how many there are.
    firsts: Tensor
    filled: Tensor
    #: Sets of a chunk at most.
    sets: int
    #: How many parts all rows have of what they read together, about; twice as many at most.
    parts: int


@triton.jit
def chunk_keys(length, PARTS: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr):
    """Keys of a chunk for rows of these lengths: so many that the rows have about so many parts together,
    if they have all in common. What they do have is not known yet."""
    size = LEAST
    total = tl.sum(tl.maximum(length, 0), axis=0)
    longest = tl.max(length, axis=0)
    while (size * 2 * PARTS <= total) | (size * MOST < longest):
        size *= 2
    return size


@triton.jit(do_not_specialize=["count", "most_sets"])
def _find(
    positions,
    slots,
    block_tables,
    owners,
    counts,
    common,
    order,
    firsts,
    filled,
    scratch,
    table_width,
    count,
    most_sets,
    BLOCK_SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    LEAST_ROWS: tl.constexpr,
    SET_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The sets of rows that read one chunk together."""
    chunk = tl.program_id(0)
    row = tl.arange(0, ROWS)
    inside = row < count
    length = tl.load(positions + row, mask=inside, other=-1) + 1
    size = chunk_keys(length, PARTS, LEAST, MOST)
    # The newest key of a row is never among those in common.
    whole = inside & ((chunk + 1) * size < length)
    common += chunk * count
    if tl.sum(whole.to(tl.int32), axis=0) < LEAST_ROWS:
        tl.store(counts + chunk, 0)
        tl.store(common + row, 0, mask=inside)
        return
    order += chunk * count
    members = scratch + chunk * 3 * count
    first_places = members + count
    first_sets = members + 2 * count
    tl.store(members + row, 0, mask=inside)
    # Of the rows whose chunk ends with the same block one leads, whichever stored last; others follow if all
    # of their blocks are its blocks, as they are where blocks are found again by all that comes before them.
    # Should another chunk have this block, too, rows read alone.
    blocks = size // BLOCK_SIZE
    begin = chunk * blocks
    table = block_tables + tl.load(slots + row, mask=whole, other=0).to(tl.int64) * table_width + begin
    block = tl.load(table + blocks - 1, mask=whole, other=0)
    tl.store(owners + block, row, mask=whole)
    tl.debug_barrier()
    leader = tl.load(owners + block, mask=whole, other=0, cache_modifier=".cg")
    led = block_tables + tl.load(slots + leader, mask=whole, other=0).to(tl.int64) * table_width + begin
    same = whole
    for start in range(0, blocks, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        there = whole[:, None] & (column < blocks)[None, :]
        own = tl.load(table[:, None] + column[None, :], mask=there, other=0)
        others = tl.load(led[:, None] + column[None, :], mask=there, other=0)
        same = same & (tl.max((own != others).to(tl.int32), axis=1) == 0)
    place = tl.atomic_add(members + leader, 1, mask=same)
    tl.debug_barrier()
    found = tl.load(members + leader, mask=same, other=0, cache_modifier=".cg")
    in_common = same & (found >= LEAST_ROWS)
    is_first = in_common & (place == 0)
    sets = tl.where(is_first, tl.cdiv(found, SET_ROWS), 0)
    taken = tl.where(is_first, found, 0)
    tl.store(first_places + leader, tl.cumsum(taken, axis=0) - taken, mask=is_first)
    tl.store(first_sets + leader, tl.cumsum(sets, axis=0) - sets, mask=is_first)
    tl.debug_barrier()
    first = tl.load(first_places + leader, mask=in_common, other=0, cache_modifier=".cg")
    its_set = tl.load(first_sets + leader, mask=in_common, other=0, cache_modifier=".cg")
    tl.store(order + first + place, row, mask=in_common)
    begins = in_common & (place % SET_ROWS == 0)
    at = chunk * most_sets + its_set + place // SET_ROWS
    tl.store(firsts + at, first + place, mask=begins)
    tl.store(filled + at, tl.minimum(found - place, SET_ROWS), mask=begins)
    tl.store(common + row, in_common.to(tl.int32), mask=inside)
    tl.store(counts + chunk, tl.sum(sets, axis=0))


def parts_of(shape: AttentionShape) -> int:
    """So many that their sets fill the device."""
    return max(1, 16384 // shape.heads)


def prefix_keys(shape: AttentionShape) -> int | None:
    """How many keys rows have in common, at least, to read them together; None: they never do."""
    if shape.slopes is not None or shape.value_dim is not None or LEAST_KEYS % shape.tokens_per_block:
        return None
    fits = _set_rows(shape) >= LEAST_ROWS and shape.max_seq_len > LEAST_KEYS
    return LEAST_KEYS if fits else None


def _set_rows(shape: AttentionShape) -> int:
    """Rows that one program reads for at most."""
    return int(_LANES // triton.next_power_of_2(shape.heads // shape.kv_heads))


def find(positions: Tensor, tables: Tables, shape: AttentionShape) -> Prefixes:
    """What generation rows at these positions read together, where they do by `prefix_keys`."""
    rows = positions.shape[0]
    device = positions.device
    sets = rows // 2
    by_row = torch.empty((2, MOST_CHUNKS, rows), dtype=torch.int32, device=device)
    by_set = torch.empty((2, MOST_CHUNKS, sets), dtype=torch.int32, device=device)
    made = Prefixes(
        counts=torch.empty(MOST_CHUNKS, dtype=torch.int32, device=device),
        common=by_row[0],
        order=by_row[1],
        firsts=by_set[0],
        filled=by_set[1],
        sets=sets,
        parts=parts_of(shape),
    )
    _find[(MOST_CHUNKS,)](
        positions,
        tables.slots,
        tables.blocks,
        torch.empty(tables.count, dtype=torch.int32, device=device),
        made.counts,
        made.common,
        made.order,
        made.firsts,
        made.filled,
        torch.empty((MOST_CHUNKS, 3, rows), dtype=torch.int32, device=device),
        tables.blocks.stride(0),
        rows,
        sets,
        BLOCK_SIZE=shape.tokens_per_block,
        PARTS=made.parts,
        LEAST=LEAST_KEYS,
        MOST=MOST_CHUNKS,
        LEAST_ROWS=LEAST_ROWS,
        SET_ROWS=_set_rows(shape),
        # One for each thread, at least: of a row in several threads, each could see another leader.
        ROWS=max(32 * _FINDING_WARPS, triton.next_power_of_2(rows)),
        COLUMNS=8,
        num_warps=_FINDING_WARPS,
    )
    return made


@triton.jit(do_not_specialize=["count", "most_sets"])
def _attend(
    queries,
    keys,
    values,
    block_tables,
    slots,
    rows_of_plan,
    listed,
    order,
    firsts,
    filled,
    parts,
    maxima,
    sums,
    scale,
    table_width,
    count,
    most_sets,
    KV_HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    SHARED_PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    LANES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    PRECISION: tl.constexpr,
    CAP: tl.constexpr,
):
    """A part of the output of each row of a set, from one chunk. Scores are in base 2."""
    kv_head = tl.program_id(1)
    total_sets = tl.load(listed)
    size = tl.load(listed + 1)
    lanes = tl.arange(0, LANES)
    member = lanes // SHARED_PADDED
    head = lanes % SHARED_PADDED
    columns = tl.arange(0, PADDED)
    for item in range(tl.program_id(0), total_sets, PROGRAMS):
        at = tl.load(listed + 2 + item)
        chunk = at // most_sets
        rows = order + chunk * count + tl.load(firsts + at)
        there = member < tl.load(filled + at)
        row = tl.load(rows + member, mask=there, other=0).to(tl.int64)
        begin_of_own = tl.load(rows_of_plan + 2 * count + row, mask=there, other=0)
        first_part = tl.load(rows_of_plan + 3 * count + row, mask=there, other=0)
        there = there & (head < SHARED) & (chunk * size < begin_of_own)
        reach = (row * KV_HEADS + kv_head) * SHARED + head
        inside = there[:, None] & (columns < HEAD_DIM)[None, :]
        query = tl.load(queries + reach[:, None] * HEAD_DIM + columns[None, :], mask=inside, other=0.0)
        table = block_tables + tl.load(slots + tl.load(rows)).to(tl.int64) * table_width

        maximum = tl.full((LANES,), -1e30, tl.float32)
        total = tl.zeros((LANES,), tl.float32)
        mixed = tl.zeros((LANES, PADDED), tl.float32)
        for start in range(chunk * size, (chunk + 1) * size, TILE):
            place = start + tl.arange(0, TILE)
            block = tl.load(table + place // BLOCK_SIZE).to(tl.int64)
            base = ((block * KV_HEADS + kv_head) * BLOCK_SIZE + place % BLOCK_SIZE) * HEAD_DIM
            spots = base[:, None] + columns[None, :]
            loaded = (columns < HEAD_DIM)[None, :]
            key = tl.load(keys + spots, mask=loaded, other=0.0).to(query.dtype)
            scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
            if CAP > 0:
                scores = cap_scores(scores, CAP)
            higher = tl.maximum(maximum, tl.max(scores, axis=1))
            weights = tl.exp2(scores - higher[:, None])
            correction = tl.exp2(maximum - higher)
            total = total * correction + tl.sum(weights, axis=1)
            value = tl.load(values + spots, mask=loaded, other=0.0).to(query.dtype)
            mixed = mixed * correction[:, None]
            mixed += tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
            maximum = higher
        part = ((first_part + chunk) * KV_HEADS + kv_head) * SHARED + head
        tl.store(parts + part[:, None] * HEAD_DIM + columns[None, :], mixed, mask=inside)
        tl.store(maxima + part, maximum, mask=there)
        tl.store(sums + part, total, mask=there)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    found: Prefixes,
    rows_of_plan: Tensor,
    listed: Tensor,
    parts: tuple[Tensor, Tensor, Tensor],
    shape: AttentionShape,
) -> None:
    """Writes the ``parts`` of what rows read together, at the places that a plan gave them: ``listed`` are
    how many sets there are, the keys of a chunk, and the sets."""
    shared = shape.heads // shape.kv_heads
    tile, warps, stages = _CUT
    _attend[(_PROGRAMS, shape.kv_heads)](
        queries,
        keys,
        values,
        block_tables,
        slots,
        rows_of_plan,
        listed,
        found.order,
        found.firsts,
        found.filled,
        *parts,
        shape.scale * 1.4426950408889634,
        block_tables.stride(0),
        queries.shape[0],
        found.sets,
        KV_HEADS=shape.kv_heads,
        SHARED=shared,
        SHARED_PADDED=triton.next_power_of_2(shared),
        HEAD_DIM=shape.head_dim,
        PADDED=max(16, triton.next_power_of_2(shape.head_dim)),
        BLOCK_SIZE=shape.tokens_per_block,
        TILE=min(tile, LEAST_KEYS),
        LANES=_LANES,
        PROGRAMS=_PROGRAMS,
        PRECISION="ieee" if queries.dtype == torch.float32 else "tf32",
        CAP=shape.softcap or 0.0,
        num_warps=warps,
        # With more numbers a head, no more than shared memory holds.
        num_stages=stages if shape.head_dim <= 128 else 2,
    )
