"""What lies between the products of latent attention and attention itself, as one kernel in Triton the
language: keys are made and written to the cache, and queries turned, as `operations.turn_latent` does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .operations import Tensor

#: Heads that one program turns.
_HEADS = 16


@triton.jit
def _turn(
    queries,
    query_stride,
    made,
    made_stride,
    norm,
    epsilon,
    positions,
    cosines,
    sines,
    cache_slots,
    keys,
    out,
    HEADS: tl.constexpr,
    QUERY: tl.constexpr,
    RANK: tl.constexpr,
    RANK_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    NARROW: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Of a row, the key (first program) or some heads of the query."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    pairs = tl.arange(0, HALF_PADDED)
    known = pairs < HALF
    angle = tl.load(positions + row).to(tl.int64) * HALF + pairs
    cosine = tl.load(cosines + angle, mask=known, other=0.0)
    sine = tl.load(sines + angle, mask=known, other=0.0)
    if part == 0:
        columns = tl.arange(0, RANK_PADDED)
        inside = columns < RANK
        source = made + row * made_stride
        vector = tl.load(source + columns, mask=inside, other=0.0)
        wide = vector.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / RANK + epsilon)
        factors = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
        kept = (wide * scale * factors).to(vector.dtype)
        even = tl.load(source + RANK + 2 * pairs, mask=known, other=0.0).to(tl.float32)
        odd = tl.load(source + RANK + 2 * pairs + 1, mask=known, other=0.0).to(tl.float32)
        first = (even * cosine - odd * sine).to(vector.dtype)
        second = (odd * cosine + even * sine).to(vector.dtype)
        if NARROW:
            # FP8 has no infinity: what is beyond its largest number becomes that.
            kept = tl.clamp(kept.to(tl.float32), -448.0, 448.0)
            first = tl.clamp(first.to(tl.float32), -448.0, 448.0)
            second = tl.clamp(second.to(tl.float32), -448.0, 448.0)
        kind = keys.dtype.element_ty
        # Blocks of one head: a slot is a place.
        target = keys + tl.load(cache_slots + row).to(tl.int64) * (RANK + 2 * HALF)
        tl.store(target + columns, kept.to(kind), mask=inside)
        tl.store(target + RANK + pairs, first.to(kind), mask=known)
        tl.store(target + RANK + HALF + pairs, second.to(kind), mask=known)
    else:
        heads = (part - 1) * TOGETHER + tl.arange(0, TOGETHER)[:, None]
        wanted = (heads < HEADS) & known[None, :]
        begin = queries + row * query_stride + heads * QUERY + QUERY - 2 * HALF + 2 * pairs[None, :]
        left = tl.load(begin, mask=wanted, other=0.0)
        wide_left = left.to(tl.float32)
        wide_right = tl.load(begin + 1, mask=wanted, other=0.0).to(tl.float32)
        end = out + (row * HEADS + heads) * (RANK + 2 * HALF) + RANK + pairs[None, :]
        turned = wide_left * cosine[None, :] - wide_right * sine[None, :]
        tl.store(end, turned.to(left.dtype), mask=wanted)
        turned = wide_right * cosine[None, :] + wide_left * sine[None, :]
        tl.store(end + HALF, turned.to(left.dtype), mask=wanted)


def turn_latent(
    queries: Tensor,
    made: Tensor,
    norm: Tensor,
    epsilon: float,
    positions: Tensor,
    tables: tuple[Tensor, Tensor],
    cache_slots: Tensor,
    keys: Tensor,
    out: Tensor,
) -> None:
    rows, heads, query = queries.shape
    rank, cached = norm.shape[0], out.shape[-1]
    half = (cached - rank) // 2
    together = min(_HEADS, triton.next_power_of_2(heads))
    _turn[(rows, 1 + triton.cdiv(heads, together))](
        queries,
        queries.stride(0),
        made,
        made.stride(0),
        norm,
        epsilon,
        positions,
        *tables,
        cache_slots,
        keys,
        out,
        HEADS=heads,
        QUERY=query,
        RANK=rank,
        RANK_PADDED=triton.next_power_of_2(rank),
        HALF=half,
        HALF_PADDED=triton.next_power_of_2(half),
        NARROW=keys.dtype != out.dtype,
        TOGETHER=together,
        num_warps=4,
    )
