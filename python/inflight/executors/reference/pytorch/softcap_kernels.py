"""Caps by tanh in Triton the language: of scores, inside the kernels of attention, and of logits.

tanh is made of exp2, which every version of Triton and its interpreter have, in float32. Knows nothing
of what is capped.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .operations import Tensor

#: Numbers that a program caps.
_BLOCK = 2048


@triton.jit
def cap_scores(scores, CAP: tl.constexpr):
    """Scores in base 2, capped at ``CAP`` in base e."""
    limit: tl.constexpr = CAP * 1.4426950408889634
    doubled: tl.constexpr = 2.0 / CAP
    # Beyond all that exp2 can have, the cap itself.
    return limit - 2 * limit / (1.0 + tl.exp2(tl.minimum(scores * doubled, 120.0)))


@triton.jit
def _cap(x, stride, width, CAP: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    places = x + tl.program_id(0).to(tl.int64) * stride + columns
    values = tl.load(places, mask=columns < width, other=0.0)
    wide = cap_scores(values.to(tl.float32) * 1.4426950408889634, CAP) * 0.6931471805599453
    tl.store(places, wide.to(values.dtype), mask=columns < width)


def capped(x: Tensor, softcap: float) -> Tensor:
    rows, width = x.shape
    if rows:
        _cap[(rows, triton.cdiv(width, _BLOCK))](x, x.stride(0), width, CAP=softcap, BLOCK=_BLOCK)
    return x
