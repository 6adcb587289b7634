"""Products with compressed matrices and with those of experts, in Triton the language.

One kernel computes them all: it reads a tile of a matrix as it is stored, widens it in registers and
multiplies it with the rows of ``x``, which are the columns of its product so that few rows waste little.
With experts, tiles of rows belong to one each (`expert_kernels`). Which product a matrix gets is
`linear_kernels`'. Nothing here allocates by the values of a tensor, so that an iteration can be captured in
a CUDA graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from inflight.executors.reference.errors import UnsupportedModelError

from .compressed import Fp4Matrix, Fp8Matrix, Int4Matrix, has_fp8
from .cuts import Plan, expert_plan, plan
from .operations import Tensor
from .widening_kernels import (
    FP4_UNIT,
    fp4_factor,
    unpacked_fp4,
    unpacked_int4,
    widened_fp4,
    widened_fp8,
    widened_int4,
)

_PLAIN = tl.constexpr(0)
_FP8 = tl.constexpr(1)
_INT4 = tl.constexpr(2)
_FP4 = tl.constexpr(3)

#: Inputs that tensor cores multiply at once, at least.
LEAST_INPUTS = 16

#: Tiles of rows that are computed with the same outputs, one after the other.
BAND = 16

#: `cuts`' names of what is stored.
_STORED = {Fp8Matrix: "fp8", Int4Matrix: "int4", Fp4Matrix: "fp4"}


@triton.jit
def _product(
    x,
    x_scales,
    weight,
    scales,
    bias,
    out,
    order,
    tile_experts,
    tile_rows,
    ends,
    rows,
    x_rows,
    count,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    KIND: tl.constexpr,
    CHUNK: tl.constexpr,
    GROUP: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PIECE: tl.constexpr,
    GROUPED: tl.constexpr,
    GATHER: tl.constexpr,
    SCATTER: tl.constexpr,
    BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    BAND: tl.constexpr,
    NARROW: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A tile of ``OUTPUTS`` of the matrix for ``ROWS`` rows, over a share of the inputs.

    ``GATHER`` is how many places of ``order`` read a row of ``x``, or 0: rows are read where they are.
    ``NARROW``: the ``x_rows`` rows of ``x`` are FP8, too. ``PACKED``: bytes are widened four at a time, in
    instructions of the GPU.
    """
    tile, column = place_of(tl.program_id(0), count, (WIDTH + OUTPUTS - 1) // OUTPUTS, BAND)
    outputs = column * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(1)
    inside = outputs < WIDTH
    if GROUPED:
        expert = tl.load(tile_experts + tile).to(tl.int64)
        if expert < 0:
            return
        first = tl.load(tile_rows + tile)
        stop = tl.load(ends + expert)
    else:
        expert = tl.full((), 0, tl.int64)
        first = tile * ROWS
        stop = rows
    places = first + tl.arange(0, ROWS)
    present = places < stop
    if GATHER > 0 or SCATTER:
        noted = tl.load(order + places, mask=present, other=0)
    source = places.to(tl.int64)
    if GATHER > 0:
        source = (noted // GATHER).to(tl.int64)
    chunks: tl.constexpr = (INPUTS + CHUNK - 1) // CHUNK
    groups: tl.constexpr = (INPUTS + GROUP - 1) // GROUP
    share: tl.constexpr = (chunks + SPLITS - 1) // SPLITS
    half: tl.constexpr = CHUNK // 2
    scale_rows: tl.constexpr = (WIDTH + SCALE_ROWS - 1) // SCALE_ROWS
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    begin = split * share
    for chunk in range(begin, tl.minimum(begin + share, chunks)):
        group = chunk * CHUNK // GROUP
        if KIND == _FP4:
            sums = _add_fp4(
                sums,
                x,
                weight,
                scales,
                expert,
                outputs,
                inside,
                source,
                present,
                chunk,
                WIDTH,
                INPUTS,
                GROUP,
                TILE,
                PIECE,
                PACKED,
                PRECISION,
            )
        elif KIND == _INT4:
            base = ((expert * (WIDTH // TILE) + outputs // TILE) * chunks + chunk) * TILE + outputs % TILE
            places_in = tl.arange(0, half)
            bytes_of = tl.load(
                weight + base[:, None] * half + places_in[None, :], mask=inside[:, None], other=0
            )
            word = tl.load(scales + (expert * groups + group) * WIDTH + outputs, mask=inside, other=0)
            zero = word & 255
            if PACKED:
                low, high = unpacked_int4(bytes_of, zero)
            else:
                low = widened_int4(bytes_of & 15, zero, x.dtype.element_ty)
                high = widened_int4(bytes_of >> 4, zero, x.dtype.element_ty)
            reach = source[None, :] * INPUTS + (chunk * CHUNK + places_in)[:, None]
            x_low = tl.load(x + reach, mask=present[None, :], other=0.0)
            x_high = tl.load(x + reach + half, mask=present[None, :], other=0.0)
            product = tl.dot(low, x_low, input_precision=PRECISION)
            product = tl.dot(high, x_high, product, input_precision=PRECISION)
            sums += product * (word & ~255).to(tl.float32, bitcast=True)[:, None]
        else:
            columns = chunk * CHUNK + tl.arange(0, CHUNK)
            known = columns < INPUTS
            reach = (expert * WIDTH + outputs.to(tl.int64))[:, None] * INPUTS + columns[None, :]
            factors = tl.load(weight + reach, mask=inside[:, None] & known[None, :], other=0.0)
            if PACKED and KIND == _FP8:  # noqa: SIM108 -- a choice of the compiler's
                factors = widened_fp8(factors)
            else:
                factors = factors.to(x.dtype.element_ty)
            values = tl.load(
                x + source[None, :] * INPUTS + columns[:, None],
                mask=present[None, :] & known[:, None],
                other=0.0,
            )
            if KIND == _PLAIN or GROUP >= INPUTS:
                sums = tl.dot(factors, values, sums, input_precision=PRECISION)
            else:
                place = (expert * scale_rows + outputs // SCALE_ROWS) * groups + group
                scale = tl.load(scales + place, mask=inside, other=0.0)[:, None]
                if NARROW:
                    scale *= tl.load(x_scales + group * x_rows + source, mask=present, other=0.0)[None, :]
                sums += tl.dot(factors, values, input_precision=PRECISION) * scale
    if KIND == _FP8 and GROUP >= INPUTS:
        place = expert * scale_rows + outputs // SCALE_ROWS
        sums *= tl.load(scales + place, mask=inside, other=0.0)[:, None]
        if NARROW:
            sums *= tl.load(x_scales + source, mask=present, other=0.0)[None, :]
    if KIND == _FP4 and PACKED:
        sums *= FP4_UNIT
    if BIAS:
        sums += tl.load(bias + expert * WIDTH + outputs, mask=inside, other=0.0).to(tl.float32)[:, None]
    target = places.to(tl.int64)
    if SCATTER:
        target = noted.to(tl.int64)
    if SPLITS > 1:
        target += split.to(tl.int64) * rows
    reach = target[:, None] * WIDTH + outputs[None, :]
    tl.store(out + reach, tl.trans(sums).to(out.dtype.element_ty), mask=present[:, None] & inside[None, :])


@triton.jit
def _add_fp4(
    sums,
    x,
    weight,
    scales,
    expert,
    outputs,
    inside,
    source,
    present,
    chunk,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    PIECE: tl.constexpr,
    PACKED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``sums`` and what four groups of inputs add, whose scales are one word: what has fewer bytes cannot be
    on its way while others are computed. ``PIECE`` inputs lie in a tile."""
    half: tl.constexpr = PIECE // 2
    tiles: tl.constexpr = INPUTS // PIECE
    words: tl.constexpr = (INPUTS + 4 * GROUP - 1) // (4 * GROUP)
    columns = tl.arange(0, half)
    word = tl.load(scales + (expert * words + chunk) * WIDTH + outputs, mask=inside, other=0)
    for piece in tl.static_range(4 * GROUP // PIECE):
        tile = chunk * (4 * GROUP // PIECE) + piece
        known = tile < tiles
        base = ((expert * (WIDTH // TILE) + outputs // TILE) * tiles + tile) * TILE + outputs % TILE
        bytes_of = tl.load(
            weight + base[:, None] * half + columns[None, :], mask=inside[:, None] & known, other=0
        )
        reach = source[None, :] * INPUTS + (tile * PIECE + columns)[:, None]
        x_low = tl.load(x + reach, mask=present[None, :] & known, other=0.0)
        x_high = tl.load(x + reach + half, mask=present[None, :] & known, other=0.0)
        low_scale = (word >> (piece * PIECE // GROUP * 8)) & 255
        high_scale = (word >> ((piece * PIECE + half) // GROUP * 8)) & 255
        if PACKED:
            low, high = unpacked_fp4(bytes_of, fp4_factor(low_scale), fp4_factor(high_scale))
            sums = tl.dot(low, x_low, sums)
            sums = tl.dot(high, x_high, sums)
        else:
            low = widened_fp4(bytes_of & 15).to(x.dtype.element_ty)
            high = widened_fp4(bytes_of >> 4).to(x.dtype.element_ty)
            product = tl.dot(low, x_low, input_precision=PRECISION)
            sums += product * tl.exp2(low_scale.to(tl.float32) - 127.0)[:, None]
            product = tl.dot(high, x_high, input_precision=PRECISION)
            sums += product * tl.exp2(high_scale.to(tl.float32) - 127.0)[:, None]
    return sums


@triton.jit
def place_of(program, down, across, BAND: tl.constexpr):
    """The tile of rows and that of outputs of a program. Programs next to each other share outputs, and some
    rows on, rows: what is read is still in the cache."""
    band = program // (BAND * across)
    height = tl.minimum(down - band * BAND, BAND)
    within = program % (BAND * across)
    return band * BAND + within % height, within // height


@triton.jit
def _sum_splits(
    parts,
    bias,
    out,
    count,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(SPLITS):
        total += tl.load(parts + split * count + place, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias + place % WIDTH, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows sorted by expert, and the tiles of rows that belong to one; int32 on the device."""

    #: By sorted place, which (row, choice) it is: ``row x chosen + choice``.
    order: Tensor
    #: Of each tile, its expert (or -1: no tile) and first place; of each expert, where its places end.
    experts: Tensor
    places: Tensor
    ends: Tensor
    #: Places of a tile, and choices of a row.
    size: int
    chosen: int


def stored_as(weight: Tensor) -> str:
    """`cuts`' name of it."""
    return _STORED.get(type(weight), "plain")


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    tiles: Tiles | None = None,
    scatter: bool = False,
    cut: Plan | None = None,
    x_scales: Tensor | None = None,
) -> Tensor:
    """``x [T, in]`` times a plain or compressed ``weight [out, in]`` transposed.

    With ``tiles`` the matrix is ``[experts, out, in]``, and the outputs are those of the sorted places; rows
    are read by ``tiles.order``, or with ``scatter`` at their place and written by it; so is ``bias``
    ``[experts, out]``, and none of `expert_plan` splits the inputs. With ``x_scales``, ``x`` and
    ``x_scales`` are what ``narrow_kernels.quantized`` returns for rows in bfloat16.
    """
    dtype = x.dtype if x_scales is None else torch.bfloat16
    kind, chunk, group, scale_rows, tile = 0, 64 if x.dtype != torch.float32 else 32, 1 << 30, 1, 1
    stored, scales = weight, x
    if isinstance(weight, Fp8Matrix):
        if x.is_cuda and not has_fp8(x.device):
            raise UnsupportedModelError(
                "experts in FP8 need a GPU of compute capability 8.9 or later",
                "use such a GPU, device `cpu`, or a checkpoint in 16 bits",
            )
        stored, scales = weight.weight, weight.scales
        group, scale_rows = weight.columns, weight.rows
        # Scales of whole rows are applied at the end.
        kind, chunk = 1, 128 if group >= weight.shape[-1] else math.gcd(128, group)
    elif isinstance(weight, Int4Matrix):
        stored, scales, group = weight.weight, weight.scales, weight.group
        kind, tile, chunk = 2, stored.shape[-2], 2 * stored.shape[-1]
    elif isinstance(weight, Fp4Matrix):
        stored, scales, group = weight.weight, weight.scales, weight.group
        kind, tile, chunk = 3, stored.shape[-2], 4 * group
    # Low nibbles are multiplied at once, then high ones.
    piece = 2 * stored.shape[-1] if kind >= 2 else chunk
    if piece < (2 * LEAST_INPUTS if kind >= 2 else LEAST_INPUTS):
        raise UnsupportedModelError(
            f"groups of `{piece}` inputs in the experts of a quantized checkpoint are too few for the GPU",
            "use a checkpoint with groups of 32 or more, or device `cpu`",
        )
    *_, width, inputs = weight.shape
    chosen = 1
    if tiles is not None:
        rows, chosen = tiles.order.shape[0], tiles.chosen
        count = tiles.experts.shape[0]
    else:
        rows = x.shape[0]
    if cut is None:
        stored_name = stored_as(weight)
        if tiles is None:
            cut = plan(rows, width, inputs, stored_name)
        else:
            cut = expert_plan(tiles.size, stored_name if x_scales is None else "narrow", count)
    if tiles is None:
        count = triton.cdiv(rows, cut.rows)
    out = torch.empty((rows, width), dtype=dtype, device=x.device)
    target = out
    if cut.splits > 1:
        target = torch.empty((cut.splits, rows, width), dtype=torch.float32, device=x.device)
    has_bias = bias is not None
    _product[(triton.cdiv(width, cut.outputs) * count, cut.splits)](
        x,
        x if x_scales is None else x_scales,
        stored,
        scales,
        bias if has_bias else x,
        target,
        x if tiles is None else tiles.order,
        x if tiles is None else tiles.experts,
        x if tiles is None else tiles.places,
        x if tiles is None else tiles.ends,
        rows,
        x.shape[0],
        count,
        WIDTH=width,
        INPUTS=inputs,
        KIND=kind,
        CHUNK=chunk,
        GROUP=group,
        SCALE_ROWS=scale_rows,
        TILE=tile,
        PIECE=piece,
        GROUPED=tiles is not None,
        GATHER=chosen if tiles is not None and not scatter else 0,
        SCATTER=scatter,
        BIAS=has_bias and cut.splits == 1,
        SPLITS=cut.splits,
        OUTPUTS=cut.outputs,
        ROWS=cut.rows,
        BAND=BAND,
        NARROW=x_scales is not None,
        PACKED=kind > 0 and x.dtype == torch.bfloat16 and x.is_cuda,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    if cut.splits > 1:
        add_splits(target, bias, out)
    return out


def add_splits(parts: Tensor, bias: Tensor | None, out: Tensor) -> None:
    splits, rows, width = parts.shape
    elements = rows * width
    _sum_splits[(triton.cdiv(elements, 1024),)](
        parts,
        parts if bias is None else bias,
        out,
        elements,
        WIDTH=width,
        SPLITS=splits,
        BIAS=bias is not None,
        BLOCK=1024,
    )


@triton.jit
def _expand(
    weight,
    scales,
    out,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    HALF: tl.constexpr,
):
    """One tile of integers."""
    outputs = tl.program_id(0) * TILE + tl.arange(0, TILE)
    chunk = tl.program_id(1)
    chunks: tl.constexpr = INPUTS // (2 * HALF)
    columns = tl.arange(0, HALF)
    base = (tl.program_id(0).to(tl.int64) * chunks + chunk) * TILE * HALF
    bytes_of = tl.load(weight + base + tl.arange(0, TILE)[:, None] * HALF + columns[None, :])
    group = chunk * 2 * HALF // GROUP
    word = tl.load(scales + group * WIDTH + outputs)
    zero = (word & 255).to(tl.float32)[:, None]
    scale = (word & ~255).to(tl.float32, bitcast=True)[:, None]
    reach = outputs.to(tl.int64)[:, None] * INPUTS + chunk * 2 * HALF + columns[None, :]
    kind = out.dtype.element_ty
    tl.store(out + reach, (((bytes_of & 15).to(tl.float32) - zero) * scale).to(kind))
    tl.store(out + reach + HALF, (((bytes_of >> 4).to(tl.float32) - zero) * scale).to(kind))


def expanded(weight: Int4Matrix, dtype: Tensor) -> Tensor:
    """``[out, in]`` in ``dtype``, its columns by their groups: `Int4Matrix.order` is not undone."""
    width, inputs = weight.shape
    out = torch.empty((width, inputs), dtype=dtype, device=weight.weight.device)
    tile, half = weight.weight.shape[-2:]
    _expand[(width // tile, inputs // (2 * half))](
        weight.weight,
        weight.scales,
        out,
        WIDTH=width,
        INPUTS=inputs,
        GROUP=weight.group,
        TILE=tile,
        HALF=half,
        num_warps=4,
    )
    return out
