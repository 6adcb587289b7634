"""Latent attention over the paged cache in Triton the language, of new tokens and of prompts.

A key has a vector and a few turned numbers behind it, and its value is the vector: it is read once, for many
heads, and for several tokens of a prompt. Contexts of few new tokens are split over programs. Nothing here
allocates by the values of a tensor, so that an iteration can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .generation_kernels import merge_splits
from .operations import CONTEXT_TILE, AttentionShape, Context, Tensor

#: Rows that a program computes: heads of one token, or heads of several tokens of a prompt. With twice as
#: many, the sums of 512 numbers a row do not fit in the registers of eight warps.
_ROWS = 32
#: Shares of a context that are attended at once, and programs that fill the device.
_MOST_SPLITS, _FULL = 16, 264


@triton.jit
def _attend(
    queries,
    keys,
    block_tables,
    tile_rows,
    tile_slots,
    tile_positions,
    tile_counts,
    out,
    maxima,
    sums,
    scale,
    table_width,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    RANK_PADDED: tl.constexpr,
    TURNED: tl.constexpr,
    TURNED_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    PARTS: tl.constexpr,
    TOGETHER: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """``TOKENS`` consecutive rows of a tile, ``TOGETHER`` heads of each, over a share of what the last of
    them sees. A tile has ``PARTS`` of such rows. Scores are in base 2."""
    tile = tl.program_id(0) // PARTS
    first = tl.program_id(0) % PARTS * TOKENS
    split = tl.program_id(2)
    count = tl.load(tile_counts + tile) - first
    if count <= 0:
        return
    row = tl.load(tile_rows + tile).to(tl.int64) + first
    position = tl.load(tile_positions + tile) + first
    table = block_tables + tl.load(tile_slots + tile).to(tl.int64) * table_width
    length = position + tl.minimum(count, TOKENS)
    share = tl.cdiv(tl.cdiv(length, SPLITS), TILE) * TILE
    begin = split * share
    end = tl.minimum(begin + share, length)

    places = tl.arange(0, TOKENS * TOGETHER)
    token = places // TOGETHER
    head = tl.program_id(1) * TOGETHER + places % TOGETHER
    present = (token < count) & (head < HEADS)
    columns = tl.arange(0, RANK_PADDED)
    turned = tl.arange(0, TURNED_PADDED)
    reach = ((row + token) * HEADS + head)[:, None] * (RANK + TURNED)
    query = tl.load(
        queries + reach + columns[None, :], mask=present[:, None] & (columns < RANK)[None, :], other=0.0
    )
    turned_query = tl.load(
        queries + reach + RANK + turned[None, :],
        mask=present[:, None] & (turned < TURNED)[None, :],
        other=0.0,
    )
    maximum = tl.full((TOKENS * TOGETHER,), -1e30, tl.float32)
    total = tl.zeros((TOKENS * TOGETHER,), tl.float32)
    mixed = tl.zeros((TOKENS * TOGETHER, RANK_PADDED), tl.float32)
    for start in range(begin, end, TILE):
        place = start + tl.arange(0, TILE)
        inside = place < end
        block = tl.load(table + place // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        base = (block * BLOCK_SIZE + place % BLOCK_SIZE) * (RANK + TURNED)
        key = tl.load(
            keys + base[:, None] + columns[None, :],
            mask=inside[:, None] & (columns < RANK)[None, :],
            other=0.0,
        ).to(query.dtype)
        turned_key = tl.load(
            keys + base[:, None] + RANK + turned[None, :],
            mask=inside[:, None] & (turned < TURNED)[None, :],
            other=0.0,
        ).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        scores = tl.dot(turned_query, tl.trans(turned_key), scores, input_precision=PRECISION) * scale
        seen = inside[None, :] & (place[None, :] <= (position + token)[:, None])
        scores = tl.where(seen, scores, -1e30)
        higher = tl.maximum(maximum, tl.max(scores, axis=1))
        # A row that sees nothing of a tile must not count its masked scores.
        weights = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0)
        correction = tl.exp2(maximum - higher)
        total = total * correction + tl.sum(weights, axis=1)
        mixed = mixed * correction[:, None]
        mixed += tl.dot(weights.to(key.dtype), key, input_precision=PRECISION)
        maximum = higher
    written = present[:, None] & (columns < RANK)[None, :]
    part = (row + token) * HEADS + head
    if SPLITS == 1:
        mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + part[:, None] * RANK + columns[None, :], mixed.to(out.dtype.element_ty), mask=written)
    else:
        part = part * SPLITS + split
        tl.store(out + part[:, None] * RANK + columns[None, :], mixed, mask=written)
        tl.store(maxima + part, maximum, mask=present)
        tl.store(sums + part, total, mask=present)


def _launch(
    queries: Tensor,
    keys: Tensor,
    block_tables: Tensor,
    tiles: tuple[Tensor, Tensor, Tensor, Tensor],
    shape: AttentionShape,
    size: int,
    tokens: int,
    splits: int,
    out: Tensor,
) -> None:
    """Tiles of at most ``size`` rows, so many tokens a program."""
    rank = out.shape[-1]
    together = min(_ROWS // tokens, max(16, triton.next_power_of_2(shape.heads)))
    target, maxima, sums = out, out, out
    if splits > 1:
        target = torch.empty((*out.shape[:2], splits, rank), dtype=torch.float32, device=out.device)
        maxima, sums = torch.empty((2, *out.shape[:2], splits), dtype=torch.float32, device=out.device)
    wide = queries.element_size() == 4
    padded = max(16, triton.next_power_of_2(rank))
    parts = triton.cdiv(size, tokens)
    _attend[(len(tiles[0]) * parts, triton.cdiv(shape.heads, together), splits)](
        queries,
        keys,
        block_tables,
        *tiles,
        target,
        maxima,
        sums,
        shape.scale * 1.4426950408889634,
        block_tables.stride(0),
        HEADS=shape.heads,
        RANK=rank,
        RANK_PADDED=padded,
        TURNED=shape.head_dim - rank,
        TURNED_PADDED=max(16, triton.next_power_of_2(shape.head_dim - rank)),
        BLOCK_SIZE=shape.tokens_per_block,
        TOKENS=tokens,
        PARTS=parts,
        TOGETHER=together,
        TILE=16 if wide else 32,
        SPLITS=splits,
        PRECISION="ieee" if wide else "tf32",
        num_warps=8 if together * tokens >= _ROWS else 4,
        num_stages=1 if wide else 2,
    )
    if splits > 1:
        merge_splits[(out.shape[0] * shape.heads,)](
            target, maxima, sums, out, HEAD_DIM=rank, PADDED=padded, SPLITS=splits, num_warps=4
        )


def generation(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    slots: Tensor,
    positions: Tensor,
    shape: AttentionShape,
) -> Tensor:
    """One new token a sequence, as `operations.generation_attention` has it."""
    rows = queries.shape[0]
    out = torch.empty((rows, shape.heads, values.shape[-1]), dtype=queries.dtype, device=queries.device)
    own = torch.arange(rows, dtype=torch.int32, device=out.device)
    tiles = (own, slots, positions, torch.ones_like(own))
    programs = rows * triton.cdiv(shape.heads, _ROWS)
    splits = min(_MOST_SPLITS, triton.next_power_of_2(triton.cdiv(_FULL, programs)))
    _launch(queries, keys, block_tables, tiles, shape, 1, 1, splits, out)
    return out


def prompts(
    queries: Tensor,
    keys: Tensor,
    block_tables: Tensor,
    context: Context,
    shape: AttentionShape,
    out: Tensor,
) -> None:
    """Chunks of prompts, as `operations.context_attention` has it."""
    tiles = (context.rows, context.slots, context.positions, context.counts)
    tokens = max(1, _ROWS // max(16, triton.next_power_of_2(shape.heads)))
    _launch(queries, keys, block_tables, tiles, shape, CONTEXT_TILE, tokens, 1, out)
