"""The runner on PyTorch: iterations queued on the device, one ahead of the tokens that the host knows.

Owns the way of an iteration's rows to the device (one copy), the CUDA graphs of generation and the way of
its tokens back (one copy, waited for in `collect`). Knows nothing of queues, ends of sequences or responses.

An iteration of generation rows only is replayed from the graph of the next larger batch size; its spare
rows write to a slot and a block that nobody reads. One with prompts is launched operation by operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from inflight.executors.reference.cache import BlockTable
from inflight.executors.reference.runner import KNOWN, Outcome, Pending, Told, Work
from inflight.executors.reference.scheduler import Limits

from . import sampling
from .model import Rows, TorchModel
from .operations import CONTEXT_TILE, Context, Tensor

#: Rows of prompt logits held at once.
_PROMPT_LOGIT_ROWS = 256


@dataclass(slots=True)
class _Launched:
    """What an iteration leaves on the host once ``done`` has passed."""

    count: int
    tokens: Tensor | None = None
    #: Choosing rows that keep a record, the width of each, and their three columns.
    rows: Sequence[int] = ()
    widths: Sequence[int] = ()
    told: tuple[Tensor, ...] = ()
    prompts: dict[int, list[tuple[Tensor, ...]]] = field(default_factory=dict)
    done: Any = None


@dataclass(slots=True)
class _Graph:
    graph: Any
    logits: Tensor


class TorchRunner:
    """Implements `runner.Runner`. Makes the model's cache, with one block more than is counted."""

    def __init__(
        self, model: TorchModel, num_blocks: int, limits: Limits, graphs: bool | None = None
    ) -> None:
        self._model = model
        self._device = model.device
        self._cuda = self._device.type == "cuda"
        self.depth = 2 if self._cuda else 1
        self._operations = model.operations
        self._size = model.shape.tokens_per_block
        self._spare_slot, self._spare_block = limits.max_batch_size, num_blocks
        model.allocate_cache(num_blocks + 1)
        width = -(-model.shape.max_seq_len // self._size)
        self._block_tables = self._zeros(limits.max_batch_size + 1, width)
        #: The tokens of the latest choosing rows, where the next iteration finds them.
        self._chosen = self._zeros(limits.max_batch_size)
        self._inputs = self._zeros(5 * limits.max_batch_size)
        #: By slot: whose blocks the device's table holds, and how many of them.
        self._known: list[tuple[BlockTable | None, int]] = [(None, 0)] * limits.max_batch_size
        self._stream = torch.cuda.Stream(self._device) if self._cuda else None
        self._graphs: dict[int, _Graph] = {}
        self._buckets: list[int] = []
        if self._cuda if graphs is None else graphs:
            self._capture(limits.max_batch_size)

    def launch(self, work: Work) -> Pending:
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            launched = self._launch(work)
            if self._cuda:
                launched.done = torch.cuda.Event()
                launched.done.record(self._stream)
            return launched

    def collect(self, pending: Pending) -> Outcome:
        launched = cast(_Launched, pending)
        if launched.done is not None:
            launched.done.synchronize()
        told: dict[int, Told] = {}
        if launched.rows:
            values, ids, best = (column.numpy() for column in launched.told)
            for place, (row, width) in enumerate(zip(launched.rows, launched.widths, strict=True)):
                one = slice(place, place + 1)
                told[row] = Told(values[one], ids[one, :width], best[one, :width])
        prompts = {
            place: Told(
                *(np.concatenate([part.numpy() for part in column]) for column in zip(*parts, strict=True))
            )
            for place, parts in launched.prompts.items()
        }
        tokens = [] if launched.tokens is None else launched.tokens.tolist()
        return Outcome(tokens, told, prompts)

    def _launch(self, work: Work) -> _Launched:
        choosing = work.choosing()
        launched = _Launched(len(choosing))
        self._note_tables(work)
        inputs = self._generation_inputs(work)
        states = [one.sampler for one in choosing]
        if work.chunks:
            hidden, rows = self._run_prompts(work, inputs, launched)
            if not choosing:
                return launched
            logits = self._model.logits(hidden[rows])
            tokens = sampling.sample(logits, states, self._upload)
        else:
            logits = self._replay(inputs)[: len(choosing)]
            tokens = sampling.sample(logits, states, self._upload, self._chosen[: len(choosing)])
        if tokens.data_ptr() != self._chosen.data_ptr():
            self._chosen[: len(choosing)] = tokens
        launched.tokens = self._download(self._chosen[: len(choosing)])
        launched.rows = [row for row, one in enumerate(choosing) if one.record is not None]
        if launched.rows:
            launched.widths = [choosing[row].top_width for row in launched.rows]
            places = self._upload(np.array(launched.rows, dtype=np.int64))
            columns = sampling.chosen_and_best(logits[places], self._chosen[places], max(launched.widths))
            launched.told = tuple(self._download(column) for column in columns)
        return launched

    # The way in.

    def _generation_inputs(self, work: Work) -> Any:
        """`operations.prepare`'s inputs ``[5, R]``, on the host."""
        size = self._size
        known = [
            one.sampler.generated[-1] if source == KNOWN else 0
            for one, source in zip(work.generation, work.sources, strict=True)
        ]
        blocks = [
            one.blocks[position // size]
            for one, position in zip(work.generation, work.positions, strict=True)
        ]
        slots = [one.slot for one in work.generation]
        return np.array([known, work.sources, work.positions, slots, blocks], dtype=np.int32)

    def _note_tables(self, work: Work) -> None:
        """Brings the device's block tables up to date, but for what `prepare` adds itself."""
        rows: list[int] = []
        columns: list[int] = []
        blocks: list[int] = []

        def note(slot: int, table: BlockTable | None, upto: int) -> None:
            owner, count = self._known[slot]
            if owner is not table:
                count = 0
            held = () if table is None else table.blocks[count:upto]
            rows.extend([slot] * len(held))
            columns.extend(range(count, count + len(held)))
            blocks.extend(held)
            self._known[slot] = (table, max(count, upto))

        for one, position in zip(work.generation, work.positions, strict=True):
            owner, count = self._known[one.slot]
            last = position // self._size
            if owner is not one.table or count < last:
                note(one.slot, one.table, last + 1)
            elif count == last:
                self._known[one.slot] = (owner, last + 1)
        for chunk in work.chunks:
            note(chunk.sequence.slot, chunk.sequence.table, len(chunk.sequence.blocks))
        if rows:
            places = self._upload(np.array([rows, columns, blocks], dtype=np.int32))
            self._block_tables[places[0].long(), places[1].long()] = places[2]

    def _upload(self, array: Any) -> Tensor:
        """An array on the device; the copy waits for nothing and nothing waits for it."""
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._cuda else tensor

    def _download(self, tensor: Tensor) -> Tensor:
        """A tensor's values on the host, there once the iteration is done."""
        if not self._cuda:
            return tensor.clone()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self._device)

    # Generation.

    def _replay(self, inputs: Any) -> Tensor:
        """Logits of generation rows; their best tokens are in ``_chosen``."""
        count = inputs.shape[1]
        bucket = next((one for one in self._buckets if one >= count), None)
        if bucket is None:
            self._inputs[: 5 * count] = self._upload(inputs.reshape(-1))
            return self._generate(count)
        padded = np.zeros((5, bucket), dtype=np.int32)
        padded[1], padded[3], padded[4] = KNOWN, self._spare_slot, self._spare_block
        padded[:, :count] = inputs
        self._inputs[: 5 * bucket].copy_(torch.from_numpy(padded.reshape(-1)).pin_memory(), non_blocking=True)
        replayed = self._graphs[bucket]
        replayed.graph.replay()
        return replayed.logits

    def _generate(self, count: int) -> Tensor:
        """One iteration of ``count`` generation rows, from ``_inputs`` to ``_chosen``: what graphs hold."""
        inputs = self._inputs[: 5 * count].view(5, count)
        token_ids, cache_slots = self._operations.prepare(
            inputs, self._chosen, self._block_tables, self._size
        )
        hidden = self._model.forward(Rows(token_ids, inputs[2], cache_slots, inputs[3], self._block_tables))
        logits = self._model.logits(hidden)
        self._chosen[:count] = logits.argmax(-1)
        return logits

    def _capture(self, most: int) -> None:
        """Captures the graphs of all batch sizes, largest first, since they share their memory."""
        pool = None
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for bucket in reversed(buckets(most)):
                spare = np.zeros((5, bucket), dtype=np.int32)
                spare[1], spare[3], spare[4] = KNOWN, self._spare_slot, self._spare_block
                self._inputs[: 5 * bucket] = self._upload(spare.reshape(-1))
                self._generate(bucket)  # compiles kernels and picks algorithms, which a capture must not
                torch.cuda.synchronize(self._device)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                    logits = self._generate(bucket)
                pool = graph.pool()
                self._graphs[bucket] = _Graph(graph, logits)
            torch.cuda.synchronize(self._device)
        self._buckets = sorted(self._graphs)

    # Prompts.

    def _run_prompts(self, work: Work, generation: Any, launched: _Launched) -> tuple[Tensor, Tensor]:
        """Hidden states of an iteration with prompts, and which rows choose a token."""
        count = len(work.generation)
        ids, positions, slots, choosing = [], [], [], list(range(count))
        chunks: list[tuple[int, int, int, int]] = []
        start = count
        for chunk in work.chunks:
            own = np.arange(chunk.first, chunk.stop, dtype=np.int32)
            table = np.array(chunk.sequence.blocks, dtype=np.int32)
            ids.append(np.array(chunk.tokens, dtype=np.int32))
            positions.append(own)
            slots.append(table[own // self._size] * self._size + own % self._size)
            chunks.append((start, len(own), chunk.sequence.slot, chunk.first))
            start += len(own)
            if chunk.chooses:
                choosing.append(start - 1)
        tiles = np.array(
            [
                (row + offset, slot, first + offset, min(CONTEXT_TILE, size - offset))
                for row, size, slot, first in chunks
                for offset in range(0, size, CONTEXT_TILE)
            ],
            dtype=np.int32,
        ).T
        parts = [
            *(np.concatenate(one) for one in (ids, positions, slots)),
            tiles.reshape(-1),
            generation.reshape(-1),
        ]
        uploaded = self._upload(np.concatenate([*parts, np.array(choosing, dtype=np.int32)]))
        length = start - count
        sizes = [length, length, length, tiles.size, 5 * count, len(choosing)]
        chunk_ids, chunk_positions, chunk_slots, chunk_tiles, generating, chosen = uploaded.split(sizes)
        inputs = generating.view(5, count)
        if count:
            token_ids, cache_slots = self._operations.prepare(
                inputs, self._chosen, self._block_tables, self._size
            )
            chunk_ids = torch.cat((token_ids, chunk_ids))
            chunk_positions = torch.cat((inputs[2], chunk_positions))
            chunk_slots = torch.cat((cache_slots, chunk_slots))
        tile_rows, tile_slots, firsts, counts = chunk_tiles.view(4, -1)
        context = Context(tile_rows, tile_slots, firsts, counts, tuple(chunks))
        hidden = self._model.forward(
            Rows(
                chunk_ids,
                chunk_positions,
                chunk_slots,
                inputs[3],
                self._block_tables,
                context,
            )
        )
        self._tell_prompts(work, chunks, hidden, launched)
        return hidden, chosen.long()

    def _tell_prompts(
        self, work: Work, chunks: Sequence[tuple[int, int, int, int]], hidden: Tensor, launched: _Launched
    ) -> None:
        for place, (chunk, (row, _, _, _)) in enumerate(zip(work.chunks, chunks, strict=True)):
            if chunk.prompt_width is None:
                continue
            following = chunk.sequence.prompt[chunk.first + 1 : chunk.first + 1 + chunk.told]
            tokens = self._upload(np.array(following, dtype=np.int64))
            parts = []
            for start in range(0, max(1, chunk.told), _PROMPT_LOGIT_ROWS):
                stop = min(chunk.told, start + _PROMPT_LOGIT_ROWS)
                logits = self._model.logits(hidden[row + start : row + stop])
                columns = sampling.chosen_and_best(logits, tokens[start:stop], chunk.prompt_width)
                parts.append(tuple(self._download(column) for column in columns))
            launched.prompts[place] = parts


def buckets(most: int) -> list[int]:
    """Batch sizes that get a graph: at most an eighth of the rows of a large one are spare."""
    sizes = [1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128]
    sizes += range(160, 513, 32)
    sizes += range(576, 1025, 64)
    return [*(size for size in sizes if size < most), most]
