"""Which adapter changes which rows of an iteration, as `adapter_kernels` read it.

Owns the table of the adapters' matrices on the device and the order of an iteration's rows, which are sorted
by adapter on the host and cut into tiles of one adapter each. Knows nothing of how kernels compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from inflight.executors.reference.model.lora import Part

from .adapter_kernels import ENTRIES, FIELDS, HEAD, LEAST_RANK, PARTS, TILE_FIELDS, GroupedRows
from .adapters import DeviceAdapter, DeviceAdapters, Spans
from .operations import Tensor

Array = Any  # numpy.ndarray

#: Rows of an iteration up to which tiles are small: most rows are of sequences that have no other.
_FEW_ROWS = 512
_MANY_TILE_ROWS = 64


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
        upload: Callable[[Array], Tensor],
    ) -> None:
        """``most`` adapters and ``most_rows`` rows are in an iteration."""
        self._adapters = DeviceAdapters(device, dtype, max_bytes, most, LEAST_RANK, self._note)
        self._device = device
        self._most = most
        self._layers = layers
        self._most_rows = most_rows
        self._upload = upload
        # Both take memory where there are adapters only.
        self._table: Tensor = None
        self._rows: Tensor = None
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
            size = HEAD + TILE_FIELDS * self._tiles(self._most_rows) + self._most_rows
            self._rows = torch.zeros(size, dtype=torch.int32, device=self._device)
        held = self._adapters.hold(list({adapter: None for adapter, *_ in spans if adapter is not None}))
        places = [-1 if adapter is None else held[adapter].place for adapter, *_ in spans]
        tiles = HEAD + TILE_FIELDS * self._tiles(rows)
        array = grouped(np.array(places), np.array([one[1:] for one in spans]), tile_rows(rows), rows, tiles)
        if lasting:
            pinned = torch.from_numpy(array)
            pinned = pinned.pin_memory() if self._device.type == "cuda" else pinned
            noted = self._rows[: len(array)].copy_(pinned, non_blocking=True)
        else:
            noted = self._upload(array)
        rank = max(one.rank for one in held.values())
        parts: frozenset[Part] = frozenset().union(*(layer for one in held.values() for layer in one.layers))
        made = GroupedRows(
            self._table,
            noted[:tiles],
            noted[tiles:],
            tile_rows(rows),
            1 << (rank - 1).bit_length(),
            parts,
        )
        if lasting:
            self._latest, self._grouped = (rows, spans), made
        return made

    def _tiles(self, rows: int) -> int:
        """Tiles that so many rows are cut into, at most."""
        return -(-rows // tile_rows(rows)) + min(rows, self._most)

    def _note(self, adapter: DeviceAdapter) -> None:
        """Writes where an adapter's matrices are; another one may have been there."""
        self._latest = None
        entries = np.zeros((self._layers, ENTRIES, FIELDS), dtype=np.int64)
        for layer, parts in zip(entries, adapter.layers, strict=True):
            for part, deltas in parts.items():
                first, most = PARTS[part]
                if len(deltas) > most:
                    raise RuntimeError(f"an adapter changes `{part}` of a layer in {len(deltas)} places")
                for entry, (slot, down, up) in zip(layer[first:], deltas, strict=False):
                    entry[:] = down.data_ptr(), up.data_ptr(), len(down), slot.start, slot.stop
        self._table[adapter.place].copy_(self._upload(entries))


def tile_rows(rows: int) -> int:
    """Rows of a tile in an iteration of ``rows``."""
    return LEAST_RANK if rows <= _FEW_ROWS else _MANY_TILE_ROWS


def grouped(places: Array, spans: Array, size: int, rows: int, head: int) -> Array:
    """``spans [spans, 2]`` of first row and rows, sorted by ``places`` and cut into tiles of ``size``: the
    head and tiles in ``head`` numbers, then the order of ``rows``. Negative places are left out."""
    firsts, counts = spans[places >= 0].T
    places = np.repeat(places[places >= 0], counts)
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
