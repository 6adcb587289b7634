"""Draft tokens: guesses of what comes next, checked by the model several at a time.

Owns where guesses come from (the request, what the sequence said before, or a draft model) and which are
accepted. A guess is accepted when the model chooses the same token; with draft logits, by the ratio of the
two probabilities, as TensorRT-LLM does. Where no guess needs its logits, a runner may choose after each of
them itself (`Checks.BY_ROW`). Knows nothing of blocks or iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from inflight.executors.reference.model.array_types import Float32

from .extras import ExternalDrafts
from .probabilities import softmax
from .sampler import ACCEPTANCE, SamplerState, pick, sample


@dataclass(frozen=True, slots=True)
class LookupConfig:
    """TensorRT-LLM's ``NGramDecodingConfig``: guesses that continue an earlier occurrence of the tail."""

    max_draft_len: int
    max_matching_ngram_size: int


class Checks(Enum):
    """Who chooses a sequence's tokens where some are guessed."""

    #: The host, by the logits of its rows.
    BY_LOGITS = auto()
    #: The runner: each guess is a generation row, after which it chooses as it would without guesses.
    BY_ROW = auto()
    #: Nobody: what the host would wait for costs more than guesses save.
    NOT = auto()


@dataclass(slots=True)
class Drafts:
    """One sequence's guesses, and how good they were."""

    lookup: LookupConfig | None = None
    external: ExternalDrafts | None = None
    checks: Checks = Checks.BY_LOGITS
    #: How many of the external ones are through.
    _used: int = 0
    _pending: list[int] = field(default_factory=list)
    #: Where each run of tokens was last followed by something: by run, the place after it.
    _after: dict[tuple[int, ...], int] = field(default_factory=dict)
    _indexed: int = 0
    #: The prompt and the output so far, as lookup has read them.
    _text: list[int] = field(default_factory=list)
    proposed: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        if self.external is not None:
            self._pending = list(self.external.tokens)

    def resume(self, tokens: Sequence[int]) -> None:
        """The output has these tokens already: guesses of them are through, or were given up."""
        if self.external is None:
            return
        guesses = self.external.tokens
        self._used = min(len(tokens), len(guesses))
        self._pending = list(guesses[self._used :])
        if tuple(tokens[: self._used]) != guesses[: self._used]:
            self._pending.clear()
            self.external = None

    def pending(self, most: int) -> Sequence[int]:
        """The guesses that may be checked next, at most ``most``."""
        return self._pending[: max(most, 0)]

    def check(self, logits: Float32, state: SamplerState) -> tuple[int, bool]:
        """The next token by one row of logits, and whether it is the next guess."""
        if not self._pending:
            return sample(logits[None], [state])[0], False
        guess = self._pending.pop(0)
        self.proposed += 1
        external = self.external
        if external is not None and external.logits is not None:
            token, accepted = _accept(logits, external.logits[self._used], guess, external, state)
        else:
            token = sample(logits[None], [state])[0]
            accepted = token == guess
        self._used += 1
        self.accepted += accepted
        if not accepted:
            self._pending.clear()
            self.external = None
        return token, accepted

    def note(self, token: int) -> bool:
        """Takes the model's next token: whether it is the next guess. Those that follow a wrong guess are
        through."""
        if not self._pending:
            return False
        holds = self._pending.pop(0) == token
        self._used += 1
        self.proposed += 1
        self.accepted += holds
        if not holds:
            self._pending.clear()
            self.external = None
        return holds

    @property
    def needs_logits(self) -> bool:
        """Whether a guess is accepted by what its row's logits are."""
        return self.external is not None and self.external.logits is not None

    @property
    def is_out(self) -> bool:
        """Whether no guess is left."""
        return not self._pending

    def take(self, guesses: Sequence[int]) -> None:
        """Guesses of somebody else's."""
        self.external = None
        self._pending = list(guesses)

    def propose(self, prompt: Sequence[int], output: Sequence[int] = ()) -> None:
        """Looks for guesses after ``prompt`` and ``output``, which only grows, where none are left."""
        if self._pending or self.lookup is None:
            return
        self.external = None
        tokens = self._text
        if not tokens:
            tokens.extend(prompt)
        tokens.extend(output[len(tokens) - len(prompt) :])
        sizes = range(self.lookup.max_matching_ngram_size, 0, -1)
        for place in range(max(self._indexed, 1), len(tokens)):
            for size in sizes:
                if size <= place:
                    self._after[tuple(tokens[place - size : place])] = place
        self._indexed = len(tokens)
        for size in sizes:
            after = self._after.get(tuple(tokens[-size:])) if size <= len(tokens) else None
            if after is not None:
                self._pending = list(tokens[after : after + self.lookup.max_draft_len])
                return


def _accept(
    logits: Float32, draft_logits: Float32, guess: int, drafts: ExternalDrafts, state: SamplerState
) -> tuple[int, bool]:
    target = softmax(state.processed(logits))
    draft = softmax(draft_logits.astype(np.float32))
    threshold = drafts.acceptance_threshold
    if threshold is None:
        threshold = state.uniform(purpose=ACCEPTANCE)
    if target[guess] >= threshold * draft[guess]:
        return guess, True
    # What the draft gave too little of: drawn from it, accepted and drawn tokens together follow the model.
    rest = np.maximum(target - draft, 0.0)
    weights = rest if rest.any() else target
    if state.parameters.greedy:
        return int(weights.argmax()), False
    return int(pick(weights[None], np.array([state.uniform()]))[0]), False
