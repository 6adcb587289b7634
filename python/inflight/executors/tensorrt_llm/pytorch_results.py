"""Results of `LLM.generate_async` into rows. Each result object is cumulative and the same after every
response, so this keeps its own place in each sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inflight.executors.base import FinishReason, NamedTensor
from inflight.executors.columns import Columns, Top
from inflight.executors.tensorrt_llm import disaggregation
from inflight.executors.tensorrt_llm.convert import pack_context_phase
from inflight.executors.tensorrt_llm.results import (
    ENDED_EARLY,
    Active,
    Unusable,
    as_float32,
    check_prompt_logits,
    float_output,
    float_tensor,
    perf_tensors,
    prompt_from_logits,
)

#: `stop` alone is the end token; with a stop reason it is a stop word.
_REASONS = {
    "length": FinishReason.LENGTH,
    "timeout": FinishReason.TIMED_OUT,
    "cancelled": FinishReason.CANCELLED,
    # A context-only request.
    "not_finished": FinishReason.LENGTH,
}


class Progress:
    """How far the rows of one request have come."""

    def __init__(self, active: Active, vocab_size: int) -> None:
        self.active = active
        self._vocab_size = vocab_size
        self._sent: dict[int, int] = {}
        self._ended: set[int] = set()
        #: Whether the tokens that the cache had, and the prompt's logits, have been reported.
        self._reported_prompt = False
        # Of a prompt with images it would be those of what the model's processor made of it.
        self._reported_cached = active.has_images
        self.final = False
        #: Tokens of a sequence, prompt included, that ended before it had what was asked for.
        self.cut_at: int | None = None

    def read(self, result: Any, rows: Columns) -> None:
        """Appends what is new in the result. Errors: `Unusable`."""
        if self.final:
            return
        finished = bool(result.finished)
        outputs = [output for output in result.outputs if output.index not in self._ended]
        for place, output in enumerate(outputs):
            self._sequence(result, output, finished, finished and place == len(outputs) - 1, rows)
        if finished and not self.final:
            self.cancel(rows)

    def cancel(self, rows: Columns) -> None:
        """The last row of a request whose result said no more."""
        if not self.final:
            self.final = True
            rows.add(self.active.client_id, (), int(FinishReason.CANCELLED), True)

    def _sequence(self, result: Any, output: Any, finished: bool, final: bool, rows: Columns) -> None:
        active, index = self.active, output.index
        reason = self._reason(output)
        if not reason and finished:
            reason = int(self._unreported(output.token_ids))
        # Beams are rewritten as they grow: only the end counts.
        sent = self._sent.get(index, 0)
        if active.beams > 1 and not reason:
            return
        tokens = list(output.token_ids[sent:])
        self._sent[index] = sent + len(tokens)
        if not tokens and not reason:
            return
        context = result.context_logits if active.wants_prompt_logits else None
        prompt_is_due = context is not None or (final and reason not in ENDED_EARLY)
        if active.wants_prompt_logits and not self._reported_prompt and prompt_is_due:
            check_prompt_logits(context, active)
        log_probs, top = self._log_probs(output.logprobs, sent, tokens)
        row = rows.add(active.client_id, tokens, reason, final, index, log_probs, top)
        if reason:
            self._ended.add(index)
            self._note_cut(reason, len(output.token_ids))
        self.final = final
        if context is not None and not self._reported_prompt:
            self._reported_prompt = True
            if active.prompt_width is not None:
                prompt_from_logits(context, active, row, rows, self._vocab_size)
            if active.wants_context_logits:
                rows.tensor(row, float_tensor("context_logits", context))
        if active.wants_generation_logits:
            self._generation_logits(result, output, row, rows)
        self._extras(result, output, row, bool(reason), rows)

    def _note_cut(self, reason: int, count: int) -> None:
        """Notices that TensorRT-LLM lowered `max_tokens`, which it does without a word."""
        active = self.active
        asked_for_more = reason == FinishReason.LENGTH and count < active.max_tokens
        if asked_for_more and not active.context_only and not active.has_images:
            self.cut_at = active.prompt_length + count

    def _log_probs(
        self, given: Sequence[Any] | None, sent: int, tokens: Sequence[int]
    ) -> tuple[Sequence[float] | None, Top | None]:
        """Of the newest tokens, each by its own id: their order differs between versions, and the list may be
        ahead of the tokens. Errors: `Unusable` where one is missing."""
        active = self.active
        if not tokens or not (active.log_probs or active.top_width):
            return None, None
        entries = (given or ())[sent : sent + len(tokens)]
        if len(entries) < len(tokens):
            raise Unusable(
                f"TensorRT-LLM returned the log probabilities of `{len(entries)}` tokens for `{len(tokens)}`"
            )
        values = [_value_of(entry, token) for entry, token in zip(entries, tokens, strict=True)]
        top = _best(entries, active.top_width) if active.top_width else None
        return (values if active.log_probs else None), top

    def _unreported(self, tokens: Sequence[int]) -> FinishReason:
        """Why a sequence ended of which the result does not say: of several, it reports the last one's."""
        active = self.active
        if active.context_only:
            return FinishReason.LENGTH
        if tokens and tokens[-1] == active.end_id:
            return FinishReason.END_ID
        if any(list(tokens[-len(word) :]) == word for word in active.stop_words):
            return FinishReason.STOP_WORDS
        return FinishReason.LENGTH if len(tokens) >= active.max_tokens else FinishReason.END_ID

    @staticmethod
    def _reason(output: Any) -> int:
        if output.finish_reason == "stop":
            return int(FinishReason.END_ID if output.stop_reason is None else FinishReason.STOP_WORDS)
        return int(_REASONS.get(output.finish_reason, FinishReason.NOT_FINISHED))

    def _extras(self, result: Any, output: Any, row: int, ended: bool, rows: Columns) -> None:
        active = self.active
        if not self._reported_cached:
            self._reported_cached = True
            cached = getattr(result, "cached_tokens", None)
            if cached:
                rows.cached(row, int(cached))
        if not ended:
            return
        # Fields that came with later versions than 1.0.
        metrics = getattr(output, "request_perf_metrics", None)
        if metrics is not None:
            perf_tensors(metrics, row, rows)
        phase = getattr(output, "disaggregated_params", None) if active.context_only else None
        if phase is not None:
            blob = pack_context_phase(
                phase.first_gen_tokens or [],
                phase.ctx_request_id or 0,
                phase.opaque_state,
                phase.draft_tokens,
                disaggregation.further_fields(phase),
            )
            rows.tensor(row, NamedTensor("context_phase_params", "UINT8", (len(blob),), blob))

    def _generation_logits(self, result: Any, output: Any, row: int, rows: Columns) -> None:
        """Those of the row's tokens, `[beam, token, vocab]`: all, because they are not streamed."""
        if self.active.beams > 1:
            if self.final:
                beams = [one.generation_logits for one in result.outputs]
                if all(one is not None for one in beams):
                    rows.tensor(row, float_output("generation_logits", _stacked(beams)))
            return
        if output.generation_logits is not None:
            rows.tensor(row, float_output("generation_logits", _stacked([output.generation_logits])))


