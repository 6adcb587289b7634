"""Results of the executor bindings into rows, and what both runtimes make of logits.

Owns what a result's fields mean for a row: deltas, several sequences, beams, the end token, log
probabilities from logits, large outputs. Knows nothing of requests' fields beyond `Active`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from inflight.executors.base import FinishReason, NamedTensor, Request, StatusCode
from inflight.executors.columns import Columns, Top
from inflight.executors.tensorrt_llm.convert import pack_context_phase
from inflight.executors.tensorrt_llm.images import IMAGES


class Unusable(Exception):
    """A result lacks what was asked for; the text says what. Nothing is guessed in its place."""


class Active:
    """What must be known of a request while it runs."""

    __slots__ = (
        "beams",
        "client_id",
        "context_only",
        "end_id",
        "engine_id",
        "has_images",
        "log_probs",
        "max_tokens",
        "prompt",
        "prompt_length",
        "prompt_width",
        "rich",
        "stop_words",
        "top_width",
        "wants_context_logits",
        "wants_generation_logits",
        "wants_prompt_logits",
    )

    def __init__(self, request: Request) -> None:
        output = request.output_config
        self.client_id = request.client_id
        self.engine_id: int | None = None
        self.end_id = request.end_id
        self.has_images = any(tensor.name == IMAGES for tensor in request.tensors)
        self.max_tokens = request.max_tokens
        self.prompt_length = len(request.input_token_ids)
        self.stop_words = request.stop_words
        self.beams = request.sampling_config.beam_width
        self.log_probs = output.return_log_probs
        self.top_width = output.num_top_log_probs
        self.prompt_width = output.num_prompt_log_probs
        self.wants_context_logits = output.return_context_logits
        self.wants_generation_logits = output.return_generation_logits
        self.context_only = any(
            tensor.name == "request_type" and tensor.data.endswith(b"context_only")
            for tensor in request.tensors
        )
        #: Whether a response may hold more than tokens.
        self.rich = bool(
            self.log_probs
            or self.top_width
            or self.prompt_width is not None
            or self.wants_context_logits
            or self.wants_generation_logits
            or output.return_perf_metrics
            or self.context_only
        )
        self.wants_prompt_logits = self.wants_context_logits or self.prompt_width is not None
        self.prompt = request.input_token_ids if self.wants_prompt_logits else []


#: Reasons of requests that may end before their prompt was read.
ENDED_EARLY = frozenset({int(FinishReason.CANCELLED), int(FinishReason.TIMED_OUT)})


class ResultReader:
    """Turns results into rows, with the enumeration of one installed version. Logits may be wider than
    `vocab_size`: several ranks fill the vocabulary up to a common width."""

    def __init__(self, finish_reason: Any, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._reasons = {
            getattr(finish_reason, reason.name): int(reason)
            for reason in FinishReason
            if hasattr(finish_reason, reason.name)
        }

    def read(self, result: Any, active: Active, rows: Columns) -> bool:
        """Appends the result's rows; True once the request is over. Errors: `Unusable`, before any row."""
        final = bool(result.is_final)
        output = result.output_token_ids
        last = len(output) - 1
        reasons = result.finish_reasons
        if active.prompt_width is not None:
            context = getattr(result, "context_logits", None)
            early = {self._reasons.get(reason) for reason in reasons or ()} & ENDED_EARLY
            if context is not None or (final and last >= 0 and not early):
                check_prompt_logits(context, active)
        sequence = result.sequence_index
        ended = final or bool(result.is_sequence_final)
        row = 0
        for beam, tokens in enumerate(output):
            reason = self._reasons.get(reasons[beam], 0) if reasons and beam < len(reasons) else 0
            if not reason and ended:
                # A context-only request stops before it is finished; a sequence's last row has a reason.
                reason = int(FinishReason.LENGTH)
            log_probs, top = None, None
            if active.rich and tokens:
                log_probs, top = self._log_probs(result, active, beam, tokens)
            row = rows.add(
                active.client_id,
                tokens,
                reason,
                final and beam == last,
                beam if active.beams > 1 else sequence,
                log_probs,
                top,
            )
        if final and last < 0:
            row = rows.add(active.client_id, (), int(FinishReason.CANCELLED), True)
        if active.rich and (last >= 0 or final):
            _extras(result, active, row, rows, self._vocab_size)
        return final

    def _log_probs(
        self, result: Any, active: Active, beam: int, tokens: Sequence[int]
    ) -> tuple[Sequence[float] | None, Top | None]:
        log_probs, top = None, None
        count = len(tokens)
        given = result.log_probs if active.log_probs else None
        if given is not None and beam < len(given):
            # Streaming repeats earlier tokens' values in some versions: the newest are the last.
            newest = list(given[beam])[-count:]
            log_probs = [float(value) for value in newest]
        if active.top_width and active.beams == 1 and result.generation_logits is not None:
            logits = as_float32(result.generation_logits)
            # A stream's are of the row's tokens; a whole answer has room for all that might have come.
            logits = logits.reshape(-1, logits.shape[-1])[:count, : self._vocab_size]
            if len(logits) == count:
                top = top_of(log_softmax(logits), active.top_width)
        return log_probs, top


