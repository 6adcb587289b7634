"""The seam between the engine and what computes: one planned iteration in, its tokens out.

Owns the values that cross and the protocol; an implementation owns the model, the cache's storage and where
both live. The engine decides who runs, counts blocks and reads what a token means (ends, stop words, rows);
a runner lays out the rows, runs the model, and samples.

Launching and collecting are apart, so that the engine can plan an iteration while the last one computes:

    launch(i + 1)     tokens that iteration i still chooses are named by their row, not by their id
    collect(i)        waits; a sequence that turns out to have ended has one row in i + 1, which is dropped
    choose(i + 1)     only where some token needs those before it: of a guide, with penalties

A runner keeps the order of launches, on the device too: blocks and slots that were given back may be in
use by the latest launch, and the next one may write them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np

from inflight.executors.reference.model.array_types import Float32, Int, Int32

from .block_store import BlockStore
from .drafts import Checks
from .options import Sizes
from .sampler import SamplerState
from .sequence import SequenceState

#: The rows of `Work.inputs`.
INPUTS = 5

#: In `Work.sources`: the host knows the token.
KNOWN = -1


NO_ROWS = np.zeros(0, dtype=np.int64)


def _no_rows() -> Int:
    return NO_ROWS


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one context: the positions ``first`` up to ``stop``, without it."""

    sequence: SequenceState
    first: int
    stop: int
    #: Whether its last row chooses the first token of the output.
    chooses: bool
    #: Alternatives reported of each prompt token; None: nothing is reported. The row of position p reports
    #: the token at p + 1, and the prompt's last row reports none.
    prompt_width: int | None = None
    #: How many of its last rows give their logits to the host.
    logit_rows: int = 0
    #: The positions whose final hidden states go to the host.
    pooled: range = range(0)

    @property
    def tokens(self) -> Sequence[int]:
        return self.sequence.context[self.first : self.stop]

    @property
    def reported(self) -> int:
        """How many prompt tokens its rows report, from ``first + 1`` on."""
        if self.prompt_width is None:
            return 0
        return max(0, min(self.stop, len(self.sequence.prompt) - 1) - self.first)


@dataclass(frozen=True, slots=True)
class Probe:
    """Consecutive tokens of a branch, whose logits go to the host, which chooses: a beam's last token, or
    the last token of a sequence with draft tokens after it."""

    sequence: SequenceState
    tokens: Sequence[int]
    first: int
    #: What holds the branch's tokens up to and with these.
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Work:
    """One planned iteration. Every sequence has its own slot and the blocks that its rows need.

    The rows that choose a token, in this order, are the generation rows and the last row of each chunk
    that ``chooses``. The blocks of a sequence only ever grow at their end while it keeps its table.
    """

    #: One new token each. A sequence whose guesses are checked by row has a row more for each of them, in
    #: order.
    generation: Sequence[SequenceState]
    #: A column for each generation row ``[5, rows]``: its input token where the host knows it; where that
    #: comes from, a choosing row of the work launched before this one or `KNOWN`; its position; the
    #: sequence's slot; and the block that it goes to.
    inputs: Int32
    #: Generation rows that ask for more than their most likely token: one that is drawn, whose logits are
    #: edited, of which more is reported than its id, or that an adapter computes.
    special: Sequence[int] = ()
    chunks: Sequence[Chunk] = ()
    #: Blocks whose first tokens are another's: (from, to, tokens). Done before anything is computed, in
    #: order.
    copies: Sequence[tuple[int, int, int]] = ()
    #: Branches of sequences that choose on the host.
    probes: Sequence[Probe] = ()
    #: Whether some token cannot be chosen before those of the work before are known: `Runner.choose` does.
    late: bool = False
    #: Sequences whose first row in their slot is one of generation: their prompts came from elsewhere.
    entering: Sequence[SequenceState] = ()
    #: Whether a request has come, where nobody waits for this work and nothing else is in flight: it may be
    #: given up then.
    is_awaited: Callable[[], bool] | None = None

    @property
    def positions(self) -> list[int]:
        """Of the generation rows."""
        return cast(list[int], self.inputs[2].tolist())

    @property
    def sources(self) -> list[int]:
        """Of the generation rows' input tokens."""
        return cast(list[int], self.inputs[1].tolist())

    def choosing(self) -> list[SequenceState]:
        """The sequences that get a token, in order of their rows."""
        return [*self.generation, *(chunk.sequence for chunk in self.chunks if chunk.chooses)]


