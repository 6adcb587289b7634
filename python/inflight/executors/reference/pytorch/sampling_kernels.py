"""The policy of `core.sampler` in Triton the language: no row is sorted, and nothing comes from the host.

Owns the three kernels of an iteration's choice: logits changed by bias, temperature, penalties and masks
(`_edit`), bans (`_ban`) and the draw (`_draw`), all by a table of parameters that `slots` keeps by slot. A
row is one program's, so that its sums do not depend on the batch. Nothing here allocates or branches on the
host by the values of a tensor, so that all of it can be captured in a CUDA graph.

How a row is drawn: `search_kernels` finds the value at which a limit cuts. Of tokens with just that value the
lowest ids are kept, as many as a stable sort would keep. The kept weights are whole numbers, 2^40 for the
best token: their sums are exact, so that the inverse transform finds the same token whichever way they are
added.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .operations import Tensor
from .search_kernels import (
    IN_FLIGHT,
    LOG2_E,
    LOWEST,
    SPAN,
    WARPS,
    cut_of,
    finite,
    largest,
    row_values,
    segment_length,
    start_of,
)

#: A slot's row of the table, int32; the floats by their bits.
FIELDS = 16
(
    FLAGS,
    INVERSE_TEMPERATURE,
    TOP_K,
    TOP_P,
    MIN_P,
    SEED_LOW,
    SEED_HIGH,
    SEQUENCE,
    LAST_OF_PROMPT,
    REPETITION,
    PRESENCE,
    FREQUENCY,
    MIN_TOKENS,
    NGRAM,
    WORDS,
    ENDINGS,
) = range(FIELDS)

#: Flags: a row that is drawn, one whose logits change at every token, one whose ends are held back at first,
#: one with penalties, one with bias; one whose tokens are kept; one with a mask for every token.
DRAWS, EDITS, WAITS, COUNTS, BIASED, REMEMBERS, MASKED = 1, 2, 4, 8, 16, 32, 64

_FLAGS = tl.constexpr(FLAGS)
_INVERSE_TEMPERATURE = tl.constexpr(INVERSE_TEMPERATURE)
_TOP_K = tl.constexpr(TOP_K)
_TOP_P = tl.constexpr(TOP_P)
_MIN_P = tl.constexpr(MIN_P)
_SEED_LOW = tl.constexpr(SEED_LOW)
_SEED_HIGH = tl.constexpr(SEED_HIGH)
_SEQUENCE = tl.constexpr(SEQUENCE)
_LAST_OF_PROMPT = tl.constexpr(LAST_OF_PROMPT)
_REPETITION = tl.constexpr(REPETITION)
_PRESENCE = tl.constexpr(PRESENCE)
_FREQUENCY = tl.constexpr(FREQUENCY)
_MIN_TOKENS = tl.constexpr(MIN_TOKENS)
_NGRAM = tl.constexpr(NGRAM)
_WORDS = tl.constexpr(WORDS)
_ENDINGS = tl.constexpr(ENDINGS)
_FIELDS = tl.constexpr(FIELDS)
_DRAWS, _EDITS, _WAITS = tl.constexpr(DRAWS), tl.constexpr(EDITS), tl.constexpr(WAITS)
_COUNTS, _BIASED, _REMEMBERS = tl.constexpr(COUNTS), tl.constexpr(BIASED), tl.constexpr(REMEMBERS)
_MASKED = tl.constexpr(MASKED)

_ONE = tl.constexpr(float(1 << 40))

#: Logits that one program of `_edit` changes, and those that the last stage of `_draw` holds at once.
_BLOCK, _LAST_BLOCK = 4096, 2048


@triton.jit
def _number(table, slot, FIELD: tl.constexpr):
    return tl.load(table + slot * _FIELDS + FIELD)


@triton.jit
def _float(table, slot, FIELD: tl.constexpr):
    return tl.load(table + slot * _FIELDS + FIELD).to(tl.float32, bitcast=True)


@triton.jit
def _is_edited(table, slot, number):
    """Whether this token's logits need more than a temperature."""
    flags = _number(table, slot, _FLAGS)
    waits = ((flags & _WAITS) != 0) & (number < _number(table, slot, _MIN_TOKENS))
    return ((flags & _EDITS) != 0) | waits


