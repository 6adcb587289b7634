"""Choosing the next token of each row from its logits.

Owns the order of operations, which is TensorRT-LLM's: bias, temperature, then repetition, presence and
frequency penalties over prompt and output alike, then bans (bad words, ends before the minimum
length), then top-k, top-p within it, and min-p. Knows nothing of models or requests in flight.

A row's result depends on its own logits and its own stream of random numbers only, so that it is the
same alone and in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .admission import Parameters
from .arrays import Float32, Int, best_ids, softmax
from .masks import Guide

#: A banned token's logit; finite, so that a row with every token banned still gives a token.
BANNED = np.finfo(np.float32).min

#: How many of a row's best tokens are sorted before it is known whether its limits reach further.
_CANDIDATES = 256


class SamplerState:
    """One sequence's part: parameters, random stream and the counts that penalties need."""

    def __init__(
        self, parameters: Parameters, vocab_size: int, prompt: Sequence[int], sequence_index: int = 0
    ) -> None:
        self.parameters = parameters
        self.prompt = prompt
        self._vocab_size = vocab_size
        self.generated: list[int] = []
        #: What holds the tokens to a grammar.
        self.guide: Guide | None = None
        self._random: np.random.Generator | None = None
        if not parameters.greedy:
            # Each returned sequence has a stream of its own under one seed.
            self._random = np.random.Generator(np.random.PCG64([parameters.seed, sequence_index]))
        #: Decays with each token where the request says so.
        self.top_p = parameters.top_p
        #: What followed each run of ``no_repeat_ngram_size`` - 1 tokens.
        self._following: dict[tuple[int, ...], list[int]] = {}
        if parameters.no_repeat_ngram_size:
            for place in range(len(prompt)):
                self._note_ngram(prompt[: place + 1])
        self._counts: Int | None = None
        if parameters.penalizes:
            ids = np.asarray(prompt, dtype=np.int64)
            # Virtual tokens have no logit.
            self._counts = np.bincount(ids[ids < vocab_size], minlength=vocab_size)
        # Asked of every sequence at every iteration.
        self._always_edits = bool(
            self._counts is not None
            or parameters.bias_ids is not None
            or parameters.bad_ids
            or parameters.bad_sequences
            or parameters.no_repeat_ngram_size
        )

    @property
    def edits(self) -> bool:
        """Whether the next token's logits need more than a temperature."""
        return self._always_edits or self.guide is not None or self._holds_back_the_end()

    @property
    def needs_history(self) -> bool:
        """Whether the next token cannot be sampled before the last one is known to the host."""
        return self.edits or self.parameters.top_p_decay != 1.0

    @property
    def notes_tokens(self) -> bool:
        """Whether `observe` does more than to keep the token."""
        parameters = self.parameters
        return (
            self._counts is not None
            or self.guide is not None
            or parameters.no_repeat_ngram_size > 0
            or parameters.top_p_decay != 1.0
        )

    def observe(self, token: int) -> None:
        """Takes the chosen token into account."""
        self.generated.append(token)
        parameters = self.parameters
        if self._counts is not None:
            self._counts[token] += 1
        if self.guide is not None:
            self.guide.observe(token)
        if parameters.no_repeat_ngram_size:
            self._note_ngram(self._tail(parameters.no_repeat_ngram_size))
        if parameters.top_p_decay != 1.0:
            decayed = max(self.top_p * parameters.top_p_decay, parameters.top_p_min)
            self.top_p = parameters.top_p if token == parameters.top_p_reset_id else decayed

    def branch(self, tokens: Sequence[int]) -> SamplerState:
        """The state of another sequence of the same request, whose output so far is ``tokens``."""
        other = SamplerState(self.parameters, self._vocab_size, self.prompt)
        for token in tokens:
            other.observe(token)
        return other

    def processed(self, logits: Float32) -> Float32:
        """One row as it is sampled from: bias, temperature, penalties and bans applied; a new array."""
        row = logits.astype(np.float32)
        if self.edits:
            self.edit(row)
        else:
            row *= np.float32(1.0 / self.parameters.temperature)
        return row

    def uniform(self) -> float:
        """The next number of the row's stream, in [0, 1)."""
        return 0.0 if self._random is None else self._random.random()

    def edit(self, logits: Float32) -> None:
        """Applies bias, temperature, penalties and bans to one row in place."""
        parameters = self.parameters
        if parameters.bias_ids is not None and parameters.bias_values is not None:
            logits[parameters.bias_ids] += parameters.bias_values
        logits *= np.float32(1.0 / parameters.temperature)
        seen = self.seen()
        if seen is not None:
            self._penalize(logits, *seen)
        banned = self.banned()
        if banned:
            logits[banned] = BANNED
        if self.guide is not None:
            logits[~self.guide.mask()] = BANNED
        np.maximum(logits, BANNED, out=logits)

    def seen(self) -> tuple[Int, Int] | None:
        """The tokens that penalties apply to and how often each was seen; None without penalties."""
        if self._counts is None:
            return None
        ids = np.flatnonzero(self._counts)
        return ids, self._counts[ids]

    def banned(self) -> list[int]:
        """The tokens that must not come next."""
        parameters = self.parameters
        ids = list(parameters.bad_ids)
        ids += [word[-1] for word in parameters.bad_sequences if self._tail(len(word) - 1) == word[:-1]]
        if parameters.no_repeat_ngram_size:
            ids += self._following.get(self._tail(parameters.no_repeat_ngram_size - 1), ())
        if self._holds_back_the_end():
            ids += parameters.ending_ids
        return ids

    def _penalize(self, logits: Float32, seen: Int, counts: Int) -> None:
        parameters = self.parameters
        values = logits[seen]
        penalty = np.float32(parameters.repetition_penalty)
        values = np.where(values < 0, values * penalty, values / penalty)
        values -= np.float32(parameters.presence_penalty)
        values -= np.float32(parameters.frequency_penalty) * counts.astype(np.float32)
        logits[seen] = values

    def _holds_back_the_end(self) -> bool:
        parameters = self.parameters
        return len(self.generated) < parameters.min_tokens and bool(parameters.ending_ids)

    def _note_ngram(self, tokens: Sequence[int]) -> None:
        """Remembers that the last token followed those before it."""
        size = self.parameters.no_repeat_ngram_size
        if len(tokens) >= size and tokens[-1] < self._vocab_size:
            run = tuple(tokens[len(tokens) - size : len(tokens) - 1])
            self._following.setdefault(run, []).append(tokens[-1])

    def _tail(self, count: int) -> tuple[int, ...]:
        """The last ``count`` tokens of prompt and output together."""
        missing = count - len(self.generated)
        if count == 0:
            return ()
        if missing <= 0:
            return tuple(self.generated[-count:])
        return (*self.prompt[-missing:], *self.generated)


