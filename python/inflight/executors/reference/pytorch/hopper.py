"""Whether attention of prompts can run as `hopper_kernels` has it, and its launch.

Those kernels need a GPU of compute capability 9.0 and a Triton that has Gluon, whose interface is not fixed
yet: so they are tried once a process, against the plain operations, and where they cannot be compiled or give
something else, `context_kernels` computes with its own, as it does with windows, biases, caps, other
types and other sizes of heads. Knows nothing of plans, which are `context_kernels`'.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch

from . import operations
from .operations import CONTEXT_TILE, AttentionShape, Context, Tensor

_log = logging.getLogger(__name__)

#: Keys of a piece, and pieces of keys and of values that are on their way at a time: as many as the shared
#: memory of a multiprocessor holds next to the queries.
KEYS, _STAGES = 128, 2
#: Query heads that a program computes, and numbers of each.
HEADS_TOGETHER, _HEAD_DIM, _HALF = 2, 128, 64
#: Tokens of a block, which the copy engine fetches at a time.
_BLOCK_SIZES = (16, 32, 64, 128)
#: Registers that a thread has before groups of warps share them out: all of them.
_REGISTERS = 168
#: How far the trial may be from plain operations in float32, relative to their size; bfloat16 is at 0.003.
_TOLERANCE = 0.02


def is_usable(device: Any, shape: AttentionShape, element_size: int, narrow: bool) -> bool:
    """Whether attention without a window may run on ``device`` by the kernels of Hopper; ``narrow``: the
    cache's numbers have fewer bytes than those of queries, which is ``element_size``."""
    return (
        device.type == "cuda"
        and element_size == 2
        and not narrow
        and shape.head_dim == _HEAD_DIM
        and (shape.heads // shape.kv_heads) % HEADS_TOGETHER == 0
        and shape.slopes is None
        and not shape.has_sink_scores
        and shape.softcap is None
        and shape.tokens_per_block in _BLOCK_SIZES
        and _is_available(device)
    )


@functools.cache
def _is_available(device: Any) -> bool:
    if torch.cuda.get_device_capability(device) != (9, 0):
        return False
    try:
        apart = _try(device)
    except Exception as error:
        # Whatever another Triton may raise: there are other kernels.
        _log.warning("the kernels of attention for Hopper cannot be used: %s", error)
        return False
    if not apart < _TOLERANCE:
        _log.warning("the kernels of attention for Hopper are not used: they are %.3f apart", apart)
        return False
    return True


def _try(device: Any) -> float:
    """How far the kernel is from plain operations with 70 rows after 200 others, relative to their size."""
    shape = AttentionShape(HEADS_TOGETHER, 1, _HEAD_DIM, 32, 288)
    numbers = torch.linspace(0, 9e4, 2 * 9 * 32 * _HEAD_DIM, dtype=torch.float64, device=device).sin()
    keys, values = numbers.to(torch.bfloat16).view(2, 9, 1, 32, _HEAD_DIM)
    queries = 4 * values.reshape(-1, HEADS_TOGETHER, _HEAD_DIM)[:70]
    # Rows, slots, positions and counts of two tiles; then how many parts there are, the first of each tile,
    # the pieces of each and the tile of each part.
    tiles = [[0, 64], [0, 0], [200, 264], [64, 6]]
    rows, slots, positions, counts = torch.tensor(tiles, dtype=torch.int32, device=device)
    cuts = torch.tensor([2, 0, 1, 3, 3, 0, 1], dtype=torch.int32, device=device)
    table = torch.arange(9, dtype=torch.int32, device=device).flip(0)[None]
    context = Context(rows, slots, positions, counts, ((0, 70, 0, 200),))
    nothing = torch.empty(1, dtype=torch.float32, device=device)
    found, right = torch.zeros_like(queries), torch.zeros_like(queries, dtype=torch.float32)
    attend(queries, keys, values, table, context, shape, (cuts, nothing, nothing, nothing), 4, found)
    plain = (queries.float(), keys.float(), values.float())
    operations.context_attention(*plain, table, context, None, shape, None, right)
    return float((found.float() - right).norm() / right.norm())


@functools.cache
def _layout() -> Any:
    """How a block lies in shared memory."""
    from triton.experimental.gluon import language

    return language.NVMMASharedLayout(2 * _HALF, 16, 2)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    context: Context,
    shape: AttentionShape,
    plan: tuple[Tensor, Tensor, Tensor, Tensor],
    programs: int,
    out: Tensor,
) -> None:
    """Attends to the parts of a plan, which are its cuts, outputs, maxima and sums, by so many programs."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from .hopper_kernels import attend_parts

    width = shape.heads * _HEAD_DIM
    numbers, box = [keys.numel() // _HEAD_DIM, _HEAD_DIM], [shape.tokens_per_block, _HALF]
    asked = TensorDescriptor(queries, [len(queries), width], [width, 1], [CONTEXT_TILE, _HALF], _layout())
    fetched = [TensorDescriptor(one, numbers, [_HEAD_DIM, 1], box, _layout()) for one in (keys, values)]
    attend_parts[(programs,)](
        asked, *fetched, block_tables, context.rows, context.slots, context.positions, context.counts,
        *plan, out, shape.scale * 1.4426950408889634, block_tables.stride(0), context.rows.shape[0],
        HEADS=shape.heads, KV_HEADS=shape.kv_heads, BLOCK_SIZE=shape.tokens_per_block, KEYS=KEYS,
        STAGES=_STAGES, num_warps=4, maxnreg=_REGISTERS,
    )  # fmt: skip
