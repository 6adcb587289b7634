"""The runner on PyTorch: iterations queued on the device, one ahead of the tokens that the host knows.

Owns the way of an iteration's rows to the device, sampling, and the way of its tokens back (one copy, waited
for in `collect`). What happens on the device in between is in `steps`. Knows nothing of queues, ends of
sequences or responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from inflight.executors.reference.core.blocks import BlockTable
from inflight.executors.reference.core.runner import Outcome, Pending, ToldToken, Work
from inflight.executors.reference.core.sampler import SamplerState
from inflight.executors.reference.core.scheduler import Limits
from inflight.executors.reference.core.sequence import SequenceState
from inflight.executors.reference.model.lora import Adapter
from inflight.executors.reference.parallel.team import Leader

from . import operations, sampling
from .model import TorchModel
from .operations import Tensor
from .packing import Packed
from .steps import DeviceSteps, LedSteps

#: Rows of prompt logits held at once.
_PROMPT_LOGIT_ROWS = 256


@dataclass(slots=True)
class _Launched:
    """What an iteration leaves on the host once ``done`` has passed."""

    choosing: Sequence[SequenceState]
    #: Choosing rows that may ask for more than their most likely token.
    special: Sequence[int] = ()
    #: Their logits, until they are chosen by.
    chooses_by: Tensor = None
    #: Of choosing rows, positions and slots, and the size of the graph that gave their logits, if one did.
    places: Any = None
    bucket: int | None = None
    tokens: Tensor | None = None
    #: Choosing rows that keep a record, the width of each, and what `chosen_and_best` gives for them.
    rows: Sequence[int] = ()
    widths: Sequence[int] = ()
    told: Tensor | None = None
    prompts: dict[int, list[Tensor]] = field(default_factory=dict)
    #: Logits for the host, by choosing row, by chunk and of each probe; the last two in pieces.
    logits: dict[int, Tensor] = field(default_factory=dict)
    chunk_logits: dict[int, list[Tensor]] = field(default_factory=dict)
    probe_logits: list[list[Tensor]] = field(default_factory=list)
    #: Hidden states for the host, by chunk.
    hidden: dict[int, Tensor] = field(default_factory=dict)
    done: Any = None


class TorchRunner:
    """Implements `core.runner.Runner` and makes the cache. With a ``leader``, others hold parts of both."""

    def __init__(
        self,
        model: TorchModel,
        num_blocks: int,
        limits: Limits,
        leader: Leader | None = None,
        num_host_blocks: int = 0,
        lora_fraction: float = 0.05,
        lora_host_bytes: int = 1 << 30,
    ) -> None:
        self._steps = (
            DeviceSteps(model, num_blocks, limits, num_host_blocks, lora_fraction, lora_host_bytes)
            if leader is None
            else LedSteps(model, num_blocks, limits, leader, num_host_blocks)
        )
        self._sampling = _sampling(model, self._steps)
        self._cuda = self._steps.cuda
        self.depth = 2 if self._cuda else 1
        self._size = model.shape.tokens_per_block
        self._vocab_size = model.config.vocab_size
        self._upload = self._steps.upload
        #: By slot: whose blocks the device's table holds, and how many of them.
        self._known: list[tuple[BlockTable | None, int]] = [(None, 0)] * limits.max_batch_size

    def follows(self, sampler: SamplerState) -> bool:
        return bool(self._sampling.follows(sampler))

    def launch(self, work: Work) -> Pending:
        with self._steps.queueing():
            launched = self._launch(work)
            if not work.late:
                self._choose(launched)
            return launched

    def choose(self, pending: Pending) -> None:
        with self._steps.queueing():
            self._choose(cast(_Launched, pending))

    def collect(self, pending: Pending) -> Outcome:
        launched = cast(_Launched, pending)
        if launched.done is not None:
            launched.done.synchronize()
        told: dict[int, ToldToken] = {}
        if launched.told is not None:
            # A copy: rows of it are kept, and pinned memory is for the next iterations.
            columns = sampling.told(launched.told.numpy().copy())
            one_by_one = zip(columns.values.tolist(), columns.top_ids, columns.top_values, strict=True)
            told = dict(zip(launched.rows, one_by_one, strict=True))
            for row, width in zip(launched.rows, launched.widths, strict=True):
                if width < columns.top_ids.shape[1]:
                    value, ids, best = told[row]
                    told[row] = value, ids[:width], best[:width]
        prompts = {place: sampling.told(_joined(parts)) for place, parts in launched.prompts.items()}
        tokens = () if launched.tokens is None else launched.tokens.numpy()
        return Outcome(
            tokens,
            told,
            prompts,
            {row: logits.numpy() for row, logits in launched.logits.items()},
            {place: _joined(parts) for place, parts in launched.chunk_logits.items()},
            [_joined(parts) for parts in launched.probe_logits],
            {place: hidden.numpy() for place, hidden in launched.hidden.items()},
        )

    def _launch(self, work: Work) -> _Launched:
        choosing = work.choosing()
        launched = _Launched(choosing)
        launched.special = [*work.special, *range(len(work.generation), len(choosing))]
        self._copy(work.copies)
        self._note_tables(work)
        generation = work.inputs
        if work.chunks or work.probes:
            launched.chooses_by = self._mix(work, generation, launched)
            self._sampling.enter(chunk.sequence for chunk in work.chunks if chunk.chooses)
            others = choosing[len(work.generation) :]
            # Of the token put in: `position` is that of the one being chosen.
            places = [[one.position - 1 for one in others], [one.slot for one in others]]
            launched.places = np.concatenate([generation[2:4], np.array(places, dtype=np.int32)], axis=1)
        else:
            adapters = _adapters(work)
            launched.chooses_by = self._steps.generate(generation, adapters)
            launched.bucket = self._steps.bucket(len(choosing), bool(adapters))
            launched.places = generation[2:4]
        return launched

    def _choose(self, launched: _Launched) -> None:
        """Queues what is left of an iteration."""
        if launched.choosing:
            self._choose_tokens(launched)
        if self._cuda:
            launched.done = torch.cuda.Event()
            launched.done.record(self._steps.stream)

    def _choose_tokens(self, launched: _Launched) -> None:
        """The tokens of choosing rows, and what is told of them."""
        choosing, special = launched.choosing, launched.special
        logits = launched.chooses_by
        count = len(choosing)
        if any(_edits_or_draws(choosing[row]) for row in special):
            positions, slots = launched.places
            self._sampling.choose(logits[:count], choosing, slots, positions, launched.bucket)
        chosen = self._steps.chosen[:count]
        launched.tokens = self._download(chosen)
        launched.rows = [row for row in special if choosing[row].record is not None]
        if launched.rows:
            launched.widths = [choosing[row].top_width for row in launched.rows]
            own, tokens = logits[:count], chosen
            if len(launched.rows) < count:
                places = self._upload(np.array(launched.rows, dtype=np.int64))
                own, tokens = logits[places], chosen[places]
            columns = self._sampling.chosen_and_best(own, tokens, max(launched.widths))
            launched.told = self._download(columns)
        launched.logits = {
            row: self._download(logits[row].float()) for row in special if choosing[row].keeps_logits
        }

    # The way in.

    def _copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copies blocks in order; those that do not follow from one another at once, and those from and to
        the host apart from the others."""
        sources: list[int] = []
        targets: list[int] = []
        first_host = self._steps.spare.block
        with_host = False

        def flush() -> None:
            if sources:
                self._steps.copy_blocks(np.array([sources, targets], dtype=np.int64))
                sources.clear()
                targets.clear()

        for source, target, _ in copies:
            was_with_host, with_host = with_host, max(source, target) >= first_host
            follows = source in targets or target in targets or target in sources
            if with_host != was_with_host or follows:
                flush()
            sources.append(source)
            targets.append(target)
        flush()

    def _note_tables(self, work: Work) -> None:
        """Brings the device's block tables up to date for contexts; `prepare` adds the blocks of generation
        rows itself, one after the other."""
        rows: list[int] = []
        columns: list[int] = []
        blocks: list[int] = []

        for chunk in work.chunks:
            slot, table = chunk.sequence.slot, chunk.sequence.table
            owner, count = self._known[slot]
            if owner is not table:
                count = 0
            held = () if table is None else table.blocks[count:]
            rows.extend([slot] * len(held))
            columns.extend(range(count, count + len(held)))
            blocks.extend(held)
            self._known[slot] = (table, count + len(held))
        if rows:
            # What has left a window is not read, but a kernel may look where it was.
            self._steps.note_tables(np.maximum(np.array([rows, columns, blocks], dtype=np.int32), 0))

    def _download(self, tensor: Tensor) -> Tensor:
        """A tensor's values on the host, there once the iteration is done."""
        if not self._cuda:
            return tensor.clone()
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    # Prompts.

    def _mix(self, work: Work, generation: Any, launched: _Launched) -> Tensor:
        """Logits of an iteration with prompts; the best tokens of its choosing rows are chosen."""
        packed = Packed.of(work, generation, self._size, self._steps.spare.slot + 1)
        told = any(
            chunk.prompt_width is not None or chunk.logit_rows or chunk.pooled for chunk in work.chunks
        )
        embedded = packed.take_virtual(work, self._vocab_size)
        logits = self._steps.mix(packed, self._probe_tables(work), told, _adapters(work), embedded)
        if told or work.probes:
            chunks = packed.moved_chunks(packed.shape.rounded())
            self._tell_prompts(work, [row for row, *_ in chunks[: len(work.chunks)]], launched)
            self._give_logits(work, chunks, launched)
            for place, (chunk, (row, *_)) in enumerate(zip(work.chunks, chunks, strict=False)):
                if chunk.pooled:
                    start, stop = (
                        row + position - chunk.first for position in (chunk.pooled.start, chunk.pooled.stop)
                    )
                    launched.hidden[place] = self._download(self._steps.hidden(start, stop).float())
        return logits

    def _probe_tables(self, work: Work) -> Any:
        """Block tables of probes, which are no sequence's own."""
        if not work.probes:
            return None
        tables = np.zeros((len(work.probes), self._steps.table_width), dtype=np.int32)
        for table, probe in zip(tables, work.probes, strict=True):
            table[: len(probe.blocks)] = np.maximum(probe.blocks, 0)
        return tables

    def _give_logits(self, work: Work, chunks: Sequence[tuple[int, ...]], launched: _Launched) -> None:
        """The logits that the host asked for, of the last rows of chunks and of all rows of probes."""
        for place, (row, count, *_) in enumerate(chunks):
            is_probe = place >= len(work.chunks)
            wanted = count if is_probe else work.chunks[place].logit_rows
            pieces = [
                self._download(
                    self._steps.hidden_logits(start, min(start + _PROMPT_LOGIT_ROWS, row + count)).float()
                )
                for start in range(row + count - wanted, row + count, _PROMPT_LOGIT_ROWS)
            ]
            if is_probe:
                launched.probe_logits.append(pieces)
            elif wanted:
                launched.chunk_logits[place] = pieces

    def _tell_prompts(self, work: Work, rows: Sequence[int], launched: _Launched) -> None:
        """Log probabilities of prompt tokens; ``rows`` are the first of each chunk."""
        for place, (chunk, row) in enumerate(zip(work.chunks, rows, strict=True)):
            if chunk.prompt_width is None:
                continue
            following = chunk.sequence.prompt[chunk.first + 1 : chunk.first + 1 + chunk.told]
            tokens = self._upload(np.array(following, dtype=np.int64))
            parts = []
            for start in range(0, max(1, chunk.told), _PROMPT_LOGIT_ROWS):
                stop = min(chunk.told, start + _PROMPT_LOGIT_ROWS)
                logits = self._steps.hidden_logits(row + start, row + stop)
                columns = self._sampling.chosen_and_best(logits, tokens[start:stop], chunk.prompt_width)
                parts.append(self._download(columns))
            launched.prompts[place] = parts


def _sampling(model: TorchModel, steps: DeviceSteps) -> Any:
    """The kernels' way where the model uses kernels."""
    if model.operations is operations:
        return sampling.PlainSampling(steps)
    from .slots import SlotSampling

    return SlotSampling(steps, model.config.vocab_size, model.shape.max_seq_len)


def _adapters(work: Work) -> list[Adapter | None]:
    """The LoRA adapters of generation rows, chunks and probes; empty where there is none."""
    adapted = {row: work.generation[row].owner.adapter for row in work.special}
    found = [chunk.sequence.owner.adapter for chunk in work.chunks]
    found += [probe.sequence.owner.adapter for probe in work.probes]
    if not any(adapted.values()) and not any(found):
        return []
    return [*(adapted.get(row) for row in range(len(work.generation))), *found]


def _edits_or_draws(sequence: SequenceState) -> bool:
    """Whether its token may be another than its most likely one."""
    return sequence.sampler.edits or not sequence.sampler.parameters.greedy


def _joined(parts: Sequence[Tensor]) -> Any:
    return np.concatenate([part.numpy() for part in parts])
