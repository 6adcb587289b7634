"""Which requests there are and when each is due. Pure but for the random numbers, whose seed is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from inflight.errors import UserMistake

Lengths = Literal["normal", "exponential"]
Arrivals = Literal["constant", "exponential", "replay"]

#: NVIDIA's `benchmark_core_model.py` has this seed for its lengths.
SEED = 420
#: No prompt or answer is longer than what a message can carry.
LONGEST = 1_000_000


@dataclass(frozen=True)
class Planned:
    """A request: its prompt as ids or as text, how many tokens to generate, and when."""

    output_tokens: int
    ids: tuple[int, ...] = ()
    text: str | None = None
    #: Seconds after the start; `None`: as soon as another request has ended.
    due_s: float | None = None


def lengths(
    count: int, mean: float, stdev: float, distribution: Lengths, random: np.random.Generator
) -> list[int]:
    """Token counts of at least 1, rounded up as NVIDIA's script does. An exponential distribution has no
    standard deviation to choose: `stdev` is not read.
    """
    if distribution == "exponential":
        drawn = random.exponential(mean, count)
    else:
        drawn = random.normal(mean, stdev, count)
    return [min(max(1, math.ceil(one)), LONGEST) for one in drawn]


def random_requests(
    inputs: Sequence[int], outputs: Sequence[int], vocab_size: int, random: np.random.Generator
) -> list[Planned]:
    """Prompts of random ids below `vocab_size`."""
    return [
        Planned(output, tuple(int(one) for one in random.integers(0, vocab_size, size)))
        for size, output in zip(inputs, outputs, strict=True)
    ]


def due(
    requests: Sequence[Planned], rate: float | None, arrivals: Arrivals, random: np.random.Generator
) -> list[Planned]:
    """The requests with the times when they are due: `rate` a second, or as the dataset has them.

    Without a rate, each is due when another has ended. Raises `UserMistake` where the dataset has no times.
    """
    if arrivals == "replay":
        if any(one.due_s is None for one in requests):
            raise UserMistake(
                "`--arrivals replay` needs the time of each request",
                "pass a dataset whose rows have `timestamp` in milliseconds, or another `--arrivals`",
            )
        times = sorted(one.due_s or 0.0 for one in requests)
        scale = 1.0
        if rate is not None and times[-1] > times[0]:
            # The same pattern at another pace.
            scale = (len(times) - 1) / (times[-1] - times[0]) / rate
        ordered = sorted(requests, key=lambda one: one.due_s or 0.0)
        return [
            replace(one, due_s=(time - times[0]) * scale) for one, time in zip(ordered, times, strict=True)
        ]
    if rate is None:
        return [replace(one, due_s=None) for one in requests]
    count = len(requests)
    gaps = np.full(count, 1 / rate) if arrivals == "constant" else random.exponential(1 / rate, count)
    starts = np.cumsum(gaps) - gaps[0]
    return [replace(one, due_s=float(start)) for one, start in zip(requests, starts, strict=True)]
