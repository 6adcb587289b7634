"""Stop words: whether the latest token ends a sequence.

Pure. Words are token sequences and may span iterations, since the match is against the generated tail.
Only generated tokens count: a prompt that ends in the beginning of a stop word does not arm it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inflight.executors.base import FinishReason


def finish_reason(
    generated: Sequence[int],
    stop_words: Sequence[Sequence[int]],
    end_id: int | None,
    min_tokens: int,
    max_tokens: int,
) -> FinishReason:
    """Why the sequence ends after the last of ``generated``, or NOT_FINISHED.

    The end token ends at once and wins over a stop word; stop words wait for ``min_tokens``; the length
    comes last, so that a stop word that completes on the last allowed token is named.
    """
    if generated and generated[-1] == end_id:
        return FinishReason.END_ID
    if stop_words and len(generated) >= min_tokens and ends_with_any(generated, stop_words):
        return FinishReason.STOP_WORDS
    if len(generated) >= max_tokens:
        return FinishReason.LENGTH
    return FinishReason.NOT_FINISHED


def ends_with_any(tokens: Sequence[int], words: Iterable[Sequence[int]]) -> bool:
    """Whether ``tokens`` ends with one of ``words``."""
    return any(len(tokens) >= len(word) > 0 and list(tokens[-len(word) :]) == list(word) for word in words)
