"""Logits to probabilities, and the best of a row.

Pure; owns which of equal values counts as better: the lower id, in every runner.
"""

from __future__ import annotations

import numpy as np

from inflight.executors.reference.model.array_types import Float32, Int


def softmax(scores: Float32) -> Float32:
    """Softmax over the last axis, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def log_softmax(logits: Float32) -> Float32:
    """Natural log probabilities over the last axis; a new array."""
    shifted: Float32 = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def best_ids(values: Float32, width: int) -> Int:
    """Ids of the ``width`` largest of each row ``[rows, vocabulary]``, best first; of equals the lowest."""
    vocab_size = values.shape[1]
    if width == 0:
        return np.empty((len(values), 0), dtype=np.int64)
    if width == vocab_size:
        return np.argsort(-values, axis=1, kind="stable")
    kept = np.argpartition(values, vocab_size - width, axis=1)[:, vocab_size - width :]
    last = np.take_along_axis(values, kept, axis=1).min(axis=1, keepdims=True)
    for row in np.flatnonzero((values >= last).sum(axis=1) > width):
        # The partition kept any of those that equal the last.
        above = np.flatnonzero(values[row] > last[row])
        equal = np.flatnonzero(values[row] == last[row])
        kept[row] = np.concatenate((above, equal[: width - len(above)]))
    # In order of id, so that the stable sort puts the lower id first among equals.
    kept.sort(axis=1)
    order = np.argsort(-np.take_along_axis(values, kept, axis=1), axis=1, kind="stable")
    ids: Int = np.take_along_axis(kept, order, axis=1)
    return ids
