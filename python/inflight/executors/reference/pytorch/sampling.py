"""The next token of each row on the device, by the policy of `reference.sampler`.

Owns how that policy is computed on PyTorch: the same order of operations, the same random numbers (drawn on
the host, one a token, from the row's own stream), so that a seed says the same alone and in any batch. A
row's way through here depends on its own parameters only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from inflight.executors.reference.masks import stacked
from inflight.executors.reference.sampler import BANNED, SamplerState

from .operations import Tensor

#: Rows whose vocabulary is sorted at once: 64 of Llama 3's take 100 MB.
_SORTED_ROWS = 64

#: Puts a NumPy array on the device.
Upload = Callable[[Any], Tensor]


def sample(
    logits: Tensor, states: Sequence[SamplerState], upload: Upload, best: Tensor | None = None
) -> Tensor:
    """The next token of each row of ``logits [rows, vocabulary]``: int32 ``[rows]``; logits stay as they are.

    ``best`` is the argmax of each row where it is known already.
    """
    tokens = best if best is not None else logits.argmax(-1).int()
    edited = [row for row, state in enumerate(states) if state.edits]
    drawn = [row for row, state in enumerate(states) if not state.parameters.greedy]
    if not edited and not drawn:
        return tokens
    tokens = tokens.clone()
    for rows in (edited, sorted(set(drawn).difference(edited))):
        if not rows:
            continue
        places = upload(np.array(rows, dtype=np.int64))
        chosen = [states[row] for row in rows]
        processed = logits[places].float()
        if rows is edited:
            _edit(processed, chosen, upload)
        else:
            processed *= upload(_column([1.0 / one.parameters.temperature for one in chosen]))
        tokens[places] = _choose(processed, chosen, upload)
    return tokens


def _choose(logits: Tensor, states: Sequence[SamplerState], upload: Upload) -> Tensor:
    """The best of greedy rows, a draw of the others."""
    tokens = logits.argmax(-1).int()
    rows = [row for row, one in enumerate(states) if not one.parameters.greedy]
    if rows:
        places = upload(np.array(rows, dtype=np.int64))
        tokens[places] = _draw(logits[places], [states[row] for row in rows], upload)
    return tokens


def _draw(logits: Tensor, states: Sequence[SamplerState], upload: Upload) -> Tensor:
    """One token a row by inverse transform, in order of id without limits and best first with them."""
    uniforms = [one.uniform() for one in states]
    limits = [(one.parameters.top_k, one.top_p, one.parameters.min_p) for one in states]
    limited = [top_k > 0 or top_p < 1.0 or min_p > 0.0 for top_k, top_p, min_p in limits]
    tokens = torch.empty(len(states), dtype=torch.int32, device=logits.device)
    free = [row for row, is_limited in enumerate(limited) if not is_limited]
    if free:
        places = upload(np.array(free, dtype=np.int64))
        weights = torch.softmax(logits[places], dim=-1)
        tokens[places] = _pick(weights, upload(_column([uniforms[row] for row in free])))
    bound = [row for row, is_limited in enumerate(limited) if is_limited]
    for start in range(0, len(bound), _SORTED_ROWS):
        rows = bound[start : start + _SORTED_ROWS]
        places = upload(np.array(rows, dtype=np.int64))
        tokens[places] = _draw_limited(
            logits[places],
            upload(_column([limits[row][0] or logits.shape[1] for row in rows])),
            # No limit is infinite, since rounding can carry the cumulative sum past 1.
            upload(_column([limits[row][1] if limits[row][1] < 1.0 else np.inf for row in rows])),
            upload(_column([limits[row][2] for row in rows])),
            upload(_column([uniforms[row] for row in rows])),
        )
    return tokens


def _draw_limited(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniforms: Tensor) -> Tensor:
    """Top-k, then top-p of what is left, then min-p; the best token always stays."""
    ordered, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    weights = (ordered - ordered[:, :1]).exp()
    weights *= torch.arange(weights.shape[1], device=logits.device) < top_k
    probabilities = weights / weights.sum(-1, keepdim=True)
    before = probabilities.cumsum(-1) - probabilities
    kept = (before < top_p) & (probabilities >= min_p * probabilities[:, :1])
    kept[:, 0] = True
    picked = _pick(probabilities * kept, uniforms)
    return ids.gather(1, picked[:, None].long())[:, 0].int()


def _pick(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first index whose cumulative weight exceeds the uniform share of the total."""
    cumulative = weights.cumsum(-1)
    targets = uniforms * cumulative[:, -1:]
    # Nothing after the last weight that counts may be picked, whatever rounding did to the sums.
    last = (weights > 0).int().mul(torch.arange(weights.shape[1], device=weights.device)).amax(-1)
    return torch.minimum(torch.searchsorted(cumulative, targets, right=True)[:, 0], last).int()


