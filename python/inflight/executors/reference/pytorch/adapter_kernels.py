"""What the LoRA adapters of an iteration add to its products, in Triton the language: two launches a product,
however many adapters there are.

The first takes the rows of each adapter down to its rank, the second up again and adds them to what the model
made of them. Both read where matrices are from tables on the device, and which rows an adapter has from a
list of tiles: nothing depends on the host, so that an iteration can be captured in a CUDA graph. Who fills
tables and tiles is `adapter_tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl

from inflight.executors.reference.model.lora import Part, Slot

from .adapters import AdaptedRows
from .operations import Tensor

#: Modules of a layer that adapters may change: TensorRT-LLM has one for queries, keys and values and one for
#: gate and up, next to those of each.
ENTRIES = 9
#: Of an entry: addresses down and up, and the rank; 0 where an adapter has no such module.
FIELDS = 4
#: Numbers in front of the tiles, the first of which is how many there are; and numbers of a tile: its
#: adapter's place, its first row in the order and how many it has.
HEAD, TILE_FIELDS = 4, 3
#: Numbers of a block of outputs: its entry, the entry's number in the launch, first output and stop of the
#: entry, first output of the block.
BLOCK_FIELDS = 5

#: Ranks that tensor cores multiply at once, at least.
LEAST_RANK = 16


@triton.jit(do_not_specialize=["layer", "layers", "total"])
def _down(
    x,
    table,
    tiles,
    order,
    entries,
    narrow,
    layer,
    layers,
    total,
    inputs,
    share,
    narrow_width,
    ENTRIES: tl.constexpr,
    FIELDS: tl.constexpr,
    HEAD: tl.constexpr,
    TILE_FIELDS: tl.constexpr,
    RANK: tl.constexpr,
    PIECE: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sums over one share of the inputs, for one module and a piece of its rank. What a tile needs first is
    read while the one before it is computed."""
    pieces: tl.constexpr = RANK // PIECE
    number = tl.program_id(1) // pieces
    first_rank = tl.program_id(1) % pieces * PIECE
    ranks = first_rank + tl.arange(0, PIECE)
    begin = tl.program_id(2) * share
    stop = tl.minimum(begin + share, inputs)
    lanes = tl.arange(0, ROWS)
    entry = tl.load(entries + number)
    count = tl.load(tiles)
    noted = tiles + HEAD + TILE_FIELDS * tl.program_id(0)
    place, first, held = tl.load(noted), tl.load(noted + 1), tl.load(noted + 2)
    for tile in range(tl.program_id(0), count, tl.num_programs(0)):
        module = table + ((place.to(tl.int64) * layers + layer) * ENTRIES + entry) * FIELDS
        down = tl.multiple_of(tl.load(module).to(tl.pointer_type(x.dtype.element_ty)), 16)
        rank = tl.load(module + 2)
        places = first + lanes
        present = lanes < held
        rows = tl.load(order + places, mask=present, other=0).to(tl.int64)
        noted = tiles + HEAD + TILE_FIELDS * (tile + tl.num_programs(0))
        more = tile + tl.num_programs(0) < count
        place = tl.load(noted, mask=more, other=0)
        first = tl.load(noted + 1, mask=more, other=0)
        held = tl.load(noted + 2, mask=more, other=0)
        if first_rank < rank:
            known = ranks < rank
            sums = tl.zeros((ROWS, PIECE), tl.float32)
            for start in range(begin, stop, CHUNK):
                columns = start + tl.arange(0, CHUNK)
                inside = columns < inputs
                values = tl.load(
                    x + rows[:, None] * inputs + columns[None, :],
                    mask=present[:, None] & inside[None, :],
                    other=0.0,
                )
                factors = tl.load(
                    down + ranks[:, None] * inputs + columns[None, :],
                    mask=known[:, None] & inside[None, :],
                    other=0.0,
                )
                sums = tl.dot(values, tl.trans(factors), sums, input_precision=PRECISION)
            reach = (tl.program_id(2).to(tl.int64) * total + places) * narrow_width + number * RANK
            tl.store(narrow + reach[:, None] + ranks[None, :], sums, mask=present[:, None])


