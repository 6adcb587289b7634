"""The engine: requests in, one iteration at a time, rows out.

Owns the requests in flight and what a token means for its sequence. A `planner.Planner` decides who runs
and where, a `runner.Runner` computes. Single-threaded and clockless; threads, waiting and time belong to
`executor`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from inflight.executors.base import FinishReason, Request, StatusCode
from inflight.executors.reference.model.array_types import Float32
from inflight.executors.reference.model.lora import Adapter

from . import resume, reuse, stop
from .adapters import Adapters, Loaded, LoraRequest
from .admission import Bounds, admit
from .arrival import arrive
from .beams import BeamSearch
from .blocks import BlockPool
from .drafts import Drafts, LookupConfig
from .guides import unavailable
from .lanes import LaneRows
from .log_probs import chosen_and_best
from .masks import Guide
from .planner import Planner
from .pooling import Pool
from .probabilities import log_softmax
from .refusal import Refused
from .rows import Row, TokenRows, sums_of
from .runner import Outcome, Pending, Runner, Work
from .scheduler import Limits
from .sequence import RequestState, SequenceState
from .thinking import ThinkingBudget

_NO_GUIDES: Mapping[int, Guide | Refused] = {}
_NO_ARRIVALS: Mapping[int, float] = {}
_NONE_LOADED: Mapping[int, Loaded] = {}


def _no_clock() -> float:
    return 0.0


@dataclass(slots=True)
class Iteration:
    """What one step did, for the statistics; counts are of sequences, as TensorRT-LLM's are."""

    output: list[Row | TokenRows] = field(default_factory=list)
    admitted: int = 0
    completed: int = 0
    context_requests: int = 0
    generation_requests: int = 0
    context_tokens: int = 0
    generated_tokens: int = 0
    #: Sequences that got tokens: one each, or several where guesses were right.
    decoded_requests: int = 0
    paused: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    requests_with_drafts: int = 0
    #: What the admitted waited, all together, and what a draft model took.
    queue_latency_s: float = 0.0
    draft_s: float = 0.0
    #: When it began, by the executor's clock, which ends the priorities of cached blocks.
    now_s: float = 0.0
    #: That clock, for the times of tokens.
    clock: Callable[[], float] = _no_clock

    @property
    def rows(self) -> list[Row]:
        """The output row by row."""
        parts = [[part] if isinstance(part, Row) else part.rows() for part in self.output]
        return list(itertools.chain.from_iterable(parts))


class Proposer(Protocol):
    """Guesses for many sequences at once: a draft model."""

    def propose(self, sequences: Sequence[SequenceState]) -> list[Sequence[int]]:
        """The tokens that may come next, of each."""


