"""The LoRA adapters that requests may ask for: those of a directory, those that are loaded while the executor
runs, and those that clients sent.

Owns names and task ids, and the cache in the host's memory: the least recently used go first, and none that a
request in flight uses. Knows nothing of files' formats (`peft`) or of how an adapter computes (`lora`).
"""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from inflight.errors import UserMistake
from inflight.executors.base import StatusCode
from inflight.executors.reference.model.array_types import Array
from inflight.executors.reference.model.config import ModelConfig
from inflight.executors.reference.model.lora import Adapter, AdapterError, from_tensors
from inflight.executors.reference.model.peft import read_peft

from .refusal import Refused, invalid


@dataclass(frozen=True, slots=True)
class LoraRequest:
    """A request's ``LoraConfig``."""

    task_id: int
    #: ``[modules, values]`` and ``[modules, 3]``; None: the adapter was sent before.
    weights: Array | None = None
    config: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """The adapter that a name refers to, from one load to the next; each load makes another."""

    name: str
    task_id: int
    path: Path


@dataclass(frozen=True, slots=True)
class Loaded:
    """An adapter that was read, and for whom; ``named`` None: a client sent it."""

    adapter: Adapter
    named: Named | None = None


@dataclass(slots=True)
class _Cached:
    adapter: Adapter
    users: int = 0


