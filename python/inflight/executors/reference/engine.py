"""The engine: requests in, one iteration at a time, rows out.

Owns the requests in flight and ties scheduler, cache, model and sampler together. Single-threaded and
clockless; threads, waiting and time belong to `executor`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from inflight.executors.base import FinishReason, Request, StatusCode

from . import log_probs, scheduler, stop
from .admission import Bounds, Refused, admit
from .batch import Span, build_batch
from .cache import BlockPool, PagedCache
from .model import LlamaModel
from .rows import PromptRecord, Row, TokenRecord
from .sampler import SamplerState, sample
from .sequence import RequestState, SequenceState

#: Rows of prompt logits held at once, so that a long prompt with a large vocabulary stays in memory.
_PROMPT_LOGIT_ROWS = 128


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
    """In-flight batching over one model. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        model: LlamaModel,
        cache: PagedCache,
        pool: BlockPool,
        limits: scheduler.Limits,
        bounds: Bounds,
    ) -> None:
        self._model = model
        self._cache = cache
        self.pool = pool
        self.limits = limits
        self._bounds = bounds
        self._requests: dict[int, RequestState] = {}
        # In order of arrival and of admission; dictionaries, so that a cancel finds its sequences at once.
        self._waiting: dict[int, SequenceState] = {}
        self._active: dict[int, SequenceState] = {}
        self._keys = itertools.count()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_active(self) -> int:
        return len(self._active)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._active)

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
        """Runs one iteration: admits, runs the model once over all rows, samples, and reports."""
        plan = scheduler.schedule(
            (
                scheduler.Waiting(one.key, len(one.prompt), one.owner.admitted.blocks)
                for one in self._waiting.values()
            ),
            [scheduler.Active(one.key, one.context_left) for one in self._active.values()],
            self.pool.available,
            self.limits,
        )
        for key in plan.admitted:
            sequence = self._waiting.pop(key)
            sequence.table = self.pool.reserve(sequence.owner.admitted.blocks)
            self._active[key] = sequence
        generating = [self._active[key] for key in plan.generation]
        chunks = [(self._active[key], tokens) for key, tokens in plan.context]
        if not generating and not chunks:
            return
        self._run(generating, chunks, iteration)
        iteration.admitted = len(plan.admitted)
        iteration.context_requests = len(chunks)
        iteration.generation_requests = len(generating)
        iteration.context_tokens = sum(tokens for _, tokens in chunks)

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

    def _run(
        self, generating: list[SequenceState], chunks: list[tuple[SequenceState, int]], iteration: Iteration
    ) -> None:
        generation_spans = [
            self._span(one, one.sampler.generated[-1:], len(one.prompt) + len(one.sampler.generated) - 1)
            for one in generating
        ]
        context_spans = [
            self._span(one, one.prompt[one.context_done : one.context_done + tokens], one.context_done)
            for one, tokens in chunks
        ]
        batch = build_batch(generation_spans, context_spans, self._cache.tokens_per_block)

        # Rows whose logits choose a token come first, then those that only tell of a prompt.
        choosing = list(generating)
        output_rows = list(range(len(generating)))
        prompt_rows: list[int] = []
        recorded: list[tuple[SequenceState, int, int]] = []
        for (sequence, tokens), span in zip(chunks, batch.context, strict=True):
            if sequence.index == 0 and sequence.owner.prompt_record is not None:
                # The row of position p tells of the token at p + 1; the prompt's last row tells of none.
                stop_position = min(sequence.context_done + tokens, len(sequence.prompt) - 1)
                recorded.append((sequence, sequence.context_done, stop_position))
                prompt_rows.extend(range(span.start, span.start + stop_position - sequence.context_done))
            sequence.context_done += tokens
            if sequence.context_left == 0:
                choosing.append(sequence)
                output_rows.append(span.stop - 1)

        hidden = self._model.forward(batch, self._cache, np.array(output_rows + prompt_rows, dtype=np.int64))
        self._record_prompts(recorded, hidden[len(output_rows) :])
        choosing_rows = [row for row, one in enumerate(choosing) if one.owner.admitted.max_tokens > 0]
        if choosing_rows:
            logits = self._model.logits(hidden[choosing_rows])
            chosen = [choosing[row] for row in choosing_rows]
            tokens_chosen = sample(logits, [one.sampler for one in chosen])
            _record_tokens(chosen, logits, tokens_chosen)
            iteration.generated_tokens = len(tokens_chosen)
            for sequence, token in zip(chosen, tokens_chosen, strict=True):
                self._take(sequence, token, iteration)
        for sequence in choosing:
            if sequence.owner.admitted.max_tokens == 0:
                self._finish(sequence, FinishReason.LENGTH, iteration)

    def _span(self, sequence: SequenceState, tokens: Sequence[int], first_position: int) -> Span:
        table = sequence.table
        if table is None:
            raise RuntimeError("a sequence without blocks was scheduled")
        self.pool.grow(table, first_position + len(tokens))
        return Span(tokens, first_position, table.blocks)

    def _record_prompts(self, recorded: list[tuple[SequenceState, int, int]], hidden: np.ndarray) -> None:
        """Fills in the log probabilities of the prompt tokens that the rows of ``hidden`` tell of."""
        offset = 0
        for sequence, first, last in recorded:
            record = sequence.owner.prompt_record
            if record is None:
                continue
            for start in range(first, last, _PROMPT_LOGIT_ROWS):
                end = min(last, start + _PROMPT_LOGIT_ROWS)
                logits = self._model.logits(hidden[offset : offset + end - start])
                told = np.asarray(sequence.prompt[start + 1 : end + 1], dtype=np.int64)
                values, ids, best = log_probs.chosen_and_best(logits, told, record.top_ids.shape[1])
                record.values[start + 1 : end + 1] = values
                record.top_ids[start + 1 : end + 1] = ids
                record.top_values[start + 1 : end + 1] = best
                offset += end - start

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
                for told in (
                    sequence.record.log_probs,
                    sequence.record.top_ids,
                    sequence.record.top_log_probs,
                ):
                    told.pop()
        else:
            sequence.unsent.append(token)
        if reason != FinishReason.NOT_FINISHED:
            self._finish(sequence, reason, iteration)
        elif request.streaming:
            iteration.rows.append(sequence.row(reason))

    def _finish(self, sequence: SequenceState, reason: FinishReason, iteration: Iteration) -> None:
        """Reports a sequence's last row and frees all that it held."""
        owner = sequence.owner
        owner.unfinished.remove(sequence)
        row = sequence.row(reason)
        row.final = not owner.unfinished
        iteration.rows.append(row)
        iteration.completed += 1
        self._waiting.pop(sequence.key, None)
        self._active.pop(sequence.key, None)
        if sequence.table is not None:
            self.pool.release(sequence.table)
            sequence.table = None
        if row.final:
            del self._requests[owner.request.client_id]


def _record_tokens(sequences: list[SequenceState], logits: np.ndarray, tokens: list[int]) -> None:
    """Notes log probabilities for the rows that asked; one computation, as wide as the widest."""
    rows = [row for row, one in enumerate(sequences) if one.record is not None]
    if not rows:
        return
    widths = [sequences[row].owner.request.output_config.num_top_log_probs for row in rows]
    chosen = np.array([tokens[row] for row in rows], dtype=np.int64)
    values, ids, best = log_probs.chosen_and_best(logits[rows], chosen, max(widths))
    for place, row in enumerate(rows):
        record = sequences[row].record
        if record is not None:
            record.log_probs.append(float(values[place]))
            record.top_ids.append(ids[place, : widths[place]])
            record.top_log_probs.append(best[place, : widths[place]])
