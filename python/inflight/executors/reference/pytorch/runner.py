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
from inflight.executors.reference.core.drafts import Checks
from inflight.executors.reference.core.runner import NO_ROWS, Outcome, Pending, Work
from inflight.executors.reference.core.sampler import SamplerState
from inflight.executors.reference.core.scheduler import Limits
from inflight.executors.reference.core.sequence import SequenceState
from inflight.executors.reference.model.lora import Adapter
from inflight.executors.reference.parallel.team import Leader

from . import operations, sampling
from .common_prefixes import CommonPrefixes
from .hearing import TorchHearing
from .led_steps import LedSteps
from .model import TorchModel
from .operations import Tensor
from .packing import Packed
from .pieces import GivenUp
from .steps import DeviceSteps
from .vision import TorchSight

#: Rows of prompt logits held at once.
_PROMPT_LOGIT_ROWS = 256

_NO_RECORD = -1


@dataclass(slots=True)
class _Launched:
    """What an iteration leaves on the host once ``done`` has passed."""

    choosing: Sequence[SequenceState]
    #: Whether choosing rows may ask for more than their most likely token.
    is_special: bool = False
    #: Their logits, until they are chosen by.
    chooses_by: Tensor = None
    #: Of choosing rows, positions and slots, and the size of the graph that gave their logits, if one did.
    places: Any = None
    bucket: int | None = None
    tokens: Tensor | None = None
    #: Choosing rows that keep a record, and what `chosen_and_best` gives for them.
    recorded: Any = None
    reported: Tensor | None = None
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
        lora_fraction: float = 0.3,
        lora_host_bytes: int = 1 << 30,
        sight: TorchSight | None = None,
        hearing: TorchHearing | None = None,
    ) -> None:
        """``sight`` is that of a model that sees, ``hearing`` that of one that hears."""
        self._sight, self._hearing = sight, hearing
        #: By slot: what is added to the positions of a sequence whose prompt has images.
        self._offsets = np.zeros(limits.max_batch_size, dtype=np.int32)
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
        #: By slot: alternatives that are reported of a token, or `_NO_RECORD`; whether logits are returned.
        self._top_width = np.full(limits.max_batch_size, _NO_RECORD, dtype=np.int64)
        self._keeps_logits = np.zeros(limits.max_batch_size, dtype=np.bool_)
        #: And whether a LoRA adapter computes it.
        self._is_adapted = np.zeros(limits.max_batch_size, dtype=np.bool_)
        #: By slot: whose blocks the device's table holds, and how many of them.
        self._known: list[tuple[BlockTable | None, int]] = [(None, 0)] * limits.max_batch_size
        self._prefixes: CommonPrefixes | None = None
        if self._steps.prefix_keys is not None:
            slots = limits.max_batch_size
            self._prefixes = CommonPrefixes(slots, self._size, self._steps.prefix_keys)
        self._steps.wait_for_memory()

    @property
    def stream(self) -> Any:
        """What iterations are queued on; None on a CPU."""
        return self._steps.stream

    def follows(self, sampler: SamplerState) -> bool:
        return bool(self._sampling.follows(sampler))

    def checks(self, sampler: SamplerState) -> Checks:
        # Penalties, bans and guides follow the tokens of one row at a time.
        if not sampler.needs_history:
            return Checks.BY_ROW
        return Checks.NOT if self._cuda else Checks.BY_LOGITS

    def launch(self, work: Work) -> Pending | None:
        with self._steps.queueing(work.is_awaited):
            try:
                launched = self._launch(work)
            except GivenUp:
                return None
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
        reported = None
        if launched.reported is not None:
            # A copy: rows of it are kept, and pinned memory is for the next iterations.
            reported = sampling.unpacked_log_probs(launched.reported.numpy().copy())
        prompts = {
            place: sampling.unpacked_log_probs(_joined(parts)) for place, parts in launched.prompts.items()
        }
        tokens = () if launched.tokens is None else launched.tokens.numpy()
        return Outcome(
            tokens,
            NO_ROWS if launched.recorded is None else launched.recorded,
            reported,
            prompts,
            {row: logits.numpy() for row, logits in launched.logits.items()},
            {place: _joined(parts) for place, parts in launched.chunk_logits.items()},
            [_joined(parts) for parts in launched.probe_logits],
            {place: hidden.numpy() for place, hidden in launched.hidden.items()},
        )

    def _launch(self, work: Work) -> _Launched:
        choosing = work.choosing()
        launched = _Launched(choosing)
        launched.is_special = bool(work.special) or len(choosing) > len(work.generation)
        self._copy(work.copies)
        self._note_tables(work)
        if self._sight is not None:
            self._note_offsets(work)
        if self._hearing is not None and (work.chunks or work.entering):
            entering = [*(chunk.sequence for chunk in work.chunks), *work.entering]
            self._hearing.enter(entering, self._upload)
        generation = work.inputs
        if work.entering:
            self._sampling.enter(work.entering)
            self._enter(work.entering)
        if work.chunks or work.probes:
            launched.chooses_by = self._mix(work, generation, launched)
            entering = [chunk.sequence for chunk in work.chunks if chunk.chooses]
            self._sampling.enter(entering)
            self._enter(entering)
            others = choosing[len(work.generation) :]
            # Of the token put in: `position` is that of the one being chosen.
            places = [[one.position - 1 for one in others], [one.slot for one in others]]
            launched.places = np.concatenate([generation[2:4], np.array(places, dtype=np.int32)], axis=1)
        else:
            adapters = self._adapters(work)
            launched.chooses_by = self._steps.generate(generation, adapters, self._begin_alike(work))
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
        """The tokens of choosing rows, and what is reported of them."""
        choosing, logits = launched.choosing, launched.chooses_by
        count = len(choosing)
        positions, slots = launched.places
        chosen = self._steps.chosen[:count]
        if not launched.is_special:
            launched.tokens = self._download(chosen)
            return
        self._sampling.choose(logits[:count], choosing, slots, positions, launched.bucket)
        launched.tokens = self._download(chosen)
        widths = self._top_width[slots]
        launched.recorded = np.flatnonzero(widths != _NO_RECORD)
        if len(launched.recorded):
            own, tokens = logits[:count], chosen
            if len(launched.recorded) < count:
                places = self._upload(launched.recorded)
                own, tokens = logits[places], chosen[places]
            columns = self._sampling.chosen_and_best(own, tokens, int(widths.max()))
            launched.reported = self._download(columns)
        launched.logits = {
            row: self._download(logits[row].float())
            for row in np.flatnonzero(self._keeps_logits[slots]).tolist()
        }

    def _enter(self, sequences: Sequence[SequenceState]) -> None:
        """Notes what is asked of sequences that are about to choose their first token in their slot."""
        for one in sequences:
            self._top_width[one.slot] = _NO_RECORD if one.record is None else one.top_width
            self._keeps_logits[one.slot] = one.record is not None and one.keeps_logits

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

        for sequence in (*(chunk.sequence for chunk in work.chunks), *work.entering):
            slot, table = sequence.slot, sequence.table
            self._is_adapted[slot] = sequence.owner.adapter is not None
            owner, count = self._known[slot]
            if owner is not table:
                count = 0
            held = () if table is None else table.blocks[count:]
            if self._prefixes is not None:
                self._prefixes.enter(slot, () if table is None else table.blocks)
            rows.extend([slot] * len(held))
            columns.extend(range(count, count + len(held)))
            blocks.extend(held)
            self._known[slot] = (table, count + len(held))
        if rows:
            # What has left a window is not read, but a kernel may look where it was.
            self._steps.note_tables(np.maximum(np.array([rows, columns, blocks], dtype=np.int32), 0))

    def _begin_alike(self, work: Work) -> bool:
        """Whether generation rows have so much in common that the device looks for it."""
        return self._prefixes is not None and self._prefixes.are_many(work.inputs[3])

    def _note_offsets(self, work: Work) -> None:
        """Brings what is added to positions up to date, where contexts go through."""
        places = []
        for sequence in (*(chunk.sequence for chunk in work.chunks), *work.entering):
            slot, images = sequence.slot, sequence.owner.images
            offset = 0 if images is None else images.offset
            if self._offsets[slot] != offset:
                self._offsets[slot] = offset
                places.append((slot, offset))
        if places:
            self._steps.note_offsets(np.array(places, dtype=np.int32).T)

    def _adapters(self, work: Work) -> list[Adapter | None]:
        """The LoRA adapters of generation rows, chunks and probes; empty where there is none."""
        found = [chunk.sequence.owner.adapter for chunk in work.chunks]
        found += [probe.sequence.owner.adapter for probe in work.probes]
        if not self._is_adapted[work.inputs[3]].any() and not any(found):
            return []
        found = [*(one.owner.adapter for one in work.generation), *found]
        return found if any(found) else []

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
        keeps_hidden = any(
            chunk.prompt_width is not None or chunk.logit_rows or chunk.pooled for chunk in work.chunks
        )
        embedded = packed.take_virtual(work, self._vocab_size)
        tables, adapters = self._probe_tables(work), self._adapters(work)
        pictured, turned = self._pictured(work, packed), self._turned(work)
        heard = None
        if self._hearing is not None and work.probes:
            heard = self._hearing.places([probe.sequence for probe in work.probes])
        alike = self._begin_alike(work)
        logits = self._steps.mix(
            packed, tables, keeps_hidden, adapters, embedded, pictured, turned, heard, alike
        )
        if keeps_hidden or work.probes:
            chunks = packed.moved_chunks(packed.shape.rounded())
            self._report_prompts(work, [row for row, *_ in chunks[: len(work.chunks)]], launched)
            self._give_logits(work, chunks, launched)
            for place, (chunk, (row, *_)) in enumerate(zip(work.chunks, chunks, strict=False)):
                if chunk.pooled:
                    start, stop = (
                        row + position - chunk.first for position in (chunk.pooled.start, chunk.pooled.stop)
                    )
                    launched.hidden[place] = self._download(self._steps.hidden(start, stop).float())
        return logits

    def _pictured(self, work: Work, packed: Packed) -> list[tuple[range, Tensor]]:
        """The packed rows that are tokens of images, and their embeddings."""
        found: list[tuple[range, Tensor]] = []
        if self._sight is None:
            return found
        for chunk, (row, *_) in zip(work.chunks, packed.chunks, strict=False):
            images = chunk.sequence.owner.images
            for piece in () if images is None else images.pieces(chunk.first, chunk.stop):
                rows = range(row + piece.rows.start, row + piece.rows.stop)
                found.append((rows, self._sight.embedded(piece)))
        return found

    def _turned(self, work: Work) -> Any:
        """What turns the tokens of chunks and probes ``[3, tokens]``; None: their positions alone."""
        if self._sight is None:
            return None
        spans = [(chunk.sequence.owner.images, chunk.first, chunk.stop) for chunk in work.chunks]
        spans += [
            (probe.sequence.owner.images, probe.first, probe.first + len(probe.tokens))
            for probe in work.probes
        ]
        if all(images is None for images, *_ in spans):
            return None
        return np.concatenate(
            [
                np.tile(np.arange(first, stop), (3, 1)) if images is None else images.turned(first, stop)
                for images, first, stop in spans
            ],
            axis=1,
        )

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

    def _report_prompts(self, work: Work, rows: Sequence[int], launched: _Launched) -> None:
        """Log probabilities of prompt tokens; ``rows`` are the first of each chunk."""
        for place, (chunk, row) in enumerate(zip(work.chunks, rows, strict=True)):
            if chunk.prompt_width is None:
                continue
            following = chunk.sequence.prompt[chunk.first + 1 : chunk.first + 1 + chunk.reported]
            tokens = self._upload(np.array(following, dtype=np.int64))
            parts = []
            for start in range(0, max(1, chunk.reported), _PROMPT_LOGIT_ROWS):
                stop = min(chunk.reported, start + _PROMPT_LOGIT_ROWS)
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


def _joined(parts: Sequence[Tensor]) -> Any:
    return np.concatenate([part.numpy() for part in parts])
