"""The engine: requests in, one iteration at a time, rows out.

Owns what is in flight and the order of an iteration. `intake` takes requests in, `planner` decides who runs
and where, a `runner.Runner` computes, `branches` chooses where the runner does not, and `requests` owns what
a token means. Single-threaded and clockless; threads, waiting and time belong to `executor`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from inflight.executors.base import FinishReason, Request, StatusCode

from . import reports
from .adapters import Adapters, Loaded
from .admission import Bounds
from .blocks import BlockPool
from .branches import Branches, Proposer
from .drafts import LookupConfig
from .handover import Handover
from .images import ImagePrompt
from .intake import Intake
from .iteration import Iteration
from .lanes import LaneRows
from .masks import Guide
from .planner import Planner
from .prompt_facts import PromptFacts
from .refusal import Refused
from .requests import Requests
from .rows import Row
from .runner import Pending, Runner, Work
from .scheduler import Limits
from .sequence import SequenceState

_NO_GUIDES: Mapping[int, Guide | Refused] = {}
_NO_ARRIVALS: Mapping[int, float] = {}
_NONE_LOADED: Mapping[int, Loaded] = {}
_NO_FACTS: Mapping[int, PromptFacts] = {}
_NO_IMAGES: Mapping[int, ImagePrompt | Refused] = {}


class _InFlight(NamedTuple):
    work: Work
    rows: LaneRows
    pending: Pending
    #: By the clock of `Iteration`.
    launched_s: float


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
        handover: Handover | None = None,
    ) -> None:
        self._runner = runner
        #: None: no blocks go to other workers or come from them.
        self.handover = handover
        #: Whether the last step could do nothing, and what it waits for happens elsewhere.
        self._is_stalled = False
        self.pool = pool
        self.limits = limits
        #: None: requests with LoRA are refused.
        self.adapters = adapters
        self._planner = Planner(pool, limits)
        guesses = lookup is not None or proposer is not None
        self._intake = Intake(bounds, lookup, adapters, guesses=guesses)
        self._requests = Requests(self._planner, runner, adapters, handover)
        self._branches = Branches(self._requests, proposer)
        # Launched and not collected, oldest first; never more than the runner's depth.
        self._in_flight: deque[_InFlight] = deque()
        #: When the latest iteration was collected.
        self._collected_s = 0.0
        #: The latest of them, where its tokens are not chosen yet.
        self._unchosen: Pending | None = None

    @property
    def depth(self) -> int:
        """Iterations in flight at once: 1, or 2 where the next is launched before the last is collected."""
        return self._runner.depth

    @property
    def num_waiting(self) -> int:
        return len(self._planner.waiting)

    @property
    def num_partial_tokens(self) -> int:
        """Tokens that are computed of prompts that are not complete."""
        return self._planner.partial_tokens()

    @property
    def num_active(self) -> int:
        return len(self._planner.active)

    @property
    def has_work(self) -> bool:
        return bool(self._planner.waiting or self._planner.active or self._in_flight)

    @property
    def may_step(self) -> bool:
        """Whether a step has something to do now."""
        return self.has_work and not self._is_stalled

    def patience_s(self) -> float | None:
        """Seconds after which a step has something to do although nothing came; None: never."""
        return None if self.handover is None else self.handover.left_s()

    def add(
        self,
        requests: Iterable[Request],
        iteration: Iteration,
        guides: Mapping[int, Guide | Refused] = _NO_GUIDES,
        arrivals: Mapping[int, float] = _NO_ARRIVALS,
        loaded: Mapping[int, Loaded] = _NONE_LOADED,
        images: Mapping[int, ImagePrompt | Refused] = _NO_IMAGES,
        facts: Mapping[int, PromptFacts] = _NO_FACTS,
    ) -> None:
        """Queues requests; what cannot be served becomes an errored, final row of ``iteration``. ``guides``
        are those of the requests that ask for one, ``arrivals`` the times since when the requests wait,
        ``loaded`` the adapters that were not in the cache, ``images`` those of prompts, ``facts`` what is
        known of long ones, all by client id."""
        for request in requests:
            arrived_s = arrivals.get(request.client_id, iteration.now_s)
            try:
                self._add(request, guides, arrived_s, loaded, images, facts, iteration)
            except Refused as refusal:
                error = refusal.code, refusal.text
                iteration.output.append(Row(request.client_id, final=True, error=error))

    def cancel(self, client_ids: Iterable[int], iteration: Iteration) -> None:
        """Ends requests now; ids that are unknown or finished are ignored."""
        self._requests.cancel(client_ids, iteration)

    def cancel_all(self, iteration: Iteration) -> None:
        """Ends every request."""
        self._requests.cancel_all(iteration)

    def finish(self, iteration: Iteration) -> None:
        """Waits for what is in flight: it uses memory that may be let go of next."""
        self._collect_all(iteration)

    def step(self, iteration: Iteration) -> None:
        """Plans and launches one iteration, then collects the oldest in flight and reports it.

        With a runner of depth 2 that is the one before, so that this planning cost the device no time.
        Where a token cannot be chosen before the last ones are known, the model computes while they are
        collected. The choice comes after the next iteration is planned, while the masks of guides are
        computed, and before it is launched.

        What nobody waits for is never ahead of what is collected, so that a client who comes waits for the
        rest of one iteration at most, and for less with a runner that gives it up.
        """
        self._settle()
        branches, late = self._requests.waits_for_tokens()
        if branches:
            self._collect_all(iteration)
        launched = self._plan(iteration, late)
        is_idle = launched is not None and self._planner.is_idle(launched[0])
        if launched is not None:
            work, rows = launched
            if is_idle:
                self._collect_all(iteration)
                work = replace(work, is_awaited=iteration.is_awaited)
            self._choose_late()
            launched_s = iteration.clock()
            pending = self._runner.launch(work)
            if pending is None:
                # It is planned again, with whatever came.
                self._planner.undo(work, rows)
                iteration.give_up()
                self._begin_fetches()
                return
            if work.late:
                self._collect_all(iteration)
                self._unchosen = pending
            self._in_flight.append(_InFlight(work, rows, pending, launched_s))
        self._begin_fetches()
        handover = self.handover
        self._is_stalled = (
            launched is None and not self._in_flight and handover is not None and handover.is_waiting
        )
        if is_idle or (self._in_flight and launched is None) or len(self._in_flight) >= self._runner.depth:
            self._collect(iteration)

    def _add(
        self,
        request: Request,
        guides: Mapping[int, Guide | Refused],
        arrived_s: float,
        loaded: Mapping[int, Loaded],
        images: Mapping[int, ImagePrompt | Refused],
        facts: Mapping[int, PromptFacts],
        iteration: Iteration,
    ) -> None:
        client_id = request.client_id
        if client_id in self._requests:
            raise Refused(StatusCode.INVALID_ARGUMENT, f"client id `{client_id}` is in use; choose another")
        guide, adapter = guides.get(client_id), loaded.get(client_id)
        waiting, own = self.num_waiting, images.get(client_id)
        given, phase = request, None
        if self.handover is not None:
            request, phase = self.handover.read(given)
        known = facts.get(client_id)
        state = self._intake.receive(request, guide, arrived_s, adapter, waiting, own, known)
        if self.handover is None or phase is None:
            self._requests.add(state)
            return
        try:
            reason = self.handover.continues(state, given, phase)
        except Refused:
            self._requests.release(state)
            raise
        self._requests.add(state)
        [sequence] = state.unfinished
        if reason is not None:
            self._requests.finish(sequence, reason, iteration)
            return
        if sequence.unsent and request.streaming and not sequence.tells_of_the_prompt:
            iteration.output.append(sequence.tell(FinishReason.NOT_FINISHED))
        fetch = self.handover.expect(state, phase)
        if fetch is not None:
            self._planner.fetch(sequence, fetch)

    def _settle(self) -> None:
        """Takes what other workers sent, and gives back what none has fetched."""
        if self.handover is not None:
            for fetch in self.handover.settle():
                self._planner.arrive(fetch)

    def _begin_fetches(self) -> None:
        if self.handover is not None:
            self.handover.begin(self._planner.take_expecting())

    def _choose_late(self) -> None:
        """Chooses the tokens of the latest work, if that is still to be done."""
        if self._unchosen is not None:
            pending, self._unchosen = self._unchosen, None
            self._runner.choose(pending)

    def _plan(self, iteration: Iteration, late: bool) -> tuple[Work, LaneRows] | None:
        """Chooses who runs next and notes it as done; None when nobody can run."""
        self.pool.refresh(iteration.now_s)
        plan = self._planner.plan(iteration.now_s)
        if plan.schedule.paused and self._in_flight:
            # Who pauses must know all its tokens; with them some may end, and free what was missing.
            self._collect_all(iteration)
            plan = self._planner.plan(iteration.now_s)
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
        oldest = self._in_flight.popleft()
        work, rows = oldest.work, oldest.rows
        outcome = self._runner.collect(oldest.pending)
        begun_s, self._collected_s = max(oldest.launched_s, self._collected_s), iteration.clock()
        tokens = sum(chunk.stop - chunk.first for chunk in work.chunks)
        self._planner.pace.note(tokens, self._collected_s - begun_s)
        reports.take_prompts(work, outcome)
        choosing, first = work.choosing(), len(rows.sequences)
        looked_at: Iterable[int] = range(len(choosing))
        parted: dict[int, SequenceState] = {}
        if first:
            taken = self._planner.lanes.take(rows, outcome)
            iteration.generated_tokens += taken.count
            iteration.decoded_requests += taken.count
            iteration.output += taken.rows
            looked_at = [*taken.odd, *range(first, len(choosing))]
        for row in looked_at:
            sequence, token = choosing[row], int(outcome.tokens[row])
            if sequence.ended or sequence.key in parted:
                continue  # it ended, was cancelled or went another way while this row was in flight
            if sequence.record is not None:
                reports.record(sequence, token, row, outcome)
            iteration.generated_tokens += 1
            self._requests.take(sequence, token, iteration)
            if sequence.drafts is None:
                iteration.decoded_requests += 1
            elif not self._branches.follow(choosing, row, token, iteration):
                parted[sequence.key] = sequence
        self._branches.part([one for one in parted.values() if not one.ended], iteration)
        self._branches.choose(work, outcome, iteration)
        for chunk in work.chunks:
            if chunk.sequence.owner.admitted.max_tokens == 0 and chunk.stop == len(chunk.sequence.context):
                self._requests.finish(chunk.sequence, FinishReason.LENGTH, iteration)