def as_float32(tensor: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor on any device and of any float type as a NumPy array."""
    import torch

    array_: np.ndarray[Any, np.dtype[np.float32]] = tensor.to(torch.float32).cpu().numpy()
    return array_


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Log probabilities along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def top_of(log_probs: np.ndarray[Any, Any], width: int) -> Top:
    """The best `width` of each row, best first."""
    width = min(width, log_probs.shape[-1])
    ids = np.argpartition(-log_probs, width - 1, axis=-1)[:, :width]
    values = np.take_along_axis(log_probs, ids, axis=-1)
    order = np.argsort(-values, axis=-1, kind="stable")
    ids, values = np.take_along_axis(ids, order, axis=-1), np.take_along_axis(values, order, axis=-1)
    return width, ids.reshape(-1).tolist(), values.reshape(-1).tolist()


def _extras(result: Any, active: Active, row: int, rows: Columns, vocab_size: int) -> None:
    """What goes with a row besides tokens."""
    context = getattr(result, "context_logits", None)
    if context is not None:
        if active.wants_context_logits:
            rows.tensor(row, float_tensor("context_logits", context))
        if active.prompt_width is not None:
            prompt_from_logits(context, active, row, rows, vocab_size)
    if active.wants_generation_logits:
        generation = getattr(result, "generation_logits", None)
        # A draft model that shares its ranks with the target reports where its logits are instead.
        where = getattr(result, "spec_dec_fast_logits_info", None)
        if generation is None and where is not None:
            generation = where.to_tensor()
        if generation is not None:
            rows.tensor(row, float_tensor("generation_logits", generation))
    cumulative = getattr(result, "cum_log_probs", None)
    if cumulative is not None and active.log_probs:
        values = array("f", cumulative)
        rows.tensor(row, NamedTensor("cum_log_probs", "FP32", (len(values),), values.tobytes()))
    phase = getattr(result, "context_phase_params", None)
    if phase is not None:
        blob = pack_context_phase(
            phase.first_gen_tokens, phase.req_id, phase.opaque_state, phase.draft_tokens
        )
        rows.tensor(row, NamedTensor("context_phase_params", "UINT8", (len(blob),), blob))
    metrics = getattr(result, "request_perf_metrics", None)
    if metrics is not None:
        perf_tensors(metrics, row, rows)


def check_prompt_logits(context: Any, active: Active) -> None:
    """Raises `Unusable` unless there is a row of logits for each token of the prompt."""
    given = 0 if context is None else int(context.shape[0])
    if given != len(active.prompt):
        raise Unusable(
            f"TensorRT-LLM returned the logits of `{given}` of the prompt's `{len(active.prompt)}` tokens"
        )


def prompt_from_logits(context: Any, active: Active, row: int, rows: Columns, vocab_size: int) -> None:
    """Log probabilities of the prompt from its logits `[prompt, vocab or more]`; position 0 has none."""
    log_probs = log_softmax(as_float32(context)[..., :vocab_size])
    prompt = active.prompt
    count, width = len(prompt), active.prompt_width or 0
    values = np.full(count, np.nan, dtype=np.float32)
    values[1:] = log_probs[np.arange(count - 1), np.asarray(prompt[1:], dtype=np.int64)]
    ids = np.full((count, width), -1, dtype=np.int32)
    tops = np.full((count, width), np.nan, dtype=np.float32)
    if width and count > 1:
        had, best, best_values = top_of(log_probs[: count - 1], width)
        ids[1:, :had] = np.asarray(best).reshape(-1, had)
        tops[1:, :had] = np.asarray(best_values).reshape(-1, had)
    rows.prompt(
        row,
        array("f", values.tobytes()),
        width,
        array("i", ids.tobytes()),
        array("f", tops.tobytes()),
    )
    # Logits may come with more than one response; the prompt is reported once.
    active.prompt_width = None


def float_tensor(name: str, tensor: Any) -> NamedTensor:
    """A tensor as the worker's FP32 output."""
    return float_output(name, as_float32(tensor))


def float_output(name: str, array_: np.ndarray[Any, Any]) -> NamedTensor:
    """An array as the worker's FP32 output."""
    values = np.ascontiguousarray(array_, dtype="<f4")
    return NamedTensor(name, "FP32", tuple(values.shape), values.tobytes())


#: Output -> (part of RequestPerfMetrics, attribute, datatype).
PERF_OUTPUTS = {
    "arrival_time_ns": ("timing_metrics", "arrival_time", "INT64"),
    "first_scheduled_time_ns": ("timing_metrics", "first_scheduled_time", "INT64"),
    "first_token_time_ns": ("timing_metrics", "first_token_time", "INT64"),
    "last_token_time_ns": ("timing_metrics", "last_token_time", "INT64"),
    "kv_cache_alloc_new_blocks": ("kv_cache_metrics", "num_new_allocated_blocks", "INT32"),
    "kv_cache_reused_blocks": ("kv_cache_metrics", "num_reused_blocks", "INT32"),
    "kv_cache_alloc_total_blocks": ("kv_cache_metrics", "num_total_allocated_blocks", "INT32"),
    "acceptance_rate": ("speculative_decoding", "acceptance_rate", "FP32"),
    "total_accepted_draft_tokens": ("speculative_decoding", "total_accepted_draft_tokens", "INT32"),
    "total_draft_tokens": ("speculative_decoding", "total_draft_tokens", "INT32"),
}
_CODES = {"INT64": "q", "INT32": "i", "FP32": "f"}


def perf_tensors(metrics: Any, row: int, rows: Columns) -> None:
    """A request's timings and counts as Triton's outputs; times are of a steady clock."""
    for name, (part, attribute, datatype) in PERF_OUTPUTS.items():
        value = getattr(getattr(metrics, part, None), attribute, None)
        if value is None:
            continue
        if isinstance(value, timedelta):
            value = value // timedelta(microseconds=1) * 1000
        packed = array(_CODES[datatype], [value if datatype == "FP32" else int(value)])
        rows.tensor(row, NamedTensor(name, datatype, (1,), packed.tobytes()))


#: Words in an error's text -> its status; the executor gives no codes.
_ERRORS = (
    ("not found in cache", StatusCode.INVALID_ARGUMENT),
    ("queue", StatusCode.RESOURCE_EXHAUSTED),
    ("exceed", StatusCode.INVALID_ARGUMENT),
    ("not setup", StatusCode.UNIMPLEMENTED),
    ("not supported", StatusCode.UNIMPLEMENTED),
)


def status_of(text: str, otherwise: StatusCode = StatusCode.INTERNAL) -> StatusCode:
    """The status of one request's error."""
    lowered = text.lower()
    return next((code for words, code in _ERRORS if words in lowered), otherwise)