def _value_of(entry: Any, token: int) -> float:
    """The log probability of the token that was sampled. Later versions can give it alone, as a number."""
    if not isinstance(entry, Mapping):
        return float(entry)
    if token not in entry:
        raise Unusable(f"TensorRT-LLM returned no log probability of the sampled token `{token}`")
    return _number(entry[token])


def _best(entries: Sequence[Any], width: int) -> Top:
    """The best `width` of each token, best first: the sampled one may be among them or come after them."""
    ids: list[int] = []
    values: list[float] = []
    for entry in entries:
        found = entry if isinstance(entry, Mapping) else {}
        best = sorted(((_number(value), token) for token, value in found.items()), reverse=True)[:width]
        if len(best) < width:
            raise Unusable(f"TensorRT-LLM returned `{len(best)}` alternatives of a token, not `{width}`")
        ids += [int(token) for _, token in best]
        values += [value for value, _ in best]
    return width, ids, values


def _number(value: Any) -> float:
    return float(getattr(value, "logprob", value))


def _stacked(sequences: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Logits `[token, vocab]` of each sequence as one array, with zeros behind shorter ones."""
    arrays = [as_float32(one) for one in sequences]
    longest = max(len(one) for one in arrays)
    return np.stack([np.pad(one, ((0, longest - len(one)), (0, 0))) for one in arrays])
