"""LongRoPE: rotary embeddings with a factor for each pair, one list for short contexts and one for long ones.

Owns its keys in `config.json` ("LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens").
transformers takes the long factors once a sequence is longer than the training's, also for keys that it has
cached with the others; here the longest sequence that is served decides, as in vLLM. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inflight.model.values import bad_value, integer, number


@dataclass(frozen=True, slots=True)
class LongRope:
    """What divides the angles of the pairs, and what cosines and sines are multiplied with."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    #: The length of the training.
    original_positions: int
    attention_factor: float
    #: Whether sequences may be longer than that.
    is_long: bool

    @property
    def factors(self) -> tuple[float, ...]:
        """Of the pairs."""
        return self.long if self.is_long else self.short


def parse_longrope(parameters: Mapping[str, Any], original: Any, max_positions: int, pairs: int) -> LongRope:
    """The object of a config that says `longrope`; ``original`` is its length of the training where that is
    outside of the object. Errors: `CheckpointError`."""
    key = "original_max_position_embeddings"
    stated = {**parameters, key: parameters.get(key) or original}
    positions = integer(stated, key, minimum=2)
    factor = number(parameters, "factor", max_positions / positions)
    usual = math.sqrt(1 + math.log(factor) / math.log(positions)) if factor > 1 else 1.0
    return LongRope(
        short=_factors(parameters, "short_factor", pairs),
        long=_factors(parameters, "long_factor", pairs),
        original_positions=positions,
        attention_factor=number(parameters, "attention_factor", usual),
        is_long=max_positions > positions,
    )


def _factors(parameters: Mapping[str, Any], key: str, pairs: int) -> tuple[float, ...]:
    listed = parameters.get(key)
    if not isinstance(listed, list) or len(listed) != pairs:
        raise bad_value(key, listed, f"a list of {pairs} numbers, one for each pair of a head")
    return tuple(number({key: one}, key) for one in listed)