class Engine:
    """In-flight batching over one runner. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        runner: Runner,
        pool: BlockPool,
        limits: Limits,
        bounds: Bounds,
        lookup: LookupConfig | None = None,
        proposer: Proposer | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        self._runner = runner
        self.pool = pool
        self.limits = limits
        self._bounds = bounds
        #: Prompt lookup for every request; None: only drafts that requests bring.
        self._lookup = lookup
        #: A draft model for every request; None: there is none.
        self._proposer = proposer
        #: None: requests with LoRA are refused.
        self._adapters = adapters
        self._requests: dict[int, RequestState] = {}
        self._planner = Planner(pool, limits)
        # Launched and not collected, oldest first; never more than the runner's depth.
        self._in_flight: deque[tuple[Work, LaneRows, Pending]] = deque()
        #: The latest of them, where its tokens are not chosen yet.
        self._unchosen: Pending | None = None
        #: Those that need their history, or did when they came: most do not, and are not asked again.
        self._attentive: dict[int, SequenceState] = {}
        #: Those that choose on the host, until their end.
        self._branching: set[int] = set()
        self._keys = itertools.count()

    @property
    def depth(self) -> int:
        """Iterations in flight at once: 1, or 2 where the next is launched before the last is collected."""
        return self._runner.depth

    @property
    def num_waiting(self) -> int:
        return len(self._planner.waiting)

    @property
    def num_active(self) -> int:
        return len(self._planner.active)

    @property
    def has_work(self) -> bool:
        return bool(self._planner.waiting or self._planner.active or self._in_flight)

    def add(
        self,
        requests: Iterable[Request],
        iteration: Iteration,
        guides: Mapping[int, Guide | Refused] = _NO_GUIDES,
        arrivals: Mapping[int, float] = _NO_ARRIVALS,
        loaded: Mapping[int, Loaded] = _NONE_LOADED,
    ) -> None:
        """Queues requests; what cannot be served becomes an errored, final row of ``iteration``. ``guides``
        are those of the requests that ask for one, ``arrivals`` the times since when the requests wait,
        ``loaded`` the adapters that were not in the cache, all by client id."""
        for request in requests:
            arrived_s = arrivals.get(request.client_id, iteration.now_s)
            try:
                client_id = request.client_id
                self._add(request, guides.get(client_id), arrived_s, loaded.get(client_id))
            except Refused as refusal:
                error = refusal.code, refusal.text
                iteration.output.append(Row(request.client_id, final=True, error=error))

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
        Where a token cannot be chosen before the last ones are known, the model computes while they are
        collected. The choice comes after the next iteration is planned, while the masks of guides are
        computed, and before it is launched.
        """
        branches, late = self._look_at_attentive()
        if branches:
            self._collect_all(iteration)
        launched = self._plan(iteration, late)
        if launched is not None:
            work, rows = launched
            self._choose_late()
            pending = self._runner.launch(work)
            if work.late:
                self._collect_all(iteration)
                self._unchosen = pending
            self._in_flight.append((work, rows, pending))
        if self._in_flight and (launched is None or len(self._in_flight) >= self._runner.depth):
            self._collect(iteration)

    def _choose_late(self) -> None:
        """Chooses the tokens of the latest work, if that is still to be done."""
        if self._unchosen is not None:
            pending, self._unchosen = self._unchosen, None
            self._runner.choose(pending)

    def _look_at_attentive(self) -> tuple[bool, bool]:
        """Whether a sequence in flight cannot be planned before its last tokens are known, and whether one's
        token cannot be chosen before. Forgets those that need nothing more."""
        active = self._planner.active
        if any(key in active for key in self._branching):
            return True, False
        late, through = False, []
        for key, one in self._attentive.items():
            if key not in active:
                continue
            # One is enough to know; most that come here stay as they are until their end.
            late = one.needs_history
            if late:
                break
            through.append(key)
        for key in through:
            del self._attentive[key]
        return False, late

    def _plan(self, iteration: Iteration, late: bool) -> tuple[Work, LaneRows] | None:
        """Chooses who runs next and notes it as done; None when nobody can run."""
        self.pool.refresh(iteration.now_s)
        plan = self._planner.plan()
        if plan.schedule.paused and self._in_flight:
            # Who pauses must know all its tokens; with them some may end, and free what was missing.
            self._collect_all(iteration)
            plan = self._planner.plan()
        work = self._planner.carry_out(plan, late=late)
        schedule = plan.schedule
        for key in schedule.admitted:
            self._note_admitted(self._planner.active[key], iteration)
        iteration.admitted = len(schedule.admitted)
        iteration.paused = len(schedule.paused)
        iteration.context_requests = len(schedule.context)
        iteration.generation_requests = plan.steady.running + len(schedule.generation)
        iteration.context_tokens = sum(tokens for _, tokens in schedule.context)
        return None if work is None else (work, plan.rows)

    def _note_admitted(self, sequence: SequenceState, iteration: Iteration) -> None:
        iteration.queue_latency_s += iteration.now_s - sequence.owner.arrived_s
        metrics = sequence.metrics
        if metrics is not None and metrics.first_scheduled_s is None:
            metrics.first_scheduled_s = iteration.now_s

    def _collect_all(self, iteration: Iteration) -> None:
        while self._in_flight:
            self._collect(iteration)

    def _collect(self, iteration: Iteration) -> None:
        """Waits for the oldest iteration in flight and takes what it gave."""
        self._choose_late()
        work, rows, pending = self._in_flight.popleft()
        outcome = self._runner.collect(pending)
        self._take_prompts(work, outcome)
        choosing, first = work.choosing(), len(rows.sequences)
        looked_at: Iterable[int] = range(len(choosing))
        if first:
            taken = self._planner.lanes.take(rows, outcome)
            iteration.generated_tokens += taken.count
            iteration.decoded_requests += taken.count
            iteration.output += taken.rows
            looked_at = [*taken.odd, *range(first, len(choosing))]
        for row in looked_at:
            sequence, token = choosing[row], int(outcome.tokens[row])
            if sequence.ended:
                continue  # it ended, or was cancelled, while this row was in flight
            if sequence.record is not None:
                self._record(sequence, token, row, outcome)
            iteration.generated_tokens += 1
            iteration.decoded_requests += 1
            self._take(sequence, token, iteration)
        self._choose_on_the_host(work, outcome, iteration)
        for chunk in work.chunks:
            if chunk.sequence.owner.admitted.max_tokens == 0 and chunk.stop == len(chunk.sequence.context):
                self._finish(chunk.sequence, FinishReason.LENGTH, iteration)

    def _record(self, sequence: SequenceState, token: int, row: int, outcome: Outcome) -> None:
        """Notes what is reported of a row's token."""
        place, values = outcome.place(row), outcome.log_probs
        if place is not None and values is not None:
            width = sequence.top_width
            reported = (
                float(values.values[place]),
                values.top_ids[place, :width],
                values.top_values[place, :width],
            )
            sequence.note(token, reported, outcome.logits.get(row))

    def _take_prompts(self, work: Work, outcome: Outcome) -> None:
        """Fills in the logits, log probabilities and hidden states of prompt tokens."""
        for place, hidden in outcome.hidden.items():
            chunk = work.chunks[place]
            owner = chunk.sequence.owner
            if owner.pool is None or owner.prompt_recorded:
                continue
            if chunk.first == 0:
                owner.pool = Pool()  # it begins again after a pause
            owner.pool.add(hidden)
        for place, logits in outcome.chunk_logits.items():
            chunk = work.chunks[place]
            wanted = chunk.sequence.owner.context_logits
            if wanted is not None and chunk.sequence.tells_of_the_prompt:
                stop_position = min(chunk.stop, len(chunk.sequence.prompt))
                wanted[chunk.first : stop_position] = logits[: max(0, stop_position - chunk.first)]
        for place, reported in outcome.prompts.items():
            chunk = work.chunks[place]
            record = chunk.sequence.owner.prompt_record
            if record is not None:
                tokens = slice(chunk.first + 1, chunk.first + 1 + chunk.reported)
                record.values[tokens] = reported.values
                record.top_ids[tokens] = reported.top_ids
                record.top_values[tokens] = reported.top_values

    def _choose_on_the_host(self, work: Work, outcome: Outcome, iteration: Iteration) -> None:
        """What follows from the logits of branches, and of contexts that are through."""
        branches: dict[int, tuple[SequenceState, list[Float32]]] = {}
        for place, logits in outcome.chunk_logits.items():
            chunk = work.chunks[place]
            sequence = chunk.sequence
            if sequence.chooses_on_the_host and chunk.stop == len(sequence.context):
                branches[sequence.key] = sequence, [logits[-1:]]
        for probe, logits in zip(work.probes, outcome.probe_logits, strict=True):
            branches.setdefault(probe.sequence.key, (probe.sequence, []))[1].append(logits)
        drafting: list[SequenceState] = []
        for sequence, parts in branches.values():
            if sequence.ended or sequence.owner.admitted.max_tokens == 0:
                continue
            iteration.decoded_requests += 1
            if sequence.beams is not None:
                self._advance_beams(sequence, sequence.beams, np.concatenate(parts), iteration)
            elif sequence.drafts is not None:
                self._check_drafts(sequence, sequence.drafts, parts[0], iteration)
                if not sequence.ended and sequence.drafts.is_out and not sequence.owner.is_tuned:
                    drafting.append(sequence)
        if drafting:
            self._draft(drafting, iteration)

    def _draft(self, sequences: Sequence[SequenceState], iteration: Iteration) -> None:
        """Gets guesses for sequences that have none."""
        if self._proposer is None:
            for one in sequences:
                if one.drafts is not None:
                    one.drafts.propose(one.known)
            return
        started = iteration.clock()
        for one, guesses in zip(sequences, self._proposer.propose(sequences), strict=True):
            if one.drafts is not None:
                one.drafts.take(guesses)
        iteration.draft_s += iteration.clock() - started

    def _check_drafts(
        self, sequence: SequenceState, drafts: Drafts, logits: Float32, iteration: Iteration
    ) -> None:
        """Takes tokens as long as they are the guesses that were computed for."""
        proposed, accepted = drafts.proposed, drafts.accepted
        for row in logits:
            token, is_guess = drafts.check(row, sequence.sampler)
            if sequence.record is not None:
                values, ids, best = chosen_and_best(row[None], np.array([token]), sequence.top_width)
                sequence.note(token, (float(values[0]), ids[0], best[0]), row)
            iteration.generated_tokens += 1
            sequence.launched += 1
            self._take(sequence, token, iteration)
            if sequence.ended or not is_guess:
                break
        iteration.draft_tokens += drafts.proposed - proposed
        iteration.accepted_tokens += drafts.accepted - accepted
        iteration.requests_with_drafts += drafts.proposed > proposed

    def _advance_beams(
        self, sequence: SequenceState, beams: BeamSearch, logits: Float32, iteration: Iteration
    ) -> None:
        """One step of a search; its answers become rows all at once."""
        owner, state = sequence.owner, sequence.sampler
        parameters, request = state.parameters, owner.request
        processed = np.stack(
            [
                (state.branch(beam.tokens) if state.needs_history else state).processed(row)
                for beam, row in zip(beams.beams, logits, strict=True)
            ]
        )
        beams.advance(
            log_softmax(processed),
            lambda tokens: stop.finish_reason(
                tokens, request.stop_words, request.end_id, parameters.min_tokens, owner.admitted.max_tokens
            ),
        )
        iteration.generated_tokens += 1
        if sequence.metrics is not None:
            sequence.metrics.note_token(iteration.clock())
        if not beams.done:
            return
        answers = beams.answers()
        if request.sampling_config.num_return_sequences > 1:
            answers = answers[: request.sampling_config.num_return_sequences]
        for index, beam in enumerate(answers):
            sequence.index = index
            sequence.unsent = beam.tokens
            if sequence.record is not None:
                sequence.record.log_probs = beam.log_probs
            if index < len(answers) - 1:
                iteration.output.append(sequence.tell(beam.reason))
            else:
                self._finish(sequence, beam.reason, iteration)
                if request.output_config.return_log_probs:
                    row = iteration.output[-1]
                    assert isinstance(row, Row)
                    row.metrics = [*row.metrics, sums_of([one.log_prob for one in answers])]

    def _add(
        self,
        request: Request,
        guide: Guide | Refused | None,
        arrived_s: float,
        loaded: Loaded | None,
    ) -> None:
        if request.client_id in self._requests:
            raise Refused(
                StatusCode.INVALID_ARGUMENT, f"client id `{request.client_id}` is in use; choose another"
            )
        admitted = admit(request, self._bounds)
        if isinstance(guide, Refused):
            raise guide
        if guide is None and admitted.extras.guide is not None:
            raise unavailable()
        if admitted.extras.thinking is not None:
            guide = ThinkingBudget(admitted.extras.thinking, self._bounds.vocab_size)
        count = len(resume.sequences(request))
        if self.num_waiting + count > self._bounds.max_queue_size:
            raise Refused(
                StatusCode.RESOURCE_EXHAUSTED,
                f"{self.num_waiting} sequences wait and the queue holds {self._bounds.max_queue_size}; "
                "try again later or ask for fewer sequences",
            )
        state = arrive(
            request,
            admitted,
            guide,
            self._bounds.vocab_size,
            arrived_s,
            self._keys,
            self._lookup,
            guesses=self._lookup is not None or self._proposer is not None,
        )
        if admitted.extras.lora is not None:
            state.adapter = self._acquire(admitted.extras.lora, loaded)
            # What one adapter computed is nothing to another.
            state.cache_root = reuse.root(state.cache_root + state.adapter.fingerprint)
        self._requests[request.client_id] = state
        for sequence in state.unfinished:
            if sequence.chooses_on_the_host:
                self._branching.add(sequence.key)
            elif sequence.needs_history and not self._runner.follows(sequence.sampler):
                self._attentive[sequence.key] = sequence
            self._planner.push(sequence)

    def _acquire(self, lora: LoraRequest, loaded: Loaded | None) -> Adapter:
        if self._adapters is None:
            raise Refused(
                StatusCode.UNIMPLEMENTED,
                "the reference executor does not implement `lora_task_id` over several ranks; send the "
                "request without it",
            )
        return self._adapters.acquire(lora, loaded)

    def _forget(self, owner: RequestState) -> None:
        """Forgets a request whose last row was reported."""
        del self._requests[owner.request.client_id]
        if owner.adapter is not None and self._adapters is not None:
            self._adapters.release(owner.adapter)

    def _take(self, sequence: SequenceState, token: int, iteration: Iteration) -> None:
        """Adds a chosen token to its sequence and reports it, and its end when it is one."""
        request, guide = sequence.owner.request, sequence.sampler.guide
        if sequence.metrics is not None:
            sequence.metrics.note_token(iteration.clock())
        end_id = request.end_id
        if guide is not None:
            # Of the mask that this token was chosen by.
            problem = guide.problem()
            if problem is not None:
                self._fail(sequence, problem, iteration)
                return
            if token in guide.eos_tokens:
                # A grammar ends with the tokenizer's end, whatever the request calls one.
                end_id = token
        sequence.sampler.observe(token)
        self._planner.lanes.knows(sequence, token)
        reason = stop.finish_reason(
            sequence.sampler.generated,
            request.stop_words,
            end_id,
            sequence.sampler.parameters.min_tokens,
            sequence.owner.admitted.max_tokens,
        )
        sequence.unsent.append(token)
        if reason == FinishReason.END_ID and sequence.record is not None and sequence.record.logits:
            # Returned logits are those of the output tokens, which the end token is not.
            sequence.record.logits.pop()
        if reason != FinishReason.NOT_FINISHED:
            self._finish(sequence, reason, iteration)
        elif request.streaming:
            iteration.output.append(sequence.tell(reason))

    def _fail(self, sequence: SequenceState, problem: str, iteration: Iteration) -> None:
        """Ends a request whose guide cannot continue, with all its sequences."""
        owner = sequence.owner
        for one in owner.unfinished:
            one.end()
            self._remove(one)
        iteration.completed += len(owner.unfinished)
        self._forget(owner)
        text = (
            f"the answer cannot continue within its guide after {len(sequence.sampler.generated)} tokens: "
            f"{problem}; use a simpler guide, or ask for less in addition"
        )
        error = StatusCode.INVALID_ARGUMENT, text
        iteration.output.append(Row(owner.request.client_id, final=True, error=error))

    def _remove(self, sequence: SequenceState) -> None:
        self._planner.remove(sequence)
        self._attentive.pop(sequence.key, None)
        self._branching.discard(sequence.key)

    def _finish(self, sequence: SequenceState, reason: FinishReason, iteration: Iteration) -> None:
        """Reports a sequence's last row and frees all that it held."""
        if sequence.ended:
            return
        sequence.end()
        owner = sequence.owner
        owner.unfinished.remove(sequence)
        row = sequence.tell(reason)
        row.final = not owner.unfinished
        iteration.output.append(row)
        iteration.completed += 1
        self._remove(sequence)
        if row.final:
            self._forget(owner)
