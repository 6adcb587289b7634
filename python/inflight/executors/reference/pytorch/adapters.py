"""LoRA adapters on the device: those of the latest iterations, within a share of its memory.

Owns their copies there, in the model's type, and which of them go first. Knows nothing of requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from inflight.executors.reference.model.array_types import Float32
from inflight.executors.reference.model.lora import Adapter, Part, Slot

from .operations import Tensor, linear


@dataclass(frozen=True, slots=True)
class DeviceAdapter:
    """An adapter's matrices by layer and part: where they add, down and up."""

    layers: Sequence[Mapping[Part, Sequence[tuple[Slot, Tensor, Tensor]]]]
    nbytes: int


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """The rows of an iteration that one adapter changes: ``int64 [rows]``."""

    rows: Tensor
    adapter: DeviceAdapter


class DeviceAdapters:
    """Copies by adapter; the least recently used go first, and never one of the iteration at hand."""

    def __init__(self, device: Tensor, dtype: Tensor, max_bytes: int) -> None:
        self._device = device
        self._dtype = dtype
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held: OrderedDict[bytes, DeviceAdapter] = OrderedDict()

    def rows(self, spans: Sequence[tuple[Adapter | None, int, int]]) -> tuple[AdaptedRows, ...]:
        """The rows of each adapter, from spans of (adapter, first row, rows)."""
        by_adapter: dict[Adapter, list[int]] = {}
        for adapter, first, count in spans:
            if adapter is not None:
                by_adapter.setdefault(adapter, []).extend(range(first, first + count))
        held = [self._get(adapter) for adapter in by_adapter]
        while self._bytes > self._max_bytes and len(self._held) > len(held):
            self._bytes -= self._held.popitem(last=False)[1].nbytes
        return tuple(
            AdaptedRows(torch.from_numpy(np.array(rows, dtype=np.int64)).to(self._device), adapter)
            for rows, adapter in zip(by_adapter.values(), held, strict=True)
        )

    def _get(self, adapter: Adapter) -> DeviceAdapter:
        if adapter.fingerprint not in self._held:
            made = DeviceAdapter(
                [
                    {
                        part: [(one.slot, self._copy(one.down), self._copy(one.up)) for one in deltas]
                        for part, deltas in layer.items()
                    }
                    for layer in adapter.layers
                ],
                adapter.nbytes * self._dtype.itemsize // 4,
            )
            self._held[adapter.fingerprint] = made
            self._bytes += made.nbytes
        self._held.move_to_end(adapter.fingerprint)
        return self._held[adapter.fingerprint]

    def _copy(self, matrix: Float32) -> Tensor:
        return torch.from_numpy(matrix).to(self._device, self._dtype)


def adapt_expert(
    deltas: Mapping[Part, Sequence[tuple[Slot, Tensor, Tensor]]],
    part: Part,
    expert: int,
    x: Tensor,
    out: Tensor,
) -> None:
    """As `adapt`, for rows of one adapter that an expert computes."""
    for slot, down, up in deltas.get(part, ()):
        if slot.expert == expert:
            out[:, slot.start : slot.stop] += linear(linear(x, down), up)


def adapt(adapted: Sequence[AdaptedRows], layer: int, part: Part, x: Tensor, out: Tensor) -> None:
    """Adds what adapters make of ``x`` to their rows of ``out``."""
    for group in adapted:
        for slot, down, up in group.adapter.layers[layer].get(part, ()):
            out[group.rows, slot.start : slot.stop] += linear(linear(x[group.rows], down), up)
