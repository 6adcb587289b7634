"""Results of `LLM.generate_async` into rows. Each result object is cumulative and the same after every
response, so this keeps its own place in each sequence.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from inflight.executors.base import FinishReason, NamedTensor
from inflight.executors.columns import Columns, Top
from inflight.executors.tensorrt_llm.convert import pack_context_phase
from inflight.executors.tensorrt_llm.results import (
    Active,
    as_float32,
    float_output,
    float_tensor,
    perf_tensors,
)

#: `stop` alone is the end token; with a stop reason it is a stop word.
_REASONS = {
    "length": FinishReason.LENGTH,
    "timeout": FinishReason.TIMED_OUT,
    "cancelled": FinishReason.CANCELLED,
    # A context-only request.
    "not_finished": FinishReason.LENGTH,
}


def opened(result: Any, deserialize: Callable[[bytes], Any] | None) -> Any:
    """The fields of a tapped response's result, which the engine's loop leaves as bytes.

    TensorRT-LLM's own object stays closed: some versions open it themselves, whether it is open or not.
    """
    packed = getattr(result, "_result", None)
    return deserialize(packed) if deserialize is not None and isinstance(packed, bytes) else result


class Progress:
    """How far the rows of one request have come."""

    def __init__(self, active: Active) -> None:
        self._active = active
        self._sent: dict[int, int] = {}
        self._ended: set[int] = set()
        #: Sequence -> the logits last seen: a response of another sequence leaves them.
        self._logits: dict[int, Any] = {}
        self._told = False
        self.final = False

    def read(self, result: Any, rows: Columns) -> None:
        """Appends what is new in the result."""
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
            rows.add(self._active.client_id, (), int(FinishReason.CANCELLED), True)

    def _sequence(self, result: Any, output: Any, finished: bool, final: bool, rows: Columns) -> None:
        active, index = self._active, output.index
        reason = self._reason(output)
        if not reason and finished:
            reason = int(self._unreported(output.token_ids))
        # Beams are rewritten as they grow: only the end counts.
        sent = self._sent.get(index, 0)
        if active.beams > 1 and not reason:
            return
        tokens = list(output.token_ids[sent:])
        self._sent[index] = sent + len(tokens)
        if reason == FinishReason.END_ID and tokens and tokens[-1] == active.end_id:
            tokens.pop()
        if not tokens and not reason:
            return
        entries = (output.logprobs or ())[sent : sent + len(tokens)]
        log_probs = [_log_prob(entry, token) for entry, token in zip(entries, tokens, strict=False)]
        row = rows.add(
            active.client_id,
            tokens,
            reason,
            final,
            index,
            log_probs if active.log_probs else None,
            _top(entries, active.top_width) if active.top_width else None,
        )
        if reason:
            self._ended.add(index)
        self.final = final
        self._extras(result, output, row, bool(reason), rows)

    def _unreported(self, tokens: Sequence[int]) -> FinishReason:
        """Why a sequence ended of which the result does not say: of several, it tells the last one's only."""
        active = self._active
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
        active = self._active
        if not self._told:
            self._told = True
            cached = getattr(result, "cached_tokens", None)
            if cached:
                rows.cached(row, int(cached))
            if active.prompt_width is not None and output.prompt_logprobs:
                _prompt(output.prompt_logprobs, active, row, rows)
            context = result.context_logits if active.wants_context_logits else None
            if context is not None:
                rows.tensor(row, float_tensor("context_logits", context))
        if active.wants_generation_logits:
            self._generation_logits(result, output, row, rows)
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
            )
            rows.tensor(row, NamedTensor("context_phase_params", "UINT8", (len(blob),), blob))

    def _generation_logits(self, result: Any, output: Any, row: int, rows: Columns) -> None:
        """Those of the row's tokens, `[beam, token, vocab]`. A stream's hold the newest tokens only."""
        if self._active.beams > 1:
            if self.final:
                beams = [one.generation_logits for one in result.outputs]
                if all(one is not None for one in beams):
                    rows.tensor(row, float_output("generation_logits", _stacked(beams)))
            return
        logits = output.generation_logits
        if logits is not None and logits is not self._logits.get(output.index):
            self._logits[output.index] = logits
            rows.tensor(row, float_output("generation_logits", _stacked([logits])))


def _stacked(sequences: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Logits `[token, vocab]` of each sequence as one array, with zeros behind shorter ones."""
    arrays = [as_float32(one) for one in sequences]
    longest = max(len(one) for one in arrays)
    return np.stack([np.pad(one, ((0, longest - len(one)), (0, 0))) for one in arrays])


def _log_prob(entry: Any, token: int) -> float:
    if not isinstance(entry, Mapping):
        return float(entry)
    found = entry.get(token)
    return math.nan if found is None else float(found.logprob)


def _best(entry: Any) -> list[tuple[float, int]]:
    if not isinstance(entry, Mapping):
        return []
    return sorted(((float(one.logprob), token) for token, one in entry.items()), key=lambda pair: -pair[0])


def _top(entries: Sequence[Any], width: int) -> Top | None:
    """The best alternatives of each token; as many as all of them have."""
    best = [_best(entry) for entry in entries]
    width = min([width, *(len(one) for one in best)])
    if not best or width < 1:
        return None
    kept = [pair for one in best for pair in one[:width]]
    return width, [token for _, token in kept], [value for value, _ in kept]


def _prompt(entries: Sequence[Any], active: Active, row: int, rows: Columns) -> None:
    """Log probabilities of the prompt's tokens from the second on.

    Versions differ in whether the list has an entry for the first token: where it has, that entry is not
    about the token.
    """
    prompt, width = active.prompt, active.prompt_width or 0
    if not all(isinstance(entry, Mapping) or entry is None for entry in entries):
        return
    shift = 1
    if len(entries) >= len(prompt) > 1 and all(
        entry is not None and token in entry for token, entry in zip(prompt[1:], entries[1:], strict=False)
    ):
        shift = 0
    values, ids, tops = array("f"), array("i"), array("f")
    for position, token in enumerate(prompt):
        at = position - shift
        entry = entries[at] if position and 0 <= at < len(entries) else None
        best = _best(entry)[:width]
        values.append(math.nan if entry is None else _log_prob(entry, token))
        ids.extend([token for _, token in best] + [-1] * (width - len(best)))
        tops.extend([value for value, _ in best] + [math.nan] * (width - len(best)))
    rows.prompt(row, values, width, ids, tops)
