"""The runner on NumPy: an iteration is computed where it is launched.

Owns the ragged layout of an iteration's rows and which hidden states become logits. Knows nothing of
queues, ends of sequences or responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from inflight.executors.reference.core import log_probs
from inflight.executors.reference.core.drafts import Checks
from inflight.executors.reference.core.runner import (
    KNOWN,
    NO_ROWS,
    Chunk,
    LogProbs,
    Outcome,
    Pending,
    Probe,
    Work,
)
from inflight.executors.reference.core.sampler import SamplerState, sample
from inflight.executors.reference.core.sequence import SequenceState
from inflight.executors.reference.model.array_types import Float32, Int
from inflight.executors.reference.parallel.team import Leader

from .batch import Span, build_batch
from .cache import PagedCache
from .hearing import NumpyHearing
from .model import NumpyModel
from .sight import NumpySight
from .steps import LedSteps, NumpySteps

#: Rows of prompt logits held at once, so that a long prompt with a large vocabulary stays in memory.
_PROMPT_LOGIT_ROWS = 128


@dataclass(slots=True)
class _Launched:
    """What an iteration gives, and the rows whose tokens are to be chosen or were."""

    outcome: Outcome
    choosing: Sequence[SequenceState]
    #: Their tokens' places in their outputs: by the time of the choice, the next ones may be planned.
    numbers: Sequence[int]
    logits: Float32


class NumpyRunner:
    """Implements `core.runner.Runner`. ``depth`` 2 is for tests: planning as for a device."""

    def __init__(
        self,
        model: NumpyModel,
        cache: PagedCache,
        depth: int = 1,
        leader: Leader | None = None,
        sight: NumpySight | None = None,
        hearing: NumpyHearing | None = None,
    ) -> None:
        """With a ``leader``, other ranks hold parts of the model and of the cache; ``sight`` is that of a
        model that sees, ``hearing`` that of one that hears."""
        self.depth = depth
        self._steps = NumpySteps(model, cache) if leader is None else LedSteps(model, cache, leader)
        self._size = cache.tokens_per_block
        self._windowed = None not in model.config.windows
        self._sink_tokens = model.config.sink_tokens
        self._vocab_size = model.config.vocab_size
        self._sight = sight
        self._hearing = hearing
        self._keeps_places = model.is_batch_invariant
        self._last_tokens: Sequence[int] = ()

    def follows(self, _: SamplerState) -> bool:
        return False

    def checks(self, _: SamplerState) -> Checks:
        return Checks.BY_LOGITS

    def launch(self, work: Work) -> Pending:
        launched = self._compute(work)
        if not work.late:
            self.choose(launched)
        return launched

    def choose(self, pending: Pending) -> None:
        launched = cast(_Launched, pending)
        choosing, logits, outcome = launched.choosing, launched.logits, launched.outcome
        if choosing:
            tokens = sample(logits, [one.sampler for one in choosing], launched.numbers)
            kept = {row: logits[row] for row, one in enumerate(choosing) if one.keeps_logits}
            recorded, reported = _report(choosing, logits, tokens)
            launched.outcome = replace(
                outcome, tokens=tokens, recorded=recorded, log_probs=reported, logits=kept
            )
        self._last_tokens = launched.outcome.tokens

    def _compute(self, work: Work) -> _Launched:
        for copy in work.copies:
            self._steps.copy(*copy)
        # Branches of one token are rows like those of generation; longer ones are like chunks of a prompt.
        single = [probe for probe in work.probes if len(probe.tokens) == 1]
        longer = [probe for probe in work.probes if len(probe.tokens) > 1]
        batch = build_batch(
            [
                Span(
                    [token if source == KNOWN else self._last_tokens[source]],
                    position,
                    one.blocks,
                    one.owner.adapter,
                    turned=None if self._sight is None else _turned(one, position, position + 1),
                    heard=None if self._hearing is None else self._hearing.of(one),
                )
                for one, (token, source, position, *_) in zip(
                    work.generation, work.inputs.T.tolist(), strict=True
                )
            ]
            + [self._probe_span(probe) for probe in single],
            [self._chunk_span(chunk) for chunk in work.chunks]
            + [self._probe_span(probe) for probe in longer],
            self._size,
            windowed=self._windowed,
            sink_tokens=self._sink_tokens,
            vocab_size=self._vocab_size,
            keeps_places=self._keeps_places,
            sees=self._sight is not None,
        )
        # Rows that choose a token come first, then those that only report a prompt, then those whose
        # logits the host wants.
        choosing_rows = list(range(len(work.generation)))
        prompt_rows: list[int] = []
        wanted: list[range] = []
        for chunk, span in zip(work.chunks, batch.context, strict=False):
            if chunk.chooses:
                choosing_rows.append(span.stop - 1)
            prompt_rows.extend(range(span.start, span.start + chunk.reported))
            if chunk.logit_rows:
                wanted.append(range(span.stop - chunk.logit_rows, span.stop))
        singles = iter(range(len(work.generation), len(work.generation) + len(single)))
        spans = iter(batch.context[len(work.chunks) :])
        for probe in work.probes:
            if len(probe.tokens) == 1:
                row = next(singles)
                wanted.append(range(row, row + 1))
            else:
                span = next(spans)
                wanted.append(range(span.start, span.stop))
        wanted_rows = [row for rows in wanted for row in rows]
        pooled = {
            place: range(
                span.start + chunk.pooled.start - chunk.first, span.start + chunk.pooled.stop - chunk.first
            )
            for place, (chunk, span) in enumerate(zip(work.chunks, batch.context, strict=False))
            if chunk.pooled
        }
        pooled_rows = [row for part in pooled.values() for row in part]
        rows = np.array(choosing_rows + prompt_rows + wanted_rows + pooled_rows, dtype=np.int64)
        hidden = self._steps.forward(batch, rows)
        reported_rows = len(choosing_rows) + len(prompt_rows)
        prompts = self._report_prompts(work.chunks, hidden[len(choosing_rows) : reported_rows])
        choosing = work.choosing()
        logits = self._steps.logits(hidden[: len(choosing)]) if choosing else hidden[:0]
        given: list[Float32] = []
        offset = reported_rows
        for part in wanted:
            given.append(self._steps.logits(hidden[offset : offset + len(part)]))
            offset += len(part)
        states: dict[int, Float32] = {}
        for place, part in pooled.items():
            states[place] = hidden[offset : offset + len(part)]
            offset += len(part)
        places = [place for place, chunk in enumerate(work.chunks) if chunk.logit_rows]
        chunk_logits = dict(zip(places, given, strict=False))
        outcome = Outcome(
            prompts=prompts, chunk_logits=chunk_logits, probe_logits=given[len(places) :], hidden=states
        )
        return _Launched(outcome, choosing, [one.launched - 1 for one in choosing], logits)

    def collect(self, pending: Pending) -> Outcome:
        return cast(_Launched, pending).outcome

    def _report_prompts(self, chunks: Sequence[Chunk], hidden: Float32) -> dict[int, LogProbs]:
        """The log probabilities of the prompt tokens that the rows of ``hidden`` report, chunk by chunk."""
        prompts: dict[int, LogProbs] = {}
        offset = 0
        for place, chunk in enumerate(chunks):
            if chunk.prompt_width is None:
                continue
            following = np.asarray(chunk.sequence.prompt[chunk.first + 1 : chunk.stop + 1], dtype=np.int64)
            parts = []
            for start in range(0, max(1, chunk.reported), _PROMPT_LOGIT_ROWS):
                stop = min(chunk.reported, start + _PROMPT_LOGIT_ROWS)
                logits = self._steps.logits(hidden[offset + start : offset + stop])
                parts.append(log_probs.chosen_and_best(logits, following[start:stop], chunk.prompt_width))
            values, ids, best = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            prompts[place] = LogProbs(values, ids, best)
            offset += chunk.reported
        return prompts

    def _chunk_span(self, chunk: Chunk) -> Span:
        owner = chunk.sequence.owner
        return Span(
            chunk.tokens,
            chunk.first,
            chunk.sequence.blocks,
            owner.adapter,
            owner.admitted.extras.prompt_tuning,
            None if self._sight is None else self._sight.embedded(chunk),
            _turned(chunk.sequence, chunk.first, chunk.stop),
            None if self._hearing is None else self._hearing.of(chunk.sequence),
        )

    def _probe_span(self, probe: Probe) -> Span:
        first = probe.first
        turned = _turned(probe.sequence, first, first + len(probe.tokens))
        heard = None if self._hearing is None else self._hearing.of(probe.sequence)
        return Span(
            probe.tokens, first, probe.blocks, probe.sequence.owner.adapter, turned=turned, heard=heard
        )


def _turned(sequence: SequenceState, first: int, stop: int) -> Int | None:
    """`Span.turned` of a sequence's tokens."""
    images = sequence.owner.images
    return None if images is None else images.turned(first, stop)


def _report(
    sequences: Sequence[SequenceState], logits: Float32, tokens: Sequence[int]
) -> tuple[Int, LogProbs | None]:
    """The rows that keep a record, and their log probabilities: one computation, as wide as the widest."""
    rows = np.array([row for row, one in enumerate(sequences) if one.record is not None], dtype=np.int64)
    if not len(rows):
        return NO_ROWS, None
    width = max(sequences[row].top_width for row in rows.tolist())
    chosen = np.array(tokens, dtype=np.int64)[rows]
    return rows, LogProbs(*log_probs.chosen_and_best(logits[rows], chosen, width))
