"""What the LoRA adapters of an iteration make of its rows, in Triton the language: two launches a product,
however many adapters there are.

The first takes the rows of each adapter down to its rank, the second up again. Both read where matrices are
from tables on the device, and which rows an adapter has from a list of tiles: nothing depends on the host, so
that an iteration can be captured in a CUDA graph. Who fills tables and tiles is `adapter_tables`.

With few rows all that counts is to have enough of the matrices on their way: programs are small and read
ahead, and both kernels run on a stream next to the model's product. What they make is then a separate
tensor, which the kernel that reads the product adds. With many rows it is added in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl

from inflight.executors.reference.model.lora import Part, Slot

from .adapters import AdaptedRows
from .operations import Tensor

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

    _CAN_BEGIN_EARLY = True
except ImportError:  # Triton before 3.4
    _CAN_BEGIN_EARLY = False

#: Modules of a layer that adapters may change: TensorRT-LLM has one for queries, keys and values and one for
#: gate and up, next to those of each.
ENTRIES = 9
#: Of an entry: addresses down and up, and the rank; 0 where an adapter has no such module.
FIELDS = 4
#: Numbers in front of the tiles, the first of which is how many there are; and numbers of a tile: its
#: adapter's place, its first row in the order and how many it has. The place of rows without one is `NOBODY`.
HEAD, TILE_FIELDS = 4, 3
NOBODY = -1
#: Numbers of a block of outputs: its entry or `NOBODY`, the entry's number in the launch, first output and
#: stop of the entry, first output of the block.
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
    EARLY: tl.constexpr,
):
    """Sums over one share of the inputs, for one module and a piece of its rank. What a tile needs first is
    read while the one before it is computed."""
    if EARLY:
        gdc_launch_dependents()
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
        down = tl.load(module, mask=place >= 0, other=0).to(tl.pointer_type(x.dtype.element_ty))
        down = tl.multiple_of(down, 16)
        rank = tl.load(module + 2, mask=place >= 0, other=0)
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
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPAN: tl.constexpr,
    ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
    ADD: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Writes what the block's module makes of a tile of rows to a block of outputs, or adds it. Matrices are
    read ahead in pieces, which needs few registers: many programs do so at a time."""
    block = blocks + BLOCK_FIELDS * tl.program_id(1)
    entry, number = tl.load(block), tl.load(block + 1)
    # What masks compare with: where that is known to be aligned, 16 bytes are read at once.
    module_first = tl.multiple_of(tl.load(block + 2), ALIGNED)
    module_stop = tl.multiple_of(tl.load(block + 3), ALIGNED)
    begin = tl.multiple_of(tl.load(block + 4), ALIGNED)
    stop = tl.minimum(begin + SPAN, module_stop)
    stride = tl.multiple_of(module_stop - module_first, ALIGNED)
    ranks = tl.arange(0, RANK)
    lanes = tl.arange(0, ROWS)
    count = tl.load(tiles)
    noted = tiles + HEAD + TILE_FIELDS * tl.program_id(0)
    place, first, held = tl.load(noted), tl.load(noted + 1), tl.load(noted + 2)
    for tile in range(tl.program_id(0), count, tl.num_programs(0)):
        module = table + ((place.to(tl.int64) * layers + layer) * ENTRIES + entry) * FIELDS
        some = (place >= 0) & (entry >= 0)
        up = tl.load(module + 1, mask=some, other=0).to(tl.pointer_type(out.dtype.element_ty))
        up = tl.multiple_of(up, 16)
        rank = tl.multiple_of(tl.load(module + 2, mask=some, other=0).to(tl.int32), 16)
        places = first + lanes
        present = lanes < held
        rows = tl.load(order + places, mask=present, other=0).to(tl.int64)
        noted = tiles + HEAD + TILE_FIELDS * (tile + tl.num_programs(0))
        more = tile + tl.num_programs(0) < count
        place = tl.load(noted, mask=more, other=0)
        first = tl.load(noted + 1, mask=more, other=0)
        held = tl.load(noted + 2, mask=more, other=0)
        if EARLY:
            # What is above needs nothing of the way down.
            gdc_wait()
        if rank > 0 or not ADD:
            known = ranks < rank
            reach = places.to(tl.int64) * narrow_width + number * RANK
            values = tl.zeros((ROWS, RANK), tl.float32)
            for split in tl.static_range(SPLITS):
                values += tl.load(
                    narrow + split * total.to(tl.int64) * narrow_width + reach[:, None] + ranks[None, :],
                    mask=present[:, None] & known[None, :],
                    other=0.0,
                )
            narrowed = values.to(out.dtype.element_ty)
            for start in range(begin, stop, OUTPUTS):
                outputs = start + tl.arange(0, OUTPUTS)
                inside = outputs < module_stop
                factors = tl.load(
                    up + ranks[:, None] * stride + (outputs - module_first)[None, :],
                    mask=known[:, None] & inside[None, :],
                    other=0.0,
                )
                sums = tl.dot(narrowed, factors, input_precision=PRECISION)
                target = out + rows[:, None] * width + outputs[None, :]
                written = present[:, None] & inside[None, :]
                if ADD:
                    sums += tl.load(target, mask=written, other=0.0).to(tl.float32)
                tl.store(target, sums.to(out.dtype.element_ty), mask=written)


