"""A request in flight and its sequences: how far each is, and what has not been sent to its client yet.

Owns that state and how it becomes a row. Knows nothing of batches, models or scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inflight.executors.base import FinishReason, Request
from inflight.executors.reference.model.array_types import Float32, Int32
from inflight.executors.reference.model.lora import Adapter

from .admission import Admitted
from .beams import BeamSearch
from .blocks import BlockTable
from .cache_changes import Origin
from .drafts import Checks, Drafts
from .extras import IDLE_PRIORITY
from .fetches import Fetch
from .hearing import Clip
from .images import ImagePrompt
from .log_probs import chosen_and_named
from .metrics import SequenceMetrics
from .pooling import Pool
from .prompt_facts import PromptFacts
from .reuse import NO_MATCH, Match, with_extra_ids
from .rows import PromptRecord, Row, TokenRecord
from .sampler import SamplerState


@dataclass(slots=True, eq=False)
class RequestState:
    """What the sequences of one request share."""

    request: Request
    admitted: Admitted
    unfinished: list[SequenceState] = field(default_factory=list)
    #: Filled chunk by chunk as one sequence goes through the prompt; given out with its first row.
    prompt_record: PromptRecord | None = None
    prompt_recorded: bool = False
    #: The index of the sequence that reports the prompt: the first that had not ended when it came.
    teller: int = 0
    #: The parent of its first block: see `reuse.root`.
    cache_root: bytes = b""
    #: The LoRA adapter that its rows are computed with.
    adapter: Adapter | None = None
    #: ``[prompt, vocabulary]``, filled like the record and given out with it.
    context_logits: Float32 | None = None
    #: Filled like the record, where an embedding is asked for.
    pool: Pool | None = None
    #: By the clock of `iteration.Iteration`.
    arrived_s: float = 0.0
    #: By the count of `queue.WaitingQueue`, and the tokens of its prompts that were to be computed then.
    due: int | None = None
    tokens: int = 0
    #: Of a prompt that has some.
    images: ImagePrompt | None = None
    #: Of a long prompt: what was found out before it came here.
    facts: PromptFacts | None = None
    #: What it hears.
    clip: Clip | None = None

    @property
    def is_embedded(self) -> bool:
        """Whether tokens follow from more than tokens: its prompt may have virtual ones or those of images,
        or it hears a clip."""
        if self.clip is not None:
            return True
        return self.images is not None or self.admitted.extras.prompt_tuning is not None

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for its answer."""
        return self.admitted.extras.priority == IDLE_PRIORITY

    @property
    def origin(self) -> Origin:
        """What `cache_root` was made of, as routers know it."""
        adapter = self.adapter
        return Origin(None if adapter is None else adapter.task_id, self.admitted.extras.cache_salt)

    def cache_tokens(self, tokens: Sequence[int]) -> Sequence[int]:
        """The first tokens of one of its sequences as cached blocks know them."""
        if self.images is not None:
            return self.images.marked(tokens)
        if self.clip is not None:
            return self.clip.marked(tokens, len(self.request.input_token_ids))
        tuning = self.admitted.extras.prompt_tuning
        return tokens if tuning is None else with_extra_ids(tokens, tuning.extra_ids)


