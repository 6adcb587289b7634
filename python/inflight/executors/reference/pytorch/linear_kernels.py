"""Which product a linear layer takes, by what its matrix is and how many rows there are.

One row is bound by reading the matrix, a few rows too: a compressed one is widened as it is read. More rows
of FP8 are rounded to FP8 too, so that programs read half the bytes of them, and many rows of integers are
multiplied with an expanded copy, since arithmetic then takes the time.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as functional
import triton
import triton.language as tl

from .compressed import Fp8Matrix, Int4Matrix, SideBySide, has_fp8
from .cuts import WIDENED_FP8_ROWS, expert_rows, narrow_plan
from .narrow_kernels import fits_library, library_product, narrow_product, quantized
from .operations import Tensor
from .product_kernels import LEAST_INPUTS, Tiles, expanded, product, stored_as

#: Rows up to which integers are widened tile by tile, however often a tile is read.
TILED_INT4_ROWS = 256

#: Outputs that a program of a matrix-vector product computes at most.
_VECTOR_OUTPUTS = 8


@triton.jit
def _matrix_vector(
    x,
    weight,
    scales,
    bias,
    out,
    width,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    TILE: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    BIAS: tl.constexpr,
):
    """``SCALE_ROWS`` outputs and ``GROUP`` inputs share a scale; 0: there are none."""
    first = tl.program_id(0) * OUTPUTS
    rows = first + tl.arange(0, OUTPUTS)
    inside = rows < width
    columns = tl.arange(0, TILE)
    sums = tl.zeros((OUTPUTS, TILE), tl.float32)
    for start in range(0, INPUTS, TILE):
        place = start + columns
        inputs = tl.load(x + place, mask=place < INPUTS, other=0.0).to(tl.float32)
        if SCALE_ROWS > 0 and GROUP < INPUTS:
            # All outputs of a program lie in one block.
            block = scales + first // SCALE_ROWS * ((INPUTS + GROUP - 1) // GROUP)
            inputs *= tl.load(block + place // GROUP, mask=place < INPUTS, other=0.0)
        reach = rows[:, None].to(tl.int64) * INPUTS + place[None, :]
        factors = tl.load(weight + reach, mask=inside[:, None] & (place < INPUTS)[None, :], other=0.0)
        sums += factors.to(tl.float32) * inputs[None, :]
    product = tl.sum(sums, axis=1)
    if SCALE_ROWS > 0 and GROUP >= INPUTS:
        product *= tl.load(scales + rows // SCALE_ROWS, mask=inside, other=0.0)
    if BIAS:
        product += tl.load(bias + rows, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + rows, product.to(out.dtype.element_ty), mask=inside)


def _vector_tile(weight: Tensor | Fp8Matrix) -> tuple[int, int]:
    """Outputs of a program, and inputs that it takes at once: what an H200 reads fastest."""
    inputs = weight.shape[-1]
    if not isinstance(weight, Fp8Matrix):
        return (1, 2048) if inputs % 2048 == 0 else (2, 1024)
    if 2048 < inputs <= 4096:
        # This many sums fit in registers only if the loop runs once.
        return _VECTOR_OUTPUTS, 4096
    return 4, min(2048, triton.next_power_of_2(inputs))


def _vector_product(x: Tensor, weight: Tensor | Fp8Matrix, bias: Tensor | None) -> Tensor:
    """One row is bound by reading the weights: a matrix-vector product reads them at 90 % of the memory's
    speed where the library's small products reach 60 to 85 %."""
    outputs, inputs = weight.shape
    stored, scales, scale_rows, group = weight, weight, 0, 0
    size, tile = _vector_tile(weight)
    if isinstance(weight, Fp8Matrix):
        stored, scales, scale_rows, group = weight.weight, weight.scales, weight.rows, weight.columns
    out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    _matrix_vector[(triton.cdiv(outputs, size),)](
        x,
        stored,
        scales,
        x if bias is None else bias,
        out,
        outputs,
        INPUTS=inputs,
        OUTPUTS=size,
        TILE=tile,
        SCALE_ROWS=scale_rows,
        GROUP=group,
        BIAS=bias is not None,
        num_warps=4,
    )
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`operations.linear`."""
    if not isinstance(weight, torch.Tensor):
        return _compressed_linear(x, weight, bias)
    if x.shape[0] != 1 or x.dtype == torch.float32:
        return functional.linear(x, weight, bias)
    return _vector_product(x, weight, bias)


def _compressed_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`operations.linear` with a compressed matrix."""
    if isinstance(weight, SideBySide):
        mixed = torch.cat([linear(x, part) for part in weight.parts], -1)
        return mixed if bias is None else mixed + bias
    rows = x.shape[0]
    if isinstance(weight, Int4Matrix):
        if weight.order is not None:
            x = x.index_select(1, weight.order)
        many = rows > TILED_INT4_ROWS and x.dtype != torch.float32
        if many or weight.tile_inputs < 2 * LEAST_INPUTS:
            return functional.linear(x, expanded(weight, x.dtype), bias)
    elif (x.is_cuda and not has_fp8(x.device)) or (
        math.gcd(128, weight.columns) < LEAST_INPUTS and weight.columns < weight.shape[-1]
    ):
        return functional.linear(x, weight.expanded(x.dtype), bias)
    elif rows == 1 and (weight.columns >= weight.shape[-1] or weight.rows % _VECTOR_OUTPUTS == 0):
        return _vector_product(x, weight, bias)
    elif rows > WIDENED_FP8_ROWS and x.dtype == torch.bfloat16 and has_fp8(x.device):
        return _fp8_linear(x, weight, bias)
    return product(x, weight, bias)


