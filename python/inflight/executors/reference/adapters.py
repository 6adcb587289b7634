"""The LoRA adapters that requests may ask for: those of a directory, and those that clients sent.

Owns PEFT's format on disk, names and task ids, and the cache in the host's memory: the least recently used go
first, and none that a request in flight uses. Knows nothing of how an adapter computes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.executors.base import StatusCode

from .arrays import Array
from .config import ModelConfig
from .lora import Adapter, AdapterError, check_rank, from_tensors, named_slots, scaled_delta
from .refusal import Refused, invalid
from .weights import CheckpointWeights

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"

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


@dataclass(frozen=True, slots=True)
class LoraRequest:
    """A request's ``LoraConfig``."""

    task_id: int
    #: ``[modules, values]`` and ``[modules, 3]``; None: the adapter was sent before.
    weights: Array | None = None
    config: Array | None = None


@dataclass(slots=True)
class _Cached:
    adapter: Adapter
    users: int = 0


class Adapters:
    """Adapters by task id, within ``max_bytes``. One thread owns it; any thread may `load`."""

    def __init__(
        self, config: ModelConfig, max_rank: int, max_bytes: int, directory: Path | None = None
    ) -> None:
        """Errors: `UserMistake` for a directory with an adapter that cannot be served."""
        self._config = config
        self._max_rank = max_rank
        self._max_bytes = max_bytes
        self._bytes = 0
        self._cached: OrderedDict[int, _Cached] = OrderedDict()
        self._paths: dict[int, Path] = {}
        self.names: dict[str, int] = {}
        for path in [] if directory is None else _subdirectories(directory):
            task_id = task_id_of(path.name)
            if task_id in self._paths:
                raise UserMistake(
                    f"the adapters `{self._paths[task_id]}` and `{path}` have the task id `{task_id}` both",
                    "rename one of them",
                )
            self._paths[task_id] = path
            self.names[path.name] = task_id
            # Read whole: what a request would stumble over is told at the start.
            adapter = self._read(task_id)
            if adapter.nbytes + self._bytes <= max_bytes:
                self._put(adapter)

    @property
    def memory_bytes(self) -> int:
        """What the cache holds."""
        return self._bytes

    def load(self, request: LoraRequest) -> Adapter | None:
        """What `acquire` would have to load; None: it is in the cache. Errors: `Refused`."""
        return None if request.task_id in self._cached else self._load(request)

    def acquire(self, request: LoraRequest, loaded: Adapter | None = None) -> Adapter:
        """The adapter, which stays until it is released as often; from the cache, or else ``loaded`` if that
        was done before. Errors: `Refused`."""
        cached = self._cached.get(request.task_id)
        if cached is None:
            self._put(loaded or self._load(request))
            cached = self._cached[request.task_id]
        self._cached.move_to_end(request.task_id)
        cached.users += 1
        return cached.adapter

    def release(self, adapter: Adapter) -> None:
        """A request no longer uses it."""
        self._cached[adapter.task_id].users -= 1

    def _load(self, request: LoraRequest) -> Adapter:
        if request.task_id in self._paths:
            try:
                return self._read(request.task_id)
            except UserMistake as error:
                raise Refused(StatusCode.INTERNAL, f"{error.what}; {error.remedy}") from error
        if request.weights is None or request.config is None:
            # TensorRT-LLM's own words, which clients look for.
            raise invalid(
                f"LoRA task {request.task_id} not found in cache. Please send LoRA weights with request"
            )
        try:
            return from_tensors(
                request.task_id, request.weights, request.config, self._config, self._max_rank
            )
        except AdapterError as error:
            raise invalid(str(error)) from error

    def _put(self, adapter: Adapter) -> None:
        """Makes room and takes it in. Errors: `Refused` where those in use leave too little."""
        idle = sum(one.adapter.nbytes for one in self._cached.values() if one.users == 0)
        if self._bytes - idle + adapter.nbytes > self._max_bytes:
            raise Refused(
                StatusCode.RESOURCE_EXHAUSTED,
                f"LoRA task {adapter.task_id} takes {adapter.nbytes} bytes and the cache has "
                f"{self._max_bytes - self._bytes + idle} left; send it later, or let the server raise "
                "`lora_cache_host_memory_bytes`",
            )
        while self._bytes + adapter.nbytes > self._max_bytes:
            oldest = next(task_id for task_id, one in self._cached.items() if one.users == 0)
            self._bytes -= self._cached.pop(oldest).adapter.nbytes
        self._cached[adapter.task_id] = _Cached(adapter)
        self._bytes += adapter.nbytes

    def _read(self, task_id: int) -> Adapter:
        path = self._paths[task_id]
        try:
            return read_peft(path, task_id, self._config, self._max_rank)
        except AdapterError as error:
            raise UserMistake(
                f"the adapter `{path}` cannot be served: {error}",
                "take it out of `lora_adapter_dir`, or put one there that fits the model",
            ) from error


