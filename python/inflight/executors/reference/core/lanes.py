"""Sequences that take one token an iteration, as columns: nearly all of them, nearly all of the time.

Owns the columns, by slot, and what one iteration does to all of them at once: who runs, which blocks they
take, and which of their tokens need a closer look. `SequenceState.row` of a sequence that is here is in the
columns, and goes back when it leaves. Knows nothing of queues or of what ends a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inflight.executors.reference.model.array_types import Int, Int32

from .blocks import BlockPool
from .masks import Guide, Masks
from .rows import TokenRows
from .runner import INPUTS, KNOWN, LogProbs, Outcome
from .scheduler import Steady
from .sequence import SequenceState

_NOBODY = -1
_NO_RECORD = -1
_NO_ROWS = np.zeros((INPUTS, 0), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class LaneRows:
    """The rows of one launched iteration."""

    sequences: Sequence[SequenceState]
    #: `runner.Work.inputs` of these rows.
    inputs: Int32
    #: Rows that ask for more than their most likely token.
    special: Sequence[int]
    slots: Int
    keys: Int


@dataclass(frozen=True, slots=True)
class Taken:
    """What the tokens of `LaneRows` came to."""

    #: Rows of streams that continue.
    rows: Sequence[TokenRows]
    #: How many tokens were taken, and those that were not: rows that need a closer look.
    count: int
    odd: Sequence[int]


NO_LANE_ROWS = LaneRows((), _NO_ROWS, (), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def fits(sequence: SequenceState) -> bool:
    """Whether a sequence with a table takes one token an iteration from now on."""
    return (
        sequence.context_done == len(sequence.context)
        and sequence.launched > 0
        and sequence.drafts is None
        and sequence.beams is None
    )


class Lanes:
    """Columns for every slot, over one pool of blocks without a window. One thread owns them."""

    def __init__(self, slots: int, pool: BlockPool) -> None:
        self._pool, self._size = pool, pool.tokens_per_block
        self._sequences: list[SequenceState | None] = [None] * slots
        #: What takes note of a sequence's token.
        self._notes: list[Callable[[int], None]] = [_ignore] * slots
        #: Slots in use, in order of arrival.
        self._order = np.zeros(0, dtype=np.int64)
        columns = np.zeros((8, slots), dtype=np.int64)
        self._keys, self._positions, self._last, self._blocks_left = columns[:4]
        self._end_ids, self._sources, self._tokens, self._in_flight = columns[4:]
        self._keys[:] = _NOBODY
        self._blocks = np.zeros(slots, dtype=np.int64)
        #: Tokens that its blocks hold.
        self._room = np.zeros(slots, dtype=np.int64)
        self._client_ids = np.zeros(slots, dtype=np.uint64)
        self._indices = np.zeros(slots, dtype=np.int32)
        #: Whether a token that ends nothing needs no closer look, and whether its client gets it at once.
        self._quiet = np.zeros(slots, dtype=np.bool_)
        self._streams = np.zeros(slots, dtype=np.bool_)
        self._special = np.zeros(slots, dtype=np.bool_)
        #: Alternatives that are reported of a token, or `_NO_RECORD`; and whether its log probability is.
        self._top_width = np.full(slots, _NO_RECORD, dtype=np.int64)
        self._reports_value = np.zeros(slots, dtype=np.bool_)
        #: By slot: each guide has its own errors. The tokens that end an answer are those of the model.
        self._guides: dict[int, Guide] = {}
        self._is_guided = np.zeros(slots, dtype=np.bool_)
        self._masks: Masks | None = None

    def __contains__(self, sequence: SequenceState) -> bool:
        return sequence.slot >= 0 and self._sequences[sequence.slot] is sequence

    def join(self, sequences: Sequence[SequenceState]) -> None:
        """Takes in sequences that `fits`."""
        for one in sequences:
            self._join(one)
        self._order = np.append(self._order, [one.slot for one in sequences])

    def leave(self, sequence: SequenceState) -> None:
        """Gives a sequence its state back; one that is not here stays as it is."""
        if sequence not in self:
            return
        slot = sequence.slot
        sequence.row = int(self._sources[slot])
        self._sequences[slot], self._notes[slot] = None, _ignore
        self._keys[slot] = _NOBODY
        self._guides.pop(slot, None)
        self._order = self._order[self._order != slot]

    def clear(self) -> None:
        """Gives all sequences their state back."""
        for slot in self._order.tolist():
            sequence = self._sequences[slot]
            if sequence is not None:
                self.leave(sequence)

    def demand(self) -> Steady:
        """What the scheduler needs to know of all of them."""
        order = self._order
        if not len(order):
            return Steady()
        positions = self._positions[order]
        runs = positions <= self._last[order]
        return Steady(
            len(order),
            int(np.count_nonzero(runs)),
            int(self._blocks_left[order].sum()),
            int(np.count_nonzero(runs & (positions >= self._room[order]))),
        )

    def advance(self) -> LaneRows:
        """The next row of everybody whose last one is not launched, in the blocks that it needs."""
        slots = self._order[self._positions[self._order] <= self._last[self._order]]
        if not len(slots):
            return NO_LANE_ROWS
        positions = self._positions[slots]
        for slot in slots[positions % self._size == 0].tolist():
            self._take_block(slot)
        inputs = np.empty((INPUTS, len(slots)), dtype=np.int32)
        inputs[0] = self._tokens[slots]
        inputs[1] = np.where(self._in_flight[slots] > 0, self._sources[slots], KNOWN)
        inputs[2], inputs[3], inputs[4] = positions, slots, self._blocks[slots]
        self._positions[slots] += 1
        self._in_flight[slots] += 1
        self._sources[slots] = np.arange(len(slots))
        sequences = [one for slot in slots.tolist() if (one := self._sequences[slot]) is not None]
        for one in sequences:
            one.launched += 1
        special = np.flatnonzero(self._special[slots]).tolist()
        return LaneRows(sequences, inputs, special, slots, self._keys[slots])

    def undo(self, rows: LaneRows) -> None:
        """Takes back the latest `advance`, whose rows were not computed; blocks stay. Nothing before it is in
        flight."""
        for one in rows.sequences:
            one.launched -= 1
        slots = rows.slots[self._keys[rows.slots] == rows.keys]
        self._positions[slots] -= 1
        self._in_flight[slots] -= 1

    def take(self, rows: LaneRows, outcome: Outcome) -> Taken:
        """Notes the tokens that the rows chose: the first of the outcome's. A token that ends its
        sequence, needs a separate row or belongs to a sequence that left meanwhile is left to the caller, who
        then says that the host `knows` it."""
        slots = rows.slots
        tokens = np.asarray(outcome.tokens[: len(slots)], dtype=np.int32)
        quiet = self._quiet[slots] & (self._keys[slots] == rows.keys)
        quiet &= (tokens != self._end_ids[slots]) & (rows.inputs[2] != self._last[slots])
        if self._guides:
            quiet &= ~self._ends_guide(slots, tokens)
        odd = [] if quiet.all() else np.flatnonzero(~quiet).tolist()
        if odd:
            slots, tokens = slots[quiet], tokens[quiet]
        self._tokens[slots] = tokens
        self._in_flight[slots] -= 1
        notes = self._notes
        for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
            notes[slot](token)
        if self._guides:
            self._note_guided(slots, tokens)
        places = np.flatnonzero(quiet)
        streams = self._streams[slots]
        if streams.all():
            return Taken(self._rows(slots, tokens, places, outcome), len(slots), odd)
        return Taken(self._rows(slots[streams], tokens[streams], places[streams], outcome), len(slots), odd)

    def _note_guided(self, slots: Int, tokens: Int32) -> None:
        """Gives guides their tokens, all at once: a model has one `Masks`."""
        guided = self._is_guided[slots]
        guides = [self._guides[slot] for slot in slots[guided].tolist()]
        if self._masks is not None:
            self._masks.note(guides, tokens[guided].tolist())
            # Their next masks are computed while the rows are.
            self._masks.begin()

    def _rows(self, slots: Int, tokens: Int32, places: Int, outcome: Outcome) -> list[TokenRows]:
        """What the clients of slots get; ``places`` are their rows in the outcome."""
        reported = outcome.log_probs
        if reported is None:
            return [self._columns(slots, tokens)] if len(slots) else []
        # Requests that ask for the same have their rows together; nearly always all of them.
        kinds = 2 * self._top_width[slots] + self._reports_value[slots]
        rows = []
        for kind in np.unique(kinds).tolist():
            alike = np.flatnonzero(kinds == kind)
            width, own, report = kind // 2, slots[alike], None
            if width != _NO_RECORD:
                report = reported.part(np.searchsorted(outcome.recorded, places[alike]), width)
            rows.append(self._columns(own, tokens[alike], report, bool(kind % 2)))
        return rows

    def _columns(
        self, slots: Int, tokens: Int32, report: LogProbs | None = None, with_values: bool = False
    ) -> TokenRows:
        client_ids, indices = self._client_ids[slots], self._indices[slots]
        if report is None:
            return TokenRows(client_ids, indices, tokens)
        top = (report.top_ids, report.top_values) if report.top_ids.shape[1] else None
        return TokenRows(client_ids, indices, tokens, report.values if with_values else None, top)

    def knows(self, sequence: SequenceState, token: int) -> None:
        """The host has taken a token of a sequence, which may be here."""
        if sequence in self:
            self._tokens[sequence.slot] = token
            self._in_flight[sequence.slot] -= 1

    def _join(self, one: SequenceState) -> None:
        slot, owner, sampler = one.slot, one.owner, one.sampler
        request, held = owner.request, len(one.blocks)
        position = one.position
        self._sequences[slot] = one
        self._keys[slot], self._positions[slot] = one.key, position
        self._last[slot] = len(one.prompt) + owner.admitted.max_tokens - 2
        self._blocks_left[slot] = owner.admitted.blocks - held
        self._room[slot] = held * self._size
        if position < held * self._size:
            self._blocks[slot] = one.blocks[position // self._size]
        self._end_ids[slot] = _NOBODY if request.end_id is None else request.end_id
        self._sources[slot] = one.row
        self._in_flight[slot] = one.launched - len(sampler.generated)
        self._tokens[slot] = sampler.generated[-1] if sampler.generated else 0
        self._client_ids[slot], self._indices[slot] = request.client_id, one.index
        in_columns = one.record is None or (request.streaming and not one.keeps_logits)
        guide = sampler.guide
        masks = None if guide is None else guide.shared
        # A bound on thinking is a guide as well, which takes its tokens one by one.
        is_alone = guide is not None and masks is None
        self._quiet[slot] = in_columns and one.metrics is None and not request.stop_words and not is_alone
        self._top_width[slot] = _NO_RECORD if one.record is None else one.top_width
        self._reports_value[slot] = one.record is not None and request.output_config.return_log_probs
        self._streams[slot] = request.streaming
        self._special[slot] = (
            one.record is not None
            or owner.adapter is not None
            or sampler.needs_history
            or not sampler.parameters.greedy
        )
        if not request.streaming:
            self._notes[slot] = one.keep
        else:
            self._notes[slot] = sampler.note if sampler.notes_tokens else sampler.generated.append
        self._is_guided[slot] = masks is not None
        if guide is not None and masks is not None:
            self._guides[slot], self._masks = guide, masks

    def _take_block(self, slot: int) -> None:
        """The block that a position at its beginning is in."""
        sequence, position = self._sequences[slot], int(self._positions[slot])
        if sequence is None or sequence.table is None:
            raise RuntimeError("a sequence without blocks was scheduled")
        before = len(sequence.table.blocks)
        self._pool.grow(sequence.table, position + 1)
        held = len(sequence.table.blocks)
        self._room[slot] = held * self._size
        self._blocks_left[slot] -= held - before
        self._blocks[slot] = sequence.table.blocks[position // self._size]

    def _ends_guide(self, slots: Int, tokens: Int32) -> npt.NDArray[np.bool_]:
        """Which tokens end a grammar, or were chosen by a mask that cannot be trusted."""
        ends = np.zeros(len(slots), dtype=np.bool_)
        if self._masks is None:
            return ends
        for token in self._masks.eos_tokens:
            ends |= tokens == token
        ends &= self._is_guided[slots]
        if self._masks.has_failed:
            failed = [slot for slot, guide in self._guides.items() if guide.error is not None]
            ends |= np.isin(slots, failed)
        return ends


def _ignore(_token: int) -> None:
    """Nobody is in that slot."""
