"""The array seam's kernels in Triton the language; each computes what its namesake in `operations` does.

Small batches are bound by launches and large ones by memory: so what lies between two matrix products is
one kernel. Owns all but attention, which is in `attention_kernels`, products (`linear_kernels`) and who
computes what in a mixture of experts (`expert_kernels`). Nothing here allocates by the values of
a tensor, so that an iteration can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from inflight.executors.reference.model.families.family import SWIGLU_ALPHA, SWIGLU_LIMIT, Activation

from .attention_kernels import generation_attention
from .context_kernels import context_attention
from .context_kernels import plan as plan_context
from .expert_kernels import choose, choose_in_groups, mix, sort
from .generation_kernels import plan as plan_generation
from .latent_key_kernels import turn_latent
from .linear_kernels import expert_linear, expert_tile_rows, linear
from .operations import AttentionShape, Choice, Tensor, add_layer_norm
from .operations import activate as _activate
from .prefix_kernels import prefix_keys
from .softcap_kernels import capped

__all__ = [
    "activate",
    "add_layer_norm",
    "add_rms_norm",
    "capped",
    "choose_in_groups",
    "context_attention",
    "experts",
    "generation_attention",
    "linear",
    "plan_context",
    "plan_generation",
    "prefix_keys",
    "prepare",
    "rotate_and_store",
    "turn_latent",
]

#: Heads that one program rotates.
_ROTATED_HEADS = 8

_LIMIT, _ALPHA = tl.constexpr(SWIGLU_LIMIT), tl.constexpr(SWIGLU_ALPHA)


@triton.jit(do_not_specialize=["count"])
def _prepare(
    inputs,
    chosen,
    block_tables,
    table_width,
    token_ids,
    cache_slots,
    count,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < count
    known = tl.load(inputs + row, mask=inside, other=0)
    source = tl.load(inputs + count + row, mask=inside, other=-1)
    position = tl.load(inputs + 2 * count + row, mask=inside, other=0)
    slot = tl.load(inputs + 3 * count + row, mask=inside, other=0)
    block = tl.load(inputs + 4 * count + row, mask=inside, other=0)
    token = tl.load(chosen + source, mask=inside & (source >= 0), other=0)
    tl.store(token_ids + row, tl.where(source >= 0, token, known), mask=inside)
    tl.store(cache_slots + row, block * BLOCK_SIZE + position % BLOCK_SIZE, mask=inside)
    tl.store(block_tables + slot.to(tl.int64) * table_width + position // BLOCK_SIZE, block, mask=inside)


def prepare(
    inputs: Tensor, chosen: Tensor, block_tables: Tensor, tokens_per_block: int
) -> tuple[Tensor, Tensor]:
    count = inputs.shape[1]
    token_ids, cache_slots = torch.empty((2, count), dtype=torch.int32, device=inputs.device)
    _prepare[(triton.cdiv(count, 128),)](
        inputs,
        chosen,
        block_tables,
        block_tables.stride(0),
        token_ids,
        cache_slots,
        count,
        BLOCK_SIZE=tokens_per_block,
        BLOCK=128,
    )
    return token_ids, cache_slots


@triton.jit
def _sum(first, more, places, inside, MORE: tl.constexpr):
    """Values of ``first``, with those of ``more`` where there are any."""
    values = tl.load(first + places, mask=inside, other=0.0)
    if MORE:
        wide = values.to(tl.float32) + tl.load(more + places, mask=inside, other=0.0).to(tl.float32)
        values = wide.to(values.dtype)
    return values


@triton.jit
def _add_rms_norm(
    x,
    delta,
    more,
    weight,
    delta_norm,
    out,
    epsilon,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ADD: tl.constexpr,
    MORE: tl.constexpr,
    DELTA_NORM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, PADDED)
    inside = columns < WIDTH
    values = tl.load(x + row + columns, mask=inside, other=0.0)
    if ADD:
        given = _sum(delta, more, row + columns, inside, MORE)
        if DELTA_NORM:
            own = given.to(tl.float32)
            own *= tl.rsqrt(tl.sum(own * own, axis=0) / WIDTH + epsilon)
            own *= tl.load(delta_norm + columns, mask=inside, other=0.0).to(tl.float32)
            given = own.to(values.dtype)
        values += given
        tl.store(x + row + columns, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / WIDTH + epsilon)
    factors = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + columns, (wide * scale * factors).to(values.dtype), mask=inside)


def add_rms_norm(
    x: Tensor,
    delta: Tensor | None,
    weight: Tensor,
    epsilon: float,
    more: Tensor | None = None,
    delta_norm: Tensor | None = None,
) -> Tensor:
    width = x.shape[-1]
    out = torch.empty_like(x)
    padded = triton.next_power_of_2(width)
    _add_rms_norm[(x.shape[0],)](
        x,
        x if delta is None else delta,
        x if more is None else more,
        weight,
        delta_norm,
        out,
        epsilon,
        WIDTH=width,
        PADDED=padded,
        ADD=delta is not None,
        MORE=more is not None,
        DELTA_NORM=delta_norm is not None,
        num_warps=8 if padded >= 4096 else 4,
    )
    return out


@triton.jit
def _gate(
    gate_up, more, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, MORE: tl.constexpr, GELU: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gate = _sum(gate_up, more, row * 2 * WIDTH + columns, inside, MORE)
    up = _sum(gate_up, more, row * 2 * WIDTH + WIDTH + columns, inside, MORE)
    wide = gate.to(tl.float32)
    bent = wide
    if GELU:
        # The half of 1 + tanh is a sigmoid.
        bent = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide)
    gated = wide * tl.sigmoid(bent) * up.to(tl.float32)
    tl.store(out + row * WIDTH + columns, gated.to(gate.dtype), mask=inside)


@triton.jit
def _clamped_swiglu(gate_up, more, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, MORE: tl.constexpr):
    """Gate and up lie in turns."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    gate = _sum(gate_up, more, (row * WIDTH + columns) * 2, inside, MORE)
    up = _sum(gate_up, more, (row * WIDTH + columns) * 2 + 1, inside, MORE).to(tl.float32)
    wide = tl.minimum(gate.to(tl.float32), _LIMIT)
    gated = wide * tl.sigmoid(wide * _ALPHA) * (tl.minimum(tl.maximum(up, -_LIMIT), _LIMIT) + 1.0)
    tl.store(out + row * WIDTH + columns, gated.to(gate.dtype), mask=inside)


