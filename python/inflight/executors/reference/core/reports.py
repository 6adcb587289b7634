"""What the runner reports in addition to tokens: into the records of sequences and prompts.

Owns where each value goes: log probabilities, logits and hidden states. Knows nothing of what a token means.
"""

from __future__ import annotations

from .pooling import Pool
from .runner import Outcome, Work
from .sequence import SequenceState


def record(sequence: SequenceState, token: int, row: int, outcome: Outcome) -> None:
    """Notes what is reported of a row's token."""
    place, values = outcome.place(row), outcome.log_probs
    if place is not None and values is not None:
        width = sequence.top_width
        reported = (
            float(values.values[place]),
            values.top_ids[place, :width],
            values.top_values[place, :width],
        )
        sequence.note(token, reported, outcome.logits.get(row))


def take_prompts(work: Work, outcome: Outcome) -> None:
    """Fills in the logits, log probabilities and hidden states of prompt tokens."""
    for place, hidden in outcome.hidden.items():
        chunk = work.chunks[place]
        owner = chunk.sequence.owner
        if owner.pool is None or owner.prompt_recorded:
            continue
        if chunk.first == 0:
            owner.pool = Pool()  # it begins again after a pause
        owner.pool.add(hidden)
    for place, logits in outcome.chunk_logits.items():
        chunk = work.chunks[place]
        wanted = chunk.sequence.owner.context_logits
        if wanted is not None and chunk.sequence.tells_of_the_prompt:
            stop_position = min(chunk.stop, len(chunk.sequence.prompt))
            wanted[chunk.first : stop_position] = logits[: max(0, stop_position - chunk.first)]
    for place, reported in outcome.prompts.items():
        chunk = work.chunks[place]
        record = chunk.sequence.owner.prompt_record
        if record is not None:
            tokens = slice(chunk.first + 1, chunk.first + 1 + chunk.reported)
            record.values[tokens] = reported.values
            record.top_ids[tokens] = reported.top_ids
            record.top_values[tokens] = reported.top_values
