"""Response rows and their packing into the columns of a `ResponseBatch`.

Owns the layout that ``executors/base.py`` describes. Knows nothing of how rows come about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from inflight.executors.base import FinishReason, ResponseBatch, StatusCode

from .arrays import Float32

Int32 = npt.NDArray[np.int32]


@dataclass(slots=True)
class TokenRecord:
    """What is told of generated tokens besides their ids: one entry a token, in the lists that were asked."""

    log_probs: list[float] = field(default_factory=list)
    top_ids: list[Int32] = field(default_factory=list)
    top_log_probs: list[Float32] = field(default_factory=list)

    def append(self, log_prob: float, top_ids: Int32, top_log_probs: Float32) -> None:
        """Notes one token."""
        self.log_probs.append(float(log_prob))
        self.top_ids.append(top_ids)
        self.top_log_probs.append(top_log_probs)

    def pop(self) -> None:
        """Forgets the latest token."""
        for values in (self.log_probs, self.top_ids, self.top_log_probs):
            values.pop()


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


def pack(rows: Sequence[Row]) -> ResponseBatch:
    """The rows as columns; no rows give the empty batch."""
    if not rows:
        return ResponseBatch()
    offsets = np.zeros(len(rows) + 1, dtype="<u4")
    np.cumsum([len(row.tokens) for row in rows], out=offsets[1:])
    with_log_probs = [
        (index, row.record)
        for index, row in enumerate(rows)
        if row.record is not None and row.wants_log_probs and row.tokens
    ]
    with_top = [
        (index, row.record, row.top_width)
        for index, row in enumerate(rows)
        if row.record is not None and row.top_width and row.tokens
    ]
    return ResponseBatch(
        client_ids=np.array([row.client_id for row in rows], dtype="<u8").tobytes(),
        sequence_index=np.array([row.sequence_index for row in rows], dtype="<i4").tobytes(),
        token_offsets=offsets.tobytes(),
        token_ids=np.array([token for row in rows for token in row.tokens], dtype="<i4").tobytes(),
        finish_reasons=np.array([row.finish_reason for row in rows], dtype="u1").tobytes(),
        finals=np.array([row.final for row in rows], dtype="u1").tobytes(),
        errors=[(index, int(row.error[0]), row.error[1]) for index, row in enumerate(rows) if row.error],
        log_prob_rows=np.array([index for index, _ in with_log_probs], dtype="<u4").tobytes(),
        log_probs=np.array(
            [value for _, record in with_log_probs for value in record.log_probs], dtype="<f4"
        ).tobytes(),
        top_log_prob_rows=np.array([index for index, _, _ in with_top], dtype="<u4").tobytes(),
        top_log_prob_widths=np.array([width for _, _, width in with_top], dtype="<u4").tobytes(),
        top_log_prob_ids=b"".join(
            ids.astype("<i4").tobytes() for _, record, _ in with_top for ids in record.top_ids
        ),
        top_log_probs=b"".join(
            values.astype("<f4").tobytes() for _, record, _ in with_top for values in record.top_log_probs
        ),
        prompt_log_probs=[
            (
                index,
                row.prompt.values.astype("<f4").tobytes(),
                row.prompt.top_ids.shape[1],
                row.prompt.top_ids.astype("<i4").tobytes(),
                row.prompt.top_values.astype("<f4").tobytes(),
            )
            for index, row in enumerate(rows)
            if row.prompt is not None
        ],
    )
