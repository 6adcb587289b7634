"""Plans an iteration: which sequences run, and which cache blocks and slots their tokens use.

Owns the queue, the sequences in flight, their blocks and slots, and turns a `scheduler.Schedule` into a
`runner.Work`. Knows nothing of what a token means: that is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from . import lanes, reuse, scheduler
from .blocks import GONE, BlockPool, BlockTable, blocks_for
from .drafts import Checks
from .fetches import Fetch
from .lanes import NO_LANE_ROWS, LaneRows, Lanes
from .pace import Pace
from .queue import WaitingQueue, due
from .reuse import NO_MATCH
from .runner import KNOWN, Chunk, Probe, Work
from .sequence import SequenceState

#: Without a client for so many seconds, the next one is not expected soon: what nobody waits for runs like
#: all else, except that its prompts have no more than so many tokens of an iteration.
_QUIET_S = 10.0
_QUIET_TOKENS = 1024

#: Blocks from another worker that others find from one iteration on: some tenths of a millisecond.
_STORED_AT_ONCE = 32


@dataclass(slots=True)
class Plan:
    """A schedule, the other sequences that run, and the waiting ones that the schedule looked at, by key."""

    schedule: scheduler.Schedule
    steady: scheduler.Steady = field(default_factory=scheduler.Steady)
    #: The first generation rows, once it is carried out.
    rows: LaneRows = NO_LANE_ROWS
    candidates: dict[int, SequenceState] = field(default_factory=dict)


class Planner:
    """Sequences that wait and sequences in flight, over one pool of blocks."""

    def __init__(self, pool: BlockPool, limits: scheduler.Limits) -> None:
        self.pool = pool
        self.limits = limits
        self.waiting = WaitingQueue()
        #: In order of admission; a dictionary, so that a cancel finds its sequences at once.
        self.active: dict[int, SequenceState] = {}
        #: Of these, those that take one token an iteration, and all others.
        self.lanes = Lanes(limits.max_batch_size, pool)
        self._others: dict[int, SequenceState] = {}
        #: Sequences that somebody waits for, and when the last of them was here.
        self._clients: set[int] = set()
        self._last_client_s = -_QUIET_S
        #: Sequences that nobody waits for; and whether they make way for the next client.
        self._idle: set[int] = set()
        self._yields = False
        self.pace = Pace(limits.max_prompt_s if limits.enable_chunked_context else 0.0)
        self._quiet_limits = replace(limits, idle_num_tokens=_QUIET_TOKENS)
        self._free_slots = list(range(limits.max_batch_size - 1, -1, -1))
        #: Sequences in flight whose blocks come from another worker, and those of them that just got theirs.
        self._arriving: dict[Fetch, SequenceState] = {}
        self._expecting: list[SequenceState] = []
        #: Sequences that generate next, with nothing computed here before, and those whose blocks are not all
        #: found by others yet.
        self._entering: list[SequenceState] = []
        self._unstored: list[SequenceState] = []

    def push(self, sequence: SequenceState) -> None:
        """Queues a new sequence."""
        self._hash(sequence)
        if sequence.owner.due is None:
            self.waiting.set_due(sequence.owner, self._to_compute(sequence))
        self.waiting.push(sequence)
        (self._idle if sequence.owner.is_idle else self._clients).add(sequence.key)

    def fetch(self, sequence: SequenceState, fetch: Fetch) -> None:
        """What the prompt of the sequence pushed last needs comes from another worker."""
        self.waiting.hurry(sequence, self._to_compute(sequence))
        sequence.fetch = fetch

    def remove(self, sequence: SequenceState) -> None:
        """Takes out a sequence that has ended."""
        self._clients.discard(sequence.key)
        self._idle.discard(sequence.key)
        self.waiting.remove(sequence)
        self._take_out(sequence)
        self._give_back(sequence)

    def take_expecting(self) -> list[SequenceState]:
        """Sequences that have the blocks since the last call that their prompts are to be fetched into."""
        taken, self._expecting = self._expecting, []
        return [one for one in taken if one.fetch is not None]

    def arrive(self, fetch: Fetch) -> None:
        """What came of a prompt's blocks is here: the rest is computed."""
        sequence = self._arriving.pop(fetch)
        sequence.fetch = None
        if fetch.arrived == len(fetch.blocks):
            sequence.context_done = len(sequence.prompt)
            if not sequence.chooses_on_the_host and sequence.launched == 1:
                # As where it was computed: the first token's row is one of generation.
                sequence.context = sequence.prompt
                self._entering.append(sequence)
        elif self.pool.window is None:
            sequence.context_done = (fetch.first + fetch.arrived) * self.pool.tokens_per_block
        elif sequence.table is not None:
            # What is computed of them needs what left the window.
            self.pool.release(sequence.table)
            sequence.table = BlockTable()
        self._unstored.append(sequence)

    def _store_some(self) -> None:
        """Lets others find blocks that came from another worker: a few at a time, since streams wait."""
        sequence = self._unstored[0]
        table, size = sequence.table, self.pool.tokens_per_block
        stop = sequence.context_done
        if table is not None and GONE not in table.blocks:
            stop = min(stop, (table.stored + _STORED_AT_ONCE) * size)
        done = sequence.owner.cache_tokens(sequence.context[:stop])
        self._store(sequence, done, sequence.hashes, ended=False)
        if table is None or stop == sequence.context_done:
            del self._unstored[0]

    def plan(self, now_s: float) -> Plan:
        """What the scheduler makes of the sequences; nothing changes yet."""
        if self._unstored:
            self._store_some()
        if self.pool.window is not None:
            active = [self._windowed_demand(one) for one in self.active.values()]
        else:
            self._fill_lanes()
            active = [self._demand(one) for one in self._others.values()]
        steady = self.lanes.demand()
        may_pause = self.limits.policy is scheduler.CapacitySchedulerPolicy.MAX_UTILIZATION
        needed = steady.blocks_next + sum(one.blocks_next for one in active)
        if may_pause and needed > self.pool.available:
            # Somebody will have to go: only then it matters who came last, and what each shares.
            self.lanes.clear()
            self._others = dict(self.active)
            steady = scheduler.Steady()
            if self.pool.window is None:
                active = [self._demand(one) for one in self.active.values()]
            for demand in active:
                demand.blocks_held = sum(
                    self.pool.owned(table) for table in self.active[demand.key].all_tables
                )
        looked_at: dict[int, SequenceState] = {}
        candidates = self._candidates(looked_at)
        available = self.pool.available
        if self._clients:
            self._last_client_s = now_s
        self._yields = bool(self._idle) and now_s - self._last_client_s < _QUIET_S
        limits = self.limits if self._yields else self._quiet_limits
        has_prompts = bool(self.waiting) or any(one.context_left for one in active)
        prompt_tokens = self._prompt_tokens() if has_prompts else None
        schedule = scheduler.schedule(candidates, active, available, limits, steady, prompt_tokens)
        return Plan(schedule, steady, candidates=looked_at)

    def carry_out(self, plan: Plan, *, late: bool = False) -> Work | None:
        """Pauses, admits and takes blocks as planned; None when nobody runs. ``late`` is `Work.late`."""
        schedule = plan.schedule
        entering, self._entering = [one for one in self._entering if not one.ended], []
        for key in schedule.paused:
            self._pause(self.active[key])
        self._admit([plan.candidates[key] for key in schedule.admitted])
        if not schedule.generation and not schedule.context and not plan.steady.running:
            self._entering = entering
            return None
        granted = dict(schedule.drafts)
        generating: list[SequenceState] = []
        columns: list[tuple[int, int, int, int, int]] = []
        probes: list[Probe] = []
        for key in schedule.generation:
            one = self.active[key]
            if one.beams is not None:
                probes += self._probe_beams(one)
            elif one.drafts is not None and one.drafts.checks is Checks.BY_LOGITS:
                probes.append(self._probe_drafts(one, granted.get(key, 0)))
            else:
                columns += self._columns(one, granted.get(key, 0))
                generating += [one] * (len(columns) - len(generating))
        rows = self.lanes.advance() if plan.steady.running else NO_LANE_ROWS
        first = len(rows.sequences)
        inputs = rows.inputs
        if columns:
            inputs = np.concatenate([inputs, np.array(columns).T], axis=1)
        chunks = [self._chunk(self.active[key], tokens) for key, tokens in schedule.context]
        work = Work(
            [*rows.sequences, *generating],
            inputs.astype(np.int32, copy=False),
            [*rows.special, *range(first, first + len(generating))],
            chunks,
            self.pool.take_copies(),
            probes,
            late,
            entering,
        )
        plan.rows = rows
        for row, sequence in enumerate(work.choosing()[first:], first):
            sequence.row = row
            sequence.launched += 1
        return work

    def _prompt_tokens(self) -> int | None:
        """The bound on prompts where clients' sequences generate: so much for one that waits for its first
        token, and more for several."""
        if self.pace.tokens is None:
            return None
        generating = sum(one.launched > 0 and not one.owner.is_idle for one in self.active.values())
        first = len(self._clients) - generating
        if not generating or not first:
            return None
        return self.pace.together(first, self._left() if first >= generating else None)

    def _left(self) -> int:
        """Tokens to compute of the prompts that clients wait for; in the queue, as many as when they came."""
        begun = sum(one.context_left for one in self.active.values() if not one.owner.is_idle)
        return begun + sum(
            one.owner.tokens
            for one in self.waiting
            if not one.owner.is_idle and one is one.owner.unfinished[0]
        )

    def is_idle(self, work: Work) -> bool:
        """Whether nobody waits for what was planned last, and a client is expected."""
        return self._yields and all(
            one.owner.is_idle
            for one in (
                *work.generation,
                *(chunk.sequence for chunk in work.chunks),
                *(probe.sequence for probe in work.probes),
            )
        )

    def undo(self, work: Work, rows: LaneRows) -> None:
        """Takes back that ``work``, which was planned last, is computed; blocks and slots stay."""
        self.lanes.undo(rows)
        self._entering = [*work.entering, *self._entering]
        for sequence in work.choosing()[len(rows.sequences) :]:
            sequence.launched -= 1
        for chunk in work.chunks:
            chunk.sequence.context_done = chunk.first

    def _columns(self, one: SequenceState, drafts: int) -> list[tuple[int, int, int, int, int]]:
        """Of a generation row and those of guesses after it, as columns of `Work.inputs`, with the blocks
        that they need."""
        position, generated, size = one.position, one.sampler.generated, self.pool.tokens_per_block
        if one.table is None:
            raise RuntimeError("a sequence without blocks was scheduled")
        guesses = () if one.drafts is None else one.drafts.pending(drafts)
        self.pool.grow(one.table, position + 1 + len(guesses))
        source = KNOWN if one.launched == len(generated) else one.row
        columns = [(generated[-1] if source == KNOWN else 0, source)]
        columns += [(guess, KNOWN) for guess in guesses]
        blocks = one.table.blocks
        return [
            (token, kind, place, one.slot, blocks[place // size])
            for place, (token, kind) in enumerate(columns, position)
        ]

    def _fill_lanes(self) -> None:
        """Moves sequences that take one token an iteration from now on to the lanes."""
        joining = [one for one in self._others.values() if lanes.fits(one)]
        if joining:
            self.lanes.join(joining)
            for one in joining:
                del self._others[one.key]

    # What the scheduler sees.

    def _demand(self, one: SequenceState) -> scheduler.Active:
        """Of a sequence that is not in the lanes."""
        size = self.pool.tokens_per_block
        demand = scheduler.Active(
            one.key,
            one.context_left,
            ending=one.ending,
            is_idle=one.owner.is_idle,
            arriving=one.fetch is not None,
            priority=one.owner.admitted.extras.priority,
            due=due(one),
        )
        if one.beams is not None and not one.context_left:
            held = len({block for table in one.all_tables for block in table.blocks})
            demand.tokens_next = demand.blocks_next = one.beams.config.width
        else:
            held = len(one.blocks)
            tokens = one.position + 1
            if one.drafts is not None and not one.context_left:
                demand.draft_tokens = len(one.drafts.pending(one.tokens_left - 1))
                demand.drafts_are_rows = one.drafts.checks is Checks.BY_ROW
                tokens += demand.draft_tokens
            demand.blocks_next = 0 if one.ending else max(0, blocks_for(tokens, size) - held)
        demand.blocks_left = one.owner.admitted.blocks - held
        return demand

    def _windowed_demand(self, one: SequenceState) -> scheduler.Active:
        """Of a sequence whose blocks leave the window as it goes: it holds so many at once and no more."""
        position = one.context_done if one.context_left else one.position
        if one.beams is not None and not one.context_left:
            position = len(one.prompt) + len(one.beams.beams[0].tokens) - 1
        for table in one.all_tables:
            self.pool.trim(table, position)
        demand = self._demand(one)
        held = sum(block != GONE for block in one.blocks)
        if one.context_left:
            demand.blocks_next = min(demand.blocks_next, one.owner.admitted.blocks - held)
        owned = sum(self.pool.owned(table) for table in one.all_tables)
        demand.blocks_left = one.owner.admitted.blocks - owned
        return demand

    def _candidates(self, looked_at: dict[int, SequenceState]) -> Iterator[scheduler.Waiting]:
        """The queue in order, with what each finds in the cache; made as far as it is asked for."""
        size = self.pool.tokens_per_block
        computing: dict[bytes, int] | None = None
        is_idle = False
        for one in self.waiting:
            if computing is None:
                computing = self._computing(is_idle=False)
            if one.owner.is_idle and not is_idle:
                # Nobody else waits for them: they may take long.
                is_idle = True
                computing |= self._computing(is_idle=True)
            one.match = NO_MATCH
            behind = None
            if self.pool.reuses and not one.tells_of_the_prompt:
                one.match = self.pool.match(
                    one.owner.cache_tokens(one.context), one.hashes, one.owner.cache_root
                )
                found = len(one.match.blocks)
                if found < (len(one.context) - 1) // size:
                    behind = computing.get(one.hashes[found])
            blocks = min(blocks_for(len(one.context), size), one.owner.admitted.blocks)
            if self.pool.cost(one.match, one.owner.admitted.blocks) > self.pool.num_blocks:
                one.match = one.match.whole()
            fetches = self._fetches(one)
            if fetches:
                # A block that is to be copied would be written twice; and not all before a window is there.
                one.match = one.match.whole() if self.pool.window is None else NO_MATCH
            looked_at[one.key] = one
            yield scheduler.Waiting(
                one.key,
                len(one.context) - one.match.tokens(size),
                self.pool.cost(one.match, one.owner.admitted.blocks),
                self.pool.cost(one.match, blocks),
                behind,
                one.owner.is_idle,
                fetches,
                one.owner.admitted.extras.priority,
                due(one),
            )
            # The caller admits this one before it asks for the next, unless this one must wait.
            if behind is None:
                computing.update(dict.fromkeys(one.hashes, one.key))

    def _to_compute(self, sequence: SequenceState) -> int:
        """Tokens of the prompts of a request that are not in the cache; ``sequence`` is its first."""
        owner, tokens = sequence.owner, len(sequence.context)
        if not self.pool.reuses:
            return tokens * len(owner.unfinished)
        if sequence.tells_of_the_prompt:
            return tokens
        match = self.pool.match(owner.cache_tokens(sequence.context), sequence.hashes, owner.cache_root)
        return tokens - match.tokens(self.pool.tokens_per_block)

    def partial_tokens(self) -> int:
        """Tokens that are computed of prompts that are not complete."""
        size = self.pool.tokens_per_block
        return sum(
            one.context_done - one.match.tokens(size)
            for one in self._others.values()
            if one.context_left and one.fetch is None
        )

    def _fetches(self, one: SequenceState) -> bool:
        """Whether a full block at least of its prompt is elsewhere and not here."""
        size = self.pool.tokens_per_block
        return one.fetch is not None and len(one.match.blocks) < len(one.prompt) // size

    def _computing(self, *, is_idle: bool) -> dict[bytes, int]:
        """Blocks that sequences in flight are about to fill, and which one does: idle ones, which may be
        given up, or others."""
        size = self.pool.tokens_per_block
        return {
            content: one.key
            for one in self._others.values()
            # What comes from elsewhere may not come.
            if one.context_left and one.table is not None and one.fetch is None
            if one.owner.is_idle == is_idle
            for content in one.hashes[one.table.stored if is_idle else one.context_done // size :]
        }

    # Coming and going.

    def _admit(self, admitted: Sequence[SequenceState]) -> None:
        """Gives sequences their blocks and slots. Where blocks leave a window, those of a long context are
        taken chunk by chunk."""
        # All that was found is held before the first takes new blocks, which evicts what nobody holds.
        tables = [self.pool.hold(sequence.match) for sequence in admitted]
        now = None if self.pool.window is None else 0
        for sequence, table in zip(admitted, tables, strict=True):
            self.pool.fill(table, sequence.match, len(sequence.context), now)
            self.waiting.remove(sequence)
            sequence.table = table
            sequence.slot = self._free_slots.pop()
            if sequence.sampler.guide is not None:
                sequence.sampler.guide.enter(sequence.slot)
            sequence.context_done = sequence.match.tokens(self.pool.tokens_per_block)
            if not sequence.paused:
                # What else was found had been generated elsewhere.
                found = min(sequence.context_done, len(sequence.prompt))
                images = sequence.owner.images
                # In the client's count, whose prompt has one token for each image.
                sequence.cached_tokens = found if images is None else images.sent(found)
            sequence.paused = False
            self.active[sequence.key] = self._others[sequence.key] = sequence
            if sequence.fetch is not None:
                self._expect(sequence, sequence.fetch)

    def _expect(self, sequence: SequenceState, fetch: Fetch) -> None:
        """Has an admitted sequence wait for its blocks, unless enough of them were found."""
        table, size = sequence.table, self.pool.tokens_per_block
        if self._fetches(sequence) and table is not None:
            self.pool.reserve(table, fetch.offer.tokens)
            needed = self.pool.needed(fetch.offer.tokens)
            fetch.first = sequence.context_done // size
            fetch.blocks = [table.blocks[place] for place in needed[fetch.first :]]
            self._arriving[fetch] = sequence
            self._expecting.append(sequence)
        else:
            sequence.fetch = None

    def _take_out(self, sequence: SequenceState) -> None:
        """Of the sequences in flight, if it is there."""
        if self.active.pop(sequence.key, None) is not None:
            self.lanes.leave(sequence)
            self._others.pop(sequence.key, None)

    def _pause(self, sequence: SequenceState) -> None:
        """Takes a sequence's blocks; it waits to compute prompt and output again, or what was evicted of
        them meanwhile."""
        self._take_out(sequence)
        self._give_back(sequence)
        sequence.paused = True
        sequence.context = sequence.known
        sequence.context_done = 0
        sequence.restart_beams()
        self._hash(sequence)
        self.waiting.push(sequence)

    def _give_back(self, sequence: SequenceState) -> None:
        """Frees a sequence's slot and blocks; what they hold can be found as long as nobody needs them."""
        if not sequence.all_tables:
            return
        for table in sequence.tables:
            self._release(sequence, table)
        sequence.tables = []
        if sequence.table is not None:
            if self.pool.reuses:
                # The last token was chosen and not fed back: it has no keys and values.
                computed = sequence.context_done if sequence.context_left else len(sequence.known) - 1
                known = sequence.known[: max(computed, sequence.context_done)]
                tokens = sequence.owner.cache_tokens(known)
                size = self.pool.tokens_per_block
                parent = sequence.hashes[-1] if sequence.hashes else sequence.owner.cache_root
                rest = tokens[len(sequence.hashes) * size :]
                self._store(sequence, tokens, sequence.hashes + reuse.chain(parent, rest, size), ended=True)
            fetch = sequence.fetch
            if fetch is None:
                self._release(sequence, sequence.table)
            else:
                # Somebody may be writing to them.
                del self._arriving[fetch]
                fetch.abandon(sequence.table)
                sequence.fetch = None
            sequence.table = None
        if sequence.sampler.guide is not None:
            sequence.sampler.guide.leave()
        self._free_slots.append(sequence.slot)

    def _release(self, sequence: SequenceState, table: BlockTable) -> None:
        if sequence.metrics is not None:
            sequence.metrics.note_blocks(table)
        self.pool.release(table)

    def _hash(self, sequence: SequenceState) -> None:
        if self.pool.reuses:
            size = self.pool.tokens_per_block
            owner, facts = sequence.owner, sequence.owner.facts
            known = [] if facts is None else list(facts.hashes)
            rest = owner.cache_tokens(sequence.context)[len(known) * size :]
            parent = known[-1] if known else owner.cache_root
            sequence.hashes = known + reuse.chain(parent, rest, size)

    def _store(
        self, sequence: SequenceState, tokens: Sequence[int], hashes: Sequence[bytes], *, ended: bool
    ) -> None:
        if sequence.table is None:
            return
        plan, prompt_tokens = sequence.owner.admitted.extras.retention, len(sequence.prompt)
        self.pool.store(
            sequence.table,
            tokens,
            hashes,
            sequence.owner.cache_root,
            lambda position: plan.at(position, prompt_tokens),
            ended=ended,
            origin=sequence.owner.origin,
        )

    # What runs.

    def _chunk(self, sequence: SequenceState, tokens: int) -> Chunk:
        """The next ``tokens`` of a context, which counts as processed from here on."""
        first = sequence.context_done
        sequence.context_done += tokens
        if sequence.table is not None:
            self.pool.grow(sequence.table, sequence.context_done)
        if self.pool.reuses:
            # A sequence that is planned later runs after this chunk, so it may find the blocks from now on;
            # unless this one may be given up.
            stop = first if self._yields and sequence.owner.is_idle else sequence.context_done
            done = sequence.owner.cache_tokens(sequence.context[:stop])
            self._store(sequence, done, sequence.hashes, ended=False)
        owner = sequence.owner
        telling = sequence.tells_of_the_prompt
        record = owner.prompt_record if telling else None
        generates = sequence.context_left == 0 and owner.admitted.max_tokens > 0
        logit_rows = tokens if telling and owner.context_logits is not None else 0
        if generates and sequence.chooses_on_the_host:
            logit_rows = max(logit_rows, 1)
        return Chunk(
            sequence,
            first,
            sequence.context_done,
            chooses=generates and not sequence.chooses_on_the_host,
            prompt_width=None if record is None else record.top_ids.shape[1],
            logit_rows=logit_rows,
            pooled=_pooled(sequence, first) if telling else range(0),
        )

    def _probe_drafts(self, sequence: SequenceState, drafts: int) -> Probe:
        """The last token and the guesses after it."""
        if sequence.table is None or sequence.drafts is None:
            raise RuntimeError("a sequence without blocks was scheduled")
        tokens = [sequence.known[-1], *sequence.drafts.pending(drafts)]
        self.pool.grow(sequence.table, sequence.position + len(tokens))
        return Probe(sequence, tokens, sequence.position, list(sequence.table.blocks))

    def _probe_beams(self, sequence: SequenceState) -> list[Probe]:
        """The last token of each beam, in blocks that follow the beams' branching."""
        beams = sequence.beams
        if beams is None:
            return []
        length = len(beams.beams[0].tokens)
        position = len(sequence.prompt) + length - 1
        before = sequence.all_tables
        sequence.table = None
        parents = beams.parents
        # Beams that nobody continues go first, so that branching takes as few blocks as possible.
        for place, table in enumerate(before):
            if place not in parents:
                self._release(sequence, table)
        tables: list[BlockTable] = []
        for place, parent in enumerate(parents):
            if parent in parents[:place]:
                tables.append(self.pool.fork(before[parent], position))
            else:
                tables.append(before[parent])
        for table in tables:
            self.pool.grow(table, position + 1)
        sequence.tables = tables
        return [
            Probe(sequence, [beam.tokens[-1]], position, list(table.blocks))
            for beam, table in zip(beams.beams, tables, strict=True)
        ]


def _pooled(sequence: SequenceState, first: int) -> range:
    """The positions of a chunk from ``first`` on that an embedding is made of."""
    pooling = sequence.owner.admitted.extras.pooling
    if pooling is None:
        return range(0)
    return pooling.rows(first, sequence.context_done, len(sequence.prompt))
