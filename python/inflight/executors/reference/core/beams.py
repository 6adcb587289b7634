"""Beam search over one request: which beams live, which have ended, and when it is over.

Pure: log probabilities in, parents and tokens out. Knows nothing of models or blocks. The options are
TensorRT-LLM's, and so are their defaults: `length_penalty` 0 ranks by the sum of log probabilities,
`early_stopping` 1 ends with as many answers as there are beams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from inflight.executors.base import FinishReason
from inflight.executors.reference.model.array_types import Float32

#: Of `early_stopping`: once there are as many answers as beams; once no live beam can be better, judged by
#: its score now; every other value: judged by the best score it can still have.
ALWAYS, BY_CURRENT_SCORE = 1, 0


@dataclass(frozen=True, slots=True)
class BeamConfig:
    """What a request asks of its search."""

    width: int
    length_penalty: float = 0.0
    early_stopping: int = ALWAYS
    #: Added to the rank of a beam's candidates, times the beam's place: worse beams get a chance.
    diversity_rate: float = 0.0


@dataclass(slots=True)
class Beam:
    """One branch; ``log_prob`` is the sum over its tokens."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    log_prob: float = 0.0
    score: float = 0.0
    reason: FinishReason = FinishReason.NOT_FINISHED


class BeamSearch:
    """The beams of one request, from one branch without tokens to its answers."""

    def __init__(self, config: BeamConfig, max_tokens: int) -> None:
        self.config = config
        self._max_tokens = max_tokens
        self.beams = [Beam()]
        #: For each beam, the place it had the step before, or of the beam that it branched from.
        self.parents: list[int] = []
        self._ended: list[Beam] = []
        self.done = False

    def advance(self, log_probs: Float32, ends: Callable[[Sequence[int]], FinishReason]) -> None:
        """One step: ``log_probs [beams, vocabulary]`` of the next token of each beam; ``ends`` returns
        why a branch with these tokens is over, or NOT_FINISHED."""
        config = self.config
        vocab_size = log_probs.shape[1]
        sums = log_probs.astype(np.float64) + np.array([[beam.log_prob] for beam in self.beams])
        ranked = sums + config.diversity_rate * np.arange(len(self.beams))[:, None]
        # Twice as many as beams: at most half of them can be ends of a beam each.
        count = min(2 * config.width, ranked.size)
        best = np.argpartition(-ranked.reshape(-1), count - 1)[:count]
        best = best[np.lexsort((best, -ranked.reshape(-1)[best]))]
        live: list[Beam] = []
        parents: list[int] = []
        for rank, place in enumerate(best.tolist()):
            parent, token = divmod(place, vocab_size)
            before = self.beams[parent]
            log_prob = float(log_probs[parent, token])
            beam = Beam([*before.tokens, token], [*before.log_probs, log_prob], float(sums[parent, token]))
            beam.reason = ends(beam.tokens)
            if beam.reason == FinishReason.NOT_FINISHED:
                if len(live) < config.width:
                    live.append(beam)
                    parents.append(parent)
            elif rank < config.width:
                self._end(beam)
        self.beams, self.parents = live, parents
        self.done = not live or self._is_settled(live)

    def answers(self) -> list[Beam]:
        """The beams that ended, best first, at most as many as the width."""
        return list(self._ended)

    def _end(self, beam: Beam) -> None:
        beam.score = self._score(beam.log_prob, len(beam.tokens))
        if beam.reason == FinishReason.END_ID:
            # As everywhere, the end token is not returned; its log probability is part of the score.
            beam.tokens.pop()
            beam.log_probs.pop()
        self._ended.append(beam)
        self._ended.sort(key=lambda one: -one.score)
        del self._ended[self.config.width :]

    def _score(self, log_prob: float, length: int) -> float:
        return log_prob / float(length**self.config.length_penalty)

    def _is_settled(self, live: Sequence[Beam]) -> bool:
        if len(self._ended) < self.config.width:
            return False
        if self.config.early_stopping == ALWAYS:
            return True
        length = len(live[0].tokens)
        if self.config.early_stopping != BY_CURRENT_SCORE and self.config.length_penalty > 0:
            # Sums are negative: the longer, the better the score at the same sum.
            length = self._max_tokens
        best = max(beam.log_prob for beam in live)
        return self._ended[-1].score >= self._score(best, length)
