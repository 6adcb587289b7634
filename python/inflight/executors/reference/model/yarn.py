"""YaRN: rotary embeddings that reach beyond the length of the training, as published checkpoints ask for it.

Owns its keys in `config.json` and its angles ("YaRN: Efficient Context Window Extension of Large Language
Models"); defaults are transformers'. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inflight.model.values import bad_value, flag, integer, number

if TYPE_CHECKING:
    from .array_types import Float32


@dataclass(frozen=True, slots=True)
class Yarn:
    """Pairs of a head that turn fast keep their angles, slow ones are stretched, and others are blended."""

    factor: float
    #: The length of the training.
    original_positions: int
    #: Turns within that length, from which on a pair is fast, and up to which it is slow.
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    #: Whether the pairs that these turns mean are rounded to whole ones.
    truncate: bool = True
    #: What cosines and sines are multiplied with.
    attention_factor: float = 1.0
    #: What scores are multiplied with as well, where attention is latent: `mscale_all_dim`'s square.
    score_factor: float = 1.0


def parse_yarn(parameters: Mapping[str, Any], theta: float, max_positions: int) -> Yarn:
    """The object of a config that says `yarn`; ``max_positions`` are the longest sequence's. Errors:
    `CheckpointError`."""
    if theta <= 1:
        raise bad_value("rope_theta", theta, "more than 1 where the rotary scaling is `yarn`")
    original = integer(parameters, "original_max_position_embeddings", max_positions)
    factor = number(parameters, "factor", max_positions / original)
    all_dim = number(parameters, "mscale_all_dim") if parameters.get("mscale_all_dim") else 0.0
    if parameters.get("attention_factor") is not None:
        attention = number(parameters, "attention_factor")
    elif parameters.get("mscale") and all_dim:
        attention = magnitude(factor, number(parameters, "mscale")) / magnitude(factor, all_dim)
    else:
        attention = magnitude(factor)
    return Yarn(
        factor=factor,
        original_positions=original,
        beta_fast=number(parameters, "beta_fast", 32.0),
        beta_slow=number(parameters, "beta_slow", 1.0),
        truncate=flag(parameters, "truncate", True),
        attention_factor=attention,
        score_factor=magnitude(factor, all_dim) ** 2,
    )


def magnitude(factor: float, scale: float = 1.0) -> float:
    """How much larger scores become where positions are stretched by ``factor``."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def yarn_frequencies(yarn: Yarn, theta: float, frequencies: Float32) -> Float32:
    """The angles per position of each pair, from those without scaling; in float32, as transformers."""
    import numpy as np

    pairs = len(frequencies)

    def pair_of(turns: float) -> float:
        return pairs * math.log(yarn.original_positions / (turns * 2 * math.pi)) / math.log(theta)

    low, high = pair_of(yarn.beta_fast), pair_of(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, 2 * pairs - 1.0)
    if low == high:
        high += 0.001
    places = np.arange(pairs, dtype=np.float32)
    stretched = np.clip((places - np.float32(low)) / np.float32(high - low), 0, 1)
    blended: Float32 = frequencies / np.float32(yarn.factor) * stretched + frequencies * (1 - stretched)
    return blended.astype(np.float32)
