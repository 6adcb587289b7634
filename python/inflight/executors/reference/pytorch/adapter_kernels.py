"""What the LoRA adapters of an iteration add to its products, in Triton the language: two launches a product,
however many adapters there are.

The first takes the rows of each adapter down to its rank, the second up again and adds them to what the model
made of them. Both read where matrices are from tables on the device, and which rows an adapter has from a
list of tiles: nothing depends on the host, so that an iteration can be captured in a CUDA graph. Who fills
tables and tiles is `adapter_tables`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import triton
import triton.language as tl

from inflight.executors.reference.model.lora import Part

from .adapters import AdaptedRows
from .operations import Tensor

#: Where the deltas of a part are in a layer's entries, and how many there are at most: TensorRT-LLM's own
#: modules may change the same outputs at once, as one matrix and as one each.
PARTS: Mapping[Part, tuple[int, int]] = {"qkv": (0, 4), "output": (4, 1), "gate_up": (5, 3), "down": (8, 1)}
ENTRIES = 9
#: Addresses down and up, rank, first output and the one after the last.
FIELDS = 5
#: Numbers in front of the tiles, the first of which is how many there are; and numbers of a tile: its
#: adapter's place, its first row in the order and how many it has.
HEAD, TILE_FIELDS = 4, 3

#: Programs that share the tiles, at most; each takes every so many-th.
_PROGRAMS = 32
#: Ranks that tensor cores multiply at once, at least.
LEAST_RANK = 16


@triton.jit
def _entry(table, place, layer, entry, LAYERS: tl.constexpr, ENTRIES: tl.constexpr, FIELDS: tl.constexpr):
    return table + ((place.to(tl.int64) * LAYERS + layer) * ENTRIES + entry) * FIELDS


@triton.jit(do_not_specialize=["layer", "total"])
def _down(
    x,
    table,
    tiles,
    order,
    narrow,
    layer,
    total,
    LAYERS: tl.constexpr,
    ENTRIES: tl.constexpr,
    FIELDS: tl.constexpr,
    HEAD: tl.constexpr,
    TILE_FIELDS: tl.constexpr,
    FIRST: tl.constexpr,
    MOST: tl.constexpr,
    INPUTS: tl.constexpr,
    SHARE: tl.constexpr,
    RANK: tl.constexpr,
    PIECE: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums over one share of the inputs, for one delta of the part and a piece of its rank."""
    pieces: tl.constexpr = RANK // PIECE
    entry = tl.program_id(1) // pieces
    ranks = tl.program_id(1) % pieces * PIECE + tl.arange(0, PIECE)
    split = tl.program_id(2)
    lanes = tl.arange(0, ROWS)
    for tile in range(tl.program_id(0), tl.load(tiles), tl.num_programs(0)):
        place = tl.load(tiles + HEAD + TILE_FIELDS * tile)
        places = tl.load(tiles + HEAD + TILE_FIELDS * tile + 1) + lanes
        present = lanes < tl.load(tiles + HEAD + TILE_FIELDS * tile + 2)
        noted = _entry(table, place, layer, FIRST + entry, LAYERS, ENTRIES, FIELDS)
        known = ranks < tl.load(noted + 2)
        if tl.program_id(1) % pieces * PIECE < tl.load(noted + 2):
            down = tl.multiple_of(tl.load(noted).to(tl.pointer_type(x.dtype.element_ty)), 16)
            rows = tl.load(order + places, mask=present, other=0).to(tl.int64)
            sums = tl.zeros((ROWS, PIECE), tl.float32)
            for start in range(split * SHARE, tl.minimum(split * SHARE + SHARE, INPUTS), CHUNK):
                columns = start + tl.arange(0, CHUNK)
                inside = columns < INPUTS
                values = tl.load(
                    x + rows[:, None] * INPUTS + columns[None, :],
                    mask=present[:, None] & inside[None, :],
                    other=0.0,
                )
                factors = tl.load(
                    down + ranks[:, None] * INPUTS + columns[None, :],
                    mask=known[:, None] & inside[None, :],
                    other=0.0,
                )
                sums = tl.dot(values, tl.trans(factors), sums, input_precision=PRECISION)
            reach = (split.to(tl.int64) * total + places) * (MOST * RANK) + entry * RANK
            tl.store(narrow + reach[:, None] + ranks[None, :], sums, mask=present[:, None])


