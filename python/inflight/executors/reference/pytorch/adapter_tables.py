"""Which adapter changes which rows of an iteration, as `adapter_kernels` read it.

Owns the table of the adapters' matrices on the device and the order of an iteration's rows, which are sorted
by adapter on the host and cut into tiles of one adapter each. Knows nothing of how kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from inflight.executors.reference.model.lora import Part, Slot

from .adapter_kernels import (
    ENTRIES,
    FEW_ROWS,
    FIELDS,
    HEAD,
    LEAST_RANK,
    NOBODY,
    TILE_FIELDS,
    GroupedRows,
    Launch,
    cut,
    is_apart,
)
from .adapters import DeviceAdapter, DeviceAdapters, Spans
from .expert_adapter_kernels import EXPERT_ENTRIES, ExpertAdapters, outputs_at_once
from .operations import Tensor

Array = Any  # numpy.ndarray


class AdapterTables:
    """The adapters of iterations from CUDA graphs and of others."""

    def __init__(
        self,
        device: Tensor,
        dtype: Tensor,
        max_bytes: int,
        most: int,
        layers: int,
        most_rows: int,
        widths: Mapping[Part, int],
        upload: Callable[[Array], Tensor],
        experts: int = 0,
    ) -> None:
        """``most`` adapters and ``most_rows`` rows are in an iteration; ``widths`` are the parts' outputs, of
        one of the ``experts`` of a mixture."""
        self._adapters = DeviceAdapters(device, dtype, max_bytes, most, LEAST_RANK, self._note)
        self._device = device
        self._most = most
        self._layers = layers
        self._most_rows = most_rows
        self._upload = upload
        self._side = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        # Both take memory where there are adapters only.
        self._table: Tensor = None
        self._rows: Tensor = None
        #: Of experts' modules: `ExpertAdapters.table`, and as `_entries`, whichever expert it is.
        self._experts = experts
        self._expert_table: Tensor = None
        self._expert_entries: dict[Slot, int] = {}
        #: Where a module is in a layer's entries, in the order in which they were first seen.
        self._entries: dict[Slot, int] = {}
        self._widths = widths
        self._launches: dict[tuple[frozenset[Slot], int, bool], Mapping[Part, Sequence[Launch]]] = {}
        #: What ``_rows`` holds: how many rows, and whose; and what was made of it.
        self._latest: tuple[int, Spans] | None = None
        self._grouped: GroupedRows | None = None

    def rows(self, spans: Spans, rows: int, lasting: bool = False) -> GroupedRows:
        """The rows of each adapter in an iteration of ``rows``; with ``lasting`` where the latest such ones
        of as many rows were, so that a graph finds them."""
        if lasting and self._latest == (rows, spans) and self._grouped is not None:
            return self._grouped
        if self._table is None:
            shape = (self._most, self._layers, ENTRIES, FIELDS)
            self._table = torch.zeros(shape, dtype=torch.int64, device=self._device)
            # Fewer rows may have more tiles, which are smaller then.
            tiles = max(self._tiles(rows) for rows in (min(FEW_ROWS, self._most_rows), self._most_rows))
            size = HEAD + TILE_FIELDS * tiles + 2 * self._most_rows
            self._rows = torch.zeros(size, dtype=torch.int32, device=self._device)
        held = self._adapters.hold(list({adapter: None for adapter, *_ in spans if adapter is not None}))
        places = [NOBODY if adapter is None else held[adapter].place for adapter, *_ in spans]
        tiles, how = HEAD + TILE_FIELDS * self._tiles(rows), cut(rows)
        own = np.array([one[1:] for one in spans])
        array = grouped(np.array(places), own, how.rows, rows, tiles, is_apart(rows))
        if self._experts:
            array = np.concatenate((array, owners(np.array(places), own, rows)))
        if lasting:
            pinned = torch.from_numpy(array)
            pinned = pinned.pin_memory() if self._device.type == "cuda" else pinned
            noted = self._rows[: len(array)].copy_(pinned, non_blocking=True)
        else:
            noted = self._upload(array)
        rank = max(one.rank for one in held.values())
        rank = 1 << (rank - 1).bit_length()
        slots: frozenset[Slot] = frozenset().union(*(one.slots for one in held.values()))
        plain = frozenset(slot for slot in slots if slot.expert is None)
        launches = self._launched(plain, how.span_of(rank), is_apart(rows), self._entries)
        order, of_experts = noted[tiles : tiles + rows], None
        if any(slot.expert is not None for slot in slots):
            changed = frozenset(replace(slot, expert=None) for slot in slots if slot.expert is not None)
            changes = self._launched(changed, outputs_at_once(rank), False, self._expert_entries)
            of_experts = ExpertAdapters(self._expert_table, noted[tiles + rows :], rank, changes)
        made = GroupedRows(self._table, noted[:tiles], order, rank, slots, launches, self._side, of_experts)
        if lasting:
            self._latest, self._grouped = (rows, spans), made
        return made

    def _tiles(self, rows: int) -> int:
        """Tiles that so many rows are cut into, at most."""
        return -(-rows // cut(rows).rows) + min(rows, self._most + 1)

    def _note(self, adapter: DeviceAdapter) -> None:
        """Writes where an adapter's matrices are; another one may have been there."""
        self._latest = None
        entries = np.zeros((self._layers, ENTRIES, FIELDS), dtype=np.int64)
        for layer, parts in zip(entries, adapter.layers, strict=True):
            for deltas in parts.values():
                for slot, down, up in deltas:
                    if slot.expert is not None:
                        continue
                    entry = self._entries.setdefault(slot, len(self._entries))
                    layer[entry, :3] = down.data_ptr(), up.data_ptr(), len(down)
        self._table[adapter.place].copy_(self._upload(entries))
        if any(slot.expert is not None for slot in adapter.slots):
            self._note_experts(adapter)
        elif self._expert_table is not None:
            self._expert_table[adapter.place] = 0

    def _note_experts(self, adapter: DeviceAdapter) -> None:
        shape = (self._layers, self._experts, EXPERT_ENTRIES, FIELDS)
        if self._expert_table is None:
            self._expert_table = torch.zeros((self._most, *shape), dtype=torch.int64, device=self._device)
        entries = np.zeros(shape, dtype=np.int64)
        for layer, parts in zip(entries, adapter.layers, strict=True):
            for deltas in parts.values():
                for slot, down, up in deltas:
                    if slot.expert is not None:
                        module = replace(slot, expert=None)
                        entry = self._expert_entries.setdefault(module, len(self._expert_entries))
                        layer[slot.expert, entry, :3] = down.data_ptr(), up.data_ptr(), len(down)
        self._expert_table[adapter.place].copy_(self._upload(entries))

    def _launched(
        self, slots: frozenset[Slot], outputs: int, whole: bool, places: Mapping[Slot, int]
    ) -> Mapping[Part, Sequence[Launch]]:
        """What changes each part where adapters have these modules, in blocks of ``outputs``; ``places`` are
        where modules are in a table. ``whole``: the first launch of a part has all of its outputs."""
        key = slots, outputs, whole
        if key not in self._launches:
            parts: dict[Part, list[Launch]] = {}
            for modules in apart(slots):
                width = self._widths[modules[0].part]
                entries = np.array([places[slot] for slot in modules], dtype=np.int32)
                blocks = [
                    (places[slot], number, slot.start, slot.stop, first)
                    for number, slot in enumerate(modules)
                    for first in range(slot.start, slot.stop, outputs)
                ]
                if whole and modules[0].part not in parts:
                    starts = [0, *(slot.stop for slot in modules)]
                    stops = [*(slot.start for slot in modules), width]
                    blocks += [
                        (NOBODY, 0, start, stop, first)
                        for start, stop in zip(starts, stops, strict=True)
                        for first in range(start, stop, outputs)
                    ]
                edges = [edge for slot in modules for edge in (slot.start, slot.stop, width)]
                aligned = 1 if any(edge % LEAST_RANK for edge in edges) else LEAST_RANK
                launch = Launch(
                    self._upload(entries), self._upload(np.array(blocks, dtype=np.int32)), aligned, width
                )
                parts.setdefault(modules[0].part, []).append(launch)
            self._launches[key] = parts
        return self._launches[key]


