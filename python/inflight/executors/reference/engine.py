"""The engine: requests in, one iteration at a time, rows out.

Owns the requests in flight: who runs next, which blocks and slots they hold, and what a token means for
its sequence. A `runner.Runner` computes. Single-threaded and clockless; threads, waiting and time belong
to `executor`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from inflight.executors.base import FinishReason, Request, StatusCode

from . import reuse, scheduler, stop
from .admission import Bounds, admit
from .cache import BlockPool, blocks_for
from .queue import WaitingQueue
from .refusal import Refused
from .reuse import NO_MATCH
from .rows import PromptRecord, Row, TokenRecord
from .runner import KNOWN, Chunk, Outcome, Pending, Runner, Work
from .sampler import SamplerState
from .sequence import RequestState, SequenceState


@dataclass(slots=True)
class Iteration:
    """What one step did, for the statistics; counts are of sequences, as TensorRT-LLM's are."""

    rows: list[Row] = field(default_factory=list)
    admitted: int = 0
    completed: int = 0
    context_requests: int = 0
    generation_requests: int = 0
    context_tokens: int = 0
    generated_tokens: int = 0
    paused: int = 0
    #: By the executor's clock, which ends the priorities of cached blocks.
    now_s: float = 0.0


class Engine:
    """In-flight batching over one runner. Not thread-safe: one thread owns it."""

    def __init__(self, runner: Runner, pool: BlockPool, limits: scheduler.Limits, bounds: Bounds) -> None:
        self._runner = runner
        self.pool = pool
        self.limits = limits
        self._bounds = bounds
        self._requests: dict[int, RequestState] = {}
        self._waiting = WaitingQueue()
        # In order of admission; a dictionary, so that a cancel finds its sequences at once.
        self._active: dict[int, SequenceState] = {}
        # Launched and not collected, oldest first; never more than the runner's depth.
        self._in_flight: deque[tuple[Work, Pending]] = deque()
        self._free_slots = list(range(limits.max_batch_size - 1, -1, -1))
        self._keys = itertools.count()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_active(self) -> int:
        return len(self._active)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._active or self._in_flight)

    def add(self, requests: Iterable[Request], iteration: Iteration) -> None:
        """Queues requests; what cannot be served becomes an errored, final row of ``iteration``."""
        for request in requests:
            try:
                self._add(request)
            except Refused as refusal:
                iteration.rows.append(Row(request.client_id, final=True, error=(refusal.code, refusal.text)))

    def cancel(self, client_ids: Iterable[int], iteration: Iteration) -> None:
        """Ends requests now; ids that are unknown or finished are ignored."""
        for client_id in client_ids:
            state = self._requests.get(client_id)
            if state is None:
                continue
            for sequence in list(state.unfinished):
                self._finish(sequence, FinishReason.CANCELLED, iteration)

    def cancel_all(self, iteration: Iteration) -> None:
        """Ends every request."""
        self.cancel(list(self._requests), iteration)

    def step(self, iteration: Iteration) -> None:
        """Plans and launches one iteration, then collects the oldest in flight and reports it.

        With a runner of depth 2 that is the one before, so that this planning cost the device no time.
        """
        if any(one.sampler.needs_history for one in self._active.values()):
            while self._in_flight:
                self._collect(iteration)
        work = self._plan(iteration)
        if work is not None:
            self._in_flight.append((work, self._runner.launch(work)))
        if self._in_flight and (work is None or len(self._in_flight) >= self._runner.depth):
            self._collect(iteration)

    def _plan(self, iteration: Iteration) -> Work | None:
        """Chooses who runs next and notes it as done; None when nobody can run."""
        self.pool.refresh(iteration.now_s)
        plan, candidates = self._schedule()
        if plan.paused and self._in_flight:
            # Who pauses must know all its tokens; with them some may end, and free what was missing.
            while self._in_flight:
                self._collect(iteration)
            plan, candidates = self._schedule()
        for key in plan.paused:
            self._pause(self._active[key])
        copies = self._admit([candidates[key] for key in plan.admitted])
        if not plan.generation and not plan.context:
            return None
        generating = [self._active[key] for key in plan.generation]
        positions = [len(one.prompt) + one.launched - 1 for one in generating]
        sources = [KNOWN if one.launched == len(one.sampler.generated) else one.row for one in generating]
        for sequence, position in zip(generating, positions, strict=True):
            if sequence.table is not None:
                self.pool.grow(sequence.table, position + 1)
        work = Work(
            generating,
            positions,
            sources,
            [self._chunk(self._active[key], tokens) for key, tokens in plan.context],
            copies,
        )
        for row, sequence in enumerate(work.choosing()):
            sequence.row = row
            sequence.launched += 1
        iteration.admitted = len(plan.admitted)
        iteration.paused = len(plan.paused)
        iteration.context_requests = len(plan.context)
        iteration.generation_requests = len(generating)
        iteration.context_tokens = sum(tokens for _, tokens in plan.context)
        return work

    def _schedule(self) -> tuple[scheduler.Schedule, dict[int, SequenceState]]:
        """The plan, and the waiting sequences that it looked at, by key."""
        size = self.pool.tokens_per_block
        active = []
        for one in self._active.values():
            held = len(one.blocks)
            active.append(
                scheduler.Active(
                    one.key,
                    one.context_left,
                    blocks_left=one.owner.admitted.blocks - held,
                    blocks_next=0 if one.ending else blocks_for(len(one.prompt) + one.launched, size) - held,
                    ending=one.ending,
                )
            )
        if sum(one.blocks_next for one in active) > self.pool.available:
            # Somebody will have to go: only then it matters what each shares.
            for demand in active:
                table = self._active[demand.key].table
                demand.blocks_held = 0 if table is None else self.pool.owned(table)
        looked_at: dict[int, SequenceState] = {}
        plan = scheduler.schedule(self._candidates(looked_at), active, self.pool.available, self.limits)
        return plan, looked_at

    def _candidates(self, looked_at: dict[int, SequenceState]) -> Iterator[scheduler.Waiting]:
        """The queue in order, with what each finds in the cache; made as far as it is asked for."""
        size = self.pool.tokens_per_block
        computing: set[bytes] | None = None
        for one in self._waiting:
            if computing is None:
                computing = {
                    content
                    for other in self._active.values()
                    if other.context_left
                    for content in other.hashes[other.context_done // size :]
                }
            one.match = NO_MATCH
            deferred = False
            if self.pool.reuses and not one.tells_of_the_prompt:
                one.match = self.pool.match(one.context, one.hashes, one.owner.cache_root)
                found = len(one.match.blocks)
                deferred = found < (len(one.context) - 1) // size and one.hashes[found] in computing
            blocks = blocks_for(len(one.context), size)
            if self.pool.cost(one.match, one.owner.admitted.blocks) > self.pool.num_blocks:
                one.match = one.match.whole()
            looked_at[one.key] = one
            yield scheduler.Waiting(
                one.key,
                len(one.context) - one.match.tokens(size),
                self.pool.cost(one.match, one.owner.admitted.blocks),
                self.pool.cost(one.match, blocks),
                deferred,
            )
            # Whoever asks for the next has admitted this one, unless it was to wait.
            if not deferred:
                computing.update(one.hashes)

    def _admit(self, admitted: Sequence[SequenceState]) -> list[tuple[int, int, int]]:
        """Gives sequences their blocks and slots; the copies that are due before they run."""
        # All that was found is held before the first takes new blocks, which evicts what nobody holds.
        tables = [self.pool.hold(sequence.match) for sequence in admitted]
        copies = []
        for sequence, table in zip(admitted, tables, strict=True):
            copy = self.pool.fill(table, sequence.match, len(sequence.context))
            if copy is not None:
                copies.append(copy)
            self._waiting.remove(sequence)
            sequence.table = table
            sequence.slot = self._free_slots.pop()
            sequence.context_done = sequence.match.tokens(self.pool.tokens_per_block)
            if not sequence.paused:
                sequence.cached_tokens = sequence.context_done
            sequence.paused = False
            self._active[sequence.key] = sequence
        return copies

    def _pause(self, sequence: SequenceState) -> None:
        """Takes a sequence's blocks; it waits to compute prompt and output again, or what was evicted of
        them meanwhile."""
        self._give_back(sequence)
        del self._active[sequence.key]
        sequence.paused = True
        sequence.context = sequence.known
        sequence.context_done = 0
        self._hash(sequence)
        self._waiting.push(sequence)

    def _give_back(self, sequence: SequenceState) -> None:
        """Frees a sequence's slot and blocks; what they hold can be found as long as nobody needs them."""
        table = sequence.table
        if table is None:
            return
        if self.pool.reuses:
            # The last token was chosen and not fed back: it has no keys and values.
            computed = sequence.context_done if sequence.context_left else len(sequence.known) - 1
            tokens = sequence.known[: max(computed, sequence.context_done)]
            size = self.pool.tokens_per_block
            parent = sequence.hashes[-1] if sequence.hashes else sequence.owner.cache_root
            rest = tokens[len(sequence.hashes) * size :]
            hashes = sequence.hashes + reuse.chain(parent, rest, size)
            self._store(sequence, tokens, hashes, ended=True)
        self.pool.release(table)
        sequence.table = None
        self._free_slots.append(sequence.slot)

    def _hash(self, sequence: SequenceState) -> None:
        if self.pool.reuses:
            size = self.pool.tokens_per_block
            sequence.hashes = reuse.chain(sequence.owner.cache_root, sequence.context, size)

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
        )

    def _chunk(self, sequence: SequenceState, tokens: int) -> Chunk:
        """The next ``tokens`` of a context, which counts as processed from here on."""
        first = sequence.context_done
        sequence.context_done += tokens
        if self.pool.reuses:
            # Whoever runs later, runs after this chunk: it may find its blocks from now on.
            self._store(sequence, sequence.context[: sequence.context_done], sequence.hashes, ended=False)
        record = sequence.owner.prompt_record if sequence.tells_of_the_prompt else None
        return Chunk(
            sequence,
            first,
            sequence.context_done,
            chooses=sequence.context_left == 0 and sequence.owner.admitted.max_tokens > 0,
            prompt_width=None if record is None else record.top_ids.shape[1],
        )

    def _collect(self, iteration: Iteration) -> None:
        """Waits for the oldest iteration in flight and takes what it gave."""
        work, pending = self._in_flight.popleft()
        outcome = self._runner.collect(pending)
        self._take_prompts(work, outcome)
        for row, (sequence, token) in enumerate(zip(work.choosing(), outcome.tokens, strict=True)):
            if sequence.ended:
                continue  # it ended, or was cancelled, while this row was in flight
            told = outcome.told.get(row)
            if told is not None and sequence.record is not None:
                sequence.record.append(told.values[0], told.top_ids[0], told.top_values[0])
            iteration.generated_tokens += 1
            self._take(sequence, token, iteration)
        for chunk in work.chunks:
            if chunk.sequence.owner.admitted.max_tokens == 0 and chunk.stop == len(chunk.sequence.context):
                self._finish(chunk.sequence, FinishReason.LENGTH, iteration)

    def _take_prompts(self, work: Work, outcome: Outcome) -> None:
        """Fills in the log probabilities of prompt tokens."""
        for place, told in outcome.prompts.items():
            chunk = work.chunks[place]
            record = chunk.sequence.owner.prompt_record
            if record is not None:
                tokens = slice(chunk.first + 1, chunk.first + 1 + chunk.told)
                record.values[tokens] = told.values
                record.top_ids[tokens] = told.top_ids
                record.top_values[tokens] = told.top_values

    def _add(self, request: Request) -> None:
        if request.client_id in self._requests:
            raise Refused(
                StatusCode.INVALID_ARGUMENT, f"client id `{request.client_id}` is in use; choose another"
            )
        admitted = admit(request, self._bounds)
        count = request.sampling_config.num_return_sequences
        if len(self._waiting) + count > self._bounds.max_queue_size:
            raise Refused(
                StatusCode.RESOURCE_EXHAUSTED,
                f"{len(self._waiting)} sequences wait and the queue holds {self._bounds.max_queue_size}; "
                "try again later or ask for fewer sequences",
            )
        output = request.output_config
        width = output.num_prompt_log_probs
        state = RequestState(request, admitted, cache_root=reuse.root(admitted.extras.cache_salt))
        if width is not None:
            state.prompt_record = PromptRecord.empty(len(request.input_token_ids), width)
        self._requests[request.client_id] = state
        wants_record = output.return_log_probs or output.num_top_log_probs > 0
        for index in range(count):
            sampler = SamplerState(
                admitted.parameters, self._bounds.vocab_size, request.input_token_ids, index
            )
            record = TokenRecord() if wants_record else None
            sequence = SequenceState(
                next(self._keys), state, index, sampler, request.input_token_ids, record=record
            )
            if index:
                sequence.hashes = state.unfinished[0].hashes
            else:
                self._hash(sequence)
            state.unfinished.append(sequence)
            self._waiting.push(sequence)

    def _take(self, sequence: SequenceState, token: int, iteration: Iteration) -> None:
        """Adds a chosen token to its sequence and reports it, and its end when it is one."""
        request = sequence.owner.request
        sequence.sampler.observe(token)
        reason = stop.finish_reason(
            sequence.sampler.generated,
            request.stop_words,
            request.end_id,
            sequence.sampler.parameters.min_tokens,
            sequence.owner.admitted.max_tokens,
        )
        if reason == FinishReason.END_ID:
            # The end token is not among a row's tokens, and neither are its log probabilities.
            if sequence.record is not None:
                sequence.record.pop()
        else:
            sequence.unsent.append(token)
        if reason != FinishReason.NOT_FINISHED:
            self._finish(sequence, reason, iteration)
        elif request.streaming:
            iteration.rows.append(sequence.tell(reason))

    def _finish(self, sequence: SequenceState, reason: FinishReason, iteration: Iteration) -> None:
        """Reports a sequence's last row and frees all that it held."""
        if sequence.ended:
            return
        sequence.ended = True
        owner = sequence.owner
        owner.unfinished.remove(sequence)
        row = sequence.tell(reason)
        row.final = not owner.unfinished
        iteration.rows.append(row)
        iteration.completed += 1
        self._waiting.remove(sequence)
        self._active.pop(sequence.key, None)
        self._give_back(sequence)
        if row.final:
            del self._requests[owner.request.client_id]