def sample(logits: Float32, states: Sequence[SamplerState]) -> list[int]:
    """The next token of each row of ``logits [rows, vocabulary]``, which stays as it is."""
    edited = [row for row, state in enumerate(states) if state.edits]
    drawn = [row for row, state in enumerate(states) if not state.parameters.greedy]
    if not edited and not drawn:
        return _as_list(logits.argmax(axis=1))
    processed = logits.copy()
    for row in edited:
        states[row].edit(processed[row])
    # Edited rows have their temperature already: it comes between bias and penalties.
    inverse = np.ones(len(states), dtype=np.float32)
    for row in set(drawn).difference(edited):
        inverse[row] = 1.0 / states[row].parameters.temperature
    processed *= inverse[:, None]
    tokens = processed.argmax(axis=1)
    if drawn:
        tokens[drawn] = draw(
            processed[drawn],
            [states[row].parameters for row in drawn],
            np.array([states[row].uniform() for row in drawn]),
            np.array([states[row].top_p for row in drawn]),
        )
    return _as_list(tokens)


def draw(
    logits: Float32,
    parameters: Sequence[Parameters],
    uniforms: npt.NDArray[np.float64],
    top_p: npt.NDArray[np.float64],
) -> Int:
    """One token a row by inverse transform; ``uniforms [rows]`` lie in [0, 1). ``top_p [rows]`` is what is
    left of the parameters'."""
    tokens = np.empty(len(parameters), dtype=np.int64)
    limited = np.array([one.top_k > 0 or one.min_p > 0.0 for one in parameters]) | (top_p < 1.0)
    if not limited.all():
        tokens[~limited] = pick(softmax(logits[~limited]), uniforms[~limited])
    if limited.any():
        rows = np.flatnonzero(limited).tolist()
        tokens[rows] = _draw_limited(
            logits[rows], [parameters[row] for row in rows], uniforms[rows], top_p[rows]
        )
    return tokens


def _draw_limited(
    logits: Float32,
    parameters: Sequence[Parameters],
    uniforms: npt.NDArray[np.float64],
    top_ps: npt.NDArray[np.float64],
    width: int = _CANDIDATES,
) -> Int:
    """Draws from the best tokens of each row: top-k, then top-p of what is left, then min-p.

    Only the ``width`` best are sorted; rows whose limits reach further are drawn again over all.
    """
    vocab_size = logits.shape[1]
    top_k = np.array([one.top_k for one in parameters])[:, None]
    # No limit is infinite, since rounding can carry the cumulative sum past 1.
    top_p = np.where(top_ps < 1.0, top_ps, np.inf)[:, None]
    min_p = np.array([one.min_p for one in parameters])[:, None]
    ids = best_ids(logits, min(max(width, int(top_k.max())), vocab_size))
    best = np.take_along_axis(logits, ids, axis=1)
    weights = np.exp((best - best[:, :1]).astype(np.float64))
    beyond = (top_k > 0) & (np.arange(ids.shape[1]) >= top_k)
    weights[beyond] = 0.0
    everything = np.exp(logits - best[:, :1]).sum(axis=1, dtype=np.float64, keepdims=True)
    total = np.where(top_k > 0, weights.sum(axis=1, keepdims=True), everything)
    probabilities = weights / total
    before = np.cumsum(probabilities, axis=1) - probabilities
    least = min_p * probabilities[:, :1]
    # The best token always stays; the token that crosses top_p is the last that does.
    dropped = (before >= top_p) | (probabilities < least)
    dropped[:, 0] = False
    probabilities[dropped] = 0.0
    tokens: Int = np.take_along_axis(ids, pick(probabilities, uniforms)[:, None], axis=1)[:, 0]
    short = np.flatnonzero((top_k[:, 0] == 0) & ~dropped[:, -1]).tolist()
    if short and ids.shape[1] < vocab_size:
        tokens[short] = _draw_limited(
            logits[short], [parameters[row] for row in short], uniforms[short], top_ps[short], vocab_size
        )
    return tokens


def pick(weights: npt.NDArray[np.floating], uniforms: npt.NDArray[np.float64]) -> Int:
    """The first index whose cumulative weight exceeds the uniform share of the total."""
    cumulative = np.cumsum(weights, axis=1, dtype=np.float64)
    targets = uniforms[:, None] * cumulative[:, -1:]
    picked: Int = (cumulative <= targets).sum(axis=1)
    np.minimum(picked, weights.shape[1] - 1, out=picked)
    return picked


def _as_list(tokens: Int) -> list[int]:
    return [int(token) for token in tokens]
