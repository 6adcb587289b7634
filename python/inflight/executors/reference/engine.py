"""The engine: requests in, one iteration at a time, rows out.

Owns the requests in flight: who runs next, which blocks and slots they hold, and what a token means for
its sequence. A `runner.Runner` computes. Single-threaded and clockless; threads, waiting and time belong
to `executor`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from inflight.executors.base import FinishReason, Request, StatusCode

from . import scheduler, stop
from .admission import Bounds, Refused, admit
from .cache import BlockPool
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


class Engine:
    """In-flight batching over one runner. Not thread-safe: one thread owns it."""

    def __init__(self, runner: Runner, pool: BlockPool, limits: scheduler.Limits, bounds: Bounds) -> None:
        self._runner = runner
        self.pool = pool
        self.limits = limits
        self._bounds = bounds
        self._requests: dict[int, RequestState] = {}
        # In order of arrival and of admission; dictionaries, so that a cancel finds its sequences at once.
        self._waiting: dict[int, SequenceState] = {}
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
        plan = scheduler.schedule(
            (
                scheduler.Waiting(one.key, len(one.prompt), one.owner.admitted.blocks)
                for one in self._waiting.values()
            ),
            [scheduler.Active(one.key, one.context_left, one.ending) for one in self._active.values()],
            self.pool.available,
            self.limits,
        )
        for key in plan.admitted:
            sequence = self._waiting.pop(key)
            sequence.table = self.pool.reserve(sequence.owner.admitted.blocks)
            sequence.slot = self._free_slots.pop()
            self._active[key] = sequence
        if not plan.generation and not plan.context:
            return None
        generating = [self._active[key] for key in plan.generation]
        positions = [len(one.prompt) + one.launched - 1 for one in generating]
        sources = [KNOWN if one.launched == len(one.sampler.generated) else one.row for one in generating]
        for sequence, position in zip(generating, positions, strict=True):
            self._grow(sequence, position + 1)
        work = Work(
            generating, positions, sources, [self._chunk(self._active[key], n) for key, n in plan.context]
        )
        for row, sequence in enumerate(work.choosing()):
            sequence.row = row
            sequence.launched += 1
        iteration.admitted = len(plan.admitted)
        iteration.context_requests = len(plan.context)
        iteration.generation_requests = len(generating)
        iteration.context_tokens = sum(tokens for _, tokens in plan.context)
        return work

    def _chunk(self, sequence: SequenceState, tokens: int) -> Chunk:
        """The next ``tokens`` of a prompt, which counts as processed from here on."""
        first = sequence.context_done
        sequence.context_done += tokens
        self._grow(sequence, sequence.context_done)
        record = sequence.owner.prompt_record if sequence.index == 0 else None
        return Chunk(
            sequence,
            first,
            sequence.context_done,
            chooses=sequence.context_left == 0 and sequence.owner.admitted.max_tokens > 0,
            prompt_width=None if record is None else record.top_ids.shape[1],
        )

    def _grow(self, sequence: SequenceState, tokens: int) -> None:
        if sequence.table is None:
            raise RuntimeError("a sequence without blocks was scheduled")
        self.pool.grow(sequence.table, tokens)

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
            if chunk.sequence.owner.admitted.max_tokens == 0 and chunk.stop == len(chunk.sequence.prompt):
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
        state = RequestState(request, admitted)
        if width is not None:
            state.prompt_record = PromptRecord.empty(len(request.input_token_ids), width)
        self._requests[request.client_id] = state
        wants_record = output.return_log_probs or output.num_top_log_probs > 0
        for index in range(count):
            sampler = SamplerState(
                admitted.parameters, self._bounds.vocab_size, request.input_token_ids, index
            )
            record = TokenRecord() if wants_record else None
            sequence = SequenceState(next(self._keys), state, index, sampler, record=record)
            state.unfinished.append(sequence)
            self._waiting[sequence.key] = sequence

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
        self._waiting.pop(sequence.key, None)
        self._active.pop(sequence.key, None)
        if sequence.table is not None:
            self.pool.release(sequence.table)
            sequence.table = None
            self._free_slots.append(sequence.slot)
        if row.final:
            del self._requests[owner.request.client_id]
