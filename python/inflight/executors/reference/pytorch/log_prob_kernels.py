"""Log probabilities of chosen tokens and of the best alternatives, one program a row.

Owns one kernel: the best are found as `search_kernels` finds the cut of a top-k, collected in order of id,
and only these few are sorted. Nothing is allocated by the values of a tensor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .operations import Tensor
from .search_kernels import (
    IN_FLIGHT,
    LOG2_E,
    LOWEST,
    SPAN,
    WARPS,
    amounts_above,
    cut_of,
    finite,
    largest,
    row_values,
    segment_length,
    start_of,
    total_of,
)


@triton.jit(do_not_specialize=["width"])
def _report(
    logits,
    stride,
    tokens,
    out,
    scratch,
    vocab_size,
    width,
    PADDED: tl.constexpr,
    LENGTH: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """The log probability of a token and the best of its row, in the layout of `chosen_and_best`."""
    UNROLLED: tl.constexpr = IN_FLIGHT // logits.dtype.element_ty.primitive_bitwidth
    place = tl.program_id(0).to(tl.int64)
    row = logits + place * stride
    top = largest(row, vocab_size, LENGTH, SEGMENTS)
    factor = LOG2_E + 0.0 * top
    weights = tl.zeros((SEGMENTS, 32), tl.float32)
    for step in tl.range(0, LENGTH // SPAN, loop_unroll_factor=UNROLLED):
        weights += tl.sum(
            tl.exp2((row_values(row, vocab_size, step, LENGTH, SEGMENTS) - top) * factor), axis=2
        )
    log_total = tl.log(total_of(weights))
    own_out = out + place * (1 + 2 * width)
    value = finite(tl.load(row + tl.load(tokens + place))) - top - log_total
    tl.store(own_out, value.to(tl.int32, bitcast=True))
    if PADDED > 0:
        wanted = width.to(tl.float32)
        low, wider = start_of(top, factor), tl.maximum(top - 4096.0, LOWEST)
        near, far, _, _, _ = amounts_above(
            row, factor, vocab_size, top, low, wider, top, low, top, True, False, LENGTH, SEGMENTS
        )
        low = tl.where(near >= wanted, low, tl.where(far >= wanted, wider, LOWEST))
        # Logits that are minus infinity follow the others.
        low_ties = tl.where(low > LOWEST, 0, width)
        cut, ties = cut_of(row, factor, vocab_size, top, low, low_ties, wanted, True, LENGTH, SEGMENTS)
        over = tl.zeros((SEGMENTS, 32), tl.int32)
        equal = tl.zeros((SEGMENTS, 32), tl.int32)
        for step in tl.range(0, LENGTH // SPAN, loop_unroll_factor=UNROLLED):
            values = row_values(row, vocab_size, step, LENGTH, SEGMENTS)
            over += tl.sum((values > cut).to(tl.int32), axis=2)
            equal += tl.sum((values == cut).to(tl.int32), axis=2)
        equals = tl.sum(equal, axis=1)
        left = ties - (tl.cumsum(equals, axis=0) - equals)
        kept = tl.sum(over, axis=1) + tl.minimum(tl.maximum(left, 0), equals)
        first = tl.cumsum(kept, axis=0) - kept
        own = scratch + place * PADDED
        for step in tl.range(0, LENGTH // SPAN, loop_unroll_factor=UNROLLED):
            ids = tl.arange(0, SEGMENTS)[:, None] * LENGTH + step * SPAN + tl.arange(0, SPAN)[None, :]
            inside = ids < vocab_size
            values = finite(tl.load(row + ids, mask=inside, other=0.0))
            is_tie = ((values == cut) & inside).to(tl.int32)
            rank = tl.cumsum(is_tie, axis=1) - is_tie
            keeps = (inside & ((values > cut) | ((is_tie > 0) & (rank < left[:, None])))).to(tl.int32)
            target = first[:, None] + tl.cumsum(keeps, axis=1) - keeps
            bits = values.to(tl.int32, bitcast=True)
            ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
            tl.store(own + target, (ordered << 32) | (0x7FFFFFFF - ids).to(tl.int64), mask=keeps > 0)
            first += tl.sum(keeps, axis=1)
            left -= tl.sum(is_tie, axis=1)
        tl.debug_barrier()
        places = tl.arange(0, PADDED)
        inside = places < width
        keys = tl.load(own + places, mask=inside, other=-9223372036854775808)
        keys = tl.sort(keys, descending=True)
        ids = 0x7FFFFFFF - (keys & 0xFFFFFFFF).to(tl.int32)
        ordered = (keys >> 32).to(tl.int32)
        best = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True) - top - log_total
        tl.store(own_out + 1 + places, ids, mask=inside)
        tl.store(own_out + 1 + width + places, best.to(tl.int32, bitcast=True), mask=inside)


def chosen_and_best(logits: Tensor, tokens: Tensor, width: int) -> Tensor:
    """`sampling.chosen_and_best`, in one kernel."""
    rows, vocab_size = logits.shape
    padded = triton.next_power_of_2(width) if width else 0
    out = torch.empty((rows, 1 + 2 * width), dtype=torch.int32, device=logits.device)
    scratch = torch.empty((rows, max(padded, 1)), dtype=torch.int64, device=logits.device)
    if rows:
        _report[(rows,)](
            logits,
            logits.stride(0),
            tokens,
            out,
            scratch,
            vocab_size,
            width,
            PADDED=padded,
            LENGTH=segment_length(vocab_size),
            SEGMENTS=WARPS,
            num_warps=WARPS,
        )
    return out
