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
#: The numbers of all 16 nibbles in FP4 E2M1.
E2M1: Float32 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
E2M1 = np.concatenate((E2M1, -E2M1))


def dequantized(how: Compressed, read: Callable[[str], Array]) -> Float32:
    """The matrix ``[out, in]``, or all experts' ``[experts, in, out]``; ``read`` gives a stored tensor by
    what it is: FP8 and FP4 as bytes, words as int32, scales as float32."""
    if how.layout == "fp8":
        rows, columns = how.shape
        scales = read("scale").reshape(how.scale_shape)
        scales = scales.repeat(how.block[0], axis=0)[:rows].repeat(how.block[1], axis=1)[:, :columns]
        return E4M3[read("weight")] * scales
    if how.layout == "mxfp4":
        return _experts(read("weight"), read("scale"))
    found = unpack(how, read, lambda arrays: np.stack(arrays, axis=-1))
    columns = how.shape[1]
    group_of = np.arange(columns) // how.block[1] if found.group_of is None else found.group_of
    zeros = np.float32(8) if found.zeros is None else found.zeros[:, group_of].astype(np.float32)
    matrix: Float32 = (found.quants.astype(np.float32) - zeros) * found.scales[:, group_of]
    return matrix


def _experts(stored: Array, exponents: Array) -> Float32:
    """Of MXFP4, the low nibble of a byte comes first."""
    experts, outputs, groups, _ = stored.shape
    nibbles = np.stack((stored & 15, stored >> 4), axis=-1).reshape(experts, outputs, groups, -1)
    scaled = np.ldexp(E2M1[nibbles], exponents.astype(np.int32)[..., None] - 127)
    matrices: Float32 = scaled.reshape(experts, outputs, -1).transpose(0, 2, 1)
    return matrices