def activate(x: Tensor, activation: Activation, gated: bool, more: Tensor | None = None) -> Tensor:
    """Other activations than Llama's, Gemma's and gpt-oss's are PyTorch's operations."""
    if activation == "gelu" or not gated:
        return _activate(x, activation, gated, more)
    rows, width = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    grid, given = (rows, triton.cdiv(width, 1024)), (x, x if more is None else more, out)
    sizes = {"WIDTH": width, "BLOCK": 1024, "MORE": more is not None}
    if activation == "clamped_swiglu":
        _clamped_swiglu[grid](*given, **sizes)
    else:
        _gate[grid](*given, **sizes, GELU=activation == "gelu_tanh")
    return out


def experts(
    x: Tensor,
    scores: Tensor,
    gate_up: Tensor,
    down: Tensor,
    chosen: int,
    activation: Activation,
    normalized: bool = True,
    adds: Callable[..., None] | None = None,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    choice: Choice | None = None,
) -> Tensor:
    """Each expert computes the rows that chose it, sorted on the device. ``adds`` is
    `expert_adapter_kernels.ExpertAdapters.add` of the layer."""
    best, shares = choose(scores, chosen, normalized) if choice is None else choice
    count = scores.shape[1]
    tiles = sort(best, count, expert_tile_rows(x, (gate_up, down), best.numel(), count))
    inner = expert_linear(x, gate_up, gate_up_bias, tiles)
    if adds is not None:
        adds("gate_up", x, inner, tiles, best)
    active = activate(inner, activation, True)
    out = expert_linear(active, down, down_bias, tiles, scatter=True)
    if adds is not None:
        adds("down", active, out, tiles, best)
    return mix(out, shares)


