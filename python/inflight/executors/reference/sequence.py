"""A request in flight and its sequences: how far each is, and what its client has not been told.

Owns that state and how it becomes a row. Knows nothing of batches, models or scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inflight.executors.base import FinishReason, Request

from .admission import Admitted
from .cache import BlockTable
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


@dataclass(slots=True, eq=False)
class SequenceState:
    """One returned sequence: a request of `num_return_sequences` n has n of them."""

    key: int
    owner: RequestState
    index: int
    sampler: SamplerState
    #: Prompt tokens launched, and tokens of the output launched: chosen, or being chosen.
    context_done: int = 0
    launched: int = 0
    #: Among the choosing rows of the latest `runner.Work` it was in.
    row: int = 0
    #: Its place among the sequences in flight, below max_batch_size, while it has a table.
    slot: int = -1
    table: BlockTable | None = None
    ended: bool = False
    #: What a request that does not stream has not been told yet.
    unsent: list[int] = field(default_factory=list)
    record: TokenRecord | None = None

    @property
    def prompt(self) -> Sequence[int]:
        return self.owner.request.input_token_ids

    @property
    def context_left(self) -> int:
        return len(self.prompt) - self.context_done

    @property
    def ending(self) -> bool:
        """Whether its last token is launched: it holds its place until that is collected."""
        return self.context_left == 0 and self.launched >= self.owner.admitted.max_tokens

    @property
    def blocks(self) -> Sequence[int]:
        """The cache blocks that it holds, in order of position."""
        return () if self.table is None else self.table.blocks

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
        )
        self.unsent = []
        if self.record is not None:
            self.record = TokenRecord()
        if owner.prompt_record is not None and not owner.prompt_recorded and reason != FinishReason.CANCELLED:
            row.prompt = owner.prompt_record
            owner.prompt_recorded = True
        return row
