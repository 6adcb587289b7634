"""A mixture of experts in Triton the language: who computes which rows is decided and sorted on the device.

Rows go to experts without the host: a few kernels choose, count and sort, `product_kernels` multiplies the
rows of each expert with its matrices, and one kernel adds up what the experts of a row gave. So a mixture is
part of a CUDA graph, and reads the matrices of the experts that were chosen only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from inflight.executors.reference.model.mixture import GroupedRouting

from .operations import Choice, Tensor
from .product_kernels import Tiles

#: Assignments that a program looks at together.
_BLOCK = 1024


@triton.jit
def _choose(
    scores,
    best,
    shares,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
    CHOSEN_PADDED: tl.constexpr,
    NORMALIZED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, PADDED)
    values = tl.load(scores + row * EXPERTS + experts, mask=experts < EXPERTS, other=float("-inf")).to(
        tl.float32
    )
    highest = tl.max(values, axis=0)
    total = tl.sum(tl.exp(values - highest), axis=0)
    choices = tl.arange(0, CHOSEN_PADDED)
    own = tl.full((CHOSEN_PADDED,), float("-inf"), tl.float32)
    for choice in range(CHOSEN):
        # Of spare rows, whose scores may be no numbers, it could be one of the padding.
        place = tl.minimum(tl.argmax(values, axis=0), EXPERTS - 1)
        own = tl.where(choices == choice, tl.max(values, axis=0), own)
        tl.store(best + row * CHOSEN + choice, place)
        values = tl.where(experts == place, float("-inf"), values)
    weights = tl.exp(own - highest)
    if NORMALIZED:
        total = tl.sum(weights, axis=0)
    tl.store(shares + row * CHOSEN + choices, weights / total, mask=choices < CHOSEN)


def choose(scores: Tensor, chosen: int, normalized: bool) -> tuple[Tensor, Tensor]:
    """`operations.choose_experts`, with int32 experts."""
    rows, experts = scores.shape
    best = torch.empty((rows, chosen), dtype=torch.int32, device=scores.device)
    shares = torch.empty((rows, chosen), dtype=torch.float32, device=scores.device)
    _choose[(rows,)](
        scores,
        best,
        shares,
        EXPERTS=experts,
        PADDED=triton.next_power_of_2(experts),
        CHOSEN=chosen,
        CHOSEN_PADDED=triton.next_power_of_2(chosen),
        NORMALIZED=normalized,
        num_warps=1,
    )
    return best, shares


@triton.jit
def _choose_in_groups(
    scores,
    bias,
    best,
    shares,
    FACTOR: tl.constexpr,
    EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_PADDED: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
    CHOSEN_PADDED: tl.constexpr,
    CHOSEN_GROUPS: tl.constexpr,
    COUNTED: tl.constexpr,
    BIAS: tl.constexpr,
    SIGMOID: tl.constexpr,
    NORMALIZED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    size: tl.constexpr = EXPERTS // GROUPS
    groups = tl.arange(0, GROUPS_PADDED)
    within = tl.arange(0, SIZE_PADDED)[None, :]
    experts = groups[:, None] * size + within
    known = (groups[:, None] < GROUPS) & (within < size)
    values = tl.load(scores + row * EXPERTS + experts, mask=known, other=float("-inf")).to(tl.float32)
    if SIGMOID:
        share = tl.sigmoid(values)
    else:
        share = tl.exp(values - tl.max(values))
        share /= tl.sum(share)
    worth = share
    if BIAS:
        worth += tl.load(bias + experts, mask=known, other=0.0).to(tl.float32)
    worth = tl.where(known, worth, float("-inf"))
    if GROUPS > 1:
        counted = tl.zeros((GROUPS_PADDED,), tl.float32)
        left = worth
        for _ in range(COUNTED):
            place = tl.argmax(left, axis=1)
            counted += tl.max(left, axis=1)
            left = tl.where(within == place[:, None], float("-inf"), left)
        kept = tl.zeros((GROUPS_PADDED,), tl.int32)
        for _ in range(CHOSEN_GROUPS):
            place = tl.argmax(counted, axis=0)
            kept = tl.where(groups == place, 1, kept)
            counted = tl.where(groups == place, float("-inf"), counted)
        worth = tl.where(kept[:, None] > 0, worth, float("-inf"))
    worth = tl.reshape(worth, (GROUPS_PADDED * SIZE_PADDED,))
    share = tl.reshape(share, (GROUPS_PADDED * SIZE_PADDED,))
    places = tl.arange(0, GROUPS_PADDED * SIZE_PADDED)
    choices = tl.arange(0, CHOSEN_PADDED)
    own = tl.zeros((CHOSEN_PADDED,), tl.float32)
    for choice in range(CHOSEN):
        place = tl.argmax(worth, axis=0)
        own = tl.where(choices == choice, tl.sum(tl.where(places == place, share, 0.0)), own)
        # Of spare rows, whose scores may be no numbers, it could be one of the padding.
        expert = tl.minimum(place // SIZE_PADDED * size + place % SIZE_PADDED, EXPERTS - 1)
        tl.store(best + row * CHOSEN + choice, expert)
        worth = tl.where(places == place, float("-inf"), worth)
    if NORMALIZED:
        own /= tl.sum(own)
    tl.store(shares + row * CHOSEN + choices, own * FACTOR, mask=choices < CHOSEN)


def choose_in_groups(scores: Tensor, bias: Tensor | None, chosen: int, routing: GroupedRouting) -> Choice:
    rows, experts = scores.shape
    best = torch.empty((rows, chosen), dtype=torch.int32, device=scores.device)
    shares = torch.empty((rows, chosen), dtype=torch.float32, device=scores.device)
    _choose_in_groups[(rows,)](
        scores,
        scores if bias is None else bias,
        best,
        shares,
        FACTOR=routing.factor,
        EXPERTS=experts,
        GROUPS=routing.groups,
        GROUPS_PADDED=triton.next_power_of_2(routing.groups),
        SIZE_PADDED=triton.next_power_of_2(experts // routing.groups),
        CHOSEN=chosen,
        CHOSEN_PADDED=triton.next_power_of_2(chosen),
        CHOSEN_GROUPS=routing.chosen_groups,
        COUNTED=routing.counted,
        BIAS=bias is not None,
        SIGMOID=routing.by_sigmoid,
        NORMALIZED=routing.normalized,
        num_warps=1,
    )
    return best, shares


@triton.jit(do_not_specialize=["count"])
def _count(best, counts, count, BLOCK: tl.constexpr):
    expert = tl.program_id(0)
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        found += (tl.load(best + place, mask=place < count, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found, axis=0))


@triton.jit(do_not_specialize=["count", "tiles"])
def _sort(
    best,
    counts,
    order,
    ends,
    tile_experts,
    tile_places,
    count,
    tiles,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program an expert: notes its tiles, and which assignments are its own, in their order."""
    expert = tl.program_id(0)
    experts = tl.arange(0, PADDED)
    by_expert = tl.load(counts + experts, mask=experts < EXPERTS, other=0)
    tiles_of = (by_expert + SIZE - 1) // SIZE
    begin = tl.sum(tl.where(experts < expert, by_expert, 0), axis=0)
    own = tl.sum(tl.where(experts == expert, by_expert, 0), axis=0)
    first = tl.sum(tl.where(experts < expert, tiles_of, 0), axis=0)
    last = first + (own + SIZE - 1) // SIZE
    tl.store(ends + expert, begin + own)
    lanes = tl.arange(0, BLOCK)
    for start in range(first, last, BLOCK):
        tile = start + lanes
        tl.store(tile_experts + tile, expert, mask=tile < last)
        tl.store(tile_places + tile, begin + (tile - first) * SIZE, mask=tile < last)
    if expert == EXPERTS - 1:
        for start in range(last, tiles, BLOCK):
            tl.store(tile_experts + start + lanes, -1, mask=start + lanes < tiles)
    position = begin
    for start in range(0, count, BLOCK):
        place = start + lanes
        mine = (tl.load(best + place, mask=place < count, other=-1) == expert).to(tl.int32)
        rank = tl.cumsum(mine, axis=0) - mine
        tl.store(order + position + rank, place, mask=mine > 0)
        position += tl.sum(mine, axis=0)


