"""LoRA adapters as PEFT saves them: ``adapter_config.json`` and ``adapter_model.safetensors``.

Owns the format on disk and its check against a model. Knows nothing of names, task ids or caches.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.model.files import load_json
from inflight.model.lora import PEFT_CONFIG, PEFT_WEIGHTS
from inflight.model.values import SHOWN_CHARACTERS

from .config import ModelConfig
from .lora import Adapter, AdapterError, check_rank, named_slots, scaled_delta
from .weights import CheckpointWeights

#: What PEFT writes before the names of modules.
_PREFIX = "base_model.model."
#: PEFT writes a few kilobytes.
_MAX_CONFIG_BYTES = 1024 * 1024
#: Of `r` and `lora_alpha`: what float32 arithmetic takes.
_LARGEST = 2**31 - 1

#: Keys of PEFT's config that change the arithmetic in ways that are not implemented, with what is accepted.
_REQUIRED: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False,),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "lora_bias": (False,),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "alora_invocation_tokens": (None,),
    "use_qalora": (False,),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    "velora_config": (None,),
    "use_bdlora": (None, False),
    # The others (PiSSA, OLoRA, ...) take something out of the model's own weights.
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),
}


def read_peft(path: Path, task_id: int, config: ModelConfig, max_rank: int) -> Adapter:
    """An adapter that PEFT saved. Errors: `AdapterError`."""
    values = _config(path)
    rank, alpha = _number(values, "r"), _number(values, "lora_alpha")
    if not isinstance(rank, int):
        raise AdapterError(f"`r` in `{PEFT_CONFIG}` must be an integer, got `{rank}`")
    for key, accepted in _REQUIRED.items():
        if values.get(key, accepted[0]) not in accepted:
            raise AdapterError(
                f"`{key}` in `{PEFT_CONFIG}` is `{_shown(values[key])}`, which is not supported"
            )
    check_rank(rank, max_rank)
    scale = alpha / (math.sqrt(rank) if values.get("use_rslora") else rank)
    slots = named_slots(config)
    wanted: dict[str, tuple[int, ...]] = {}
    pairs = []
    try:
        shards = _shards(path)
        for layer, name in _adapted(shards, config):
            slot = slots[name]
            prefix = f"{_PREFIX}{config.names.layer.format(layer)}.{name}"
            down, up = f"{prefix}.lora_A.weight", f"{prefix}.lora_B.weight"
            wanted |= {down: (rank, slot.inputs), up: (slot.outputs, rank)}
            pairs.append((layer, slot, down, up))
        weights = CheckpointWeights(shards, wanted.items(), spellings=_spellings(config))
        deltas = [
            (layer, scaled_delta(config, slot, weights.tensor(down), weights.tensor(up), scale))
            for layer, slot, down, up in pairs
        ]
    except UserMistake as error:
        # Files are named within the adapter: clients read this, and need not know where it is.
        raise AdapterError(error.what.replace(f"{path}{os.sep}", "")) from error
    return Adapter.of(task_id, config.num_layers, deltas)


def _config(path: Path) -> dict[str, Any]:
    try:
        values = load_json(path / PEFT_CONFIG, _MAX_CONFIG_BYTES)
    except OSError as error:
        raise AdapterError(f"`{PEFT_CONFIG}` cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise AdapterError(f"`{PEFT_CONFIG}` is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise AdapterError(f"`{PEFT_CONFIG}` does not contain a JSON object")
    return values


def _number(values: Mapping[str, Any], key: str) -> int | float:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
        raise AdapterError(f"`{key}` in `{PEFT_CONFIG}` must be a number, got `{_shown(value)}`")
    return value


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)):
        return type(value).__name__
    return str(value)[:SHOWN_CHARACTERS]


def _adapted(shards: Sequence[Any], config: ModelConfig) -> list[tuple[int, str]]:
    """The layers and modules that the file has weights for. Errors: `AdapterError` for any that the model
    has not, since it would be left out without a word."""
    places = {
        f"{_PREFIX}{config.names.layer.format(layer)}.{name}": (layer, name)
        for layer in range(config.num_layers)
        for name in named_slots(config)
    }
    found: dict[tuple[int, str], None] = {}
    for shard in shards:
        for tensor in shard.tensors:
            name = tensor.name
            for own, other in _spellings(config):
                if name.startswith(other):
                    name = own + name[len(other) :]
            module, _, kind = name.rpartition(".lora_")
            if module not in places or kind not in ("A.weight", "B.weight"):
                raise AdapterError(
                    f"`{tensor.name}` in `{PEFT_WEIGHTS}` belongs to no module that takes an adapter; those "
                    f"are {', '.join(named_slots(config))}"
                )
            found[places[module]] = None
    if not found:
        raise AdapterError(f"`{PEFT_WEIGHTS}` holds no weights")
    return list(found)


def _spellings(config: ModelConfig) -> list[tuple[str, str]]:
    """How names begin, as those of a checkpoint."""
    return [(_PREFIX + own, _PREFIX + other) for own, other in config.names.spellings]


def _shards(path: Path) -> tuple[Any, ...]:
    from inflight.model.shards import read_shard

    return (read_shard(path / PEFT_WEIGHTS),)
