"""Iteration-level in-flight batching: which sequences run in the next iteration.

Pure: values in, values out; owns the policy and no state. Knows nothing of tokens, arrays or threads.
Generation goes first, one token each; what is left of the token budget goes to prompts in order of
arrival, in chunks when one does not fit. Admission is first come, first served, and stops at the first
sequence that does not fit: a large request is never overtaken for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """TensorRT-LLM's names: sequences in flight, and tokens processed in one iteration."""

    max_batch_size: int
    max_num_tokens: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sequence in the queue: its prompt's length and the blocks of its worst case."""

    key: int
    prompt_tokens: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Active:
    """A sequence in flight: how much of its prompt is left; 0: it generates."""

    key: int
    context_left: int
    #: Its last token is being chosen: it runs no more and holds its place until that is known.
    ending: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the next iteration runs. Every admitted sequence is also in ``context``."""

    admitted: tuple[int, ...]
    #: (key, tokens of the prompt to process now), in order of admission.
    context: tuple[tuple[int, int], ...]
    generation: tuple[int, ...]


def schedule(
    waiting: Iterable[Waiting], active: Sequence[Active], free_blocks: int, limits: Limits
) -> Schedule:
    """Plans one iteration. ``active`` is in order of admission; ``free_blocks`` excludes reservations.

    Needs max_num_tokens >= max_batch_size, so that generation never starves a prompt in flight.
    """
    generation = tuple(
        sequence.key for sequence in active if sequence.context_left == 0 and not sequence.ending
    )
    budget = limits.max_num_tokens - len(generation)
    context: list[tuple[int, int]] = []
    for sequence in active:
        if sequence.context_left and budget:
            tokens = min(sequence.context_left, budget)
            context.append((sequence.key, tokens))
            budget -= tokens
    admitted: list[int] = []
    room = limits.max_batch_size - len(active)
    for candidate in waiting:
        if not room or not budget or candidate.blocks > free_blocks:
            break
        tokens = min(candidate.prompt_tokens, budget)
        admitted.append(candidate.key)
        context.append((candidate.key, tokens))
        room -= 1
        budget -= tokens
        free_blocks -= candidate.blocks
    return Schedule(tuple(admitted), tuple(context), generation)
