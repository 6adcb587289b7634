"""The array seam on PyTorch, in plain operations: every device runs them, and every kernel is held to them.

The same operations as `arrays`, fused as the device wants them. Rows are those of one iteration ``[T]``;
floats have the model's type, and sums are taken in float32. Knows nothing of requests or block accounting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional

#: Rows of a prompt that one tile of `Context` holds at most.
CONTEXT_TILE = 64

Tensor = Any  # torch.Tensor; torch is optional, and not there where types are checked


@dataclass(frozen=True, slots=True)
class Shape:
    """What attention needs to know of a model and its cache."""

    heads: int
    kv_heads: int
    head_dim: int
    tokens_per_block: int
    max_seq_len: int
    #: First positions that every query sees beyond its window.
    sink_tokens: int = 0

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


@dataclass(frozen=True, slots=True)
class Context:
    """The rows of an iteration that belong to prompts, cut into tiles of consecutive rows of one chunk."""

    #: Row, slot, first position and rows of each tile: int32 ``[tiles]``.
    rows: Tensor
    slots: Tensor
    positions: Tensor
    counts: Tensor
    #: The same on the host, for the plain operations: (first row, rows, slot, first position) a chunk.
    chunks: tuple[tuple[int, ...], ...]


def prepare(
    inputs: Tensor, chosen: Tensor, block_tables: Tensor, tokens_per_block: int
) -> tuple[Tensor, Tensor]:
    """Token ids and cache slots of generation rows, and notes the block of each in ``block_tables``.

    ``inputs [5, R]``: known token, row of ``chosen`` that holds it instead (or negative), position, sequence
    slot, block of the position. All int32.
    """
    known, sources, positions, slots, blocks = inputs
    token_ids = torch.where(sources >= 0, chosen[sources.clamp(min=0).long()], known)
    columns = torch.div(positions, tokens_per_block, rounding_mode="floor").long()
    block_tables[slots.long(), columns] = blocks
    return token_ids, blocks * tokens_per_block + positions % tokens_per_block


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x [T, in]`` times ``weight [out, in]`` transposed, plus ``bias [out]``."""
    return functional.linear(x, weight, bias)


def add_rms_norm(x: Tensor, delta: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """Adds ``delta`` to ``x`` in place; the sum with unit root mean square, times ``weight``."""
    if delta is not None:
        x += delta
    return _rms_norm(x, weight, epsilon)


def _rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (normed * weight.float()).to(x.dtype)


def silu_gate(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of the halves of ``[T, 2 x n]``."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(gate_up.dtype)


def rotate_and_store(
    qkv: Tensor,
    positions: Tensor,
    cache_slots: Tensor,
    tables: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    epsilon: float,
    keys: Tensor,
    values: Tensor,
    shape: Shape,
) -> Tensor:
    """Norms and rotates the queries and keys of ``qkv [T, (heads + 2 kv_heads) x head_dim]``, writes keys and
    values to the cache ``[blocks, kv_heads, tokens_per_block, head_dim]``; the queries
    ``[T, heads, head_dim]``.
    """
    rows = qkv.shape[0]
    heads = qkv.view(rows, -1, shape.head_dim)
    queries, new_keys, new_values = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
    if norms is not None:
        queries, new_keys = (
            _rms_norm(part, norm, epsilon) for part, norm in zip((queries, new_keys), norms, strict=True)
        )
    cosines, sines = (table[positions.long()][:, None, :] for table in tables)
    blocks = torch.div(cache_slots, shape.tokens_per_block, rounding_mode="floor").long()
    offsets = (cache_slots % shape.tokens_per_block).long()
    keys[blocks, :, offsets] = _rotate(new_keys, cosines, sines)
    values[blocks, :, offsets] = new_values
    return _rotate(queries, cosines, sines)


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(x.dtype)


def generation_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    positions: Tensor,
    window: int | None,
    shape: Shape,
) -> Tensor:
    """One new token a sequence: ``queries [R, heads, head_dim]`` over the cache, by
    ``block_tables [slots, ...]``.

    Reads whole tables, however long the sequences are: right, and slow for long ones.
    """
    tables = block_tables[slots.long()].long()
    mixed = [
        _attend(queries[row : row + 1], keys, values, tables[row], int(position), window, shape)
        for row, position in enumerate(positions.tolist())
    ]
    return torch.cat(mixed) if mixed else queries


def context_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    context: Context,
    window: int | None,
    shape: Shape,
    out: Tensor,
) -> None:
    """Chunks of prompts, causal over all that is cached of them: from ``queries [T, heads, head_dim]`` to
    the same rows of ``out``."""
    for row, count, slot, position in context.chunks:
        rows = slice(row, row + count)
        table = block_tables[slot].long()
        out[rows] = _attend(queries[rows], keys, values, table, position, window, shape)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, table: Tensor, first: int, window: int | None, shape: Shape
) -> Tensor:
    """Consecutive rows of one sequence from position ``first`` on. Blocks that none of them sees are not
    read: they may be another sequence's by now."""
    count, size = queries.shape[0], shape.tokens_per_block
    length = first + count
    begin = 0 if window is None else max(0, first + 1 - window) // size
    read = torch.arange(begin, -(-length // size), device=queries.device)
    if shape.sink_tokens and begin:
        sinks = torch.arange(min(begin, -(-shape.sink_tokens // size)), device=queries.device)
        read = torch.cat((sinks, read))
    blocks = table[read]
    keys_read = len(read) * size - (-length % size)

    def gathered(cache: Tensor) -> Tensor:
        flat = cache[blocks].transpose(0, 1).reshape(shape.kv_heads, -1, shape.head_dim)[:, :keys_read]
        return flat.repeat_interleave(shape.heads // shape.kv_heads, dim=0)

    own = torch.arange(first, length, device=queries.device)[:, None]
    other = (read[:, None] * size + torch.arange(size, device=queries.device)).flatten()[:keys_read]
    seen = other <= own
    if window is not None:
        seen &= (other > own - window) | (other < shape.sink_tokens)
    mixed = functional.scaled_dot_product_attention(
        queries.transpose(0, 1), gathered(keys), gathered(values), attn_mask=seen, scale=shape.scale
    )
    return mixed.transpose(0, 1)