@triton.jit
def _rotate_and_store(
    qkv,
    more,
    positions,
    cache_slots,
    cosines,
    sines,
    query_norm,
    key_norm,
    epsilon,
    queries,
    keys,
    values,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NORM: tl.constexpr,
    NARROW: tl.constexpr,
    GROUP: tl.constexpr,
    MORE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)[:, None]
    columns = tl.arange(0, PADDED)[None, :]
    present = head < HEADS + 2 * KV_HEADS
    inside = (columns < HALF) & present
    source = (row * (HEADS + 2 * KV_HEADS) + head) * 2 * HALF + columns
    first = _sum(qkv, more, source, inside, MORE)
    second = _sum(qkv, more, source + HALF, inside, MORE)
    slot = tl.load(cache_slots + row).to(tl.int64)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    is_query, is_key = head < HEADS, (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_value = (head >= HEADS + KV_HEADS) & present
    wide, wide_second = first.to(tl.float32), second.to(tl.float32)
    if NORM:
        squares = tl.sum(wide * wide, axis=1) + tl.sum(wide_second * wide_second, axis=1)
        scale = tl.rsqrt(squares / (2 * HALF) + epsilon)[:, None]
        own = columns < HALF
        factors = tl.where(
            is_query,
            tl.load(query_norm + columns, mask=own, other=0.0),
            tl.load(key_norm + columns, mask=own, other=0.0),
        )
        factors_second = tl.where(
            is_query,
            tl.load(query_norm + HALF + columns, mask=own, other=0.0),
            tl.load(key_norm + HALF + columns, mask=own, other=0.0),
        )
        wide = (wide * scale * factors).to(first.dtype).to(tl.float32)
        wide_second = (wide_second * scale * factors_second).to(first.dtype).to(tl.float32)
    angle = tl.load(positions + row).to(tl.int64) * HALF
    cosine = tl.load(cosines + angle + columns, mask=columns < HALF, other=0.0)
    sine = tl.load(sines + angle + columns, mask=columns < HALF, other=0.0)
    rotated = (wide * cosine - wide_second * sine).to(first.dtype)
    rotated_second = (wide_second * cosine + wide * sine).to(first.dtype)
    query = queries + (row * HEADS + head) * 2 * HALF + columns
    tl.store(query, rotated, mask=inside & is_query)
    tl.store(query + HALF, rotated_second, mask=inside & is_query)
    if NARROW:
        # FP8 has no infinity: what is beyond its largest number becomes that.
        rotated = tl.clamp(rotated.to(tl.float32), -448.0, 448.0)
        rotated_second = tl.clamp(rotated_second.to(tl.float32), -448.0, 448.0)
        first = tl.clamp(first.to(tl.float32), -448.0, 448.0)
        second = tl.clamp(second.to(tl.float32), -448.0, 448.0)
    kept = ((block * KV_HEADS + (head - HEADS) % KV_HEADS) * BLOCK_SIZE + offset) * 2 * HALF + columns
    kind = keys.dtype.element_ty
    tl.store(keys + kept, rotated.to(kind), mask=inside & is_key)
    tl.store(keys + kept + HALF, rotated_second.to(kind), mask=inside & is_key)
    tl.store(values + kept, first.to(kind), mask=inside & is_value)
    tl.store(values + kept + HALF, second.to(kind), mask=inside & is_value)


def rotate_and_store(
    qkv: Tensor,
    positions: Tensor,
    cache_slots: Tensor,
    tables: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    epsilon: float,
    keys: Tensor,
    values: Tensor,
    shape: AttentionShape,
    more: Tensor | None = None,
) -> Tensor:
    rows, half = qkv.shape[0], shape.head_dim // 2
    queries = torch.empty((rows, shape.heads, shape.head_dim), dtype=qkv.dtype, device=qkv.device)
    query_norm, key_norm = norms if norms is not None else (qkv, qkv)
    _rotate_and_store[(rows, triton.cdiv(shape.heads + 2 * shape.kv_heads, _ROTATED_HEADS))](
        qkv,
        qkv if more is None else more,
        positions,
        cache_slots,
        *tables,
        query_norm,
        key_norm,
        epsilon,
        queries,
        keys,
        values,
        HEADS=shape.heads,
        KV_HEADS=shape.kv_heads,
        HALF=half,
        PADDED=triton.next_power_of_2(half),
        BLOCK_SIZE=shape.tokens_per_block,
        NORM=norms is not None,
        NARROW=keys.dtype != qkv.dtype,
        GROUP=_ROTATED_HEADS,
        MORE=more is not None,
        num_warps=2,
    )
    return queries