@triton.jit(do_not_specialize=["layer", "layers", "total"])
def _up(
    narrow,
    table,
    tiles,
    order,
    blocks,
    out,
    layer,
    layers,
    total,
    width,
    narrow_width,
    ENTRIES: tl.constexpr,
    FIELDS: tl.constexpr,
    HEAD: tl.constexpr,
    TILE_FIELDS: tl.constexpr,
    BLOCK_FIELDS: tl.constexpr,
    SPLITS: tl.constexpr,
    RANK: tl.constexpr,
    PIECE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Adds to a tile of rows and a block of outputs what the block's module makes of it."""
    block = blocks + BLOCK_FIELDS * tl.program_id(1)
    entry, number = tl.load(block), tl.load(block + 1)
    # What masks compare with: where that is known to be aligned, 16 bytes are read at once.
    module_first = tl.load(block + 2)
    module_stop = tl.multiple_of(tl.load(block + 3), ALIGNED)
    outputs = tl.multiple_of(tl.load(block + 4), ALIGNED) + tl.arange(0, OUTPUTS)
    inside = outputs < module_stop
    lanes = tl.arange(0, ROWS)
    count = tl.load(tiles)
    noted = tiles + HEAD + TILE_FIELDS * tl.program_id(0)
    place, first, held = tl.load(noted), tl.load(noted + 1), tl.load(noted + 2)
    for tile in range(tl.program_id(0), count, tl.num_programs(0)):
        module = table + ((place.to(tl.int64) * layers + layer) * ENTRIES + entry) * FIELDS
        up = tl.multiple_of(tl.load(module + 1).to(tl.pointer_type(out.dtype.element_ty)), 16)
        rank = tl.multiple_of(tl.load(module + 2).to(tl.int32), 16)
        places = first + lanes
        present = lanes < held
        rows = tl.load(order + places, mask=present, other=0).to(tl.int64)
        noted = tiles + HEAD + TILE_FIELDS * (tile + tl.num_programs(0))
        more = tile + tl.num_programs(0) < count
        place = tl.load(noted, mask=more, other=0)
        first = tl.load(noted + 1, mask=more, other=0)
        held = tl.load(noted + 2, mask=more, other=0)
        if rank > 0:
            target = out + rows[:, None] * width + outputs[None, :]
            written = present[:, None] & inside[None, :]
            before = tl.load(target, mask=written, other=0.0)
            sums = tl.zeros((ROWS, OUTPUTS), tl.float32)
            for piece in tl.static_range(0, RANK, PIECE):
                ranks = piece + tl.arange(0, PIECE)
                known = ranks < rank
                factors = tl.load(
                    up + (outputs - module_first)[:, None] * rank + ranks[None, :],
                    mask=inside[:, None] & known[None, :],
                    other=0.0,
                )
                reach = places.to(tl.int64) * narrow_width + number * RANK
                values = tl.zeros((ROWS, PIECE), tl.float32)
                for split in tl.static_range(SPLITS):
                    values += tl.load(
                        narrow + split * total.to(tl.int64) * narrow_width + reach[:, None] + ranks[None, :],
                        mask=present[:, None] & known[None, :],
                        other=0.0,
                    )
                sums = tl.dot(values.to(factors.dtype), tl.trans(factors), sums, input_precision=PRECISION)
            tl.store(target, (before.to(tl.float32) + sums).to(before.dtype), mask=written)


@dataclass(frozen=True, slots=True)
class Cut:
    """How many rows a tile has, how many programs at most share the tiles, and shares of the inputs."""

    rows: int
    programs: int
    splits: int
    #: Inputs read at once and ranks of a program, on the way down.
    chunk: int
    piece: int
    #: Outputs of a program at rank 1, on the way up.
    outputs: int
    warps: int


#: Most rows are of sequences that have no other: each reads an adapter's matrices, as fast as memory goes.
_FEW = Cut(16, 32, 4, 128, 16, 8192, 4)
#: Prompts: tiles share what is in the cache.
_MANY = Cut(64, 256, 1, 64, 64, 4096, 4)
_FEW_ROWS = 512


def cut(rows: int) -> Cut:
    """For an iteration of ``rows``."""
    return _FEW if rows <= _FEW_ROWS else _MANY


def block_outputs(rows: int, rank: int) -> int:
    """Outputs of a block in an iteration of ``rows``."""
    return max(128, cut(rows).outputs // rank)


@dataclass(frozen=True, slots=True)
class Launch:
    """Modules that change outputs of a part, each of them others: int32 ``[modules]`` and
    ``[blocks, BLOCK_FIELDS]``."""

    entries: Tensor
    blocks: Tensor
    #: What first outputs and stops are multiples of: 16 or 1.
    aligned: int


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """`adapters.Adapted` for a model without experts."""

    groups: ClassVar[tuple[AdaptedRows, ...]] = ()

    #: Addresses and ranks: int64 ``[places, layers, ENTRIES, FIELDS]``.
    table: Tensor
    #: int32: the head and tiles, and the rows sorted by adapter.
    tiles: Tensor
    order: Tensor
    #: The largest of the adapters, as a power of two.
    rank: int
    #: All modules that they have.
    slots: frozenset[Slot]
    launches: Mapping[Part, Sequence[Launch]]
    #: A stream for what may run next to the model's products; None: there is none.
    side: Any = None

    @property
    def kind(self) -> tuple[int, frozenset[Slot]]:
        """What a graph is captured for."""
        return self.rank, self.slots

    def product(self, layer: int, part: Part, x: Tensor, compute: Callable[[], Tensor]) -> Tensor:
        launches = self.launches.get(part, ())
        narrows = [self._narrow(launch, x) for launch in launches]
        # The way down needs nothing of the model's own product, which leaves room for it.
        if self.side is not None and launches:
            ready, done = torch.cuda.Event(), torch.cuda.Event()
            ready.record()
            with torch.cuda.stream(self.side):
                self.side.wait_event(ready)
                for launch, narrow in zip(launches, narrows, strict=True):
                    self._go_down(layer, launch, x, narrow)
                done.record()
            out = compute()
            torch.cuda.current_stream().wait_event(done)
        else:
            for launch, narrow in zip(launches, narrows, strict=True):
                self._go_down(layer, launch, x, narrow)
            out = compute()
        for launch, narrow in zip(launches, narrows, strict=True):
            self._go_up(layer, launch, narrow, out)
        return out

    def _narrow(self, launch: Launch, x: Tensor) -> Tensor:
        """By share of the inputs, row in the order, module and rank: for what `_down` makes."""
        shape = cut(len(self.order)).splits, len(self.order), len(launch.entries) * self.rank
        return torch.empty(shape, dtype=torch.float32, device=x.device)

    def _common(self, dtype: Tensor) -> dict[str, Any]:
        return {
            "ENTRIES": ENTRIES,
            "FIELDS": FIELDS,
            "HEAD": HEAD,
            "TILE_FIELDS": TILE_FIELDS,
            "RANK": self.rank,
            "ROWS": cut(len(self.order)).rows,
            "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
        }

    def _programs(self) -> int:
        return min(cut(len(self.order)).programs, (len(self.tiles) - HEAD) // TILE_FIELDS)

    def _go_down(self, layer: int, launch: Launch, x: Tensor, narrow: Tensor) -> None:
        inputs, how = x.shape[1], cut(len(self.order))
        chunk = how.chunk // 2 if x.dtype == torch.float32 else how.chunk
        piece = min(how.piece, self.rank)
        _down[self._programs(), len(launch.entries) * (self.rank // piece), how.splits](
            x,
            self.table,
            self.tiles,
            self.order,
            launch.entries,
            narrow,
            layer,
            self.table.shape[1],
            len(self.order),
            inputs,
            triton.cdiv(triton.cdiv(inputs, how.splits), chunk) * chunk,
            narrow.shape[2],
            PIECE=piece,
            CHUNK=chunk,
            num_warps=how.warps,
            num_stages=4,
            **self._common(x.dtype),
        )

    def _go_up(self, layer: int, launch: Launch, narrow: Tensor, out: Tensor) -> None:
        how = cut(len(self.order))
        _up[self._programs(), len(launch.blocks)](
            narrow,
            self.table,
            self.tiles,
            self.order,
            launch.blocks,
            out,
            layer,
            self.table.shape[1],
            len(self.order),
            out.shape[1],
            narrow.shape[2],
            BLOCK_FIELDS=BLOCK_FIELDS,
            SPLITS=how.splits,
            PIECE=min(self.rank, 64),
            OUTPUTS=block_outputs(len(self.order), self.rank),
            ALIGNED=launch.aligned,
            num_warps=how.warps,
            **self._common(out.dtype),
        )