@triton.jit(do_not_specialize_on_alignment=["slots", "positions"])
def _edit(
    logits,
    stride,
    slots,
    positions,
    table,
    counts,
    biases,
    masks,
    masks_width,
    edited,
    vocab_size,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    number = tl.load(positions + row) - _number(table, slot, _LAST_OF_PROMPT)
    if _is_edited(table, slot, number) == 0:
        return
    flags = _number(table, slot, _FLAGS)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab_size
    values = tl.load(logits + row * stride + ids, mask=inside, other=0.0).to(tl.float32)
    if (flags & _BIASED) != 0:
        values += tl.load(biases + slot * vocab_size + ids, mask=inside, other=0.0)
    values *= _float(table, slot, _INVERSE_TEMPERATURE)
    if (flags & _COUNTS) != 0:
        seen = tl.load(counts + slot * vocab_size + ids, mask=inside, other=0)
        repetition = _float(table, slot, _REPETITION)
        penalized = tl.where(values < 0, values * repetition, values / repetition)
        penalized -= _float(table, slot, _PRESENCE)
        penalized -= _float(table, slot, _FREQUENCY) * seen.to(tl.float32)
        values = tl.where(seen > 0, penalized, values)
    if (flags & _MASKED) != 0:
        words = tl.load(masks + slot * masks_width + (ids >> 5), mask=inside, other=0)
        values = tl.where(((words >> (ids & 31)) & 1) != 0, values, LOWEST)
    tl.store(edited + row * vocab_size + ids, finite(values), mask=inside)


@triton.jit(do_not_specialize_on_alignment=["slots", "positions"])
def _ban(
    slots,
    positions,
    table,
    words,
    words_width,
    history,
    history_width,
    edited,
    vocab_size,
    BLOCK: tl.constexpr,
):
    """Bans ends that come too early, words whose other tokens were just said, and runs that were said
    before."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    length = tl.load(positions + row) + 1
    number = length - 1 - _number(table, slot, _LAST_OF_PROMPT)
    if _is_edited(table, slot, number) == 0:
        return
    logits = edited + row * vocab_size
    own_words = words + slot * words_width
    said = history + slot * history_width
    places = tl.arange(0, BLOCK)
    endings, count = _number(table, slot, _ENDINGS), _number(table, slot, _WORDS)
    if number < _number(table, slot, _MIN_TOKENS):
        for start in range(0, endings, BLOCK):
            inside = start + places < endings
            token = tl.load(own_words + start + places, mask=inside, other=0)
            tl.store(logits + token, LOWEST, mask=inside)
    for start in range(0, count, BLOCK):
        inside = start + places < count
        first = tl.load(own_words + endings + start + places, mask=inside, other=0)
        size = tl.load(own_words + endings + count + start + places, mask=inside, other=1)
        matches = inside & (size - 1 <= length)
        longest = tl.max(tl.where(matches, size, 1), axis=0)
        for place in range(longest - 1):
            compared = matches & (place < size - 1)
            word = tl.load(own_words + first + place, mask=compared, other=0)
            token = tl.load(said + length - size + 1 + place, mask=compared, other=0)
            matches = matches & (word == token)
        last = tl.load(own_words + first + size - 1, mask=matches, other=0)
        tl.store(logits + last, LOWEST, mask=matches)
    size = _number(table, slot, _NGRAM)
    if size > 0:
        for start in range(0, length - size + 1, BLOCK):
            first = start + places
            matches = first < length - size + 1
            for place in range(size - 1):
                token = tl.load(said + first + place, mask=matches, other=0)
                matches = matches & (token == tl.load(said + length - size + 1 + place))
            last = tl.load(said + first + size - 1, mask=matches, other=0)
            # Virtual tokens have no logit.
            tl.store(logits + last, LOWEST, mask=matches & (last < vocab_size))


@triton.jit
def _uniform(table, slot, number):
    """`sampler.uniform` of a choice."""
    low = _number(table, slot, _SEED_LOW).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = _number(table, slot, _SEED_HIGH).to(tl.uint32, bitcast=True).to(tl.uint64)
    sequence = _number(table, slot, _SEQUENCE).to(tl.uint32, bitcast=True)
    place = number.to(tl.uint32, bitcast=True)
    zero = place * 0
    first, second, _, _ = tl.philox((high << 32) | low, place, sequence, zero, zero)
    return ((first >> 5).to(tl.float64) * 67108864.0 + (second >> 6).to(tl.float64)) / 9007199254740992.0


@triton.jit
def _weights(values, factor, top, min_p):
    """Whole numbers, 2^40 for the best token."""
    weights = tl.exp2((values - top) * factor)
    return (tl.where(weights >= min_p, weights, 0.0) * _ONE).to(tl.int64)


@triton.jit
def _pick(
    row,
    factor,
    vocab_size,
    top,
    cut,
    ties,
    min_p,
    uniform,
    BLOCK: tl.constexpr,
    LENGTH: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """The first token whose cumulative weight exceeds the uniform share of the total, in order of id."""
    UNROLLED: tl.constexpr = IN_FLIGHT // row.dtype.element_ty.primitive_bitwidth
    weight = tl.zeros((SEGMENTS, 32), tl.int64)
    equal = tl.zeros((SEGMENTS, 32), tl.int32)
    for step in tl.range(0, LENGTH // SPAN, loop_unroll_factor=UNROLLED):
        values = row_values(row, vocab_size, step, LENGTH, SEGMENTS)
        weight += tl.sum(tl.where(values > cut, _weights(values, factor, top, min_p), 0), axis=2)
        equal += tl.sum((values == cut).to(tl.int32), axis=2)
    equals = tl.sum(equal, axis=1)
    left = ties - (tl.cumsum(equals, axis=0) - equals)
    kept = tl.minimum(tl.maximum(left, 0), equals)
    masses = tl.sum(weight, axis=1) + kept.to(tl.int64) * _weights(cut, factor, top, min_p)
    through = tl.cumsum(masses, axis=0)
    total = tl.sum(masses, axis=0)
    target = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
    segment = tl.sum((through <= target).to(tl.int32), axis=0)
    here = tl.arange(0, SEGMENTS) == segment
    before = tl.sum(tl.where(here, through - masses, 0), axis=0)
    left_here = tl.sum(tl.where(here, left, 0), axis=0)
    token = segment * LENGTH
    for start in range(0, LENGTH, BLOCK):
        places = start + tl.arange(0, BLOCK)
        ids = segment * LENGTH + places
        inside = (places < LENGTH) & (ids < vocab_size)
        values = finite(tl.load(row + ids, mask=inside, other=0.0))
        is_tie = ((values == cut) & inside).to(tl.int32)
        rank = tl.cumsum(is_tie, axis=0) - is_tie
        keeps = inside & ((values > cut) | ((is_tie > 0) & (rank < left_here)))
        weights = tl.where(keeps, _weights(values, factor, top, min_p), 0)
        passed = (before + tl.cumsum(weights, axis=0) <= target) & inside
        token += tl.sum(passed.to(tl.int32), axis=0)
        before += tl.sum(weights, axis=0)
        left_here -= tl.sum(is_tie, axis=0)
    return token


@triton.jit(do_not_specialize_on_alignment=["slots", "positions"])
def _draw(
    logits,
    stride,
    slots,
    positions,
    table,
    counts,
    history,
    history_width,
    chosen,
    vocab_size,
    EDITED: tl.constexpr,
    BLOCK: tl.constexpr,
    LENGTH: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """Chooses the tokens of rows whose logits were ``EDITED``, or of those that are drawn and were not."""
    place = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + place).to(tl.int64)
    position = tl.load(positions + place)
    number = position - _number(table, slot, _LAST_OF_PROMPT)
    flags = _number(table, slot, _FLAGS)
    draws = (flags & _DRAWS) != 0
    keeps = (flags & (_COUNTS | _REMEMBERS)) != 0
    edited = _is_edited(table, slot, number)
    if EDITED:
        if edited == 0:
            return
        factor = LOG2_E + 0.0 * _float(table, slot, _MIN_P)
    else:
        if edited | (draws == 0):
            return
        # Any temperature at all: so large a one makes a row flat, and no logit is minus infinity times zero.
        factor = tl.maximum(_float(table, slot, _INVERSE_TEMPERATURE) * LOG2_E, 1e-37)
    row = logits + place * stride
    top = largest(row, vocab_size, LENGTH, SEGMENTS)
    # A greedy row keeps the best token of the lowest id.
    cut, ties = top, 1 + 0 * slot.to(tl.int32)
    min_p, uniform = 0.0 * top, 0.0 * top.to(tl.float64)
    if draws:
        cut, ties = start_of(top, factor), 0 * slot.to(tl.int32)
        top_k = _number(table, slot, _TOP_K)
        if top_k < vocab_size:
            count = top_k.to(tl.float32)
            cut, ties = cut_of(row, factor, vocab_size, top, cut, ties, count, True, LENGTH, SEGMENTS)
        top_p = _float(table, slot, _TOP_P)
        if top_p < 1.0:
            cut, ties = cut_of(row, factor, vocab_size, top, cut, ties, top_p, False, LENGTH, SEGMENTS)
        min_p = _float(table, slot, _MIN_P)
        uniform = _uniform(table, slot, number)
    token = _pick(row, factor, vocab_size, top, cut, ties, min_p, uniform, BLOCK, LENGTH, SEGMENTS)
    tl.store(chosen + place, token)
    if keeps:
        if (flags & _COUNTS) != 0:
            seen = counts + slot * vocab_size + token
            tl.store(seen, tl.load(seen) + 1)
        if (flags & _REMEMBERS) != 0:
            tl.store(history + slot * history_width + position + 1, token)


def draw(
    logits: Tensor,
    slots: Tensor,
    positions: Tensor,
    table: Tensor,
    counts: Tensor,
    history: Tensor,
    chosen: Tensor,
    edited: bool = False,
) -> None:
    """Chooses one token a row of ``logits [rows, vocabulary]`` where the table of its slot says so.

    ``slots`` and ``positions [rows]`` are of the sequences and of the tokens put in; ``chosen [rows]`` keeps
    what it has in other rows. ``edited``: ``logits`` are what `edit` made, and only its rows count.
    """
    rows, vocab_size = logits.shape
    length = segment_length(vocab_size)
    _draw[(rows,)](
        logits,
        logits.stride(0),
        slots,
        positions,
        table,
        counts,
        history,
        history.stride(0),
        chosen,
        vocab_size,
        EDITED=edited,
        BLOCK=min(_LAST_BLOCK, triton.next_power_of_2(length)),
        LENGTH=length,
        SEGMENTS=WARPS,
        num_warps=WARPS,
        # Two programs on a multiprocessor; nothing spills.
        maxnreg=64,
    )


def edit(
    logits: Tensor,
    slots: Tensor,
    positions: Tensor,
    table: Tensor,
    counts: Tensor,
    biases: Tensor,
    masks: Tensor,
    words: Tensor,
    history: Tensor,
    out: Tensor,
) -> None:
    """Bias, temperature, penalties, masks and bans of the rows that have them, to the same rows of ``out``,
    float32. ``masks`` are bits of int32, the lowest first."""
    rows, vocab_size = logits.shape
    _edit[(rows, triton.cdiv(vocab_size, _BLOCK))](
        logits,
        logits.stride(0),
        slots,
        positions,
        table,
        counts,
        biases,
        masks,
        masks.stride(0),
        out,
        vocab_size,
        BLOCK=_BLOCK,
        num_warps=8,
    )
    _ban[(rows,)](
        slots,
        positions,
        table,
        words,
        words.stride(0),
        history,
        history.stride(0),
        out,
        vocab_size,
        BLOCK=256,
        num_warps=4,
    )
