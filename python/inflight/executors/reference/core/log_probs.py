"""Log probabilities of chosen tokens and of alternatives: the best ones, or those that are named.

Pure. They are those of the model's own distribution: taken from the raw logits, before bias,
temperature, penalties and bans, so that no sampling option changes what is reported for a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inflight.executors.reference.model.array_types import Float32, Int, Int32

from .probabilities import best_ids, log_softmax


def chosen_and_best(logits: Float32, tokens: Int, width: int) -> tuple[Float32, Int32, Float32]:
    """For rows ``[rows, vocabulary]``: the tokens' values ``[rows]``, and ids and values of the best
    ``[rows, width]``, best first."""
    values = log_softmax(logits)
    ids = best_ids(values, width)
    best: Float32 = np.take_along_axis(values, ids, axis=1)
    return values[np.arange(len(tokens)), tokens], ids.astype(np.int32), best


def chosen_and_named(logits: Float32, token: int, ids: Sequence[int]) -> tuple[float, Int32, Float32]:
    """For one row ``[vocabulary]``: the token's value, and the values of these ids, in their order."""
    values = log_softmax(logits[None])[0]
    named = np.array(ids, dtype=np.int32)
    return float(values[token]), named, values[named]
