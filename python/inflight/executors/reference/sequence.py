"""A request in flight and its sequences: how far each is, and what its client has not been told.

Owns that state and how it becomes a row. Knows nothing of batches, models or scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inflight.executors.base import FinishReason, Request

from .admission import Admitted
from .cache import BlockTable
from .reuse import NO_MATCH, Match
from .rows import PromptRecord, Row, TokenRecord
from .sampler import SamplerState


@dataclass(slots=True, eq=False)
class RequestState:
    """What the sequences of one request share."""

    request: Request
    admitted: Admitted
    unfinished: list[SequenceState] = field(default_factory=list)
    #: Filled chunk by chunk as sequence 0 goes through the prompt; given out with the first row.
    prompt_record: PromptRecord | None = None
    prompt_recorded: bool = False
    #: The parent of its first block: see `reuse.root`.
    cache_root: bytes = b""


@dataclass(slots=True, eq=False)
class SequenceState:
    """One returned sequence: a request of `num_return_sequences` n has n of them."""

    key: int
    owner: RequestState
    index: int
    sampler: SamplerState
    #: What is computed before it generates: its prompt, and after a pause its output so far as well.
    context: Sequence[int]
    #: Tokens of the context found or launched, and tokens of the output launched: chosen, or being chosen.
    context_done: int = 0
    launched: int = 0
    #: Among the choosing rows of the latest `runner.Work` it was in.
    row: int = 0
    #: Its place among the sequences in flight, below max_batch_size, while it has a table.
    slot: int = -1
    table: BlockTable | None = None
    #: Of the context's full blocks, and of what was found of them in the cache.
    hashes: list[bytes] = field(default_factory=list)
    match: Match = NO_MATCH
    #: Prompt tokens found at its first admission; None once its client was told, or before.
    cached_tokens: int | None = None
    paused: bool = False
    ended: bool = False
    #: What a request that does not stream has not been told yet.
    unsent: list[int] = field(default_factory=list)
    record: TokenRecord | None = None

    @property
    def prompt(self) -> Sequence[int]:
        return self.owner.request.input_token_ids

    @property
    def context_left(self) -> int:
        return len(self.context) - self.context_done

    @property
    def ending(self) -> bool:
        """Whether its last token is launched: it holds its place until that is collected."""
        return self.context_left == 0 and self.launched >= self.owner.admitted.max_tokens

    @property
    def blocks(self) -> Sequence[int]:
        """The cache blocks that it holds, in order of position."""
        return () if self.table is None else self.table.blocks

    @property
    def tells_of_the_prompt(self) -> bool:
        """Whether every token of its prompt must be computed, since its logits are asked for."""
        return self.index == 0 and self.owner.prompt_record is not None and not self.owner.prompt_recorded

    @property
    def known(self) -> list[int]:
        """All its tokens that the host knows."""
        return [*self.prompt, *self.sampler.generated]

    @property
    def top_width(self) -> int:
        """Alternatives told of each token of the output."""
        return self.owner.request.output_config.num_top_log_probs

    def tell(self, reason: FinishReason) -> Row:
        """A row of all that its client has not been told."""
        owner = self.owner
        output = owner.request.output_config
        row = Row(
            owner.request.client_id,
            self.index,
            self.unsent,
            reason,
            record=self.record,
            top_width=output.num_top_log_probs,
            wants_log_probs=output.return_log_probs,
            cached_tokens=self.cached_tokens,
        )
        self.unsent = []
        self.cached_tokens = None
        if self.record is not None:
            self.record = TokenRecord()
        if owner.prompt_record is not None and not owner.prompt_recorded and reason != FinishReason.CANCELLED:
            row.prompt = owner.prompt_record
            owner.prompt_recorded = True
        return row