def _fp8_linear(x: Tensor, weight: Fp8Matrix, bias: Tensor | None) -> Tensor:
    """Rounds each row of ``x`` to FP8 with a scale for each, or for each group of inputs."""
    outputs, inputs = weight.shape
    if outputs % 16 or inputs % 16 or (weight.columns < inputs and (weight.columns != 128 or inputs % 128)):
        return product(x, weight, bias)
    narrow, scales = quantized(x, min(weight.columns, inputs))
    cut = narrow_plan(x.shape[0], outputs, inputs, weight.is_by_row)
    if cut is None and (weight.is_by_row or fits_library(x.shape[0], weight)):
        out = library_product(narrow, scales, weight, x.dtype)
    else:
        out = narrow_product(narrow, scales, weight, x.dtype, cut)
    return out if bias is None else out + bias


def expert_kind(x: Tensor, weight: Tensor) -> str:
    """How experts are computed, by `cuts`' names: as their matrices are stored, or `narrow` or
    `narrow_blocks`, where many rows are rounded to FP8."""
    if (
        isinstance(weight, Fp8Matrix)
        and x.dtype == torch.bfloat16
        and has_fp8(x.device)
        and (weight.columns >= weight.shape[-1] or weight.columns == 128)
    ):
        return "narrow" if weight.columns >= weight.shape[-1] else "narrow_blocks"
    return stored_as(weight)


#: Bytes of shared memory that tiles of 256 rows take: three stages of 48 KiB.
_LARGE_TILES = 3 * 48 << 10


@functools.cache
def _has_large_tiles(device: Tensor) -> bool:
    if device.type != "cuda":
        return False
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 0)) >= _LARGE_TILES


def expert_tile_rows(x: Tensor, weights: tuple[Tensor, Tensor], assigned: int, experts: int) -> int:
    """Rows of a tile that suit both matrices of the experts, of ``assigned`` rows in all."""
    most = 256 if x.element_size() == 2 and _has_large_tiles(x.device) else 128
    return min(expert_rows(assigned, experts, expert_kind(x, weight), most) for weight in weights)


def expert_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, tiles: Tiles, scatter: bool = False
) -> Tensor:
    """Multiplies sorted rows with the experts' matrices; with tiles of more than `WIDENED_FP8_ROWS` those of
    FP8 round the rows as well."""
    if tiles.size <= WIDENED_FP8_ROWS or not expert_kind(x, weight).startswith("narrow"):
        return product(x, weight, bias, tiles, scatter)
    narrow, scales = quantized(x, min(weight.columns, weight.shape[-1]))
    return product(narrow, weight, bias, tiles, scatter, x_scales=scales)
