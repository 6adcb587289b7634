"""Sampling by what the device keeps of each sequence slot: parameters, counts, bias, words and tokens.

Owns those tables and when they are written: once, as a sequence chooses its first token in its slot. From
then on an iteration needs nothing of the host but the rows' slots and positions, which it has anyway; so an
iteration can be launched before the tokens of the one before it are known. Guided rows also need a mask for
every token, which the host computes in memory that the device copies. Other rows that need the host at every
token (a top-p that decays) go through `sampling`. Knows nothing of the kernels' insides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from inflight.executors.reference.core.admission import Parameters
from inflight.executors.reference.core.masks import Guide, Masks, row_bytes
from inflight.executors.reference.core.sampler import SamplerState
from inflight.executors.reference.core.sequence import SequenceState

from . import log_prob_kernels, sampling
from . import sampling_kernels as kernels
from .operations import Tensor
from .steps import DeviceSteps

#: What a slot's rows need: nothing but the best token, a draw, edited logits, or the host.
_BEST, _DRAWN, _EDITED, _HOST = range(4)

#: Numbers that a slot has for bad words and ends: two a word, its tokens, and one an end.
WORDS_WIDTH = 8192


class SlotSampling:
    """Chooses the tokens of an iteration's rows, in place of the best ones."""

    def __init__(self, steps: DeviceSteps, vocab_size: int, max_seq_len: int) -> None:
        self._steps = steps
        self._vocab_size = vocab_size
        batch, slots = len(steps.chosen), steps.spare.slot + 1
        zeros = partial(torch.zeros, dtype=torch.int32, device=steps.device)
        self._table = zeros((slots, kernels.FIELDS))
        self._counts = zeros((slots, vocab_size))
        self._biases = zeros((slots, vocab_size), dtype=torch.float32)
        self._words = zeros((slots, WORDS_WIDTH))
        self._history = zeros((slots, max_seq_len + 1))
        self._edited = zeros((batch, vocab_size), dtype=torch.float32)
        self._kinds = np.zeros(slots, dtype=np.int8)
        #: Masks by slot, on the host and on the device, and whether a slot has one. The host's table becomes
        #: that of the first guide's `Masks`.
        self._masks: Masks | None = None
        self._host_masks = torch.zeros((slots, row_bytes(vocab_size)), dtype=torch.uint8)
        self._device_masks = zeros((slots, row_bytes(vocab_size) // 4))
        self._masked = np.zeros(slots, dtype=np.bool_)
        if steps.cuda:
            self._host_masks = self._host_masks.pin_memory()
        self._graphs: dict[tuple[int, bool], Any] = {}
        # What is captured runs once before, on another stream than what fills the tables.
        steps.wait_for_memory()
        with steps.queueing():
            for bucket in reversed(steps.buckets):
                for edits in (True, False):
                    choose = partial(self._choose, steps.logits(bucket), *steps.places(bucket), edits)
                    self._graphs[bucket, edits] = steps.capture(choose)

    #: How log probabilities are computed.
    chosen_and_best = staticmethod(log_prob_kernels.chosen_and_best)

    def follows(self, sampler: SamplerState) -> bool:
        """Whether the device keeps what this sampler needs of tokens that the host does not know yet."""
        return sampler.guide is None and _fits(sampler)

    def enter(self, sequences: Iterable[SequenceState]) -> None:
        """Writes the tables of sequences that are about to choose their first token in their slot."""
        entering = []
        for one in sequences:
            self._enter_mask(one)
            before, kind = self._kinds[one.slot], self._kind(one.sampler)
            self._kinds[one.slot] = kind
            if before or kind:
                entering.append(one)
        if not entering:
            return
        slots = np.array([one.slot for one in entering], dtype=np.int64)
        rows = _rows(entering, self._kinds[slots].tolist())
        self._table[self._upload(slots)] = self._upload(rows)
        flags = rows[:, kernels.FLAGS]
        self._enter_counts([one for one, own in zip(entering, flags, strict=True) if own & kernels.COUNTS])
        self._enter_biases([one for one, own in zip(entering, flags, strict=True) if own & kernels.BIASED])
        remembered = [one for one, own in zip(entering, flags, strict=True) if own & kernels.REMEMBERS]
        self._put(self._history, [(one.slot, one.known) for one in remembered])
        waiting = [
            one for one, own in zip(entering, flags, strict=True) if own & (kernels.REMEMBERS | kernels.WAITS)
        ]
        self._put(self._words, [(one.slot, _words(one.sampler.parameters)) for one in waiting])

    def choose(
        self,
        logits: Tensor,
        sequences: Sequence[SequenceState],
        slots: Any,
        positions: Any,
        bucket: int | None,
    ) -> None:
        """The tokens of rows to ``chosen``, which has their best ones; ``slots`` and ``positions`` are on the
        host, and on the device too where the steps took the graph of a ``bucket``."""
        kinds = self._kinds[slots]
        most = int(kinds.max())
        if most == _BEST:
            return
        by_device = kinds[kinds != _HOST]
        if by_device.any():
            edits = bool((by_device == _EDITED).any())
            self._upload_masks(slots)
            if bucket is not None:
                self._graphs[bucket, edits].replay()
            else:
                places = self._upload(np.array([slots, positions], dtype=np.int32))
                self._choose(logits, places[1], places[0], edits)
        if most == _HOST:
            rows = np.flatnonzero(kinds == _HOST)
            places = self._upload(rows)
            own = [sequences[row] for row in rows.tolist()]
            chosen = self._steps.chosen
            chosen[places] = sampling.sample(
                logits[places],
                [one.sampler for one in own],
                sampling.numbers_of(own, positions[rows]),
                self._upload,
                chosen[places],
            )
        self._steps.share(len(sequences))

    def _choose(self, logits: Tensor, positions: Tensor, slots: Tensor, edits: bool) -> None:
        chosen = self._steps.chosen
        common = slots, positions, self._table, self._counts
        kernels.draw(logits, *common, self._history, chosen)
        if edits:
            edited = self._edited[: len(logits)]
            kernels.edit(
                logits, *common, self._biases, self._device_masks, self._words, self._history, edited
            )
            kernels.draw(edited, *common, self._history, chosen, edited=True)

    def _upload(self, array: Any) -> Tensor:
        return self._steps.upload(array)

    def _slots(self, sequences: Sequence[SequenceState]) -> Tensor:
        return self._upload(np.array([one.slot for one in sequences], dtype=np.int64))

    def _kind(self, sampler: SamplerState) -> int:
        greedy = sampler.parameters.greedy
        guide = sampler.guide
        fits = _fits(sampler) and (guide is None or self._is_ours(guide))
        if sampler.edits and fits:
            return _EDITED
        if sampler.edits or (not greedy and not fits):
            return _HOST
        return _BEST if greedy else _DRAWN

    def _enter_mask(self, sequence: SequenceState) -> None:
        guide = sequence.sampler.guide
        if guide is not None and self._masks is None and guide.shared is not None:
            self._masks = guide.shared
            self._masks.adopt(self._host_masks.numpy())
        self._masked[sequence.slot] = guide is not None and self._is_ours(guide)

    def _is_ours(self, guide: Guide) -> bool:
        """Whether its masks are in the table that the device copies."""
        return guide.shared is not None and guide.shared is self._masks

    def _upload_masks(self, slots: Any) -> None:
        """Computes the masks of guided rows and copies the table's part with them.

        The host's table is not written while the copy waits for the model: the next masks follow the tokens
        of these rows, and a slot that another sequence takes meanwhile is read by no row that counts.
        """
        masked = slots[self._masked[slots]]
        if self._masks is None or not len(masked):
            return
        self._masks.compute_noted()
        first, last = int(masked.min()), int(masked.max()) + 1
        source = self._host_masks[first:last].view(torch.int32)
        self._device_masks[first:last].copy_(source, non_blocking=True)

    def _enter_counts(self, sequences: Sequence[SequenceState]) -> None:
        if not sequences:
            return
        self._counts.index_fill_(0, self._slots(sequences), 0)
        parts = []
        for one in sequences:
            ids = np.array(one.known, dtype=np.int64)
            # Virtual tokens have no logit.
            parts.append(ids[ids < self._vocab_size] + one.slot * self._vocab_size)
        places = self._upload(np.concatenate(parts))
        self._counts.view(-1).index_add_(0, places, torch.ones_like(places, dtype=torch.int32))

    def _enter_biases(self, sequences: Sequence[SequenceState]) -> None:
        """Bias, and minus infinity for words of one token, which no penalty undoes."""
        if not sequences:
            return
        self._biases.index_fill_(0, self._slots(sequences), 0.0)
        places, values, banned = [], [], []
        for one in sequences:
            parameters, first = one.sampler.parameters, one.slot * self._vocab_size
            if parameters.bias_ids is not None and parameters.bias_values is not None:
                places.append(parameters.bias_ids + first)
                values.append(parameters.bias_values)
            banned.append(np.array(parameters.bad_ids, dtype=np.int64) + first)
        flat = self._biases.view(-1)
        if places:
            flat[self._upload(np.concatenate(places))] = self._upload(np.concatenate(values))
        flat.index_fill_(0, self._upload(np.concatenate(banned)), -torch.inf)

    def _put(self, table: Tensor, rows: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Writes the first numbers of slots' rows."""
        if not rows:
            return
        width = table.shape[1]
        places = np.concatenate(
            [np.arange(len(numbers), dtype=np.int64) + slot * width for slot, numbers in rows]
        )
        values = np.concatenate([np.array(own, dtype=np.int32) for _, own in rows])
        table.view(-1)[self._upload(places)] = self._upload(values)


def _rows(sequences: Sequence[SequenceState], kinds: Sequence[int]) -> Any:
    """The slots' rows of `sampling_kernels`' table ``[sequences, FIELDS]``; zeros where it is not the
    device's."""
    rows = np.zeros((len(sequences), kernels.FIELDS), dtype=np.int32)
    own = [place for place, kind in enumerate(kinds) if kind in (_DRAWN, _EDITED)]
    if not own:
        return rows
    numbers, floats, seeds = [], [], []
    for place in own:
        sequence = sequences[place]
        parameters = sequence.sampler.parameters
        ngram, words = min(parameters.no_repeat_ngram_size, _MOST), len(parameters.bad_sequences)
        numbers.append(
            (
                _flags(sequence.sampler),
                parameters.top_k or _MOST,
                sequence.index,
                len(sequence.prompt) - 1,
                min(parameters.min_tokens, _MOST),
                ngram,
                words,
                len(parameters.ending_ids),
            )
        )
        floats.append(
            (
                1.0 / parameters.temperature,
                parameters.top_p,
                parameters.min_p,
                parameters.repetition_penalty,
                parameters.presence_penalty,
                parameters.frequency_penalty,
            )
        )
        seeds.append(parameters.seed)
    rows[np.ix_(own, _NUMBERS)] = numbers
    rows[np.ix_(own, _FLOATS)] = np.array(floats, dtype=np.float32).view(np.int32)
    rows[np.ix_(own, _SEEDS)] = np.array(seeds, dtype=np.uint64).view(np.int32).reshape(-1, 2)
    return rows


def _fits(sampler: SamplerState) -> bool:
    """Whether the device's tables hold what a sampler needs, but for masks."""
    parameters = sampler.parameters
    return parameters.top_p_decay == 1.0 and _words_width(parameters) <= WORDS_WIDTH


def _flags(sampler: SamplerState) -> int:
    parameters = sampler.parameters
    is_biased = parameters.bias_ids is not None or bool(parameters.bad_ids)
    remembers = bool(parameters.bad_sequences or parameters.no_repeat_ngram_size)
    flags = 0 if parameters.greedy else kernels.DRAWS
    if is_biased or parameters.penalizes or remembers:
        flags |= kernels.EDITS
    if parameters.min_tokens > 0 and parameters.ending_ids:
        flags |= kernels.WAITS
    if parameters.penalizes:
        flags |= kernels.COUNTS
    if is_biased:
        flags |= kernels.BIASED
    if sampler.guide is not None:
        flags |= kernels.EDITS | kernels.MASKED
    return flags | (kernels.REMEMBERS if remembers else 0)


#: The columns of `_rows`' numbers, floats and seeds.
_NUMBERS = (
    kernels.FLAGS,
    kernels.TOP_K,
    kernels.SEQUENCE,
    kernels.LAST_OF_PROMPT,
    kernels.MIN_TOKENS,
    kernels.NGRAM,
    kernels.WORDS,
    kernels.ENDINGS,
)
_FLOATS = (
    kernels.INVERSE_TEMPERATURE,
    kernels.TOP_P,
    kernels.MIN_P,
    kernels.REPETITION,
    kernels.PRESENCE,
    kernels.FREQUENCY,
)
_SEEDS = (kernels.SEED_LOW, kernels.SEED_HIGH)

#: More tokens than any sequence has.
_MOST = 1 << 30


def _words(parameters: Parameters) -> list[int]:
    """A slot's ends and bad words: the ends, where each word begins, how long each is, and their tokens."""
    words = parameters.bad_sequences
    lengths = [len(word) for word in words]
    begin = len(parameters.ending_ids) + 2 * len(words)
    begins = list(itertools.accumulate(lengths[:-1], initial=begin)) if words else []
    return [*parameters.ending_ids, *begins, *lengths, *(token for word in words for token in word)]


def _words_width(parameters: Parameters) -> int:
    """How many numbers `_words` are."""
    words = parameters.bad_sequences
    return len(parameters.ending_ids) + 2 * len(words) + sum(map(len, words))
