"""The device's half of an iteration: from plain arrays to logits and chosen tokens, queued on its stream.

Owns the steps that a runner takes, uploads, and what LoRA adapters do. Where a model is split, every rank
takes the same steps on its part (`led_steps`). Knows nothing of sequences or sampling, which are the
`runner`'s, of what is computed (`computation`), or of how graphs are made and chosen (`graphs`).

An iteration is replayed from the graph of the next larger size, by generation rows or, with prompts, by
their tokens. One that no graph fits, or whose hidden states are asked for, is launched operation by
operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from inflight.executors.reference.core.prompt_tuning import Embedded
from inflight.executors.reference.core.scheduler import Limits
from inflight.executors.reference.model.lora import Adapter, has_expert_slots, widths

from . import operations
from .adapters import Adapted, DeviceAdapters, Spans
from .computation import Computation
from .graphs import Graphs
from .model import TorchModel
from .operations import Tensor
from .packing import Array, Packed, PackedShape


class DeviceSteps:
    """One rank's part of a model and its cache, which has one block more than is counted.

    The steps are taken inside of `queueing`.
    """

    def __init__(
        self,
        model: TorchModel,
        num_blocks: int,
        limits: Limits,
        num_host_blocks: int = 0,
        lora_fraction: float = 0.3,
        lora_host_bytes: int = 1 << 30,
    ) -> None:
        """LoRA adapters get ``lora_fraction`` of the GPU memory that the cache leaves free. On a CPU they get
        ``lora_host_bytes``, the size of the host's adapter cache."""
        self._model = model
        self._computation = Computation(model, num_blocks, limits, num_host_blocks)
        self.device, self.cuda = self._computation.device, self._computation.cuda
        self.spare = self._computation.spare
        #: The tokens of the latest choosing rows, where the next iteration finds them.
        self.chosen = self._computation.chosen
        #: What iterations are queued on; None on a CPU.
        self.stream = self._computation.stream
        #: Of the latest iteration that no graph computed: ``[T, hidden]``.
        self._hidden: Tensor = None
        lora_bytes = self._lora_bytes(lora_fraction) if self.cuda else lora_host_bytes
        #: Adapters in plain operations, and in kernels where the model uses those.
        self._adapters = DeviceAdapters(self.device, model.dtype, lora_bytes)
        self._tables = self._adapter_tables(lora_bytes, limits)
        self.wait_for_memory()
        self._graphs = Graphs(self._computation, limits, self._tables)

    @property
    def prefix_keys(self) -> int | None:
        """`TorchModel.prefix_keys`."""
        return self._model.prefix_keys

    @property
    def table_width(self) -> int:
        """Blocks of the longest sequence."""
        return int(self._computation.block_tables.shape[1])

    @contextmanager
    def queueing(self, is_awaited: Callable[[], bool] | None = None) -> Iterator[None]:
        """What runs inside is queued on the stream. An iteration that nobody waits for is given up once
        ``is_awaited``, where it has graphs in pieces: `GivenUp`."""
        self._graphs.is_awaited = is_awaited
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            yield

    def wait_for_memory(self) -> None:
        """Waits until what was made on PyTorch's stream is filled: `stream` would not wait for it."""
        self._computation.wait_for_memory()

    def upload(self, array: Any) -> Tensor:
        """An array on the device; the copy waits for nothing and nothing waits for it."""
        return self._computation.upload(array)

    # Graphs, for who samples in graphs too.

    @property
    def buckets(self) -> list[int]:
        """The batch sizes that have a graph."""
        return self._graphs.buckets

    def bucket(self, count: int, adapted: bool) -> int | None:
        """The graph that ``count`` generation rows take."""
        if adapted and self._tables is None:
            return None
        return self._graphs.bucket(count)

    def places(self, bucket: int) -> tuple[Tensor, Tensor]:
        """Where a graph's positions and sequence slots are; spare ones, until it is used."""
        self._graphs.fill(bucket)
        inputs = self._computation.inputs[: 5 * bucket].view(5, bucket)
        return inputs[2], inputs[3]

    def logits(self, bucket: int) -> Tensor:
        """Where a graph's logits are."""
        return self._computation.logits[:bucket]

    def capture(self, compute: Callable[[], Any]) -> Any:
        """A graph of what ``compute`` launches; inside of `queueing`."""
        return self._graphs.capture(compute)

    # The steps.

    def copy_blocks(self, pairs: Array) -> None:
        """Copies blocks, ``int64 [2, copies]``: sources and targets; no target is a source. Host blocks have
        the numbers after those of the cache."""
        first_host = self.spare.block
        if (pairs >= first_host).any():
            for source, target in pairs.T.tolist():
                if source >= first_host:
                    self._model.onboard_block(source - first_host, target)
                else:
                    self._model.offload_block(source, target - first_host)
            return
        places = self.upload(pairs)
        self._model.copy_blocks(places[0], places[1])

    def note_tables(self, places: Array) -> None:
        """Writes into the block tables, ``int32 [3, entries]``: slots, columns and blocks."""
        noted = self.upload(places)
        self._computation.block_tables[noted[0].long(), noted[1].long()] = noted[2]

    def note_offsets(self, places: Array) -> None:
        """Writes what is added to positions, ``int32 [2, entries]``: slots and offsets."""
        noted = self.upload(places)
        self._computation.offsets[noted[0].long()] = noted[1]

    def generate(
        self, inputs: Array, adapters: Sequence[Adapter | None] = (), begin_alike: bool = False
    ) -> Tensor:
        """Logits of generation rows, by `operations.prepare`'s inputs; the best tokens are in ``chosen``.
        ``adapters`` are those of the rows, if there are any; many rows may ``begin_alike``."""
        count = inputs.shape[1]
        bucket = self.bucket(count, bool(adapters))
        spans = [(one, row, 1) for row, one in enumerate(adapters)]
        if bucket is None:
            self._computation.inputs[: 5 * count] = self.upload(inputs.reshape(-1))
            adapted = self._adapted(spans, count)
            return self._computation.generation(count, adapted, begin_alike=begin_alike)
        self._graphs.generation(bucket, inputs, spans, begin_alike)
        return self._computation.logits

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
        """Logits of an iteration with prompts; the best tokens of its choosing rows are in ``chosen``.

        ``probe_tables`` are block tables that are no sequence's own. With ``keeps_hidden``, `hidden_logits`
        of the packed rows can be asked for. ``adapters`` are those of the generation rows, then of the chunks
        and probes, if there are any; ``embedded`` are packed rows, and so are those ``pictured``, with the
        embeddings of images. ``turned [3, tokens]`` is what turns the prompts' tokens, where that is not
        their positions; ``heard [probes]`` is where the clips of those with ``probe_tables`` are. Many
        generation rows may ``begin_alike``.
        """
        keeps_hidden = keeps_hidden or probe_tables is not None
        by_hand = keeps_hidden or embedded is not None or turned is not None
        by_hand = by_hand or (bool(adapters) and self._tables is None)
        place = None if by_hand else self._graphs.prompt_place(packed.shape)
        if place is not None:
            spans_in = partial(_spans, adapters, packed) if adapters else None
            self._graphs.prompts(place, packed, spans_in, begin_alike)
            return self._computation.logits
        shape = packed.shape.rounded()
        chunks = packed.moved_chunks(shape)
        tables = None if probe_tables is None else self.upload(probe_tables)
        buffer = self.upload(packed.padded(shape, self.spare))
        moved = shape.generation - packed.shape.generation
        virtual = self._embeddings(embedded, pictured, moved)
        turns = None
        if turned is not None:
            padding = ((0, 0), (0, shape.tokens - turned.shape[1]))
            turns = self.upload(np.pad(turned.astype(np.int32), padding))
        adapted = self._adapted(_spans(adapters, packed, shape), shape.generation + shape.tokens)
        places = None if heard is None else self.upload(heard)
        hidden, logits = self._computation.prompts(
            buffer, shape, chunks, tables, adapted, virtual, turns, places, begin_alike=begin_alike
        )
        self._hidden = hidden if keeps_hidden else None
        return logits

    def _embeddings(
        self, embedded: Embedded | None, pictured: Sequence[tuple[range, Tensor]], moved: int
    ) -> tuple[Tensor, Tensor] | None:
        """`Rows.embedded` of packed rows, which are ``moved``."""
        rows = [np.array(own) for own, _ in pictured]
        values = [value for _, value in pictured]
        if embedded is not None:
            rows.append(embedded.rows)
            values.append(self.upload(embedded.values).to(self._model.dtype))
        return (self.upload(np.concatenate(rows) + moved), torch.cat(values)) if rows else None

    def hidden_logits(self, start: int, stop: int) -> Tensor:
        """Logits of rows of the latest `mix` that kept its hidden states, in its rounded shape."""
        return self._model.logits(self._hidden[start:stop])

    def hidden(self, start: int, stop: int) -> Tensor:
        """The rows' final hidden states themselves, whole on every rank."""
        return self._hidden[start:stop]

    def take(self, tokens: Tensor) -> None:
        """Tokens that rank 0 chose otherwise than by the best logit: int32 ``[rows]``."""
        self.chosen[: len(tokens)] = tokens
        self.share(len(tokens))

    def share(self, count: int) -> None:
        """Sends the first ``count`` of rank 0's ``chosen`` to all."""
        if self._model.communicator.size > 1:
            self._model.communicator.broadcast(self.chosen[:count])

    # LoRA adapters.

    def _lora_bytes(self, fraction: float) -> int:
        """What adapters may take on a GPU."""
        return int(fraction * torch.cuda.mem_get_info(self.device)[0])

    def _adapter_tables(self, lora_bytes: int, limits: Limits) -> Any:
        """For the kernels."""
        config = self._model.config
        if self._model.operations is operations:
            return None
        from .adapter_tables import AdapterTables

        most, dtype = limits.max_batch_size, self._model.dtype
        rows = limits.max_num_tokens + limits.rows + 8  # with what rounding adds
        return AdapterTables(
            self.device,
            dtype,
            lora_bytes,
            most,
            config.num_layers,
            rows,
            widths(config),
            self.upload,
            config.num_experts if has_expert_slots(config) else 0,
        )

    def _adapted(self, spans: Spans, rows: int) -> Adapted | None:
        """What adapters do in an iteration of ``rows`` that no graph computes."""
        if not any(adapter is not None for adapter, *_ in spans):
            return None
        if self._tables is None:
            return self._adapters.rows(spans)
        adapted: Adapted = self._tables.rows(spans, rows)
        return adapted


def _spans(adapters: Sequence[Adapter | None], packed: Packed, shape: PackedShape) -> Spans:
    """The rows of each adapter once packed rows are padded to ``shape``."""
    places = [(row, 1) for row in range(packed.shape.generation)]
    places += [(row, count) for row, count, *_ in packed.moved_chunks(shape)]
    return [(one, *place) for one, place in zip(adapters, places, strict=False)]
