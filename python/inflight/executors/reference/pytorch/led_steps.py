"""The steps of a model that is split: rank 0's, which every other rank takes as well.

Owns what is announced to the other ranks, and what such a model does not do. Knows nothing of how a step is
computed: that is `steps`.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.executors.reference.core.prompt_tuning import Embedded
from inflight.executors.reference.core.scheduler import Limits
from inflight.executors.reference.model.lora import Adapter
from inflight.executors.reference.parallel.team import Leader

from .model import TorchModel
from .operations import Tensor
from .packing import Array, Packed
from .steps import DeviceSteps


class LedSteps(DeviceSteps):
    """Rank 0's part of a model that is split: announces each step to the other ranks before it takes it."""

    def __init__(
        self, model: TorchModel, num_blocks: int, limits: Limits, leader: Leader, num_host_blocks: int = 0
    ) -> None:
        super().__init__(model, num_blocks, limits, num_host_blocks)
        self._leader = leader

    def copy_blocks(self, pairs: Array) -> None:
        self._leader.call("copy_blocks", pairs)
        super().copy_blocks(pairs)

    def note_tables(self, places: Array) -> None:
        self._leader.call("note_tables", places)
        super().note_tables(places)

    def generate(
        self, inputs: Array, adapters: Sequence[Adapter | None] = (), begin_alike: bool = False
    ) -> Tensor:
        _refuse(adapters)
        self._leader.call("generate", inputs, (), begin_alike)
        return super().generate(inputs, (), begin_alike)

    def mix(
        self,
        packed: Packed,
        probe_tables: Array | None,
        keeps_hidden: bool,
        adapters: Sequence[Adapter | None] = (),
        embedded: Embedded | None = None,
        pictured: Sequence[tuple[range, Tensor]] = (),
        turned: Array | None = None,
        heard: Array | None = None,
        begin_alike: bool = False,
    ) -> Tensor:
        _refuse(adapters)
        if pictured or turned is not None or heard is not None:
            raise RuntimeError("towers and encoders are not split over ranks: such a model is refused")
        given = packed, probe_tables, keeps_hidden, (), embedded, (), None, None, begin_alike
        self._leader.call("mix", *given)
        return super().mix(*given)

    def hidden_logits(self, start: int, stop: int) -> Tensor:
        self._leader.call("hidden_logits", start, stop)
        return super().hidden_logits(start, stop)

    def share(self, count: int) -> None:
        self._leader.call("share", count)
        super().share(count)


def _refuse(adapters: Sequence[Adapter | None]) -> None:
    if adapters:
        raise RuntimeError("adapters are not split over ranks: the engine refuses such requests")
