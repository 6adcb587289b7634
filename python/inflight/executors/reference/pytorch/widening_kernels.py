"""Numbers of few bits, widened in a GPU's registers to what tensor cores multiply, in Triton the language.

All are exact. `unpacked_` ones take four bytes at once, in instructions of the GPU. Where the bytes lie is
`compressed`'s, what they are multiplied with `product_kernels`'.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: How much smaller FP4 is computed than it is.
FP4_UNIT = tl.constexpr(2.0**64)


@triton.jit
def unpacked_int4(bytes_of, zero):
    """Low and high nibbles less ``zero``, in bfloat16, exact: a nibble becomes the low bits of a number whose
    last bit counts ones."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, c, d, one;
        mov.b32 one, 0x3f803f80;
        prmt.b32 a, $4, 0, 0x4140;
        prmt.b32 b, $4, 0, 0x4342;
        shr.u32 c, a, 4;
        shr.u32 d, b, 4;
        lop3.b32 a, a, 0x000f000f, 0x43004300, 0xea;
        lop3.b32 b, b, 0x000f000f, 0x43004300, 0xea;
        lop3.b32 c, c, 0x000f000f, 0x43004300, 0xea;
        lop3.b32 d, d, 0x000f000f, 0x43004300, 0xea;
        fma.rn.bf16x2 $0, a, one, $5;
        fma.rn.bf16x2 $1, b, one, $6;
        fma.rn.bf16x2 $2, c, one, $5;
        fma.rn.bf16x2 $3, d, one, $6;
        }
        """,
        "=r,=r,=r,=r,r,r,r",
        [bytes_of, (-128.0 - zero.to(tl.float32)).to(tl.bfloat16)[:, None]],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def fp4_factor(exponents):
    """What makes numbers of the bits of FP4 E2M1, by what is stored of their scale: 1 / `FP4_UNIT` of them,
    which bfloat16 holds exactly for scales from 2**-60 to 2**64."""
    bits = tl.minimum(exponents + 62, 254) << 7
    return bits.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def unpacked_fp4(bytes_of, low_factor, high_factor):
    """Low and high nibbles as FP4 E2M1 times their factors, in bfloat16, exact: their bits in place, as a
    number whose exponent counts from elsewhere, times a power of two."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, c, d, s, zero;
        mov.b32 zero, 0x80008000;
        prmt.b32 a, $4, 0, 0x4140;
        prmt.b32 b, $4, 0, 0x4342;
        shl.b32 s, a, 8;
        and.b32 s, s, 0x80008000;
        shl.b32 c, a, 2;
        lop3.b32 c, c, 0x01c001c0, s, 0xea;
        shl.b32 s, b, 8;
        and.b32 s, s, 0x80008000;
        shl.b32 d, b, 2;
        lop3.b32 d, d, 0x01c001c0, s, 0xea;
        shl.b32 s, a, 12;
        and.b32 s, s, 0x80008000;
        shl.b32 a, a, 6;
        lop3.b32 a, a, 0x01c001c0, s, 0xea;
        shl.b32 s, b, 12;
        and.b32 s, s, 0x80008000;
        shl.b32 b, b, 6;
        lop3.b32 b, b, 0x01c001c0, s, 0xea;
        fma.rn.bf16x2 $0, a, $5, zero;
        fma.rn.bf16x2 $1, b, $6, zero;
        fma.rn.bf16x2 $2, c, $7, zero;
        fma.rn.bf16x2 $3, d, $8, zero;
        }
        """,
        "=r,=r,=r,=r,r,r,r,r,r",
        [bytes_of, low_factor[:, None], high_factor[:, None]],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def widened_fp4(nibbles):
    """Nibbles as FP4 E2M1, in float32, exact."""
    digits = (nibbles & 7).to(tl.int32)
    # Twice the number: 0 to 4, then every second, then every fourth one.
    doubled = tl.where(digits < 4, digits, tl.where(digits < 6, 2 * digits - 4, 4 * digits - 16))
    return tl.where((nibbles & 8) > 0, -doubled, doubled).to(tl.float32) * 0.5


@triton.jit
def widened_fp8(factors):
    """FP8 E4M3 in bfloat16, exact: its bits in place, times the ratio of what the exponents count from."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, c, d, ratio, zero;
        mov.b32 ratio, 0x7b807b80;
        mov.b32 zero, 0x80008000;
        prmt.b32 a, $2, 0, 0x1404;
        prmt.b32 b, $2, 0, 0x3424;
        and.b32 c, a, 0x80008000;
        and.b32 d, b, 0x80008000;
        shr.u32 a, a, 4;
        shr.u32 b, b, 4;
        lop3.b32 a, a, 0x07f007f0, c, 0xea;
        lop3.b32 b, b, 0x07f007f0, d, 0xea;
        fma.rn.bf16x2 $0, a, ratio, zero;
        fma.rn.bf16x2 $1, b, ratio, zero;
        }
        """,
        "=r,=r,r",
        [factors.to(tl.uint8, bitcast=True)],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def widened_int4(quants, zero, dtype: tl.constexpr):
    """``quants - zero`` in ``dtype``, exact: the integer becomes the low bits of a number whose last bit
    counts ones."""
    if dtype == tl.bfloat16:
        wide = (quants.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
        return wide - (zero.to(tl.float32) + 128.0).to(tl.bfloat16)[:, None]
    elif dtype == tl.float16:  # noqa: RET505 -- Triton compiles what follows a branch, too
        wide = (quants.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True)
        return wide - (zero.to(tl.float32) + 1024.0).to(tl.float16)[:, None]
    else:
        return quants.to(tl.float32) - zero.to(tl.float32)[:, None]
