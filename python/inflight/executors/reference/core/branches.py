"""Sequences that choose several tokens at a time: those with draft tokens, and beam searches.

Owns what follows from the logits of their branches or from the tokens of their rows, and where further
guesses come from. `drafts` checks guesses, `beams` takes the steps of a search, and `requests` owns what a
token means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from inflight.executors.reference.model.array_types import Float32

from . import stop
from .beams import BeamSearch
from .drafts import Drafts
from .iteration import Iteration
from .log_probs import chosen_and_best
from .probabilities import log_softmax
from .requests import Requests
from .rows import Row, sums_of
from .runner import Outcome, Work
from .sequence import SequenceState


class Proposer(Protocol):
    """Guesses for many sequences at once: a draft model."""

    def propose(self, sequences: Sequence[SequenceState]) -> list[Sequence[int]]:
        """The tokens that may come next, of each."""


class Branches:
    """Chooses the tokens of such sequences among ``requests``."""

    def __init__(self, requests: Requests, proposer: Proposer | None) -> None:
        self._requests = requests
        #: A draft model for every request; None: there is none.
        self._proposer = proposer

    def choose(self, work: Work, outcome: Outcome, iteration: Iteration) -> None:
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
                if not sequence.ended and sequence.drafts.is_out and not sequence.owner.is_embedded:
                    drafting.append(sequence)
        if drafting:
            self.draft(drafting, iteration)

    def follow(self, choosing: Sequence[SequenceState], row: int, token: int, iteration: Iteration) -> bool:
        """Notes the token of a row whose sequence has guesses that are checked by row: whether the next row
        computed what follows."""
        sequence = choosing[row]
        if sequence.drafts is None:
            return False
        guessed = not sequence.drafts.is_out
        if row == 0 or choosing[row - 1] is not sequence:
            iteration.decoded_requests += 1
            iteration.requests_with_drafts += guessed
        holds = sequence.drafts.note(token)
        iteration.draft_tokens += guessed
        iteration.accepted_tokens += holds
        return holds and row + 1 < len(choosing) and choosing[row + 1] is sequence

    def part(self, sequences: Sequence[SequenceState], iteration: Iteration) -> None:
        """What was computed beyond the tokens of these sequences does not count; gets new guesses."""
        for one in sequences:
            one.launched = len(one.sampler.generated)
        drafting = [
            one
            for one in sequences
            if one.drafts is not None and one.drafts.is_out and not one.owner.is_embedded
        ]
        if drafting:
            self.draft(drafting, iteration)

    def draft(self, sequences: Sequence[SequenceState], iteration: Iteration) -> None:
        """Gets guesses for sequences that have none."""
        if self._proposer is None:
            for one in sequences:
                if one.drafts is not None:
                    one.drafts.propose(one.prompt, one.sampler.generated)
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
            self._requests.take(sequence, token, iteration)
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
                self._requests.finish(sequence, beam.reason, iteration)
                if request.output_config.return_log_probs:
                    row = iteration.output[-1]
                    assert isinstance(row, Row)
                    row.metrics = [*row.metrics, sums_of([one.log_prob for one in answers])]
