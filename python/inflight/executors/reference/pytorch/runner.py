"""The runner on PyTorch: iterations queued on the device, one ahead of the tokens that the host knows.

Owns the way of an iteration's rows to the device (one copy), the CUDA graphs of generation and the way of
its tokens back (one copy, waited for in `collect`). Knows nothing of queues, ends of sequences or responses.

An iteration is replayed from the graph of the next larger size, by generation rows or, with prompts, by
their tokens; spare rows write to a slot and a block that nobody reads. One that no graph fits, or that tells
of prompts, is launched operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from inflight.executors.reference.cache import BlockTable
from inflight.executors.reference.runner import KNOWN, Outcome, Pending, Told, Work
from inflight.executors.reference.scheduler import Limits

from . import operations, sampling
from .model import Rows, TorchModel
from .operations import CONTEXT_TILE, Context, Tensor
from .packing import Packed, PackedShape, Spare, padded_generation

#: Rows of prompt logits held at once.
_PROMPT_LOGIT_ROWS = 256

#: Prompt tokens of an iteration up to which launching its operations takes longer than spare rows do.
_SMALL_PROMPTS = 512


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
    #: Logits for the host, by choosing row, by chunk and of each probe; the last two in pieces.
    logits: dict[int, Tensor] = field(default_factory=dict)
    chunk_logits: dict[int, list[Tensor]] = field(default_factory=dict)
    probe_logits: list[list[Tensor]] = field(default_factory=list)
    done: Any = None


class TorchRunner:
    """Implements `runner.Runner`. Makes the model's cache, with one block more than is counted."""

    def __init__(self, model: TorchModel, num_blocks: int, limits: Limits) -> None:
        self._model = model
        self._device = model.device
        self._cuda = self._device.type == "cuda"
        self.depth = 2 if self._cuda else 1
        self._operations = model.operations
        self._size = model.shape.tokens_per_block
        self._spare = Spare(limits.max_batch_size, num_blocks, self._size)
        model.allocate_cache(num_blocks + 1)
        width = -(-model.shape.max_seq_len // self._size)
        self._block_tables = self._zeros(limits.max_batch_size + 1, width)
        #: The tokens of the latest choosing rows, where the next iteration finds them.
        self._chosen = self._zeros(limits.max_batch_size)
        self._inputs = self._zeros(5 * limits.max_batch_size)
        # One for all graphs: an iteration's logits are read before the next one's are written.
        self._logits = torch.empty(
            (limits.max_batch_size, model.config.vocab_size), dtype=model.dtype, device=self._device
        )
        #: By slot: whose blocks the device's table holds, and how many of them.
        self._known: list[tuple[BlockTable | None, int]] = [(None, 0)] * limits.max_batch_size
        self._stream = torch.cuda.Stream(self._device) if self._cuda else None
        self._graphs: dict[int, Any] = {}
        self._prompt_graphs: dict[int, Any] = {}
        self._pool: Any = None
        # Plain operations look at values on the host, which no graph can.
        if self._cuda and self._operations is not operations:
            self._capture(limits)

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
        return Outcome(
            tokens,
            told,
            prompts,
            {row: logits.numpy() for row, logits in launched.logits.items()},
            {place: _joined(parts) for place, parts in launched.chunk_logits.items()},
            [_joined(parts) for parts in launched.probe_logits],
        )

    def _launch(self, work: Work) -> _Launched:
        choosing = work.choosing()
        launched = _Launched(len(choosing))
        self._copy(work.copies)
        self._note_tables(work)
        inputs = self._generation_inputs(work)
        states = [one.sampler for one in choosing]
        if work.chunks or work.probes:
            logits = self._mix(work, inputs, launched)
            if not choosing:
                return launched
        else:
            logits = self._replay(inputs)
        count = len(choosing)
        tokens = sampling.sample(logits[:count], states, self._upload, self._chosen[:count])
        if tokens.data_ptr() != self._chosen.data_ptr():
            self._chosen[: len(choosing)] = tokens
        launched.tokens = self._download(self._chosen[: len(choosing)])
        launched.rows = [row for row, one in enumerate(choosing) if one.record is not None]
        if launched.rows:
            launched.widths = [choosing[row].top_width for row in launched.rows]
            places = self._upload(np.array(launched.rows, dtype=np.int64))
            columns = sampling.chosen_and_best(logits[places], self._chosen[places], max(launched.widths))
            launched.told = tuple(self._download(column) for column in columns)
        launched.logits = {
            row: self._download(logits[row].float()) for row, one in enumerate(choosing) if one.keeps_logits
        }
        return launched

    # The way in.

    def _copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copies blocks in order; those that do not follow from one another at once."""
        sources: list[int] = []
        targets: list[int] = []

        def flush() -> None:
            if sources:
                pair = self._upload(np.array([sources, targets], dtype=np.int64))
                self._model.copy_blocks(pair[0], pair[1])
                sources.clear()
                targets.clear()

        for source, target, _ in copies:
            if source in targets or target in targets or target in sources:
                flush()
            sources.append(source)
            targets.append(target)
        flush()

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
        bucket = next((one for one in self._graphs if one >= count), None)
        if bucket is None:
            self._inputs[: 5 * count] = self._upload(inputs.reshape(-1))
            return self._generate(count)
        padded = torch.from_numpy(self._pad(inputs, bucket)).pin_memory()
        self._inputs[: 5 * bucket].copy_(padded, non_blocking=True)
        self._graphs[bucket].replay()
        return self._logits

    def _pad(self, inputs: Any, bucket: int) -> Any:
        """`operations.prepare`'s inputs with spare rows, flat."""
        return padded_generation(inputs, bucket, self._spare).reshape(-1)

    def _generate(self, count: int) -> Tensor:
        """One iteration of ``count`` generation rows, from ``_inputs`` to ``_chosen``: what graphs hold."""
        inputs = self._inputs[: 5 * count].view(5, count)
        token_ids, cache_slots = self._operations.prepare(
            inputs, self._chosen, self._block_tables, self._size
        )
        hidden = self._model.forward(Rows(token_ids, inputs[2], cache_slots, inputs[3], self._block_tables))
        return self._choose(hidden)

    def _choose(self, hidden: Tensor) -> Tensor:
        """Logits of choosing rows, and their best tokens to ``_chosen``."""
        rows = len(hidden)
        logits = self._model.logits(hidden, self._logits[:rows])
        self._chosen[:rows] = logits.argmax(-1)
        return logits

    def _capture(self, limits: Limits) -> None:
        """Captures the graphs of all batch sizes, largest first, since they share their memory."""
        longest = limits.max_num_tokens
        self._prompt_inputs = self._zeros(sum(self._prompt_shape(longest).sizes))
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for bucket in reversed(prompt_buckets(longest)):
                shape = self._prompt_shape(bucket)
                spare = Packed.empty().padded(shape, self._spare)
                self._prompt_inputs[: len(spare)] = self._upload(spare)
                buffer = self._prompt_inputs[: len(spare)]
                self._prompt_graphs[bucket] = self._capture_one(partial(self._prompts, buffer, shape))
            for bucket in reversed(buckets(limits.max_batch_size)):
                spare = self._pad(np.zeros((5, 0), dtype=np.int32), bucket)
                self._inputs[: 5 * bucket] = self._upload(spare)
                self._graphs[bucket] = self._capture_one(partial(self._generate, bucket))
            torch.cuda.synchronize(self._device)
        self._graphs = dict(sorted(self._graphs.items()))
        self._prompt_graphs = dict(sorted(self._prompt_graphs.items()))

    def _capture_one(self, compute: Callable[[], Any]) -> Any:
        compute()  # compiles kernels and picks algorithms, which a capture must not
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            compute()
        self._pool = graph.pool()
        return graph

    # Prompts.

    def _mix(self, work: Work, generation: Any, launched: _Launched) -> Tensor:
        """Logits of an iteration with prompts; the best tokens of its choosing rows are in ``_chosen``."""
        packed = Packed.of(work, generation, self._size, self._spare.slot + 1)
        told = any(chunk.prompt_width is not None or chunk.logit_rows for chunk in work.chunks)
        bucket = None if told or work.probes else self._prompt_bucket(packed.shape)
        if bucket is not None:
            buffer = packed.padded(self._prompt_shape(bucket), self._spare)
            self._prompt_inputs[: len(buffer)].copy_(torch.from_numpy(buffer).pin_memory(), non_blocking=True)
            self._prompt_graphs[bucket].replay()
            return self._logits
        shape = packed.shape.rounded()
        moved = shape.generation - packed.shape.generation
        chunks = tuple((row + moved, *rest) for row, *rest in packed.chunks)
        buffer = self._upload(packed.padded(shape, self._spare))
        hidden, logits = self._prompts(buffer, shape, chunks, self._probe_tables(work))
        self._tell_prompts(work, [row for row, *_ in chunks[: len(work.chunks)]], hidden, launched)
        self._give_logits(work, chunks, hidden, launched)
        return logits

    def _probe_tables(self, work: Work) -> Tensor | None:
        """Block tables of probes, which are no sequence's own."""
        if not work.probes:
            return None
        tables = np.zeros((len(work.probes), self._block_tables.shape[1]), dtype=np.int32)
        for table, probe in zip(tables, work.probes, strict=True):
            table[: len(probe.blocks)] = probe.blocks
        return self._upload(tables)

    def _give_logits(
        self, work: Work, chunks: Sequence[tuple[int, ...]], hidden: Tensor, launched: _Launched
    ) -> None:
        """The logits that the host asked for, of the last rows of chunks and of all rows of probes."""
        for place, (row, count, *_) in enumerate(chunks):
            is_probe = place >= len(work.chunks)
            wanted = count if is_probe else work.chunks[place].logit_rows
            pieces = [
                self._download(
                    self._model.logits(hidden[start : min(start + _PROMPT_LOGIT_ROWS, row + count)]).float()
                )
                for start in range(row + count - wanted, row + count, _PROMPT_LOGIT_ROWS)
            ]
            if is_probe:
                launched.probe_logits.append(pieces)
            elif wanted:
                launched.chunk_logits[place] = pieces

    def _prompts(
        self,
        buffer: Tensor,
        shape: PackedShape,
        chunks: tuple[tuple[int, ...], ...] = (),
        probe_tables: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Hidden states and the logits of choosing rows, from a packed iteration: what graphs hold."""
        generation, ids, positions, slots, tiles, choosing = buffer.split(shape.sizes)
        inputs = generation.view(5, shape.generation)
        if shape.generation:
            token_ids, cache_slots = self._operations.prepare(
                inputs, self._chosen, self._block_tables, self._size
            )
            ids = torch.cat((token_ids, ids))
            positions = torch.cat((inputs[2], positions))
            slots = torch.cat((cache_slots, slots))
        tile_rows, tile_slots, firsts, counts = tiles.view(4, shape.tiles)
        context = Context(tile_rows, tile_slots, firsts, counts, chunks)
        tables = self._block_tables
        if probe_tables is not None:
            tables = torch.cat((tables, probe_tables))
        hidden = self._model.forward(Rows(ids, positions, slots, inputs[3], tables, context))
        return hidden, self._choose(hidden[choosing[: len(self._chosen)].long()])

    def _prompt_bucket(self, shape: PackedShape) -> int | None:
        """The graph for an iteration of that shape, where its spare rows cost less than launching by hand."""
        bucket = next((one for one in self._prompt_graphs if one >= shape.tokens), None)
        if bucket is None or (bucket > _SMALL_PROMPTS and bucket > 1.25 * shape.tokens):
            return None
        return bucket if shape.tiles <= self._prompt_shape(bucket).tiles else None

    def _prompt_shape(self, bucket: int) -> PackedShape:
        """What the graph of so many prompt tokens holds."""
        batch = len(self._chosen)
        tiles = bucket // CONTEXT_TILE + min(bucket, batch)
        return PackedShape(batch, bucket, tiles, batch).rounded()

    def _tell_prompts(self, work: Work, rows: Sequence[int], hidden: Tensor, launched: _Launched) -> None:
        """Log probabilities of prompt tokens; ``rows`` are the first of each chunk."""
        for place, (chunk, row) in enumerate(zip(work.chunks, rows, strict=True)):
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


def _joined(parts: Sequence[Tensor]) -> Any:
    return np.concatenate([part.numpy() for part in parts])


def buckets(most: int) -> list[int]:
    """Batch sizes that get a graph: at most an eighth of the rows of a large one are spare."""
    sizes = [1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128]
    sizes += range(160, 513, 32)
    sizes += range(576, 1025, 64)
    return [*(size for size in sizes if size < most), most]


def prompt_buckets(most: int) -> list[int]:
    """Prompt tokens of an iteration that get a graph."""
    sizes = [64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384]
    return [*(size for size in sizes if size < most), most]
