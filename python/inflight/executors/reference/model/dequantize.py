"""Quantized matrices as float32, in NumPy: what decides which numbers a quantized checkpoint means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .array_types import Array, Float32
from .compressed import Compressed, unpack


def _e4m3() -> Float32:
    """The numbers of all 256 bytes in FP8 E4M3: a sign, four bits of exponent, three of mantissa."""
    codes = np.arange(256)
    exponents, mantissas = (codes >> 3) & 15, codes & 7
    normal = (1 + mantissas / 8) * 2.0 ** (exponents - 7)
    numbers = np.where(exponents == 0, mantissas / 8 * 2.0**-6, normal)
    numbers[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -numbers, numbers).astype(np.float32)


E4M3 = _e4m3()


def dequantized(how: Compressed, read: Callable[[str], Array]) -> Float32:
    """The matrix ``[out, in]``; ``read`` gives a stored tensor by what it is: FP8 as bytes, words as int32,
    scales as float32."""
    if how.layout == "fp8":
        rows, columns = how.shape
        scales = read("scale").reshape(how.scale_shape)
        scales = scales.repeat(how.block[0], axis=0)[:rows].repeat(how.block[1], axis=1)[:, :columns]
        return E4M3[read("weight")] * scales
    found = unpack(how, read, lambda arrays: np.stack(arrays, axis=-1))
    columns = how.shape[1]
    group_of = np.arange(columns) // how.block[1] if found.group_of is None else found.group_of
    zeros = np.float32(8) if found.zeros is None else found.zeros[:, group_of].astype(np.float32)
    matrix: Float32 = (found.quants.astype(np.float32) - zeros) * found.scales[:, group_of]
    return matrix