def sort(best: Tensor, experts: int, size: int) -> Tiles:
    """The assignments ``best [T, chosen]`` by expert, in tiles of ``size`` rows."""
    chosen = best.shape[1]
    count = best.numel()
    # As many as there are if every expert's last tile has one row.
    tiles = min(experts, count) + count // size
    counts, ends = torch.empty((2, experts), dtype=torch.int32, device=best.device)
    order = torch.empty(count, dtype=torch.int32, device=best.device)
    tile_experts, tile_places = torch.empty((2, tiles), dtype=torch.int32, device=best.device)
    _count[(experts,)](best, counts, count, BLOCK=_BLOCK, num_warps=4)
    _sort[(experts,)](
        best,
        counts,
        order,
        ends,
        tile_experts,
        tile_places,
        count,
        tiles,
        EXPERTS=experts,
        PADDED=triton.next_power_of_2(experts),
        SIZE=size,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return Tiles(order, tile_experts, tile_places, ends, size, chosen)


@triton.jit
def _mix(parts, shares, out, WIDTH: tl.constexpr, CHOSEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in range(CHOSEN):
        part = tl.load(parts + (row * CHOSEN + choice) * WIDTH + columns, mask=inside, other=0.0)
        total += part.to(tl.float32) * tl.load(shares + row * CHOSEN + choice)
    tl.store(out + row * WIDTH + columns, total.to(out.dtype.element_ty), mask=inside)


def mix(parts: Tensor, shares: Tensor) -> Tensor:
    """What the experts of each row gave ``[T x chosen, out]``, by their shares ``[T, chosen]``."""
    rows, chosen = shares.shape
    width = parts.shape[1]
    mixed = torch.empty((rows, width), dtype=parts.dtype, device=parts.device)
    _mix[(rows, triton.cdiv(width, 1024))](parts, shares, mixed, WIDTH=width, CHOSEN=chosen, BLOCK=1024)
    return mixed
