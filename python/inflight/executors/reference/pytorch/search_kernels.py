"""Where a limit cuts a row of logits, without sorting it: what the kernels of sampling and of log
probabilities share.

Owns how a row is read by one program (a segment a warp, eight logits a thread at once) and the search:
between pivots, with the amount above three of them found in each pass over the row. The amounts are counts or
weights, in float32, and always added in the same order, so that they grow with the set and do not depend on
the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: `sampler.BANNED`, and the largest float32: logits beyond either, and those that are no number, are cut to
#: them.
LOWEST = tl.constexpr(-3.4028234663852886e38)
HIGHEST = tl.constexpr(3.4028234663852886e38)

#: A token of a weight below two to the minus this has none.
_REACH = tl.constexpr(41.0)
LOG2_E = tl.constexpr(1.4426950408889634)

#: Passes of a search for a cut. It takes four to ten; the bound is for rows that no model gives.
_MOST_PASSES = tl.constexpr(300)

#: Consecutive logits that a warp reads at once: 8 a thread.
SPAN = tl.constexpr(256)

#: Bytes a thread that a pass has in flight at once; with fewer it waits for memory at every step.
IN_FLIGHT = tl.constexpr(64)

#: Warps of a program, each of which reads a segment of the row.
WARPS = 16


def segment_length(vocab_size: int) -> int:
    """Logits of a row's segment, of which there are `WARPS`: whole spans."""
    span = int(SPAN.value)
    return -(-vocab_size // (WARPS * span)) * span


@triton.jit
def finite(values):
    """Logits as float32, within what a float32 can hold."""
    return tl.minimum(tl.maximum(values.to(tl.float32), LOWEST), HIGHEST)


@triton.jit
def row_values(row, vocab_size, step, LENGTH: tl.constexpr, SEGMENTS: tl.constexpr):
    """The logits of one step of all segments ``[SEGMENTS, 32, 8]``; minus infinity beyond the vocabulary."""
    ids = tl.arange(0, SEGMENTS)[:, None, None] * LENGTH + step * SPAN
    ids = ids + tl.arange(0, 32)[None, :, None] * 8 + tl.arange(0, 8)[None, None, :]
    inside = ids < vocab_size
    return tl.where(inside, finite(tl.load(row + ids, mask=inside, other=0.0)), float("-inf"))


@triton.jit
def largest(row, vocab_size, LENGTH: tl.constexpr, SEGMENTS: tl.constexpr):
    UNROLLED: tl.constexpr = IN_FLIGHT // row.dtype.element_ty.primitive_bitwidth
    best = tl.full((SEGMENTS, 32), float("-inf"), tl.float32)
    for step in tl.range(0, LENGTH // SPAN, loop_unroll_factor=UNROLLED):
        best = tl.maximum(best, tl.max(row_values(row, vocab_size, step, LENGTH, SEGMENTS), axis=2))
    return tl.max(tl.max(best, axis=1), axis=0)


@triton.jit
def total_of(values):
    return tl.sum(tl.sum(values, axis=1), axis=0)


@triton.jit
def next_below(value):
    """The largest float32 below ``value``."""
    bits = value.to(tl.int32, bitcast=True)
    below = tl.where(value > 0, bits - 1, tl.where(value < 0, bits + 1, -2147483647))
    return below.to(tl.float32, bitcast=True)


@triton.jit
def amounts_above(
    row,
    factor,
    vocab_size,
    top,
    first,
    second,
    third,
    low,
    high,
    BY_COUNT: tl.constexpr,
    ENDS: tl.constexpr,
    LENGTH: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """How many values, or which weight of them, lie above each of three pivots. With ``ENDS``, also the
    smallest value above ``low`` and the largest that is not above ``high``."""
    UNROLLED: tl.constexpr = IN_FLIGHT // row.dtype.element_ty.primitive_bitwidth
    over_first = tl.zeros((SEGMENTS, 32), tl.float32)
    over_second = tl.zeros((SEGMENTS, 32), tl.float32)
    over_third = tl.zeros((SEGMENTS, 32), tl.float32)
    least = tl.full((SEGMENTS, 32), float("inf"), tl.float32)
    most = tl.full((SEGMENTS, 32), float("-inf"), tl.float32)
    for step in tl.range(0, LENGTH // SPAN, loop_unroll_factor=UNROLLED):
        values = row_values(row, vocab_size, step, LENGTH, SEGMENTS)
        if BY_COUNT:
            amounts = tl.full((SEGMENTS, 32, 8), 1.0, tl.float32)
        else:
            amounts = tl.exp2((values - top) * factor)
        over_first += tl.sum(tl.where(values > first, amounts, 0.0), axis=2)
        over_second += tl.sum(tl.where(values > second, amounts, 0.0), axis=2)
        over_third += tl.sum(tl.where(values > third, amounts, 0.0), axis=2)
        if ENDS:
            least = tl.minimum(least, tl.min(tl.where(values > low, values, float("inf")), axis=2))
            most = tl.maximum(most, tl.max(tl.where(values <= high, values, float("-inf")), axis=2))
    lowest, highest = low, high
    if ENDS:
        lowest = tl.min(tl.min(least, axis=1), axis=0)
        highest = tl.max(tl.max(most, axis=1), axis=0)
    return total_of(over_first), total_of(over_second), total_of(over_third), lowest, highest


@triton.jit
def _narrowed(low, above_low, high, above_high, pivot, above, wanted):
    """The bracket with one of its ends at ``pivot``, where that makes it smaller."""
    raises = (above >= wanted) & (pivot > low)
    lowers = (above < wanted) & (pivot < high)
    return (
        tl.where(raises, pivot, low),
        tl.where(raises, above, above_low),
        tl.where(lowers, pivot, high),
        tl.where(lowers, above, above_high),
    )


@triton.jit
def _narrowed_by_two(low, above_low, high, above_high, first, above_first, second, above_second, wanted):
    """The bracket after two pivots."""
    low, above_low, high, above_high = _narrowed(low, above_low, high, above_high, first, above_first, wanted)
    return _narrowed(low, above_low, high, above_high, second, above_second, wanted)


@triton.jit
def _pivots(low, above_low, high, above_high, wanted, is_slow):
    """Three pivots in a bracket. The amount above falls about exponentially: they lie around the place where
    it should be what is wanted; where that did not narrow the bracket much, one is in its middle."""
    from_low = tl.log(tl.maximum(above_low, 1e-30))
    fall = tl.maximum(from_low - tl.log(tl.maximum(above_high, 0.25)), 1e-6)
    share = tl.minimum(tl.maximum((from_low - tl.log(wanted)) / fall, 0.0), 1.0)
    half = high * 0.5 - low * 0.5
    guess = low + share * 2.0 * half
    near = half * tl.where(is_slow, 0.25, 0.0625)
    third = tl.where(is_slow, low + half, guess)
    last = next_below(high)
    return (
        tl.minimum(tl.maximum(guess - near, low), last),
        tl.minimum(tl.maximum(guess + near, low), last),
        tl.minimum(tl.maximum(third, low), last),
    )


@triton.jit
def cut_of(
    row,
    factor,
    vocab_size,
    top,
    low,
    low_ties,
    limit,
    BY_COUNT: tl.constexpr,
    LENGTH: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """Where a limit cuts a row of which only the values above ``low`` are left, and ``low_ties`` that equal
    it: the same two of what it leaves. ``limit`` counts tokens, or is a share of what is left.

    A token is kept if the amount before it is below what is wanted. Throughout, that holds for the values
    above ``high`` and not for those up to ``low``.
    """
    second, third = top - 8.0 / factor, top - 2.0 / factor
    above_low, above_second, above_third, _, _ = amounts_above(
        row, factor, vocab_size, top, low, second, third, low, top, BY_COUNT, False, LENGTH, SEGMENTS
    )
    amount = 1.0 + 0.0 * top
    if BY_COUNT:
        wanted = limit
    else:
        amount = tl.exp2((low - top) * factor)
        # At least the best token stays, also where the share is too small for a float32.
        wanted = tl.maximum(limit * (above_low + low_ties.to(tl.float32) * amount), 1e-30)
    cut, ahead, ties = low, above_low, low_ties
    if above_low > wanted:
        high, above_high = top, 0.0 * top
        low, above_low, high, above_high = _narrowed_by_two(
            low, above_low, high, above_high, second, above_second, third, above_third, wanted
        )
        is_slow = top < top
        first, second, third = _pivots(low, above_low, high, above_high, wanted, is_slow)
        above_first, above_second, above_third, _, _ = amounts_above(
            row, factor, vocab_size, top, first, second, third, low, high, BY_COUNT, False, LENGTH, SEGMENTS
        )
        low, above_low, high, above_high = _narrowed(
            low, above_low, high, above_high, first, above_first, wanted
        )
        low, above_low, high, above_high = _narrowed_by_two(
            low, above_low, high, above_high, second, above_second, third, above_third, wanted
        )
        least, most, passes = low, high, 0 * low_ties
        while (least < most) & (above_low > wanted) & (passes < _MOST_PASSES):
            width = high * 0.5 - low * 0.5
            first, second, third = _pivots(low, above_low, high, above_high, wanted, is_slow)
            above_first, above_second, above_third, least, most = amounts_above(
                row,
                factor,
                vocab_size,
                top,
                first,
                second,
                third,
                low,
                high,
                BY_COUNT,
                True,
                LENGTH,
                SEGMENTS,
            )
            # Both ends at values that there are: a single one ends the search.
            high = most
            low = tl.maximum(low, next_below(least))
            low, above_low, high, above_high = _narrowed(
                low, above_low, high, above_high, first, above_first, wanted
            )
            low, above_low, high, above_high = _narrowed_by_two(
                low, above_low, high, above_high, second, above_second, third, above_third, wanted
            )
            is_slow = high * 0.5 - low * 0.5 > width * 0.25
            passes += 1
        # What lies above ``low`` is all that is wanted, or the values that equal the cut are shared out.
        is_met = above_low <= wanted
        cut = tl.where(is_met, low, most)
        ahead = tl.where(is_met, above_low, above_high)
        ties = tl.where(is_met, 0, 2147483647)
        if not BY_COUNT:
            amount = tl.exp2((cut - top) * factor)
    # Of those that equal the cut, the ones before which there is less than what is wanted.
    room = tl.minimum(tl.ceil((wanted - ahead) / tl.maximum(amount, 1e-38)), 1073741824.0).to(tl.int32)
    least_ties = tl.where((ties > 0) & (ahead < wanted), 1, 0)
    return cut, tl.maximum(tl.minimum(ties, room), least_ties)


@triton.jit
def start_of(top, factor):
    """The value up to which no token has a weight."""
    low = tl.maximum(tl.minimum(top - tl.minimum(_REACH / factor, HIGHEST), next_below(top)), LOWEST)
    return tl.where(top > LOWEST, low, float("-inf"))
