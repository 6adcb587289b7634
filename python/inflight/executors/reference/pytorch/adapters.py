"""LoRA adapters on the device: those of the latest iterations, within a share of its memory.

Owns their copies there, in the model's type, which of them go first, and what they add in plain operations;
`adapter_kernels` adds the same for all adapters of an iteration at once. Knows nothing of requests.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from inflight.executors.reference.model.lora import Adapter, LayerDeltas, Part, Slot

from .operations import Tensor, linear

_log = logging.getLogger(__name__)

#: An iteration's rows by adapter: adapter, first row, rows.
Spans = Sequence[tuple[Adapter | None, int, int]]
#: A part's deltas: where they add, down ``[rank, in]`` and up ``[rank, out]``.
Deltas = Sequence[tuple[Slot, Tensor, Tensor]]

#: Elements that the matrices of a layer start at multiples of, so that kernels can read 16 bytes at once.
_ALIGNED = 16


@dataclass(frozen=True, slots=True)
class DeviceAdapter:
    """An adapter's matrices by layer and part."""

    layers: Sequence[Mapping[Part, Deltas]]
    nbytes: int
    #: Its number among those that are held.
    place: int
    #: The largest of its ranks, and all that it changes.
    rank: int
    slots: frozenset[Slot]


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """The rows of an iteration that one adapter changes: ``int64 [rows]``."""

    rows: Tensor
    adapter: DeviceAdapter


