"""A mixture of experts, on NumPy: who computes which rows, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from inflight.executors.reference.core.probabilities import best_ids, softmax
from inflight.executors.reference.model.array_types import Float32, Int
from inflight.executors.reference.model.families.family import Activation
from inflight.executors.reference.model.mixture import GroupedRouting

from .arrays import Linear, activate, linear

#: Adds to what a part of an expert made of its rows: part, expert, what went in, what came out.
Adapt = Callable[[str, int, Float32, Float32], None]

#: The experts of each row ``[T, chosen]``, and their shares.
Choice = tuple[Int, Float32]


def choose(scores: Float32, chosen: int, normalized: bool) -> Choice:
    """The best experts of each row ``[T, chosen]`` by the softmax of their ``scores [T, experts]``, or of all
    scores where not ``normalized``."""
    best = best_ids(scores, chosen)
    if normalized:
        return best, softmax(np.take_along_axis(scores, best, axis=1))
    return best, np.take_along_axis(softmax(scores.copy()), best, axis=1)


def choose_in_groups(scores: Float32, bias: Float32 | None, chosen: int, routing: GroupedRouting) -> Choice:
    """The same within the best groups of experts, as DeepSeek's models choose. ``bias [experts]`` counts in
    the choice only."""
    shares = sigmoid(scores) if routing.by_sigmoid else softmax(scores.copy())
    worth = shares if bias is None else shares + bias
    if routing.groups > 1:
        grouped = worth.reshape(len(worth), routing.groups, -1)
        counted = np.sort(grouped, axis=-1)[..., -routing.counted :].sum(axis=-1)
        kept = np.zeros(counted.shape, dtype=bool)
        np.put_along_axis(kept, best_ids(counted, routing.chosen_groups), True, axis=1)
        worth = np.where(kept[..., None], grouped, -np.inf).reshape(worth.shape).astype(np.float32)
    best = best_ids(worth, chosen)
    own: Float32 = np.take_along_axis(shares, best, axis=1)
    if routing.normalized:
        own = own / own.sum(axis=1, keepdims=True)
    return best, own * np.float32(routing.factor)


def sigmoid(x: Float32) -> Float32:
    """By tanh, which cannot overflow as exp does."""
    share: Float32 = np.tanh(x * np.float32(0.5))
    share += np.float32(1.0)
    share *= np.float32(0.5)
    return share


def experts(
    x: Float32,
    choice: Choice,
    gate_up: Float32,
    down: Float32,
    activation: Activation,
    adapt: Adapt | None = None,
    product: Linear = linear,
    gate_up_bias: Float32 | None = None,
    down_bias: Float32 | None = None,
) -> Float32:
    """A mixture of gated MLPs: each row goes through the experts that were chosen for it. Matrices are
    ``[experts, out, in]`` and biases ``[experts, out]``; ``adapt`` adds to what they give."""
    best, shares = choice
    mixed = np.zeros_like(x)
    for expert in np.unique(best):
        rows, places = np.nonzero(best == expert)
        own = x[rows]
        inner = product(own, gate_up[expert])
        if gate_up_bias is not None:
            inner += gate_up_bias[expert]
        if adapt is not None:
            adapt("gate_up", int(expert), own, inner)
        active = activate(inner, activation, True)
        out = product(active, down[expert])
        if down_bias is not None:
            out += down_bias[expert]
        if adapt is not None:
            adapt("down", int(expert), active, out)
        mixed[rows] += out * shares[rows, places][:, None]
    return mixed
