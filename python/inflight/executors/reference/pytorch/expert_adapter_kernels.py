"""What LoRA adapters add to the experts of a mixture, in Triton the language: two launches a product, however
many adapters and experts there are.

A row's matrices follow from its adapter and its expert, and the device alone knows who chose which expert.
Rows come sorted by expert; a program takes some of them that are neighbors, and computes one pair of adapter
and expert after the other, nearly always few. Who fills the table is `adapter_tables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from inflight.executors.reference.model.lora import Part

from .adapter_kernels import FIELDS, Launch
from .operations import Tensor
from .product_kernels import Tiles

#: Modules of an expert that adapters may change: gate, up and down, and one for gate and up together.
EXPERT_ENTRIES = 4

#: Sorted rows of a program, inputs and ranks that it reads at once, inputs of a share, and outputs of a
#: program at rank 1.
_ROWS, _CHUNK, _PIECE, _SHARE, _OUTPUTS = 16, 128, 16, 1024, 4096


@triton.jit
def _pairs(best, order, owners, count, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, ROWS: tl.constexpr):
    """Sorted places, which (row, choice) each is, and its adapter's place x experts + expert; negative where
    there is no adapter."""
    places = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = places < count
    choice = tl.load(order + places, mask=inside, other=0)
    owner = tl.load(owners + choice // CHOSEN, mask=inside, other=-1)
    expert = tl.load(best + choice, mask=inside, other=0)
    return places, choice, tl.where(owner >= 0, owner * EXPERTS + expert, -1)


@triton.jit(do_not_specialize=["layer", "layers", "count"])
def _down(
    x,
    best,
    order,
    owners,
    table,
    entries,
    narrow,
    layer,
    layers,
    count,
    inputs,
    narrow_width,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    SORTED: tl.constexpr,
    ENTRIES: tl.constexpr,
    FIELDS: tl.constexpr,
    RANK: tl.constexpr,
    PIECE: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    SHARE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums over one share of the inputs, for one module and a piece of its rank."""
    pieces: tl.constexpr = RANK // PIECE
    number = tl.program_id(1) // pieces
    ranks = tl.program_id(1) % pieces * PIECE + tl.arange(0, PIECE)
    begin = tl.program_id(2) * SHARE
    stop = tl.minimum(begin + SHARE, inputs)
    entry = tl.load(entries + number)
    places, choice, pairs = _pairs(best, order, owners, count, EXPERTS, CHOSEN, ROWS)
    # Rows of ``x`` are sorted as well, or each is that of all its choices.
    rows = (places if SORTED else choice // CHOSEN).to(tl.int64)
    sums = tl.zeros((ROWS, PIECE), tl.float32)
    left = pairs
    pair = tl.max(left, axis=0)
    while pair >= 0:
        own = pairs == pair
        owner, expert = pair // EXPERTS, pair % EXPERTS
        module = ((owner.to(tl.int64) * layers + layer) * EXPERTS + expert) * ENTRIES + entry
        down = tl.load(table + module * FIELDS).to(tl.pointer_type(x.dtype.element_ty))
        down = tl.multiple_of(down, 16)
        known = ranks < tl.load(table + module * FIELDS + 2)
        for start in range(begin, stop, CHUNK):
            columns = start + tl.arange(0, CHUNK)
            inside = columns < inputs
            values = tl.load(
                x + rows[:, None] * inputs + columns[None, :],
                mask=own[:, None] & inside[None, :],
                other=0.0,
            )
            factors = tl.load(
                down + ranks[:, None] * inputs + columns[None, :],
                mask=known[:, None] & inside[None, :],
                other=0.0,
            )
            # Other pairs' rows are zeros here.
            sums = tl.dot(values, tl.trans(factors), sums, input_precision=PRECISION)
        left = tl.where(own, -1, left)
        pair = tl.max(left, axis=0)
    reach = (tl.program_id(2).to(tl.int64) * count + places) * narrow_width + number * RANK
    tl.store(narrow + reach[:, None] + ranks[None, :], sums, mask=(pairs >= 0)[:, None])


@triton.jit(do_not_specialize=["layer", "layers", "count"])
def _up(
    narrow,
    best,
    order,
    owners,
    table,
    blocks,
    out,
    layer,
    layers,
    count,
    width,
    narrow_width,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    SORTED: tl.constexpr,
    ENTRIES: tl.constexpr,
    FIELDS: tl.constexpr,
    BLOCK_FIELDS: tl.constexpr,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Adds to sorted rows and a block of outputs what the block's module makes of them."""
    block = blocks + BLOCK_FIELDS * tl.program_id(1)
    entry, number = tl.load(block), tl.load(block + 1)
    module_first = tl.multiple_of(tl.load(block + 2), ALIGNED)
    module_stop = tl.multiple_of(tl.load(block + 3), ALIGNED)
    outputs = tl.multiple_of(tl.load(block + 4), ALIGNED) + tl.arange(0, OUTPUTS)
    inside = outputs < module_stop
    stride = tl.multiple_of(module_stop - module_first, ALIGNED)
    ranks = tl.arange(0, RANK)
    places, choice, pairs = _pairs(best, order, owners, count, EXPERTS, CHOSEN, ROWS)
    rows = (places if SORTED else choice).to(tl.int64)
    held = pairs >= 0
    reach = places.to(tl.int64) * narrow_width + number * RANK
    values = tl.zeros((ROWS, RANK), tl.float32)
    for split in tl.static_range(SPLITS):
        values += tl.load(
            narrow + split * count.to(tl.int64) * narrow_width + reach[:, None] + ranks[None, :],
            mask=held[:, None],
            other=0.0,
        )
    sums = tl.zeros((ROWS, OUTPUTS), tl.float32)
    left = pairs
    pair = tl.max(left, axis=0)
    while pair >= 0:
        own = pairs == pair
        owner, expert = pair // EXPERTS, pair % EXPERTS
        module = ((owner.to(tl.int64) * layers + layer) * EXPERTS + expert) * ENTRIES + entry
        up = tl.load(table + module * FIELDS + 1).to(tl.pointer_type(out.dtype.element_ty))
        up = tl.multiple_of(up, 16)
        known = ranks < tl.load(table + module * FIELDS + 2)
        factors = tl.load(
            up + ranks[:, None] * stride + (outputs - module_first)[None, :],
            mask=known[:, None] & inside[None, :],
            other=0.0,
        )
        own_values = tl.where(own[:, None], values, 0.0).to(factors.dtype)
        sums = tl.dot(own_values, factors, sums, input_precision=PRECISION)
        left = tl.where(own, -1, left)
        pair = tl.max(left, axis=0)
    target = out + rows[:, None] * width + outputs[None, :]
    written = held[:, None] & inside[None, :]
    sums += tl.load(target, mask=written, other=0.0).to(tl.float32)
    tl.store(target, sums.to(out.dtype.element_ty), mask=written)


def outputs_at_once(rank: int) -> int:
    """Outputs of a block of `Launch` at ``rank``."""
    return max(16, _OUTPUTS // rank)


@dataclass(frozen=True, slots=True)
class ExpertAdapters:
    """Adapters of an iteration's rows, for the experts that its rows choose."""

    #: Addresses and ranks: int64 ``[places, layers, experts, EXPERT_ENTRIES, FIELDS]``.
    table: Tensor
    #: By row, its adapter's place or a negative number: int32 ``[T]``.
    owners: Tensor
    #: The largest of the adapters, as a power of two.
    rank: int
    launches: Mapping[Part, Sequence[Launch]]

    def add(self, layer: int, part: Part, x: Tensor, out: Tensor, tiles: Tiles, best: Tensor) -> None:
        """Adds to ``out`` what adapters make of ``x``. Up to the inner size ``x`` are rows and ``out`` is
        sorted; down from it ``x`` is sorted, and ``out`` by row and choice."""
        for launch in self.launches.get(part, ()):
            self._launch(layer, launch, part == "down", x, out, tiles, best)

    def _launch(
        self, layer: int, launch: Launch, is_down: bool, x: Tensor, out: Tensor, tiles: Tiles, best: Tensor
    ) -> None:
        count, inputs = len(tiles.order), x.shape[1]
        layers, experts = self.table.shape[1:3]
        blocks, splits = triton.cdiv(count, _ROWS), triton.cdiv(inputs, _SHARE)
        width = len(launch.entries) * self.rank
        narrow = torch.empty((splits, count, width), dtype=torch.float32, device=x.device)
        common: dict[str, Any] = {
            "EXPERTS": experts,
            "CHOSEN": tiles.chosen,
            "ENTRIES": EXPERT_ENTRIES,
            "FIELDS": FIELDS,
            "RANK": self.rank,
            "ROWS": _ROWS,
            "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        }
        sources = best, tiles.order, self.owners, self.table
        _down[blocks, len(launch.entries) * (self.rank // _PIECE), splits](
            x,
            *sources,
            launch.entries,
            narrow,
            layer,
            layers,
            count,
            inputs,
            width,
            SORTED=is_down,
            PIECE=_PIECE,
            CHUNK=_CHUNK,
            SHARE=_SHARE,
            num_warps=2,
            **common,
        )
        _up[blocks, len(launch.blocks)](
            narrow,
            *sources,
            launch.blocks,
            out,
            layer,
            layers,
            count,
            out.shape[1],
            width,
            SORTED=not is_down,
            BLOCK_FIELDS=launch.blocks.shape[1],
            SPLITS=splits,
            OUTPUTS=outputs_at_once(self.rank),
            ALIGNED=launch.aligned,
            num_warps=4,
            **common,
        )