def task_id_of(name: str) -> int:
    """The task id of a directory's adapter: its name where that is a number, else a number that every worker
    makes of the name alike."""
    if name.isdecimal() and int(name) < 2**63:
        return int(name)
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "little")


def read_peft(path: Path, task_id: int, config: ModelConfig, max_rank: int) -> Adapter:
    """An adapter that PEFT saved. Errors: `AdapterError`."""
    try:
        values = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
        rank, alpha = int(values["r"]), float(values["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdapterError(f"`{_CONFIG}` is not an adapter's config: {error!r}") from error
    for key, accepted in _REQUIRED.items():
        if values.get(key, accepted[0]) not in accepted:
            raise AdapterError(f"`{key}` in `{_CONFIG}` is `{values[key]}`, which is not supported")
    check_rank(rank, max_rank)
    scale = alpha / (math.sqrt(rank) if values.get("use_rslora") else rank)
    slots = named_slots(config)
    wanted: dict[str, tuple[int, ...]] = {}
    pairs = []
    for layer, name in _adapted(path, config):
        slot = slots[name]
        prefix = f"base_model.model.{config.names.layer.format(layer)}.{name}"
        down, up = f"{prefix}.lora_A.weight", f"{prefix}.lora_B.weight"
        wanted |= {down: (rank, slot.inputs), up: (slot.outputs, rank)}
        pairs.append((layer, slot, down, up))
    try:
        weights = CheckpointWeights(_shards(path), wanted.items())
        deltas = [
            (layer, scaled_delta(slot, weights.tensor(down), weights.tensor(up), scale))
            for layer, slot, down, up in pairs
        ]
    except UserMistake as error:
        raise AdapterError(error.what) from error
    return Adapter.of(task_id, config.num_layers, deltas)


def _adapted(path: Path, config: ModelConfig) -> list[tuple[int, str]]:
    """The layers and modules that the file has weights for. Errors: `AdapterError` for any that the model
    has not, since it would be left out without a word."""
    places = {
        f"base_model.model.{config.names.layer.format(layer)}.{name}": (layer, name)
        for layer in range(config.num_layers)
        for name in named_slots(config)
    }
    found: dict[tuple[int, str], None] = {}
    for shard in _shards(path):
        for tensor in shard.tensors:
            module, _, kind = tensor.name.rpartition(".lora_")
            if module not in places or kind not in ("A.weight", "B.weight"):
                raise AdapterError(
                    f"`{tensor.name}` in `{_WEIGHTS}` belongs to no module that takes an adapter; those are "
                    f"{', '.join(named_slots(config))}"
                )
            found[places[module]] = None
    if not found:
        raise AdapterError(f"`{_WEIGHTS}` holds no weights")
    return list(found)


def _shards(path: Path) -> tuple[Any, ...]:
    from inflight.model.shards import read_shard

    return (read_shard(path / _WEIGHTS),)


def _subdirectories(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise UserMistake(
            f"`lora_adapter_dir` is `{directory}`, which is no directory",
            "give a folder with one adapter in each folder, such as `support/adapter_config.json`",
        )
    return sorted(one for one in directory.iterdir() if one.is_dir() and not one.name.startswith("."))
