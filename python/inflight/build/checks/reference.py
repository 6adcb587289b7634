"""Whether the reference executor can load a checkpoint, by its config and its headers alone: a refusal comes
before a weight is read or written. The rules are the executor's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.errors import Problem, UserMistake
from inflight.executors.reference.config import parse_config
from inflight.executors.reference.tensors import required_tensors
from inflight.executors.reference.weights import CheckpointWeights
from inflight.model.checkpoint import Checkpoint


def check_config(config: Mapping[str, Any]) -> Problem | None:
    """What of a `config.json` the executor does not support; None: nothing."""
    try:
        parse_config(config)
    except UserMistake as error:
        return Problem.of(error)
    return None


def check_tensors(checkpoint: Checkpoint) -> Problem | None:
    """The first tensor that is missing or unusable; None: none is. The config must be sound."""
    try:
        CheckpointWeights(checkpoint.shards, required_tensors(parse_config(checkpoint.config)))
    except UserMistake as error:
        return Problem.of(error)
    return None
