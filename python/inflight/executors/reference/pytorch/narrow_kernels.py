"""FP8 times FP8, in Triton the language and by PyTorch: many rows, where arithmetic takes the time.

Rows are rounded to FP8, each with its scales (`quantized`). Nothing here allocates by the values of a
tensor, so that an iteration can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
import triton
import triton.language as tl

from .compressed import Fp8Matrix
from .cuts import Plan, narrow_plan_of_others
from .operations import Tensor
from .product_kernels import BAND, add_splits, place_of


def fits_library(rows: int, weight: Fp8Matrix) -> bool:
    """Whether PyTorch multiplies blocks of 128 x 128: from 2.10 on, on Hopper alone."""
    return bool(
        rows % 4 == 0
        and weight.rows == 128
        and weight.shape[0] % 128 == 0
        and weight.scales.shape[1] % 4 == 0
        and hasattr(functional, "scaled_mm")
        and torch.cuda.get_device_capability(weight.weight.device) == (9, 0)
    )


def library_product(x: Tensor, x_scales: Tensor, weight: Fp8Matrix, dtype: Tensor) -> Tensor:
    """As `narrow_product`, by PyTorch."""
    if weight.is_by_row:
        return torch._scaled_mm(
            x, weight.weight.t(), x_scales, weight.scales.t(), out_dtype=dtype, use_fast_accum=True
        )
    kinds = functional.ScalingType
    return functional.scaled_mm(
        x,
        weight.weight.t(),
        x_scales,
        kinds.BlockWise1x128,
        weight.scales.t(),
        kinds.BlockWise128x128,
        output_dtype=dtype,
    )


@triton.jit
def _quantize(x, out, scales, rows, INPUTS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    columns = tl.arange(0, PADDED)
    inside = (columns < GROUP) & (group * GROUP + columns < INPUTS)
    reach = row * INPUTS + group * GROUP + columns
    values = tl.load(x + reach, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), axis=0), 1e-12) / 448.0
    tl.store(scales + group.to(tl.int64) * rows + row, scale)
    narrow = tl.clamp(values / scale, -448.0, 448.0)
    tl.store(out + reach, narrow.to(out.dtype.element_ty), mask=inside)


def quantized(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """``x [T, in]`` in FP8, and the scales of each ``group`` of inputs: float32 ``[T, groups]``, those of a
    group one behind the other."""
    rows, inputs = x.shape
    groups = triton.cdiv(inputs, group)
    out = torch.empty((rows, inputs), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((groups, rows), dtype=torch.float32, device=x.device)
    padded = triton.next_power_of_2(group)
    _quantize[(rows, groups)](
        x, out, scales, rows, INPUTS=inputs, GROUP=group, PADDED=padded, num_warps=1 if padded <= 256 else 8
    )
    return out, scales.t()


@triton.jit
def _narrow_product(
    x,
    x_scales,
    weight,
    scales,
    out,
    rows,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    BY_ROW: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BAND: tl.constexpr,
):
    """FP8 times FP8, where each row has a scale, or each 128 inputs of it."""
    tile, column = place_of(tl.program_id(0), tl.cdiv(rows, ROWS), (WIDTH + OUTPUTS - 1) // OUTPUTS, BAND)
    split = tl.program_id(1)
    row = tile * ROWS + tl.arange(0, ROWS)
    output = column * OUTPUTS + tl.arange(0, OUTPUTS)
    present, inside = row < rows, output < WIDTH
    columns = tl.arange(0, 128)
    chunks: tl.constexpr = (INPUTS + 127) // 128
    share: tl.constexpr = (chunks + SPLITS - 1) // SPLITS
    x_reach = row.to(tl.int64)[:, None] * INPUTS + columns[None, :]
    w_reach = output.to(tl.int64)[None, :] * INPUTS + columns[:, None]
    sums = tl.zeros((ROWS, OUTPUTS), tl.float32)
    begin = split * share
    for chunk in range(begin, tl.minimum(begin + share, chunks)):
        known = columns < INPUTS - chunk * 128
        values = tl.load(x + x_reach + chunk * 128, mask=present[:, None] & known[None, :], other=0.0)
        factors = tl.load(weight + w_reach + chunk * 128, mask=inside[None, :] & known[:, None], other=0.0)
        if BY_ROW:
            sums = tl.dot(values, factors, sums)
        else:
            row_scale = tl.load(x_scales + chunk * rows + row, mask=present, other=0.0)
            if SCALE_ROWS % OUTPUTS == 0:
                # All outputs of the tile share it.
                scale = tl.load(scales + column * OUTPUTS // SCALE_ROWS * chunks + chunk)
                sums += tl.dot(values, factors) * (row_scale * scale)[:, None]
            else:
                scale = tl.load(scales + output // SCALE_ROWS * chunks + chunk, mask=inside, other=0.0)
                sums += tl.dot(values, factors) * (row_scale[:, None] * scale[None, :])
    if BY_ROW:
        row_scale = tl.load(x_scales + row, mask=present, other=0.0)
        sums *= row_scale[:, None] * tl.load(scales + output, mask=inside, other=0.0)[None, :]
    reach = (row + split * rows).to(tl.int64)[:, None] * WIDTH + output[None, :]
    tl.store(out + reach, sums.to(out.dtype.element_ty), mask=present[:, None] & inside[None, :])


def narrow_product(
    x: Tensor, x_scales: Tensor, weight: Fp8Matrix, dtype: Tensor, cut: Plan | None = None
) -> Tensor:
    """``x [T, in]`` in FP8 with its scales (`quantized`) times an FP8 ``weight`` transposed."""
    rows, (width, inputs) = x.shape[0], weight.shape
    cut = cut or narrow_plan_of_others(rows, width, inputs)
    out = torch.empty((rows, width), dtype=dtype, device=x.device)
    target = out
    if cut.splits > 1:
        target = torch.empty((cut.splits, rows, width), dtype=torch.float32, device=x.device)
    _narrow_product[(triton.cdiv(width, cut.outputs) * triton.cdiv(rows, cut.rows), cut.splits)](
        x,
        x_scales,
        weight.weight,
        weight.scales,
        target,
        rows,
        WIDTH=width,
        INPUTS=inputs,
        SCALE_ROWS=weight.rows,
        BY_ROW=weight.is_by_row,
        SPLITS=cut.splits,
        ROWS=cut.rows,
        OUTPUTS=cut.outputs,
        BAND=BAND,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    if cut.splits > 1:
        add_splits(target, None, out)
    return out