@dataclass(slots=True, eq=False)
class SequenceState:
    """One returned sequence: a request of `num_return_sequences` n has n of them."""

    key: int
    owner: RequestState
    index: int
    sampler: SamplerState
    #: What is computed before it generates: its prompt, and its output so far, where that was generated
    #: elsewhere or before a pause.
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
    #: Prompt tokens found at its first admission; None before that, and once they are reported.
    cached_tokens: int | None = None
    paused: bool = False
    ended: bool = False
    #: Guesses of its next tokens; None: it takes one at a time.
    drafts: Drafts | None = None
    #: Its branches, and a table for each once they part; None: it has one.
    beams: BeamSearch | None = None
    tables: list[BlockTable] = field(default_factory=list)
    #: Tokens that were not sent yet, where a request does not stream.
    unsent: list[int] = field(default_factory=list)
    record: TokenRecord | None = None
    #: Kept where the request asks for them.
    metrics: SequenceMetrics | None = None
    #: The blocks of its prompt, where another worker computed them and they are not here yet.
    fetch: Fetch | None = None

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
    def position(self) -> int:
        """Of the last token that was launched: what its next generation row puts in."""
        return len(self.prompt) + self.launched - 1

    @property
    def tokens_left(self) -> int:
        """How many tokens it may still choose."""
        return self.owner.admitted.max_tokens - self.launched

    @property
    def chooses_on_the_host(self) -> bool:
        """Whether its logits come to the host, which chooses several tokens at a time."""
        return self.beams is not None or (self.drafts is not None and self.drafts.checks is Checks.BY_LOGITS)

    @property
    def branches(self) -> bool:
        """Whether several tokens at a time are chosen: what comes next is not known before."""
        return self.beams is not None or self.drafts is not None

    @property
    def needs_history(self) -> bool:
        """Whether its next step cannot be planned before the last one is known."""
        return self.branches or self.sampler.needs_history

    @property
    def all_tables(self) -> list[BlockTable]:
        """The tables of all its branches."""
        return self.tables or ([] if self.table is None else [self.table])

    def restart_beams(self) -> None:
        """Begins its search again: it comes out the same."""
        if self.beams is not None:
            self.beams = BeamSearch(self.beams.config, self.owner.admitted.max_tokens)

    @property
    def keeps_logits(self) -> bool:
        """Whether the logits of its output come to the host."""
        owner = self.owner
        return owner.request.output_config.return_generation_logits or bool(
            owner.admitted.extras.log_prob_ids
        )

    @property
    def tells_of_the_prompt(self) -> bool:
        """Whether every token of its prompt must be computed, since what it gives is asked for."""
        owner = self.owner
        if self.index != owner.teller or owner.prompt_recorded:
            return False
        # Asked for every row: one by one, since a generator costs more than the answer.
        record, logits, pool = owner.prompt_record, owner.context_logits, owner.pool
        return record is not None or logits is not None or pool is not None

    @property
    def known(self) -> list[int]:
        """All its tokens that the host knows."""
        return [*self.prompt, *self.sampler.generated]

    @property
    def top_width(self) -> int:
        """Alternatives reported for each token of the output."""
        return self.owner.request.output_config.num_top_log_probs

    def note(self, token: int, told: tuple[float, Int32, Float32], logits: Float32 | None) -> None:
        """Notes what is reported for a token: what the runner returned, unless the request names the
        alternatives. ``logits`` are those that the token was chosen by, where they come to the host."""
        record, request = self.record, self.owner.request
        if record is None:
            return
        ids = self.owner.admitted.extras.log_prob_ids
        if ids and logits is not None:
            told = chosen_and_named(logits, token, ids)
        record.append(*told)
        if logits is not None and request.output_config.return_generation_logits:
            record.logits.append(logits)

    def end(self) -> None:
        """Nothing more is taken."""
        self.ended = True
        if self.sampler.guide is not None:
            self.sampler.guide.end()

    def keep(self, token: int) -> None:
        """Takes a token that is not sent yet; the caller gives it to the guide."""
        self.sampler.note(token)
        self.unsent.append(token)

    def tell(self, reason: FinishReason) -> Row:
        """A row of everything that was not sent yet."""
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
        if self.metrics is not None:
            row.metrics = self.metrics.tensors(self.all_tables, self.drafts)
        self.unsent = []
        self.cached_tokens = None
        if self.record is not None:
            self.record = TokenRecord()
        if self.tells_of_the_prompt and reason != FinishReason.CANCELLED:
            row.prompt, row.context_logits = owner.prompt_record, owner.context_logits
            row.embedding = None if owner.pool is None else owner.pool.embedding()
            owner.context_logits = None
            owner.prompt_recorded = True
        return row