@dataclass(frozen=True, slots=True)
class LogProbs:
    """Log probabilities of tokens ``[tokens]``, and of the best alternatives ``[tokens, width]``."""

    values: Float32
    top_ids: Int32
    top_values: Float32

    def part(self, places: Int, width: int) -> LogProbs:
        """Those of some tokens, with the first ``width`` alternatives."""
        return LogProbs(self.values[places], self.top_ids[places, :width], self.top_values[places, :width])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an iteration gave."""

    #: One for each choosing row: a list or an array.
    tokens: Sequence[int] = ()
    #: The choosing rows of sequences that keep a record, ascending, and what is reported of their tokens: as
    #: wide as the widest asks.
    recorded: Int = field(default_factory=_no_rows)
    log_probs: LogProbs | None = None
    #: By place in `Work.chunks`, for the chunks with a ``prompt_width``.
    prompts: dict[int, LogProbs] = field(default_factory=dict)
    #: By choosing row, for the sequences that keep their logits: ``[vocabulary]``.
    logits: dict[int, Float32] = field(default_factory=dict)
    #: By place in `Work.chunks`, for the chunks with ``logit_rows``: ``[rows, vocabulary]``.
    chunk_logits: dict[int, Float32] = field(default_factory=dict)
    #: For each of `Work.probes`: ``[tokens, vocabulary]``.
    probe_logits: Sequence[Float32] = ()
    #: By place in `Work.chunks`, for the chunks with positions that are ``pooled``: ``[positions, hidden]``.
    hidden: dict[int, Float32] = field(default_factory=dict)

    def place(self, row: int) -> int | None:
        """Where in ``log_probs`` a choosing row is; None: nothing is reported of its token."""
        place = int(np.searchsorted(self.recorded, row))
        return place if place < len(self.recorded) and self.recorded[place] == row else None


class Pending(Protocol):
    """A launched iteration; only its runner looks inside."""


class Runner(Protocol):
    """Runs planned iterations in the order of their launch. One thread owns it."""

    #: How many iterations may be launched before the first of them is collected: 1 or 2.
    depth: int

    def follows(self, sampler: SamplerState) -> bool:
        """Whether the runner itself keeps what ``sampler`` needs of tokens that are not collected yet."""

    def checks(self, sampler: SamplerState) -> Checks:
        """Who chooses where tokens of ``sampler`` are guessed and no guess needs its logits."""

    def launch(self, work: Work) -> Pending | None:
        """Starts an iteration; everything in ``work`` is read before the call returns. None: it was given up,
        and nothing of it but its copies is done.

        The tokens of work that is `Work.late` are left to `choose`. Of the others, no sampler needs the
        tokens before (`SamplerState.needs_history`), unless the runner ``follows`` it.
        """

    def choose(self, pending: Pending) -> None:
        """Chooses the tokens of the latest launched, late work: all before it is collected."""

    def collect(self, pending: Pending) -> Outcome:
        """Waits for the oldest iteration that is not collected yet."""


@dataclass(frozen=True, slots=True)
class Built:
    """A runner that is ready, and what it took."""

    runner: Runner
    sizes: Sizes
    #: Weights and cache.
    memory_bytes: int
    #: Its cache as bytes; None where it is not in one place.
    blocks: BlockStore | None = None
