"""Draft tokens from a smaller model: TensorRT-LLM's ``DraftTargetDecodingConfig``, inside the executor.

Owns how guesses are asked of an engine of the draft model's own. Each round sends the whole text again and
finds all but its end in that engine's cache, as Triton's BLS does with two models. Guesses are greedy;
whether they hold is for `drafts` to say, so a draft model changes no token, only how many come at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.executors.base import Request, SamplingConfig

from .engine import Engine
from .extras import CACHE_SALT
from .iteration import Iteration
from .sequence import SequenceState


class DraftModel:
    """Implements `branches.Proposer`. One thread owns it: that of the engine it drafts for."""

    def __init__(self, engine: Engine, max_seq_len: int, max_draft_len: int) -> None:
        self._engine = engine
        self._max_seq_len = max_seq_len
        self._max_draft_len = max_draft_len

    def propose(self, sequences: Sequence[SequenceState]) -> list[Sequence[int]]:
        """What the draft model would say next, of each sequence; nothing where it has no room for more."""
        requests = []
        for place, one in enumerate(sequences):
            tokens = one.known
            most = min(self._max_draft_len, one.tokens_left - 1, self._max_seq_len - len(tokens))
            if most > 0:
                # Texts that must not share blocks in the one cache must not in the other.
                salt = [tensor for tensor in one.owner.request.tensors if tensor.name == CACHE_SALT]
                greedy = SamplingConfig(top_k=1)
                requests.append(Request(place, tokens, most, False, greedy, tensors=salt))
        guesses: list[Sequence[int]] = [()] * len(sequences)
        iteration = Iteration()
        self._engine.add(requests, iteration)
        while self._engine.has_work:
            self._engine.step(iteration)
        for row in iteration.rows:
            guesses[row.client_id] = row.tokens
        return guesses
