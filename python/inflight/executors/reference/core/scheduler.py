"""Iteration-level in-flight batching: which sequences run in the next iteration.

Pure: values in, values out; owns the policy and no state. Knows nothing of tokens, arrays or threads.

Generation goes first, one step each. What is left of the token budget goes to prompts, in chunks where one
does not fit. New sequences are admitted in the order of the queue, up to the first that does not fit: a
large request is never overtaken for ever. A prompt that has begun is passed only by those in the queue that
are due before it and of no lower priority, and by none that waits for what it computes. Prompts for which
nobody waits (the last priority) have no part of an iteration with a client's prompt, and of others only
small chunks, so that a client who comes finds a short one.

Whether a sequence fits in the cache is the capacity policy, under TensorRT-LLM's names:

- ``guaranteed_no_evict``: only if it and all sequences in flight can grow to their ends. Nothing is ever
  paused, but blocks that most answers never reach are left unused.
- ``max_utilization``: if its prompt fits now. When blocks run out, the youngest sequences are paused:
  their blocks go back, and they are first in the queue to compute prompt and output again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

#: When a prompt is due, by a count of the queue, and its key. What sorts before goes first.
Due = tuple[int, int]


class CapacitySchedulerPolicy(str, Enum):
    """TensorRT-LLM's ``batch_scheduler_policy``."""

    GUARANTEED_NO_EVICT = "guaranteed_no_evict"
    MAX_UTILIZATION = "max_utilization"


@dataclass(frozen=True, slots=True)
class Limits:
    """TensorRT-LLM's names: sequences in flight, and tokens processed in one iteration."""

    max_batch_size: int
    max_num_tokens: int
    policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    #: Whether a prompt may be cut; without, it waits for an iteration that takes all of it.
    enable_chunked_context: bool = True
    #: Tokens of idle prompts in one iteration: on a GPU they take about as long as none, and the next client
    #: waits for no more.
    idle_num_tokens: int = 64
    #: What a prompt may add to an iteration while clients' sequences generate; 0: any time.
    max_prompt_s: float = 0.0
    #: Rows that may choose a token, guesses among them, where the runner chooses after each; at least one a
    #: sequence.
    max_rows: int = 0

    @property
    def rows(self) -> int:
        """Most rows of an iteration that choose a token."""
        return max(self.max_batch_size, self.max_rows)


@dataclass(slots=True)
class Waiting:
    """A sequence in the queue. Blocks are those it would take beyond the ones it finds in use."""

    key: int
    #: Tokens to process before it generates.
    context_tokens: int
    #: At its end, at the worst.
    most_blocks: int
    #: For its context alone.
    context_blocks: int = 0
    #: The sequence in flight that computes what it needs: it waits, and others may pass.
    behind: int | None = None
    #: Nobody waits for its answer.
    is_idle: bool = False
    #: Its context comes from another worker: it needs blocks now, and no part of an iteration.
    fetches: bool = False
    #: The highest goes first.
    priority: float = 0.0
    due: Due = (0, 0)


@dataclass(slots=True)
class Active:
    """A sequence in flight. It holds the blocks of its whole context from its admission on."""

    key: int
    #: Tokens of its context still to process; 0: it generates.
    context_left: int
    #: Blocks it may still take until its end.
    blocks_left: int = 0
    #: Blocks its next generation step takes.
    blocks_next: int = 0
    #: Blocks that pausing it gives back.
    blocks_held: int = 0
    #: Tokens of its next generation step: one for each beam.
    tokens_next: int = 1
    #: Draft tokens it would check in the same step, as far as the budget goes.
    draft_tokens: int = 0
    #: Whether each of them is a row that chooses a token.
    drafts_are_rows: bool = False
    #: Its last token is being chosen: it runs no more and holds its place until that is known.
    ending: bool = False
    #: Nobody waits for its answer.
    is_idle: bool = False
    #: Its context is on its way from another worker: it holds its place and its blocks.
    arriving: bool = False
    priority: float = 0.0
    due: Due = (0, 0)