@triton.jit(do_not_specialize=["layer", "total"])
def _up(
    narrow,
    table,
    tiles,
    order,
    out,
    layer,
    total,
    LAYERS: tl.constexpr,
    ENTRIES: tl.constexpr,
    FIELDS: tl.constexpr,
    HEAD: tl.constexpr,
    TILE_FIELDS: tl.constexpr,
    FIRST: tl.constexpr,
    MOST: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    PIECE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Adds to a tile of rows and outputs what all deltas of the part make of it, so that none writes where
    another one does."""
    begin = tl.program_id(1) * OUTPUTS
    outputs = begin + tl.arange(0, OUTPUTS)
    lanes = tl.arange(0, ROWS)
    for tile in range(tl.program_id(0), tl.load(tiles), tl.num_programs(0)):
        place = tl.load(tiles + HEAD + TILE_FIELDS * tile)
        places = tl.load(tiles + HEAD + TILE_FIELDS * tile + 1) + lanes
        present = lanes < tl.load(tiles + HEAD + TILE_FIELDS * tile + 2)
        sums = tl.zeros((ROWS, OUTPUTS), tl.float32)
        for entry in range(MOST):
            noted = _entry(table, place, layer, FIRST + entry, LAYERS, ENTRIES, FIELDS)
            rank = tl.load(noted + 2).to(tl.int32)
            first, stop = tl.load(noted + 3), tl.load(noted + 4)
            if (first < begin + OUTPUTS) & (stop > begin):
                up = tl.multiple_of(tl.load(noted + 1).to(tl.pointer_type(out.dtype.element_ty)), 16)
                own = (outputs >= first) & (outputs < stop)
                for piece in range(0, rank, PIECE):
                    ranks = piece + tl.arange(0, PIECE)
                    known = ranks < rank
                    reach = places.to(tl.int64) * (MOST * RANK) + entry * RANK
                    values = tl.zeros((ROWS, PIECE), tl.float32)
                    for split in tl.static_range(SPLITS):
                        values += tl.load(
                            narrow
                            + split * total.to(tl.int64) * (MOST * RANK)
                            + reach[:, None]
                            + ranks[None, :],
                            mask=present[:, None] & known[None, :],
                            other=0.0,
                        )
                    factors = tl.load(
                        up + (outputs - first)[:, None] * tl.multiple_of(rank, 16) + ranks[None, :],
                        mask=own[:, None] & known[None, :],
                        other=0.0,
                    )
                    sums = tl.dot(
                        values.to(factors.dtype), tl.trans(factors), sums, input_precision=PRECISION
                    )
        rows = tl.load(order + places, mask=present, other=0).to(tl.int64)
        target = out + rows[:, None] * WIDTH + outputs[None, :]
        inside = present[:, None] & (outputs < WIDTH)[None, :]
        sums += tl.load(target, mask=inside, other=0.0).to(tl.float32)
        tl.store(target, sums.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """`adapters.Adapted` for a model without experts."""

    groups: ClassVar[tuple[AdaptedRows, ...]] = ()

    #: Addresses, ranks and outputs: int64 ``[places, layers, ENTRIES, FIELDS]``.
    table: Tensor
    #: int32: the head, tiles of ``tile_rows`` rows, and the rows sorted by adapter.
    tiles: Tensor
    order: Tensor
    tile_rows: int
    #: The largest of the adapters, as a power of two; and the parts that any of them changes.
    rank: int
    parts: frozenset[Part]

    def add(self, layer: int, part: Part, x: Tensor, out: Tensor) -> None:
        if part not in self.parts:
            return
        first, most = PARTS[part]
        inputs, width, total = x.shape[1], out.shape[1], len(self.order)
        is_float32 = x.dtype == torch.float32
        chunk = 64 if is_float32 else 256
        # Few rows leave the GPU idle where no two programs share the inputs.
        splits = max(1, min(8, 128 // self.rank, 2048 // total, inputs // chunk))
        share = triton.cdiv(triton.cdiv(inputs, splits), chunk) * chunk
        narrow = torch.empty((splits, total, most * self.rank), dtype=torch.float32, device=x.device)
        programs = min(_PROGRAMS, (len(self.tiles) - HEAD) // TILE_FIELDS)
        common = {
            "LAYERS": self.table.shape[1],
            "ENTRIES": ENTRIES,
            "FIELDS": FIELDS,
            "HEAD": HEAD,
            "TILE_FIELDS": TILE_FIELDS,
            "FIRST": first,
            "MOST": most,
            "RANK": self.rank,
            "ROWS": self.tile_rows,
            "PRECISION": "ieee" if is_float32 else "tf32",
        }
        piece = LEAST_RANK if self.tile_rows == LEAST_RANK else min(self.rank, 64)
        _down[programs, most * (self.rank // piece), splits](
            x,
            self.table,
            self.tiles,
            self.order,
            narrow,
            layer,
            total,
            INPUTS=inputs,
            SHARE=share,
            PIECE=piece,
            CHUNK=chunk if self.tile_rows == LEAST_RANK else chunk // 4,
            **common,
        )
        piece = min(self.rank, 64)
        outputs = max(64, 8192 // piece * LEAST_RANK // self.tile_rows)
        _up[programs, triton.cdiv(width, outputs)](
            narrow,
            self.table,
            self.tiles,
            self.order,
            out,
            layer,
            total,
            WIDTH=width,
            SPLITS=splits,
            PIECE=piece,
            OUTPUTS=outputs,
            **common,
        )
