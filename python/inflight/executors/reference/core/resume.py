"""Requests that another executor began: which of their sequences run here, and what is refused of them.

Pure. The tokens that were generated there are context here, as after a pause: they are computed again, found
in the cache where it has them, and count as generated for everything that looks at them. Knows nothing of
queues or blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from inflight.executors.base import FinishReason, Request, StatusCode

from . import stop
from .refusal import Refused, invalid


def sequences(request: Request) -> list[tuple[int, Sequence[int]]]:
    """The sequences that have not ended: the index of each, and its tokens so far. A search has one."""
    if request.generated:
        return [(index, tokens) for index, tokens in enumerate(request.generated) if tokens is not None]
    sampling = request.sampling_config
    count = 1 if sampling.beam_width > 1 else sampling.num_return_sequences
    return [(index, ()) for index in range(count)]


def longest(request: Request) -> int:
    """Tokens that its longest sequence has already."""
    return max((len(tokens) for tokens in request.generated if tokens is not None), default=0)


def check(request: Request, max_tokens: int, min_tokens: int, vocab_size: int) -> None:
    """Refuses what cannot be continued; ``max_tokens`` is what fits. Errors: `Refused`."""
    if not request.generated:
        return
    sampling = request.sampling_config
    if sampling.beam_width > 1:
        raise Refused(
            StatusCode.UNIMPLEMENTED,
            "the reference executor does not resume a beam search, whose tokens may still change; send the "
            "request without its generated tokens",
        )
    if len(request.generated) != sampling.num_return_sequences:
        raise invalid(
            f"the generated tokens are those of {len(request.generated)} sequences and num_return_sequences "
            f"is `{sampling.num_return_sequences}`; send one list for each"
        )
    running = sequences(request)
    if not running:
        raise invalid("every sequence has ended already; send the tokens of one that has not")
    for index, tokens in running:
        if tokens:
            _check_tokens(request, index, tokens, max_tokens, min_tokens, vocab_size)


def _check_tokens(
    request: Request, index: int, tokens: Sequence[int], max_tokens: int, min_tokens: int, vocab_size: int
) -> None:
    low, high = min(tokens), max(tokens)
    if low < 0 or high >= vocab_size:
        raise invalid(
            f"the generated tokens of sequence {index} hold token id `{low if low < 0 else high}`; ids are 0 "
            f"to {vocab_size - 1}"
        )
    if len(tokens) >= max_tokens:
        bound = "max_tokens is" if max_tokens == request.max_tokens else "after this prompt there is room for"
        raise invalid(
            f"sequence {index} has {len(tokens)} generated tokens and {bound} `{max_tokens}`; nothing is "
            "left to generate"
        )
    reason = stop.finish_reason(tokens, request.stop_words, request.end_id, min_tokens, max_tokens)
    if reason != FinishReason.NOT_FINISHED:
        raise invalid(
            f"the generated tokens of sequence {index} end with its "
            f"{'end token' if reason == FinishReason.END_ID else 'stop word'}; mark it as ended"
        )
