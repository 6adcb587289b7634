"""Sizes in tokens: those that follow from others, and whether they agree with each other and the model."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.build.options import Values
from inflight.build.options.declaration import DISABLE
from inflight.errors import Problem
from inflight.model.config import ModelFacts


@dataclass(frozen=True)
class Lengths:
    """Sizes of the built model in tokens."""

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_beam_width: int


def resolve_lengths(values: Values, facts: ModelFacts) -> tuple[Lengths, list[Problem], list[str]]:
    """The sizes, what is wrong with them, and what a person should know."""
    problems: list[Problem] = []
    notes: list[str] = []
    trained = facts.max_position_embeddings
    max_input, max_seq, max_output = (
        values["max_input_len"],
        values["max_seq_len"],
        values["max_output_len"],
    )
    # A length that follows from others has not its own option's name.
    asked = f"`--max-seq-len {max_seq}` is" if max_seq is not None else f"`--max-input-len {max_input}` is"
    if max_output is not None:
        if max_seq is not None or max_input is None:
            problems.append(
                Problem(
                    f"`--max-output-len {max_output}` needs `--max-input-len`, and excludes `--max-seq-len`",
                    "pass `--max-seq-len` alone: prompt plus output",
                )
            )
        else:
            max_seq = max_input + max_output
            asked = f"`--max-input-len {max_input}` and `--max-output-len {max_output}` are together"
            notes.append(f"`--max-output-len` is deprecated; max_seq_len is {max_seq}")
    if max_seq is None:
        if trained is None:
            problems.append(Problem("`config.json` has no maximum sequence length", "pass `--max-seq-len`"))
        max_seq = max(trained or 2, max_input or 0)
    if trained is not None and max_seq > trained:
        beyond = f"{asked} beyond the `{trained}` positions the model was trained for"
        if facts.learned_positions:
            problems.append(
                Problem(beyond, f"choose at most {trained}: the model has no embedding for later positions")
            )
        else:
            notes.append(f"{beyond}: quality may suffer there")
    max_input = max_input if max_input is not None else max_seq
    if max_input > max_seq:
        problems.append(
            Problem(
                f"`--max-input-len {max_input}` is more than `--max-seq-len {max_seq}`",
                "the prompt is part of the sequence: raise one or lower the other",
            )
        )
    sequences = values["max_batch_size"] * values["max_beam_width"]
    max_num_tokens = values["max_num_tokens"]
    if not values.is_given("max_num_tokens"):
        max_num_tokens = max(max_num_tokens, sequences)
    tuned = values["opt_num_tokens"]
    if tuned is not None and tuned > max_num_tokens:
        problems.append(
            Problem(
                f"`--opt-num-tokens {tuned}` is more than `--max-num-tokens {max_num_tokens}`",
                "lower one or raise the other: no iteration has that many tokens",
            )
        )
    lengths = Lengths(values["max_batch_size"], max_input, max_seq, max_num_tokens, values["max_beam_width"])
    if values["remove_input_padding"] != DISABLE and max_num_tokens < sequences:
        problems.append(
            Problem(
                f"`--max-num-tokens {lengths.max_num_tokens}` is less than `--max-batch-size"
                f" {lengths.max_batch_size}` times `--max-beam-width {lengths.max_beam_width}`",
                "raise `--max-num-tokens`: every sequence needs one token per iteration",
            )
        )
    return lengths, problems, notes
