"""What is found out about a long prompt before the engine has it, since streams wait for all that it does.

Owns which requests that is worth for. The thread that enqueues computes it, while an iteration runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from inflight.executors.base import Request

from . import reuse
from .extras import read_extras
from .refusal import Refused

#: Shorter ones take some hundred microseconds.
_LONG_TOKENS = 2048
#: Tokens between which others have a turn: some 50 us.
_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """Of one prompt, without images, sound, virtual tokens or an adapter."""

    lowest: int
    highest: int
    #: Of its full blocks, from `reuse.root` of ``salt``.
    hashes: tuple[bytes, ...]


def find_facts(
    request: Request, tokens_per_block: int, others_wait: Callable[[], bool]
) -> PromptFacts | None:
    """None for a short prompt, and where more than its tokens says what it is. While ``others_wait`` for the
    interpreter, they have it in between."""
    tokens = request.input_token_ids
    if len(tokens) < _LONG_TOKENS:
        return None
    try:
        extras = read_extras(request)
    except Refused:
        return None  # the engine refuses it in the same words
    if any(more is not None for more in (extras.images, extras.audio, extras.prompt_tuning, extras.lora)):
        return None
    hashes: list[bytes] = []
    parent, lowest, highest = reuse.root(extras.cache_salt), tokens[0], tokens[0]
    step = max(1, _AT_ONCE // tokens_per_block) * tokens_per_block
    for start in range(0, len(tokens), step):
        part = tokens[start : start + step]
        lowest, highest = min(lowest, min(part)), max(highest, max(part))
        hashes += reuse.chain(parent, part, tokens_per_block)
        parent = hashes[-1] if hashes else parent
        if others_wait():
            # At once: the engine's thread would wait for 0.5 ms, several times. It costs 70 us.
            time.sleep(0)
    return PromptFacts(lowest, highest, tuple(hashes))
