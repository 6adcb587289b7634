"""The next token of each row, by the policy of `core.sampler`, in PyTorch's own operations.

Owns how that policy is computed where there is no Triton, and for rows that wait for the host: the same order
of operations, the same random numbers, so that a seed says the same alone and in any batch. A row's way
through here depends on its own parameters only. The kernels that do the same are in `sampling_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from inflight.executors.reference.core.masks import Guide, stacked
from inflight.executors.reference.core.runner import LogProbs
from inflight.executors.reference.core.sampler import BANNED, SamplerState
from inflight.executors.reference.core.sequence import SequenceState

from .operations import Tensor
from .steps import DeviceSteps

#: Rows whose vocabulary is sorted at once: 64 of Llama 3's take 100 MB.
_SORTED_ROWS = 64

#: Puts a NumPy array on the device.
Upload = Callable[[Any], Tensor]


class PlainSampling:
    """Chooses the tokens of an iteration's rows; the host has all that it needs to know of them."""

    def __init__(self, steps: DeviceSteps) -> None:
        self._steps = steps

    def chosen_and_best(self, logits: Tensor, tokens: Tensor, width: int) -> Tensor:
        """How log probabilities are computed."""
        return chosen_and_best(logits, tokens, width)

    def follows(self, _: SamplerState) -> bool:
        """Whether the device keeps what a sampler needs of tokens that the host does not know yet."""
        return False

    def enter(self, _: Iterable[SequenceState]) -> None:
        """Sequences are about to choose their first token in their slot."""

    def choose(
        self, logits: Tensor, sequences: Sequence[SequenceState], _slots: Any, positions: Any, _: int | None
    ) -> None:
        """The tokens of rows to ``chosen``, which has their best ones."""
        chosen = self._steps.chosen[: len(sequences)]
        states = [one.sampler for one in sequences]
        tokens = sample(logits, states, numbers_of(sequences, positions), self._steps.upload, chosen)
        if tokens is not chosen:
            self._steps.take(tokens)


def numbers_of(sequences: Sequence[SequenceState], positions: Any) -> list[int]:
    """The places in their outputs of tokens that are chosen after those at ``positions``."""
    pairs = zip(sequences, positions.tolist(), strict=True)
    return [position - len(one.prompt) + 1 for one, position in pairs]


def sample(
    logits: Tensor,
    states: Sequence[SamplerState],
    numbers: Sequence[int],
    upload: Upload,
    best: Tensor | None = None,
) -> Tensor:
    """The next token of each row of ``logits [rows, vocabulary]``: int32 ``[rows]``; logits stay as they are.

    ``numbers`` are the tokens' places in their outputs; ``best`` is the argmax of each row where it is known
    already.
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
        uniforms = [states[row].uniform(numbers[row]) for row in rows]
        processed = logits[places].float()
        if rows is edited:
            _edit(processed, chosen, upload)
        else:
            processed *= upload(
                _column([1.0 / one.parameters.temperature for one in chosen]).astype(np.float32)
            )
        tokens[places] = _choose(processed, chosen, uniforms, upload)
    return tokens


def _choose(
    logits: Tensor, states: Sequence[SamplerState], uniforms: Sequence[float], upload: Upload
) -> Tensor:
    """The best of greedy rows, a draw of the others: by inverse transform, in order of id."""
    tokens = logits.argmax(-1).int()
    free: list[int] = []
    bound: list[int] = []
    for row, one in enumerate(states):
        limits = one.parameters
        if not limits.greedy:
            (bound if limits.top_k > 0 or limits.min_p > 0.0 or one.top_p < 1.0 else free).append(row)
    for rows in (free, bound):
        for start in range(0, len(rows), _SORTED_ROWS):
            part = rows[start : start + _SORTED_ROWS]
            places = upload(np.array(part, dtype=np.int64))
            weights = (
                _limited(logits[places], [states[row] for row in part], upload)
                if rows is bound
                else torch.softmax(logits[places], dim=-1, dtype=torch.float64)
            )
            tokens[places] = _pick(weights, upload(_column([uniforms[row] for row in part])))
    return tokens


def _limited(logits: Tensor, states: Sequence[SamplerState], upload: Upload) -> Tensor:
    """The weights that top-k, then top-p of what is left, then min-p keep; the best token always stays."""
    top_k = upload(_column([one.parameters.top_k or logits.shape[1] for one in states]))
    # No limit is infinite, since rounding can carry the cumulative sum past 1.
    top_p = upload(_column([one.top_p if one.top_p < 1.0 else np.inf for one in states]))
    min_p = upload(_column([one.parameters.min_p for one in states]))
    ordered, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    weights = (ordered - ordered[:, :1]).double().exp()
    weights *= torch.arange(weights.shape[1], device=logits.device) < top_k
    before = weights.cumsum(-1) - weights
    kept = (before < top_p * weights.sum(-1, keepdim=True)) & (weights >= min_p)
    kept[:, 0] = True
    return torch.zeros_like(weights).scatter_(1, ids, weights * kept)


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
    logits *= upload(_column([1.0 / one.parameters.temperature for one in states]).astype(np.float32))
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
        # The model's work is queued already: computing masks here costs the device nothing.
        allowed = _unpacked(upload(stacked([guide for _, guide in guided])), logits.shape[1])
        places = upload(np.array([row for row, _ in guided], dtype=np.int64))
        logits[places] = logits[places].masked_fill(~allowed, float(BANNED))
        _weigh(logits, guided, upload)
    logits.clamp_(min=float(BANNED))


def _weigh(logits: Tensor, guided: Sequence[tuple[int, Guide]], upload: Upload) -> None:
    """`Guide.weigh` of all rows, in place."""
    weighing = [(row, guide.outweighs) for row, guide in guided if guide.outweighs is not None]
    if not weighing:
        return
    rows, firsts = upload(np.array(weighing, dtype=np.int64).T)
    own = logits[rows]
    late = torch.arange(own.shape[1], device=own.device) >= firsts[:, None]
    together = own.masked_fill(~late, -torch.inf).double().logsumexp(-1)
    held_back = together > own.masked_fill(late, -torch.inf).amax(-1)
    logits[rows] = own.masked_fill(held_back[:, None] & ~late, float(BANNED))


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
    return np.array(values, dtype=np.float64)[:, None]


def chosen_and_best(logits: Tensor, tokens: Tensor, width: int) -> Tensor:
    """`log_probs.chosen_and_best` on the device, as one tensor that comes back in one copy: int32 ``[rows, 1
    + 2 width]``, the bits of the tokens' values, the ids of the best and the bits of their values."""
    values = torch.log_softmax(logits.float(), dim=-1)
    # Of equals the lowest id, which `topk` does not promise.
    best, ids = torch.sort(values, dim=-1, descending=True, stable=True)
    own = values.gather(1, tokens.long()[:, None])
    columns = (own.view(torch.int32), ids[:, :width].int(), best[:, :width].contiguous().view(torch.int32))
    return torch.cat(columns, dim=1)


def unpacked_log_probs(columns: Any) -> LogProbs:
    """What `chosen_and_best` packed, on the host."""
    width = columns.shape[1] // 2
    values = columns.view(np.float32)
    return LogProbs(values[:, 0], columns[:, 1 : 1 + width], values[:, 1 + width :])
