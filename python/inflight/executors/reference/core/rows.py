"""Response rows, what they report of their tokens, and how they become `executors.columns`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inflight.executors.base import FinishReason, NamedTensor, ResponseBatch, StatusCode
from inflight.executors.columns import Columns
from inflight.executors.reference.model.array_types import Float32, Int32


@dataclass(slots=True)
class TokenRecord:
    """Of generated tokens, what is reported besides their ids: one entry a token, in the lists asked for."""

    log_probs: list[float] = field(default_factory=list)
    top_ids: list[Int32] = field(default_factory=list)
    top_log_probs: list[Float32] = field(default_factory=list)
    #: Each token's ``[vocabulary]``, where asked.
    logits: list[Float32] = field(default_factory=list)

    def append(self, log_prob: float, top_ids: Int32, top_log_probs: Float32) -> None:
        """Notes one token."""
        self.log_probs.append(log_prob)
        self.top_ids.append(top_ids)
        self.top_log_probs.append(top_log_probs)


@dataclass(slots=True)
class PromptRecord:
    """Log probabilities of a prompt; position 0 has none: NaN, and ids of -1."""

    values: Float32
    top_ids: Int32
    top_values: Float32

    @classmethod
    def empty(cls, tokens: int, width: int) -> PromptRecord:
        return cls(
            np.full(tokens, np.nan, dtype=np.float32),
            np.full((tokens, width), -1, dtype=np.int32),
            np.full((tokens, width), np.nan, dtype=np.float32),
        )


@dataclass(slots=True)
class Row:
    """New output of one sequence of one request."""

    client_id: int
    sequence_index: int = 0
    tokens: Sequence[int] = ()
    finish_reason: FinishReason = FinishReason.NOT_FINISHED
    final: bool = False
    error: tuple[StatusCode, str] | None = None
    #: Present when the request asked for log probabilities.
    record: TokenRecord | None = None
    #: Alternatives a token; 0: none asked.
    top_width: int = 0
    wants_log_probs: bool = False
    prompt: PromptRecord | None = None
    #: Prompt tokens found in the cache, on a sequence's first row.
    cached_tokens: int | None = None
    #: ``[prompt, vocabulary]``, on the request's first row.
    context_logits: Float32 | None = None
    #: ``[hidden_size]``, on the request's first row.
    embedding: Float32 | None = None
    #: Tensors that the worker passes on: what a request took, the sums of beams.
    metrics: Sequence[NamedTensor] = ()


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of sequences that continue, with one token each and at most its log probabilities: a column for
    each field."""

    client_ids: npt.NDArray[np.uint64]
    sequence_indices: Int32
    tokens: Int32
    #: ``[rows]``, where they are asked for.
    log_probs: Float32 | None = None
    #: Ids and log probabilities of the best alternatives ``[rows, width]``, where they are asked for.
    top: tuple[Int32, Float32] | None = None

    def rows(self) -> list[Row]:
        """The same, one by one."""
        columns = (self.client_ids.tolist(), self.sequence_indices.tolist(), self.tokens.tolist())
        rows = [Row(client_id, index, [token]) for client_id, index, token in zip(*columns, strict=True)]
        if self.log_probs is not None or self.top is not None:
            for place, row in enumerate(rows):
                self._record(row, place)
        return rows

    def _record(self, row: Row, place: int) -> None:
        row.record = TokenRecord()
        if self.log_probs is not None:
            row.wants_log_probs = True
            row.record.log_probs.append(float(self.log_probs[place]))
        if self.top is not None:
            ids, values = self.top
            row.top_width = ids.shape[1]
            row.record.top_ids.append(ids[place])
            row.record.top_log_probs.append(values[place])


def pack(rows: Sequence[Row | TokenRows]) -> ResponseBatch:
    """The rows as columns; no rows give the empty batch."""
    columns = Columns()
    for row in rows:
        if isinstance(row, TokenRows):
            columns.add_tokens(
                row.client_ids,
                row.sequence_indices,
                row.tokens,
                row.log_probs,
                None if row.top is None else (row.top[0].shape[1], *row.top),
            )
            continue
        record, tokens = row.record, row.tokens
        reported = record if record is not None and tokens else None
        number = columns.add(
            row.client_id,
            tokens,
            row.finish_reason,
            row.final,
            row.sequence_index,
            reported.log_probs if reported is not None and row.wants_log_probs else None,
            (row.top_width, _joined("i", reported.top_ids), _joined("f", reported.top_log_probs))
            if reported is not None and row.top_width
            else None,
        )
        if row.error is not None:
            columns.error(number, *row.error)
        if row.cached_tokens is not None:
            columns.cached(number, row.cached_tokens)
        if row.context_logits is not None:
            columns.tensor(number, _floats("context_logits", row.context_logits))
        if row.embedding is not None:
            columns.tensor(number, _floats("inflight_embedding", row.embedding))
        if reported is not None and reported.logits:
            columns.tensor(number, _floats("generation_logits", np.stack(reported.logits)[None]))
        for tensor in row.metrics:
            columns.tensor(number, tensor)
        if row.prompt is not None:
            prompt = row.prompt
            columns.prompt(number, prompt.values, prompt.top_ids.shape[1], prompt.top_ids, prompt.top_values)
    return columns.pack()


def sums_of(log_probs: Sequence[float]) -> NamedTensor:
    """The sums that beams were chosen by, for a request's last row: with the end token, which is not among
    the tokens that the worker would add up."""
    return _floats("cum_log_probs", np.array(log_probs, dtype=np.float32))


def _floats(name: str, values: Float32) -> NamedTensor:
    return NamedTensor(name, "FP32", values.shape, values.astype("<f4").tobytes())


def _joined(typecode: str, parts: Sequence[npt.NDArray[Any]]) -> array[Any]:
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return array(typecode, whole.tobytes())