def _edit(logits: Tensor, states: Sequence[SamplerState], upload: Upload) -> None:
    """Bias, temperature, penalties, bans and guides, in that order, in place."""
    biased, seen, banned = [], [], []
    for row, state in enumerate(states):
        parameters = state.parameters
        if parameters.bias_ids is not None and parameters.bias_values is not None:
            biased.append((row, parameters.bias_ids, parameters.bias_values))
        counted = state.seen()
        if counted is not None:
            seen.append((row, *counted))
        ids = state.banned()
        if ids:
            banned.append((row, np.array(ids, dtype=np.int64), None))
    if biased:
        rows, ids, values = _flat(biased, upload)
        logits[rows, ids] += values
    logits *= upload(_column([1.0 / one.parameters.temperature for one in states]))
    if seen:
        rows, ids, counts = _flat(seen, upload)
        repetition, presence, frequency = (
            upload(np.array([getattr(one.parameters, name) for one in states], dtype=np.float32))[rows]
            for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
        )
        values = logits[rows, ids]
        values = torch.where(values < 0, values * repetition, values / repetition)
        logits[rows, ids] = values - presence - frequency * counts
    if banned:
        rows, ids, _ = _flat(banned, upload)
        logits[rows, ids] = float(BANNED)
    guided = [(row, one.guide) for row, one in enumerate(states) if one.guide is not None]
    if guided:
        # The model's work is queued already: waiting here for a mask that is late costs the device nothing.
        allowed = _unpacked(upload(stacked([guide for _, guide in guided])), logits.shape[1])
        places = upload(np.array([row for row, _ in guided], dtype=np.int64))
        logits[places] = logits[places].masked_fill(~allowed, float(BANNED))
    logits.clamp_(min=float(BANNED))


def _unpacked(packed: Tensor, vocab_size: int) -> Tensor:
    """Bits ``[rows, bytes]`` as booleans ``[rows, vocab_size]``: an eighth of the bytes go to the device."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, :, None] >> shifts) & 1).bool().flatten(1)[:, :vocab_size]


def _flat(parts: Sequence[tuple[int, Any, Any]], upload: Upload) -> tuple[Tensor, Tensor, Tensor]:
    """Row, id and value of every entry of ``(row, ids, values)``."""
    rows = np.concatenate([np.full(len(ids), row, dtype=np.int64) for row, ids, _ in parts])
    values = [np.zeros(len(ids)) if values is None else values for _, ids, values in parts]
    return (
        upload(rows),
        upload(np.concatenate([ids for _, ids, _ in parts]).astype(np.int64)),
        upload(np.concatenate(values).astype(np.float32)),
    )


def _column(values: Sequence[float]) -> Any:
    return np.array(values, dtype=np.float32)[:, None]


def chosen_and_best(logits: Tensor, tokens: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """`log_probs.chosen_and_best` on the device."""
    values = torch.log_softmax(logits.float(), dim=-1)
    best, ids = values.topk(width, dim=-1)
    return values.gather(1, tokens.long()[:, None])[:, 0], ids.int(), best
