"""The requests in flight, and what a token means for its sequence: a row, an end, or the end of its request.

Owns which requests there are, until their last row, and which of their sequences need their tokens before
the next iteration. Who runs and where is the `planner`'s. Does not know how a token is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable

from inflight.executors.base import FinishReason, StatusCode

from . import stop
from .adapters import Adapters
from .context_phase import CONTEXT_ONLY
from .drafts import Checks
from .handover import Handover
from .iteration import Iteration
from .planner import Planner
from .rows import Row
from .runner import Runner
from .sequence import RequestState, SequenceState


class Requests:
    """Those that the engine has taken, by client id."""

    def __init__(
        self,
        planner: Planner,
        runner: Runner,
        adapters: Adapters | None,
        handover: Handover | None = None,
    ) -> None:
        self._handover = handover
        self._planner = planner
        self._runner = runner
        self._adapters = adapters
        self._by_client_id: dict[int, RequestState] = {}
        #: Those that need their history, or did when they came: most do not, and are not asked again.
        self._attentive: dict[int, SequenceState] = {}
        #: Those that choose several tokens at a time, until their end.
        self._branching: set[int] = set()

    def __contains__(self, client_id: int) -> bool:
        return client_id in self._by_client_id

    def add(self, state: RequestState) -> None:
        """Takes a request and queues its sequences."""
        self._by_client_id[state.request.client_id] = state
        for sequence in state.unfinished:
            self._settle_checks(sequence)
            if sequence.branches:
                self._branching.add(sequence.key)
            elif sequence.needs_history and not self._runner.follows(sequence.sampler):
                self._attentive[sequence.key] = sequence
            self._planner.push(sequence)

    def _settle_checks(self, sequence: SequenceState) -> None:
        """Decides who checks a sequence's guesses, or that it has none but those that its client sent."""
        drafts = sequence.drafts
        if drafts is None or drafts.needs_logits:
            return
        checks = self._runner.checks(sequence.sampler)
        if checks is not Checks.NOT:
            drafts.checks = checks
        elif drafts.external is None:
            sequence.drafts = None

    def cancel(self, client_ids: Iterable[int], iteration: Iteration) -> None:
        """Ends requests now; ids that are unknown or finished are ignored."""
        for client_id in client_ids:
            state = self._by_client_id.get(client_id)
            if state is None:
                continue
            for sequence in list(state.unfinished):
                self.finish(sequence, FinishReason.CANCELLED, iteration)

    def cancel_all(self, iteration: Iteration) -> None:
        """Ends every request."""
        self.cancel(list(self._by_client_id), iteration)

    def waits_for_tokens(self) -> tuple[bool, bool]:
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

    def take(self, sequence: SequenceState, token: int, iteration: Iteration) -> None:
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
            self.finish(sequence, reason, iteration)
        elif request.streaming:
            iteration.output.append(sequence.tell(reason))

    def finish(self, sequence: SequenceState, reason: FinishReason, iteration: Iteration) -> None:
        """Reports a sequence's last row and frees all that it held."""
        if sequence.ended:
            return
        sequence.end()
        owner = sequence.owner
        owner.unfinished.remove(sequence)
        row = sequence.tell(reason)
        row.final = not owner.unfinished
        phase = owner.admitted.extras.phase
        if (
            self._handover is not None
            and phase is not None
            and phase.kind == CONTEXT_ONLY
            and reason != FinishReason.CANCELLED
        ):
            row.metrics = [*row.metrics, self._handover.leave(sequence, row, reason)]
        iteration.output.append(row)
        iteration.completed += 1
        self._remove(sequence)
        if row.final:
            self._forget(owner)

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

    def _forget(self, owner: RequestState) -> None:
        """Forgets a request whose last row was reported."""
        del self._by_client_id[owner.request.client_id]
        self.release(owner)

    def release(self, owner: RequestState) -> None:
        """Gives back what a request holds besides its sequences."""
        if owner.adapter is not None and self._adapters is not None:
            self._adapters.release(owner.adapter)