@dataclass(frozen=True, slots=True)
class Cut:
    """How many rows a tile has, how many programs at most share the tiles, and what each of them reads."""

    rows: int
    programs: int
    #: On the way down: inputs read at once, ranks of a program, and its inputs; 0: all.
    chunk: int
    piece: int
    share: int
    #: On the way up: outputs read at once and of a program, both at rank 1.
    outputs: int
    span: int
    down_warps: int
    up_warps: int
    stages: int

    def splits(self, inputs: int) -> int:
        """Shares of so many inputs."""
        return triton.cdiv(inputs, self.share) if self.share else 1

    def span_of(self, rank: int) -> int:
        """Outputs of a program at ``rank``."""
        return max(128, self.span // rank)


#: Most rows are of sequences that have no other: each reads an adapter's matrices, as fast as memory goes.
_FEW = Cut(16, 64, 128, 16, 1024, 4096, 8192, 2, 4, 4)
#: Prompts: tiles share what is in the cache.
_MANY = Cut(64, 256, 64, 64, 0, 4096, 4096, 4, 4, 2)
FEW_ROWS = 512


def cut(rows: int) -> Cut:
    """For an iteration of ``rows``."""
    return _FEW if rows <= FEW_ROWS else _MANY


def is_apart(rows: int) -> bool:
    """Whether what adapters make of ``rows`` becomes a separate tensor."""
    return rows <= FEW_ROWS


@dataclass(frozen=True, slots=True)
class Launch:
    """Modules that change outputs of a part, each of them others: int32 ``[modules]`` and
    ``[blocks, BLOCK_FIELDS]``."""

    entries: Tensor
    blocks: Tensor
    #: What first outputs and stops are multiples of: 16 or 1.
    aligned: int
    #: Outputs of the part.
    width: int


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """`adapters.Adapted` in kernels."""

    groups: ClassVar[tuple[AdaptedRows, ...]] = ()

    #: Addresses and ranks: int64 ``[places, layers, ENTRIES, FIELDS]``.
    table: Tensor
    #: int32: the head and tiles, and the rows sorted by adapter. Those without one have tiles too where what
    #: adapters make `is_apart`.
    tiles: Tensor
    order: Tensor
    #: The largest of the adapters, as a power of two.
    rank: int
    #: All modules that they have.
    slots: frozenset[Slot]
    #: By part; where what adapters make `is_apart`, the first launch writes all outputs.
    launches: Mapping[Part, Sequence[Launch]]
    #: A stream for what may run next to the model's products; None: there is none.
    side: Any = None
    #: `expert_adapter_kernels.ExpertAdapters`; None: no expert is changed.
    of_experts: Any = None

    @property
    def kind(self) -> tuple[int, frozenset[Slot]]:
        """What a graph is captured for."""
        return self.rank, self.slots

    def experts(self, layer: int) -> Callable[..., None] | None:
        return None if self.of_experts is None else partial(self.of_experts.add, layer)

    def product(
        self, layer: int, part: Part, x: Tensor, compute: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        launches = self.launches.get(part, ())
        if not launches:
            return compute(), None
        if not is_apart(len(self.order)):
            out = compute()
            for launch in launches:
                narrow = self._narrow(launch, x)
                self._go_down(layer, launch, x, narrow)
                self._go_up(layer, launch, narrow, out, adds=True)
            return out, None
        more = torch.empty((len(x), launches[0].width), dtype=x.dtype, device=x.device)
        narrows = [self._narrow(launch, x) for launch in launches]

        def make() -> None:
            for launch, narrow in zip(launches, narrows, strict=True):
                self._go_down(layer, launch, x, narrow)
                self._go_up(layer, launch, narrow, more, adds=launch is not launches[0])

        if self.side is None:
            make()
            return compute(), more
        ready, done = torch.cuda.Event(), torch.cuda.Event()
        ready.record()
        with torch.cuda.stream(self.side):
            self.side.wait_event(ready)
            make()
            done.record()
        out = compute()
        torch.cuda.current_stream().wait_event(done)
        return out, more

    def _narrow(self, launch: Launch, x: Tensor) -> Tensor:
        """By share of the inputs, row in the order, module and rank: for what `_down` makes."""
        splits = cut(len(self.order)).splits(x.shape[1])
        shape = splits, len(self.order), len(launch.entries) * self.rank
        return torch.empty(shape, dtype=torch.float32, device=x.device)

    def _common(self, x: Tensor) -> dict[str, Any]:
        return {
            "ENTRIES": ENTRIES,
            "FIELDS": FIELDS,
            "HEAD": HEAD,
            "TILE_FIELDS": TILE_FIELDS,
            "RANK": self.rank,
            "ROWS": cut(len(self.order)).rows,
            "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
            "EARLY": _begins_early(x),
        }

    def _programs(self) -> int:
        return min(cut(len(self.order)).programs, (len(self.tiles) - HEAD) // TILE_FIELDS)

    def _go_down(self, layer: int, launch: Launch, x: Tensor, narrow: Tensor) -> None:
        inputs, how = x.shape[1], cut(len(self.order))
        piece = min(how.piece, self.rank)
        _down[self._programs(), len(launch.entries) * (self.rank // piece), len(narrow)](
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
            how.share or inputs,
            narrow.shape[2],
            PIECE=piece,
            CHUNK=how.chunk // 2 if x.dtype == torch.float32 else how.chunk,
            num_warps=how.down_warps,
            num_stages=4,
            **self._common(x),
        )

    def _go_up(self, layer: int, launch: Launch, narrow: Tensor, out: Tensor, *, adds: bool) -> None:
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
            SPLITS=len(narrow),
            OUTPUTS=max(16, how.outputs // self.rank),
            SPAN=how.span_of(self.rank),
            ALIGNED=launch.aligned,
            ADD=adds,
            launch_pdl=_begins_early(out),
            num_warps=how.up_warps,
            num_stages=how.stages,
            **self._common(out),
        )


def _begins_early(x: Tensor) -> bool:
    """Whether the way up may begin before the way down ends: a programmatic launch, since Hopper."""
    return bool(_CAN_BEGIN_EARLY and x.is_cuda and torch.cuda.get_device_capability(x.device) >= (9, 0))
