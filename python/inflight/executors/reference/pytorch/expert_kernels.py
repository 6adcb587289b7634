"""A mixture of experts in Triton the language: who computes which rows is decided and sorted on the device.

Rows go to experts without the host: a few kernels choose, count and sort, `product_kernels` multiplies the
rows of each expert with its matrices, and one kernel adds up what the experts of a row gave. So a mixture is
part of a CUDA graph, and reads the matrices of the experts that were chosen only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .operations import Tensor
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


def sort(best: Tensor, experts: int) -> Tiles:
    """The assignments ``best [T, chosen]`` by expert, in tiles that suit how many one has on average."""
    chosen = best.shape[1]
    count = best.numel()
    size = min(128, max(16, triton.next_power_of_2(triton.cdiv(count, experts))))
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