@dataclass(frozen=True, slots=True)
class Steady:
    """Sequences in flight that take one token an iteration, all together; they are not among the `Active`.
    Never more than have the blocks of their next step."""

    count: int = 0
    #: Those that run now; the others are `Active.ending`.
    running: int = 0
    #: Sums of what `Active` says of one.
    blocks_left: int = 0
    blocks_next: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the next iteration runs. Every admitted sequence is also in ``context``, unless it `fetches`."""

    admitted: tuple[int, ...] = ()
    #: (key, tokens of the context to process now).
    context: tuple[tuple[int, int], ...] = ()
    generation: tuple[int, ...] = ()
    #: Youngest first.
    paused: tuple[int, ...] = ()
    #: (key, draft tokens to check now); sequences that check none are left out.
    drafts: tuple[tuple[int, int], ...] = ()


_NOBODY = Steady()


def schedule(
    waiting: Iterable[Waiting],
    active: Sequence[Active],
    free_blocks: int,
    limits: Limits,
    steady: Steady = _NOBODY,
    prompt_tokens: int | None = None,
) -> Schedule:
    """Plans one iteration.

    ``active`` is in order of admission, ``waiting`` in that of the queue, consumed only as far as needed.
    Needs max_num_tokens to hold a generation step of max_batch_size sequences, so that generation never
    starves a prompt in flight, and every sequence alone to fit in the cache. ``prompt_tokens`` bounds what is
    processed of prompts, which then must be cut.
    """
    paused: tuple[int, ...] = ()
    if limits.policy is CapacitySchedulerPolicy.MAX_UTILIZATION:
        running, paused = _make_room(active, free_blocks - steady.blocks_next)
        free_blocks -= steady.blocks_next + sum(one.blocks_next for one in running)
    else:
        running = active
        free_blocks -= steady.blocks_left + sum(one.blocks_left for one in active)
    generating = [one for one in running if one.context_left == 0 and not one.ending]
    budget = limits.max_num_tokens - steady.running - sum(one.tokens_next for one in generating)
    if prompt_tokens is not None:
        budget = min(budget, prompt_tokens)
    prompts = _Prompts(budget, limits.idle_num_tokens, limits.enable_chunked_context)
    computing = [one for one in running if one.context_left and not one.arriving]
    idle = [one for one in computing if one.is_idle]
    begun = {one.key: one for one in sorted(computing, key=lambda one: one.due) if not one.is_idle}
    admitted: list[int] = []
    room = limits.max_batch_size - steady.count - len(running)
    # What was just paused must not be replaced by something else in the same breath.
    for candidate in waiting if not paused else ():
        before = [one for one in begun.values() if _goes_before(one, candidate)]
        for one in before:
            del begun[one.key]
            prompts.take(one.key, one.context_left)
        if not room or (prompts.budget <= 0 and not candidate.fetches):
            break
        if candidate.behind is not None:
            continue
        if candidate.fetches:
            if candidate.most_blocks > free_blocks:
                break
            admitted.append(candidate.key)
            room -= 1
            free_blocks -= candidate.most_blocks
            continue
        if candidate.is_idle:
            # All others have had their turn.
            prompts.take_idle(idle)
            idle = []
            if min(prompts.idle, prompts.budget) <= 0:
                break
        blocks = (
            candidate.context_blocks
            if limits.policy is CapacitySchedulerPolicy.MAX_UTILIZATION
            else candidate.most_blocks
        )
        if blocks > free_blocks:
            break
        if prompts.budget < candidate.context_tokens and not limits.enable_chunked_context:
            break
        prompts.take(candidate.key, candidate.context_tokens, candidate.is_idle)
        admitted.append(candidate.key)
        room -= 1
        free_blocks -= blocks
    for one in begun.values():
        prompts.take(one.key, one.context_left)
    prompts.take_idle(idle)
    budget = prompts.budget
    rows = limits.rows - steady.running - len(generating) - len(prompts.context)
    # Drafts are worth least: they take what nothing else wants.
    drafts: list[tuple[int, int]] = []
    for one in generating:
        checked = min(one.draft_tokens, budget, rows if one.drafts_are_rows else budget)
        if checked > 0:
            drafts.append((one.key, checked))
            budget -= checked
            rows -= checked if one.drafts_are_rows else 0
    generation = tuple(one.key for one in generating)
    return Schedule(tuple(admitted), tuple(prompts.context), generation, paused, tuple(drafts))


def _goes_before(begun: Active, candidate: Waiting) -> bool:
    """Whether a prompt that has begun is not passed by one in the queue."""
    if candidate.is_idle or candidate.behind == begun.key:
        return True
    return begun.due <= candidate.due or begun.priority > candidate.priority


@dataclass(slots=True)
class _Prompts:
    """What an iteration processes of prompts, and the tokens that it has left for them."""

    budget: int
    #: Of these, for idle ones; 0 once a client's prompt is there.
    idle: int
    #: Whether one may be cut.
    cuts: bool
    context: list[tuple[int, int]] = field(default_factory=list)

    def take(self, key: int, left: int, is_idle: bool = False) -> None:
        """As much of a prompt as there is room for; of one that may not be cut, all of it or nothing."""
        tokens = min(left, self.budget)
        if is_idle:
            tokens = min(tokens, self.idle) if self.cuts else tokens * (self.idle > 0)
        if tokens > 0:
            self.context.append((key, tokens))
            self.budget -= tokens
            self.idle = self.idle - tokens if is_idle else 0

    def take_idle(self, sequences: Iterable[Active]) -> None:
        for one in sequences:
            self.take(one.key, one.context_left, is_idle=True)


def _make_room(active: Sequence[Active], free_blocks: int) -> tuple[Sequence[Active], tuple[int, ...]]:
    """Pauses from the youngest on until the others have the blocks of their next step.

    Returns those who run, and the paused keys.
    """
    needed = sum(one.blocks_next for one in active)
    running = list(active)
    paused: list[int] = []
    # The oldest stays: alone it always fits.
    while needed > free_blocks and len(running) > 1:
        youngest = running.pop()
        paused.append(youngest.key)
        free_blocks += youngest.blocks_held
        needed -= youngest.blocks_next
    return running, tuple(paused)
