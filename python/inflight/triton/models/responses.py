"""Rows of the executor to the core model's outputs: which tensors, in which shapes.

Owns what a row becomes; sends nothing. The Rust twin is `crates/worker/src/respond.rs`: a streaming response
carries only its step's new tokens, the others repeat the prompt unless it was excluded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inflight.executors.base import FinishReason, NamedTensor, Request, ResponseBatch, StatusCode
from inflight.triton.models.python_backend import error, pb_utils, tensor

#: Fills beams that are shorter than the longest, in ids and log probabilities, as Triton's backend does.
PADDING = -1
#: Datatypes of `NamedTensor` that an output can have.
DTYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
}


class Columns:
    """A ResponseBatch, unpacked once."""

    def __init__(self, batch: ResponseBatch) -> None:
        self.ids = np.frombuffer(batch.client_ids, np.uint64).tolist()
        self.sequences = np.frombuffer(batch.sequence_index, np.int32).tolist()
        self.finals = np.frombuffer(batch.finals, np.uint8).tolist()
        self.reasons = np.frombuffer(batch.finish_reasons, np.uint8).tolist()
        self.errors = {row: (status, text) for row, status, text in batch.errors}
        self.cached = dict(batch.cached_tokens)
        self.prompts = {one[0]: one[1:] for one in batch.prompt_log_probs}
        self.tensors: dict[int, list[NamedTensor]] = {}
        for row, value in batch.tensors:
            self.tensors.setdefault(row, []).append(value)
        self._offsets = np.frombuffer(batch.token_offsets, np.uint32).tolist()
        self._tokens = np.frombuffer(batch.token_ids, np.int32)
        self.log_probs: dict[int, np.ndarray[Any, Any]] = {}
        values, at = np.frombuffer(batch.log_probs, np.float32), 0
        for row in np.frombuffer(batch.log_prob_rows, np.uint32).tolist():
            count = self._count(row)
            self.log_probs[row] = values[at : at + count]
            at += count
        self.top: dict[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {}
        ids, best = (
            np.frombuffer(batch.top_log_prob_ids, np.int32),
            np.frombuffer(batch.top_log_probs, np.float32),
        )
        widths, at = np.frombuffer(batch.top_log_prob_widths, np.uint32).tolist(), 0
        for row, width in zip(
            np.frombuffer(batch.top_log_prob_rows, np.uint32).tolist(), widths, strict=True
        ):
            shape = (self._count(row), width)
            end = at + shape[0] * width
            self.top[row] = (ids[at:end].reshape(shape), best[at:end].reshape(shape))
            at = end

    def tokens(self, row: int) -> np.ndarray[Any, Any]:
        """The new tokens of a row."""
        return self._tokens[self._offsets[row] : self._offsets[row + 1]]

    def _count(self, row: int) -> int:
        return int(self._offsets[row + 1] - self._offsets[row])


@dataclass(slots=True)
class Beam:
    """One beam, or the one sequence that a response is about."""

    sequence: int
    tokens: np.ndarray[Any, Any]
    log_probs: np.ndarray[Any, Any] | None
    cumulative: float
    reason: int


@dataclass(frozen=True, slots=True)
class Asked:
    """What one Triton request wants to be told; its rows share it."""

    outputs: frozenset[str]
    #: Rows of the batch; responses carry `batch_index` where there are several.
    batch_size: int
    #: Responses carry `sequence_index` where there are several.
    sequences: int
    #: Responses repeat the prompt.
    with_prompt: bool
    #: The answer is what the context phase left.
    context_only: bool
    #: `num_input_tokens` and `num_output_tokens`, where their switches are on.
    counts: frozenset[str]
    #: Data type of each output, as declared.
    types: Mapping[str, str]


@dataclass(slots=True)
class Responder:
    """Answers one executor request: one row of a batch."""

    asked: Asked
    batch_index: int
    request: Request
    #: Cumulative log probability by sequence.
    cumulative: dict[int, float] = field(default_factory=dict)
    #: Beams so far: they are one response, made when the last has ended.
    beams: list[Beam] = field(default_factory=list)

    def respond(self, columns: Columns, row: int) -> Any:
        """The response of a row; `None` while beams are gathered."""
        if self._lacks_context(columns, row):
            text = "the executor ended a `context_only` request without `context_phase_params`"
            return pb_utils.InferenceResponse(error=error(text, StatusCode.INTERNAL))
        self.beams.append(self._beam(columns, row))
        if self.request.sampling_config.beam_width > 1 and not columns.finals[row]:
            return None
        beams, self.beams = self.beams, []
        outputs = self._own(beams, columns, row)
        self._extras(outputs, beams, columns, row)
        wanted = self.asked.outputs
        made = [tensor(name, *value) for name, value in outputs.items() if name in wanted]
        made += [self._passed(one) for one in columns.tensors.get(row, []) if one.name in wanted]
        return pb_utils.InferenceResponse(made)

    def _lacks_context(self, columns: Columns, row: int) -> bool:
        """Whether a context phase ended of its own accord and left nothing to generate from."""
        return bool(
            self.asked.context_only
            and columns.finals[row]
            and columns.reasons[row] != FinishReason.CANCELLED
            and not any(one.name == "context_phase_params" for one in columns.tensors.get(row, []))
        )

    def _beam(self, columns: Columns, row: int) -> Beam:
        sequence, log_probs = columns.sequences[row], columns.log_probs.get(row)
        cumulative = self.cumulative.get(sequence, 0.0)
        if log_probs is not None:
            cumulative += float(log_probs.sum())
            self.cumulative[sequence] = cumulative
        # A copy: gathered beams outlive the batch that they came in.
        tokens = np.array(columns.tokens(row))
        return Beam(sequence, tokens, log_probs, cumulative, columns.reasons[row])

    def _own(self, beams: list[Beam], columns: Columns, row: int) -> dict[str, tuple[Any, Any]]:
        """The outputs of Triton's model that follow from the row's tokens."""
        asked = self.asked
        prompt = np.asarray(self.request.input_token_ids if asked.with_prompt else [], np.int32)
        ids = [np.concatenate([prompt, beam.tokens]) for beam in beams]
        outputs: dict[str, tuple[Any, Any]] = {
            "output_ids": (_padded(ids, np.int32), np.int32),
            "sequence_length": ([[len(one) for one in ids]], np.int32),
        }
        if any(beam.log_probs is not None for beam in beams):
            if not any(one.name == "cum_log_probs" for one in columns.tensors.get(row, [])):
                outputs["cum_log_probs"] = ([[beam.cumulative for beam in beams]], np.float32)
            values = [np.zeros(0, np.float32) if beam.log_probs is None else beam.log_probs for beam in beams]
            outputs["output_log_probs"] = (_padded(values, np.float32), np.float32)
        if asked.batch_size > 1:
            outputs["batch_index"] = ([[self.batch_index]], np.int32)
        if asked.sequences > 1:
            outputs["sequence_index"] = ([[beams[0].sequence]], np.int32)
        counts = {
            "num_input_tokens": len(self.request.input_token_ids),
            "num_output_tokens": sum(len(beam.tokens) for beam in beams),
        }
        for name in asked.counts:
            outputs[name] = ([[counts[name]]], np.int32)
        return outputs

    def _extras(
        self, outputs: dict[str, tuple[Any, Any]], beams: list[Beam], columns: Columns, row: int
    ) -> None:
        """Outputs that Triton's model lacks."""
        outputs["inflight_finish_reason"] = ([[beam.reason for beam in beams]], np.int32)
        if row in columns.cached:
            outputs["inflight_cached_tokens"] = ([[columns.cached[row]]], np.int32)
        if row in columns.top:
            top_ids, top_values = columns.top[row]
            outputs["inflight_top_log_prob_ids"] = (top_ids[None, None], np.int32)
            outputs["inflight_top_log_probs"] = (top_values[None, None], np.float32)
        if row in columns.prompts:
            told, width, ids, values = columns.prompts[row]
            outputs["inflight_prompt_log_probs"] = (np.frombuffer(told, np.float32)[None], np.float32)
            if width:
                shape = (1, -1, width)
                outputs["inflight_prompt_top_log_prob_ids"] = (
                    np.frombuffer(ids, np.int32).reshape(shape),
                    np.int32,
                )
                outputs["inflight_prompt_top_log_probs"] = (
                    np.frombuffer(values, np.float32).reshape(shape),
                    np.float32,
                )

    def _passed(self, value: NamedTensor) -> Any:
        """A large output as it is, in the type that the config declares."""
        array: np.ndarray[Any, Any] = np.frombuffer(value.data, DTYPES[value.datatype]).reshape(
            (1, *value.shape)
        )
        declared = DTYPES[self.asked.types[value.name].removeprefix("TYPE_")]
        return tensor(value.name, array, declared)


def _padded(rows: list[np.ndarray[Any, Any]], dtype: Any) -> np.ndarray[Any, Any]:
    """``[1, rows, longest]``."""
    padded = np.full((1, len(rows), max(len(row) for row in rows)), PADDING, dtype)
    for place, row in enumerate(rows):
        padded[0, place, : len(row)] = row
    return padded