def owners(places: Array, spans: Array, rows: int) -> Array:
    """By row, the place of its span: int32 ``[rows]``."""
    found = np.full(rows, NOBODY, dtype=np.int32)
    for place, (first, count) in zip(places.tolist(), spans.tolist(), strict=True):
        found[first : first + count] = place
    return found


def apart(slots: Iterable[Slot]) -> list[list[Slot]]:
    """Modules in groups of one part in which no two change the same outputs."""
    groups: list[list[Slot]] = []
    for slot in sorted(slots, key=lambda one: (one.part, one.start, one.stop)):
        for group in groups:
            if group[-1].part == slot.part and group[-1].stop <= slot.start:
                group.append(slot)
                break
        else:
            groups.append([slot])
    return groups


def grouped(places: Array, spans: Array, size: int, rows: int, head: int, whole: bool = False) -> Array:
    """``spans [spans, 2]`` of first row and rows, sorted by ``places`` and cut into tiles of ``size``: the
    head and tiles in ``head`` numbers, then the order of ``rows``. Negative places are left out, but where
    ``whole`` iterations are cut."""
    kept = (places >= 0) | whole
    firsts, counts = spans[kept].T
    places = np.repeat(places[kept], counts)
    own = np.repeat(firsts - np.cumsum(counts) + counts, counts) + np.arange(len(places))
    order = np.argsort(places, kind="stable")
    found, begins, lengths = np.unique(places[order], return_index=True, return_counts=True)
    tiles = -(-lengths // size)
    offsets = size * (np.arange(tiles.sum()) - np.repeat(np.cumsum(tiles) - tiles, tiles))
    flat = np.zeros(head + rows, dtype=np.int32)
    flat[0] = tiles.sum()
    flat[HEAD : HEAD + TILE_FIELDS * len(offsets)] = np.stack(
        [
            np.repeat(found, tiles),
            np.repeat(begins, tiles) + offsets,
            np.minimum(size, np.repeat(lengths, tiles) - offsets),
        ],
        axis=1,
    ).reshape(-1)
    flat[head : head + len(order)] = own[order]
    return flat
