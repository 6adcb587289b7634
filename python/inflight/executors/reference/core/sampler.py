"""Choosing the next token of each row from its logits.

Owns the order of operations, which is TensorRT-LLM's: bias, temperature, then repetition, presence and
frequency penalties over prompt and output alike, then bans (bad words, ends before the minimum
length), then top-k, top-p within it, and min-p. Knows nothing of models or requests in flight.

A row's result depends on its own logits and its own random numbers only, so that it is the same alone and
in any batch. A random number follows from the seed, the sequence and the token's place in the output
(`uniform`), not from a stream: with the same three, the host and a device draw the same number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from inflight.executors.reference.model.array_types import Float32, Int

from .admission import Parameters
from .masks import Guide
from .probabilities import best_ids, softmax

#: A banned token's logit; finite, so that a row with every token banned still gives a token.
BANNED = np.finfo(np.float32).min

#: How many of a row's best tokens are sorted before it is known whether its limits reach further.
_CANDIDATES = 256

#: What a random number is for: the choice of a token, or whether a draft token is accepted.
CHOICE, ACCEPTANCE = 0, 1

_WORD = 0xFFFFFFFF


def uniform(seed: int, sequence: int, number: int, purpose: int = CHOICE) -> float:
    """A number in [0, 1) with 53 random bits: Philox4x32-10 (Salmon et al., SC 2011; as Random123 has it)
    with the seed as key, over token number, sequence index and purpose."""
    first, second, third, fourth = number & _WORD, sequence & _WORD, purpose, 0
    low, high = seed & _WORD, seed >> 32
    for _ in range(10):
        product, other = 0xD2511F53 * first, 0xCD9E8D57 * third
        first, second = (other >> 32) ^ second ^ low, other & _WORD
        third, fourth = (product >> 32) ^ fourth ^ high, product & _WORD
        low, high = (low + 0x9E3779B9) & _WORD, (high + 0xBB67AE85) & _WORD
    return float((first >> 5) * 2**26 + (second >> 6)) / 2**53


class SamplerState:
    """One sequence's part: parameters, and what penalties and bans need of its tokens."""

    def __init__(
        self, parameters: Parameters, vocab_size: int, prompt: Sequence[int], sequence_index: int = 0
    ) -> None:
        self.parameters = parameters
        self.prompt = prompt
        self._vocab_size = vocab_size
        self.sequence_index = sequence_index
        self.generated: list[int] = []
        #: What holds the tokens to a grammar.
        self.guide: Guide | None = None
        #: Decays with each token where the request says so.
        self.top_p = parameters.top_p
        #: What followed each run of ``no_repeat_ngram_size`` - 1 tokens, of so many of its tokens. Made when
        #: it is first asked for, as the counts are: a device keeps both itself.
        self._following: dict[tuple[int, ...], list[int]] = {}
        self._noted = 0
        self._counts: Int | None = None
        self._counted = 0
        # Asked of every sequence at every iteration.
        self._always_edits = bool(
            parameters.penalizes
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
        """Whether `note` does more than to keep the token."""
        return self.parameters.top_p_decay != 1.0

    def observe(self, token: int) -> None:
        """Takes the chosen token into account."""
        self.note(token)
        if self.guide is not None:
            self.guide.observe(token)

    def note(self, token: int) -> None:
        """The same but for the guide, to which the caller gives the token."""
        self.generated.append(token)
        parameters = self.parameters
        if parameters.top_p_decay != 1.0:
            decayed = max(self.top_p * parameters.top_p_decay, parameters.top_p_min)
            self.top_p = parameters.top_p if token == parameters.top_p_reset_id else decayed

    def resume(self, tokens: Sequence[int]) -> None:
        """Takes into account what was chosen elsewhere, before anything is chosen here."""
        for token in tokens:
            self.note(token)
        if self.guide is not None and tokens:
            self.guide.resume(tokens)

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

    def uniform(self, number: int | None = None, purpose: int = CHOICE) -> float:
        """The random number of the output's token ``number``, by default of the next one."""
        number = len(self.generated) if number is None else number
        return uniform(self.parameters.seed, self.sequence_index, number, purpose)

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
            self.guide.weigh(logits)
        np.maximum(logits, BANNED, out=logits)

    def seen(self) -> tuple[Int, Int] | None:
        """The tokens that penalties apply to and how often each was seen; None without penalties."""
        if not self.parameters.penalizes:
            return None
        if self._counts is None:
            ids = np.asarray(self.prompt, dtype=np.int64)
            # Virtual tokens have no logit.
            self._counts = np.bincount(ids[ids < self._vocab_size], minlength=self._vocab_size)
        for token in self.generated[self._counted :]:
            self._counts[token] += 1
        self._counted = len(self.generated)
        ids = np.flatnonzero(self._counts)
        return ids, self._counts[ids]

    def banned(self) -> list[int]:
        """The tokens that must not come next."""
        parameters = self.parameters
        ids = list(parameters.bad_ids)
        ids += [word[-1] for word in parameters.bad_sequences if self._tail(len(word) - 1) == word[:-1]]
        if parameters.no_repeat_ngram_size:
            self._note_ngrams(parameters.no_repeat_ngram_size)
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

    def _note_ngrams(self, size: int) -> None:
        """Remembers which token followed each run of ``size`` - 1, as far as that is not noted yet."""
        tokens = [*self.prompt, *self.generated]
        for place in range(max(self._noted, size - 1), len(tokens)):
            if tokens[place] < self._vocab_size:
                run = tuple(tokens[place + 1 - size : place])
                self._following.setdefault(run, []).append(tokens[place])
        self._noted = len(tokens)

    def _tail(self, count: int) -> tuple[int, ...]:
        """The last ``count`` tokens of prompt and output together."""
        missing = count - len(self.generated)
        if count == 0:
            return ()
        if missing <= 0:
            return tuple(self.generated[-count:])
        return (*self.prompt[-missing:], *self.generated)


def sample(
    logits: Float32, states: Sequence[SamplerState], numbers: Sequence[int] | None = None
) -> list[int]:
    """The next token of each row of ``logits [rows, vocabulary]``, which stays as it is. ``numbers`` are the
    tokens' places in their outputs, by default after what was observed."""
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
            np.array([states[row].uniform(None if numbers is None else numbers[row]) for row in drawn]),
            np.array([states[row].top_p for row in drawn]),
        )
    return _as_list(tokens)


def draw(
    logits: Float32,
    parameters: Sequence[Parameters],
    uniforms: npt.NDArray[np.float64],
    top_p: npt.NDArray[np.float64],
) -> Int:
    """One token a row by inverse transform over the tokens that the limits keep, in order of id;
    ``uniforms [rows]`` lie in [0, 1). ``top_p [rows]`` is what is left of the parameters'."""
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
    """Draws from the best tokens of each row: top-k, then top-p of what is left, then min-p. Of equal tokens
    the lower ids are the better ones.

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
    # Weights and not probabilities: those of equal tokens have exact sums, which decide how many are kept.
    before = np.cumsum(weights, axis=1) - weights
    # The best token, whose weight is 1, always stays; the token that crosses top_p is the last that does.
    dropped = (before >= top_p * total) | (weights < min_p)
    dropped[:, 0] = False
    weights[dropped] = 0.0
    by_id = np.argsort(ids, axis=1)
    places = pick(np.take_along_axis(weights, by_id, axis=1), uniforms)[:, None]
    tokens: Int = np.take_along_axis(np.take_along_axis(ids, by_id, axis=1), places, axis=1)[:, 0]
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
