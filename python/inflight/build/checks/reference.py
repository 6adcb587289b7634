"""Whether the reference executor can load a checkpoint, by its config and its headers alone: a refusal comes
before a weight is read or written. The rules are the executor's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.errors import Problem, UserMistake
from inflight.executors.reference.model.config import parse_config
from inflight.executors.reference.model.weights import CheckpointWeights
from inflight.model.checkpoint import Checkpoint


def check_precision(dtype: str) -> list[Problem]:
    """`--dtype` against what the executor computes in."""
    if dtype in ("auto", "float32"):
        return []
    return [
        Problem(
            f"`--dtype {dtype}` is not supported for runtime `reference`, which computes in float32",
            "leave it out, or choose `float32`",
        )
    ]


def check_config(config: Mapping[str, Any]) -> list[Problem]:
    """What of a `config.json` the executor does not support."""
    try:
        parse_config(config)
    except UserMistake as error:
        return [Problem.of(error)]
    return []


def check_tensors(checkpoint: Checkpoint) -> list[Problem]:
    """The first tensor that is missing or unusable. The config must be sound."""
    try:
        CheckpointWeights.of(parse_config(checkpoint.config), checkpoint.shards)
    except UserMistake as error:
        return [Problem.of(error)]
    return []
