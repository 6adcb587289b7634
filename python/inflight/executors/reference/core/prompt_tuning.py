"""Prompt tuning: virtual tokens, whose embeddings a request brings: TensorRT-LLM's ``PromptTuningConfig``.

Owns which tokens are virtual and what replaces them in a batch. Their ids follow those of the vocabulary:
the first is row 0 of the request's table. Knows nothing of requests or caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inflight.executors.reference.model.array_types import Array, Float32, Int


@dataclass(frozen=True, slots=True, eq=False)
class PromptTuning:
    """A request's table ``[rows, hidden_size]``, and what distinguishes its virtual tokens from those of
    other tables: an id for each token of the prompt, or no ids where blocks are not shared."""

    table: Array
    extra_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Embedded:
    """The rows of an iteration that are virtual tokens ``[n]``, and their embeddings ``[n, hidden]``."""

    rows: Int
    values: Float32


def take_virtual(token_ids: Int, first_row: int, tuning: PromptTuning, vocab_size: int) -> Embedded:
    """The virtual tokens among ``token_ids``, whose rows begin at ``first_row``. In their places is a token
    of the vocabulary afterwards, so that all can be looked up alike."""
    places = np.flatnonzero(token_ids >= vocab_size)
    values = tuning.table[token_ids[places] - vocab_size].astype(np.float32)
    token_ids[places] = 0
    return Embedded(first_row + places, values)


def join(parts: Sequence[Embedded]) -> Embedded | None:
    """All of them as one; None where no row is virtual."""
    parts = [part for part in parts if len(part.rows)]
    if not parts:
        return None
    return Embedded(
        np.concatenate([part.rows for part in parts]), np.concatenate([part.values for part in parts])
    )