class Adapted(Protocol):
    """What the adapters of an iteration do."""

    @property
    def groups(self) -> Sequence[AdaptedRows]:
        """By adapter, for the experts of a mixture."""

    def experts(self, layer: int) -> Callable[..., None] | None:
        """What adds to the products of experts in kernels: `ExpertAdapters.add` of a layer. None: nothing is
        added, or by ``groups``."""

    def product(
        self, layer: int, part: Part, x: Tensor, compute: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """What the model computes of ``x``, and what is still to be added to it; None: what adapters make of
        ``x`` was added to their rows."""


@dataclass(frozen=True, slots=True)
class AdaptedGroups:
    """`Adapted` in plain operations, one adapter after the other."""

    groups: Sequence[AdaptedRows]

    def experts(self, layer: int) -> None:  # noqa: ARG002 -- as `Adapted`
        return None

    def product(
        self, layer: int, part: Part, x: Tensor, compute: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        out = compute()
        for group in self.groups:
            for slot, down, up in group.adapter.layers[layer].get(part, ()):
                out[group.rows, slot.start : slot.stop] += linear(x[group.rows], down) @ up
        return out, None


class DeviceAdapters:
    """Copies by adapter; the least recently used go first, and never one of the iteration at hand."""

    def __init__(
        self,
        device: Tensor,
        dtype: Tensor,
        max_bytes: int,
        most: int | None = None,
        rank_multiple: int = 1,
        made: Callable[[DeviceAdapter], None] | None = None,
    ) -> None:
        """Holds ``most`` at a time, which no iteration exceeds. Ranks are filled up with zeros to a multiple
        of ``rank_multiple``. ``made`` is called with each copy before it is used."""
        self._device = device
        self._dtype = dtype
        self._max_bytes = max_bytes
        self._most = most
        self._rank_multiple = rank_multiple
        self._made = made
        self._bytes = 0
        self._held: OrderedDict[bytes, DeviceAdapter] = OrderedDict()
        #: Places of those that have gone.
        self._free: list[int] = []
        self._has_warned = False

    def rows(self, spans: Spans) -> AdaptedGroups:
        """The rows of each adapter."""
        by_adapter: dict[Adapter, list[int]] = {}
        for adapter, first, count in spans:
            if adapter is not None:
                by_adapter.setdefault(adapter, []).extend(range(first, first + count))
        held = self.hold(list(by_adapter))
        return AdaptedGroups(
            [
                AdaptedRows(torch.tensor(rows, dtype=torch.int64).to(self._device), held[adapter])
                for adapter, rows in by_adapter.items()
            ]
        )

    def hold(self, adapters: Sequence[Adapter]) -> dict[Adapter, DeviceAdapter]:
        """The copies of an iteration's adapters, each of which is named once."""
        missing = []
        for adapter in adapters:
            if adapter.fingerprint in self._held:
                self._held.move_to_end(adapter.fingerprint)
            else:
                missing.append(adapter)
        used = len(adapters) - len(missing)
        for adapter in missing:
            self._make_room(adapter.nbytes * self._dtype.itemsize // 4, used)
            copy = self._copy(adapter)
            self._held[adapter.fingerprint] = copy
            self._bytes += copy.nbytes
            used += 1
            if self._made is not None:
                self._made(copy)
        if self._bytes > self._max_bytes and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the %d LoRA adapters of an iteration take %d MB of GPU memory, and %d MB are for adapters:"
                " they are copied again as others come; raise `lora_cache_gpu_memory_fraction`, or lower"
                " `max_batch_size`",
                len(adapters),
                self._bytes >> 20,
                self._max_bytes >> 20,
            )
        return {adapter: self._held[adapter.fingerprint] for adapter in adapters}

    def _make_room(self, nbytes: int, used: int) -> None:
        """Lets the oldest go, but not the latest ``used``."""
        while len(self._held) > used and (
            self._bytes + nbytes > self._max_bytes or len(self._held) == self._most
        ):
            oldest = self._held.popitem(last=False)[1]
            self._bytes -= oldest.nbytes
            self._free.append(oldest.place)

    def _copy(self, adapter: Adapter) -> DeviceAdapter:
        layers, nbytes = [], 0
        for layer in adapter.layers:
            copied, flat = self._copy_layer(layer)
            layers.append(copied)
            nbytes += flat.nbytes
        deltas = [delta for layer in layers for own in layer.values() for delta in own]
        return DeviceAdapter(
            layers,
            nbytes,
            self._free.pop() if self._free else len(self._held),
            max((len(down) for _, down, _ in deltas), default=1),
            frozenset(slot for slot, *_ in deltas),
        )

    def _copy_layer(self, layer: LayerDeltas) -> tuple[Mapping[Part, Deltas], Tensor]:
        """A layer's matrices, which go to the device in one copy and in the model's type."""
        places: list[tuple[int, tuple[int, int]]] = []
        end = 0
        deltas = [delta for part in layer.values() for delta in part]
        for delta in deltas:
            rank = -(-len(delta.down) // self._rank_multiple) * self._rank_multiple
            for shape in ((rank, delta.slot.inputs), (rank, delta.slot.outputs)):
                places.append((end, shape))
                end += -(-shape[0] * shape[1] // _ALIGNED) * _ALIGNED
        is_cuda = self._device.type == "cuda"
        host = torch.zeros(end, dtype=self._dtype, pin_memory=is_cuda)
        flat = torch.empty(end, dtype=self._dtype, device=self._device) if is_cuda else host

        def views(tensor: Tensor) -> list[Tensor]:
            return [tensor[at : at + rows * columns].view(rows, columns) for at, (rows, columns) in places]

        matrices = [matrix for delta in deltas for matrix in (delta.down, delta.up.T)]
        for view, matrix in zip(views(host), matrices, strict=True):
            view[: matrix.shape[0], : matrix.shape[1]].copy_(torch.from_numpy(matrix))
        if is_cuda:
            flat.copy_(host, non_blocking=True)
        copies = iter(views(flat))
        return {
            part: [(delta.slot, next(copies), next(copies)) for delta in own] for part, own in layer.items()
        }, flat


def adapt_expert(
    deltas: Mapping[Part, Deltas],
    part: Part,
    expert: int,
    x: Tensor,
    out: Tensor,
) -> None:
    """As `AdaptedGroups.product`, for rows of one adapter that an expert computes."""
    for slot, down, up in deltas.get(part, ()):
        if slot.expert == expert:
            out[:, slot.start : slot.stop] += linear(x, down) @ up