class Adapters:
    """Adapters by task id, within ``max_bytes``. One thread owns it; any thread may `load` and `read`."""

    def __init__(
        self,
        config: ModelConfig,
        max_rank: int,
        max_bytes: int,
        directory: Path | None = None,
        max_names: int = sys.maxsize,
    ) -> None:
        """Errors: `UserMistake` for a directory with an adapter that cannot be served, or with more than
        ``max_names``."""
        self._config = config
        self._max_rank = max_rank
        self._max_bytes = max_bytes
        self._max_names = max_names
        self._bytes = 0
        self._cached: OrderedDict[int, _Cached] = OrderedDict()
        #: Unloaded or replaced, and still in use.
        self._leaving: dict[Adapter, _Cached] = {}
        self._named: dict[int, Named] = {}
        for path in [] if directory is None else _subdirectories(directory):
            named = Named(path.name, task_id_of(path.name), path)
            other = self._named.get(named.task_id)
            if other is not None:
                raise UserMistake(
                    f"the adapters `{other.path}` and `{path}` have the task id `{named.task_id}` both",
                    "rename one of them",
                )
            if len(self._named) == max_names:
                raise UserMistake(
                    f"`lora_adapter_dir` has more adapters than `lora_max_adapters`, which is `{max_names}`",
                    "raise `lora_max_adapters`, or take some out",
                )
            self._named[named.task_id] = named
            # Read completely, so that a damaged adapter fails the start and not a request.
            try:
                adapter = self._read(named)
            except AdapterError as error:
                raise UserMistake(
                    f"the adapter `{path}` cannot be served: {error}",
                    "take it out of `lora_adapter_dir`, or put one there that fits the model",
                ) from error
            if adapter.nbytes + self._bytes <= max_bytes:
                self._put(adapter)

    @property
    def names(self) -> dict[str, int]:
        """Task ids by name."""
        return {named.name: named.task_id for named in self._named.values()}

    @property
    def memory_bytes(self) -> int:
        """What the cache holds, those that leave once their requests have ended among it."""
        return self._bytes

    def load(self, request: LoraRequest) -> Loaded | None:
        """What `acquire` would have to load; None: it is in the cache. Errors: `Refused`."""
        return None if request.task_id in self._cached else self._load(request)

    def acquire(self, request: LoraRequest, loaded: Loaded | None = None) -> Adapter:
        """The adapter, which stays until it is released as often; from the cache, or else ``loaded`` if that
        was done before. Errors: `Refused`."""
        cached = self._cached.get(request.task_id)
        if cached is None:
            # Since it was read, its name may have been unloaded, or refer to another adapter.
            if loaded is None or loaded.named is not self._named.get(request.task_id):
                loaded = self._load(request)
            self._put(loaded.adapter)
            cached = self._cached[request.task_id]
        self._cached.move_to_end(request.task_id)
        cached.users += 1
        return cached.adapter

    def release(self, adapter: Adapter) -> None:
        """A request no longer uses it."""
        leaving = self._leaving.get(adapter)
        if leaving is None:
            self._cached[adapter.task_id].users -= 1
            return
        leaving.users -= 1
        if leaving.users == 0:
            del self._leaving[adapter]
            self._bytes -= adapter.nbytes

    def read(self, name: str, path: Path) -> Loaded:
        """The first half of loading an adapter by name: its files, checked as at the start. Errors:
        `Refused`."""
        named = Named(name, task_id_of(name), path)
        try:
            adapter = self._read(named)
        except AdapterError as error:
            raise invalid(
                f"the adapter `{name}` cannot be served: {error}; load one that fits the model"
            ) from error
        return Loaded(adapter, named)

    def install(self, loaded: Loaded) -> int:
        """The second half of a load: from now on the name refers to what was `read`, also if it referred to
        another adapter. Requests that use the other one keep it. Returns the task id. Errors: `Refused`, and
        nothing has changed."""
        adapter, named = loaded.adapter, loaded.named
        if named is None:
            raise ValueError("an adapter without a name cannot be installed")
        other = self._named.get(named.task_id)
        if other is not None and other.name != named.name:
            raise invalid(
                f"the adapter `{named.name}` would have the task id `{named.task_id}`, which `{other.name}` "
                "has; load it under another name"
            )
        if other is None and len(self._named) >= self._max_names:
            raise Refused(
                StatusCode.RESOURCE_EXHAUSTED,
                f"`{len(self._named)}` adapters are loaded, as many as `lora_max_adapters` allows; unload "
                "one, or let the server raise `lora_max_adapters`",
            )
        self._require_room(adapter)
        # Also one that a client sent under this number: the name is what counts now.
        self._take_out(named.task_id)
        self._put(adapter)
        self._named[named.task_id] = named
        return named.task_id

    def unload(self, name: str) -> None:
        """Requests no longer find it; those that use it keep it, and its memory is free after the last of
        them. Errors: `Refused` where no adapter has the name."""
        task_id = self.names.get(name)
        if task_id is None:
            raise Refused(StatusCode.NOT_FOUND, f"no adapter `{name}` is loaded")
        del self._named[task_id]
        self._take_out(task_id)

    def _load(self, request: LoraRequest) -> Loaded:
        named = self._named.get(request.task_id)
        if named is not None:
            try:
                return Loaded(self._read(named), named)
            except AdapterError as error:
                raise Refused(
                    StatusCode.INTERNAL,
                    f"the adapter `{named.name}` can no longer be served: {error}; load one that fits the"
                    " model, or unload it",
                ) from error
        if request.weights is None or request.config is None:
            # TensorRT-LLM's own words, which clients look for.
            raise invalid(
                f"LoRA task {request.task_id} not found in cache. Please send LoRA weights with request"
            )
        try:
            return Loaded(
                from_tensors(request.task_id, request.weights, request.config, self._config, self._max_rank)
            )
        except AdapterError as error:
            raise invalid(str(error)) from error

    def _require_room(self, adapter: Adapter) -> None:
        """Errors: `Refused` where those in use leave too little."""
        idle = sum(one.adapter.nbytes for one in self._cached.values() if one.users == 0)
        if self._bytes - idle + adapter.nbytes > self._max_bytes:
            raise Refused(
                StatusCode.RESOURCE_EXHAUSTED,
                f"LoRA task {adapter.task_id} takes {adapter.nbytes} bytes and the cache has "
                f"{self._max_bytes - self._bytes + idle} left; send it later, or let the server raise "
                "`lora_cache_host_memory_bytes`",
            )

    def _put(self, adapter: Adapter) -> None:
        """Makes room and takes it in. Errors: `Refused` where those in use leave too little."""
        self._require_room(adapter)
        while self._bytes + adapter.nbytes > self._max_bytes:
            oldest = next(task_id for task_id, one in self._cached.items() if one.users == 0)
            self._bytes -= self._cached.pop(oldest).adapter.nbytes
        self._cached[adapter.task_id] = _Cached(adapter)
        self._bytes += adapter.nbytes

    def _take_out(self, task_id: int) -> None:
        cached = self._cached.pop(task_id, None)
        if cached is None:
            return
        if cached.users:
            self._leaving[cached.adapter] = cached
        else:
            self._bytes -= cached.adapter.nbytes

    def _read(self, named: Named) -> Adapter:
        """Errors: `AdapterError`, which clients may read: it names no directory."""
        return read_peft(named.path, named.task_id, self._config, self._max_rank)


def task_id_of(name: str) -> int:
    """The task id of a named adapter: its name where that is a number, else a number that every worker makes
    of the name alike."""
    if name.isdecimal() and int(name) < 2**63:
        return int(name)
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "little")


def _subdirectories(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise UserMistake(
            f"`lora_adapter_dir` must be a directory, got `{directory}`",
            "give a folder with one adapter in each folder, such as `support/adapter_config.json`",
        )
    return sorted(one for one in directory.iterdir() if one.is_dir() and not one.name.startswith("."))
