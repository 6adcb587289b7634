"""Log probabilities of chosen tokens and of the best alternatives.

Pure. They are those of the model's own distribution: taken from the raw logits, before bias,
temperature, penalties and bans, so that a sampling option does not change what a model "thinks".
(TensorRT-LLM's PyTorch runtime reports these too; its engines report the processed ones.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .arrays import Float32, Int, log_softmax

Int32 = npt.NDArray[np.int32]


def chosen_and_best(logits: Float32, tokens: Int, width: int) -> tuple[Float32, Int32, Float32]:
    """For rows ``[rows, vocabulary]``: the tokens' values ``[rows]``, and ids and values of the best
    ``[rows, width]``, best first."""
    values = log_softmax(logits)
    rows = np.arange(len(tokens))
    vocab_size = logits.shape[1]
    if width == 0:
        empty = np.empty((len(tokens), 0))
        return values[rows, tokens], empty.astype(np.int32), empty.astype(np.float32)
    kept = np.argpartition(values, vocab_size - width, axis=1)[:, vocab_size - width :]
    kept.sort(axis=1)
    candidates = np.take_along_axis(values, kept, axis=1)
    order = np.argsort(-candidates, axis=1, kind="stable")
    best_ids = np.take_along_axis(kept, order, axis=1).astype(np.int32)
    return values[rows, tokens], best_ids, np.take_along_axis(candidates, order, axis=1)
