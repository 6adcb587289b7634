"""Rows to the columns of a `ResponseBatch`: appended as they come, packed once per await.

Owns the layout that `executors/base.py` describes, for every executor. Does not know where rows come from.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from inflight.executors.base import NamedTensor, ResponseBatch, StatusCode

#: Alternatives of a row's tokens: width, then ids and log probabilities, tokens x width each.
Top = tuple[int, Sequence[int], Sequence[float]]


class Packed(Protocol):
    """An `array.array` or a NumPy array."""

    def tobytes(self) -> bytes: ...


class Columns:
    """The rows of one await."""

    __slots__ = (
        "_cached",
        "_client_ids",
        "_errors",
        "_finals",
        "_log_prob_rows",
        "_log_probs",
        "_offsets",
        "_prompts",
        "_reasons",
        "_sequences",
        "_tensors",
        "_tokens",
        "_top_ids",
        "_top_rows",
        "_top_values",
        "_top_widths",
    )

    def __init__(self) -> None:
        self._client_ids, self._sequences = array("Q"), array("i")
        self._offsets, self._tokens = array("I", [0]), array("i")
        self._reasons, self._finals = bytearray(), bytearray()
        self._errors: list[tuple[int, int, str]] = []
        self._log_prob_rows, self._log_probs = array("I"), array("f")
        self._top_rows, self._top_widths = array("I"), array("I")
        self._top_ids, self._top_values = array("i"), array("f")
        self._cached: list[tuple[int, int]] = []
        self._prompts: list[tuple[int, bytes, int, bytes, bytes]] = []
        self._tensors: list[tuple[int, NamedTensor]] = []

    def __len__(self) -> int:
        return len(self._finals)

    def add(
        self,
        client_id: int,
        tokens: Sequence[int],
        reason: int = 0,
        final: bool = False,
        sequence: int = 0,
        log_probs: Sequence[float] | None = None,
        top: Top | None = None,
    ) -> int:
        """Adds a row and returns its number. `log_probs` and `top` are dropped unless they fit the tokens."""
        row = len(self._finals)
        self._client_ids.append(client_id)
        self._sequences.append(sequence)
        self._tokens.extend(tokens)
        self._offsets.append(len(self._tokens))
        self._reasons.append(reason)
        self._finals.append(final)
        count = len(tokens)
        if count and log_probs is not None and len(log_probs) == count:
            self._log_prob_rows.append(row)
            self._log_probs.extend(log_probs)
        if count and top is not None and len(top[1]) == count * top[0] == len(top[2]):
            self._top_rows.append(row)
            self._top_widths.append(top[0])
            self._top_ids.extend(top[1])
            self._top_values.extend(top[2])
        return row

    def add_tokens(
        self,
        client_ids: Packed,
        sequences: Packed,
        tokens: Packed,
        log_probs: Packed | None = None,
        top: tuple[int, Packed, Packed] | None = None,
    ) -> None:
        """Adds rows of one token each that end nothing: columns of uint64, int32 and int32; float32 for log
        probabilities, and for alternatives their width, int32 and float32."""
        first, first_row = len(self._tokens), len(self._finals)
        self._client_ids.frombytes(client_ids.tobytes())
        self._sequences.frombytes(sequences.tobytes())
        self._tokens.frombytes(tokens.tobytes())
        self._offsets.extend(range(first + 1, len(self._tokens) + 1))
        self._reasons.extend(bytes(len(self._tokens) - first))
        self._finals.extend(bytes(len(self._tokens) - first))
        rows = range(first_row, len(self._finals))
        if log_probs is not None:
            self._log_prob_rows.extend(rows)
            self._log_probs.frombytes(log_probs.tobytes())
        if top is not None:
            width, ids, values = top
            self._top_rows.extend(rows)
            self._top_widths.extend([width] * len(rows))
            self._top_ids.frombytes(ids.tobytes())
            self._top_values.frombytes(values.tobytes())

    def fail(self, client_id: int, code: StatusCode, text: str) -> None:
        """Adds the errored, final row of a request."""
        self.error(self.add(client_id, (), final=True), code, text)

    def error(self, row: int, code: StatusCode, text: str) -> None:
        """Why a row is its request's last."""
        self._errors.append((row, int(code), text))

    def cached(self, row: int, tokens: int) -> None:
        """Prompt tokens that the cache had."""
        self._cached.append((row, tokens))

    def prompt(self, row: int, values: Packed, width: int, ids: Packed, tops: Packed) -> None:
        """Log probabilities of the prompt: float32 `[n]`, and `[n x width]` alternatives."""
        self._prompts.append((row, values.tobytes(), width, ids.tobytes(), tops.tobytes()))

    def tensor(self, row: int, value: NamedTensor) -> None:
        """A large output."""
        self._tensors.append((row, value))

    def pack(self) -> ResponseBatch:
        """The columns; no rows give the empty batch."""
        if not self._finals:
            return ResponseBatch()
        return ResponseBatch(
            client_ids=self._client_ids.tobytes(),
            sequence_index=self._sequences.tobytes(),
            token_offsets=self._offsets.tobytes(),
            token_ids=self._tokens.tobytes(),
            finish_reasons=bytes(self._reasons),
            finals=bytes(self._finals),
            errors=self._errors,
            log_prob_rows=self._log_prob_rows.tobytes(),
            log_probs=self._log_probs.tobytes(),
            top_log_prob_rows=self._top_rows.tobytes(),
            top_log_prob_widths=self._top_widths.tobytes(),
            top_log_prob_ids=self._top_ids.tobytes(),
            top_log_probs=self._top_values.tobytes(),
            cached_tokens=self._cached,
            prompt_log_probs=self._prompts,
            tensors=self._tensors,
        )
