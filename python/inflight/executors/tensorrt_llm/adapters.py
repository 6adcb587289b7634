"""LoRA adapters of the PyTorch runtime: a folder with one Hugging Face adapter per task id, and those that
are loaded while it runs.

Owns the folder's layout, which adapter a task id names, and the check of each before TensorRT-LLM is asked
for it: its worker process ends, and with it every request, where an adapter does not load. Reads headers of
weights only. TensorRT-LLM reads an adapter at its first request and keeps it under its id for as long as its
cache does, so an id is never used for other files.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from inflight.errors import CheckpointError, UserMistake
from inflight.executors.base import AdapterRefused, StatusCode
from inflight.executors.tensorrt_llm.convert import Refused
from inflight.model.files import load_json
from inflight.model.lora import HF_MODULES, PEFT_CONFIG, PEFT_WEIGHTS
from inflight.model.shards import read_shard

#: LoraConfig's own default.
MAX_RANK = 64

#: The first task id of adapters that are loaded later; folders have small numbers.
_FIRST_ID = 1_000_000
#: Adapters that are loaded later, at once. TensorRT-LLM's cache bounds the memory.
MAX_LOADED = 1000

#: Size and time of change of each file of an adapter.
_State = tuple[tuple[int, int], ...]


class Unloadable(Exception):
    """TensorRT-LLM could not load the adapter; the text says why, `remedy` what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy


class Adapters:
    """The adapters below one folder, if any. One that is put there later is found too."""

    def __init__(self, directory: Path | None, modules: Sequence[str], max_rank: int) -> None:
        self._directory = directory
        #: Loads come from another thread than requests.
        self._lock = threading.Lock()
        #: Loaded while it runs: task id -> directory; name -> task id.
        self._loaded: dict[int, Path] = {}
        self._ids: dict[str, int] = {}
        self._next_id = count(_FIRST_ID)
        #: Names below the folder that were unloaded.
        self._hidden: set[str] = set()
        self._modules = modules
        self._max_rank = max_rank
        #: Task id -> the files that TensorRT-LLM was given under it.
        self._given: dict[int, _State] = {}
        #: Those that are there at the start, as `ModelInfo.adapters` has them.
        self.announced = tuple(
            (path.name, int(path.name)) for path in ([] if directory is None else _subdirectories(directory))
        )

    def load(self, name: str, directory: Path) -> int:
        """Gives a name to the adapter of a directory; one of that name is replaced, and requests that run
        keep it. Returns the new task id. Errors: `AdapterRefused`."""
        try:
            state = _state(directory)
            check_adapter(directory, self._modules, self._max_rank)
        except Unloadable as error:
            # Where the worker keeps its files is not for clients.
            text = str(error).replace(f"{directory}/", "").replace(str(directory), name)
            raise AdapterRefused(
                StatusCode.INVALID_ARGUMENT, f"the adapter `{name}` cannot be served: {text}"
            ) from error
        with self._lock:
            if name not in self._ids and len(self._ids) >= MAX_LOADED:
                raise AdapterRefused(
                    StatusCode.RESOURCE_EXHAUSTED,
                    f"`{MAX_LOADED}` adapters are loaded, as many as a worker takes; unload one",
                )
            self._loaded.pop(self._ids.get(name, 0), None)
            task_id = next(one for one in self._next_id if self._below(one) is None)
            self._ids[name], self._loaded[task_id], self._given[task_id] = task_id, directory, state
        return task_id

    def task_ids(self) -> frozenset[int]:
        """Those that are announced or loaded."""
        with self._lock:
            return frozenset((*(task_id for _, task_id in self.announced), *self._ids.values()))

    def unload(self, name: str) -> None:
        """Requests no longer find it. Errors: `AdapterRefused` where there is none of that name."""
        with self._lock:
            task_id = self._ids.pop(name, None)
            if task_id is not None:
                self._loaded.pop(task_id, None)
            elif name.isdecimal() and self._below(int(name)) is not None:
                self._hidden.add(str(int(name)))
            else:
                raise AdapterRefused(StatusCode.NOT_FOUND, f"no adapter `{name}` is loaded")

    def path(self, task_id: int) -> str:
        """The directory of the adapter, checked. Errors: `Refused` where there is none, where it cannot be
        loaded, and where it is another than was loaded under this id."""
        with self._lock:
            directory = self._loaded.get(task_id) or self._below(task_id)
        if directory is None:
            where = "loaded" if self._directory is None else "in `lora_adapter_dir`"
            raise Refused(f"LoRA task `{task_id}` is not {where}")
        try:
            # Before it is read: a file that changes meanwhile is another.
            state = _state(directory)
            given = self._given.get(task_id)
            if given is None:
                check_adapter(directory, self._modules, self._max_rank)
                self._given[task_id] = state
        except Unloadable as error:
            raise Refused(f"LoRA task `{task_id}` cannot be used: {error}") from error
        if given is not None and given != state:
            raise Refused(
                f"the files of LoRA task `{task_id}` changed after its first use, and TensorRT-LLM keeps the "
                "weights of an id; publish new weights under a new id"
            )
        return str(directory)

    def _below(self, task_id: int) -> Path | None:
        """The directory of an adapter below the folder; None: there is none, or it was unloaded."""
        if self._directory is None or str(task_id) in self._hidden:
            return None
        directory = self._directory / str(task_id)
        return directory if (directory / PEFT_CONFIG).is_file() else None


def read_adapters(directory: str, modules: Sequence[str], max_rank: int | None) -> Adapters:
    """Checks the folder: `7/adapter_config.json` is the adapter of task 7. `modules`: TensorRT-LLM's names of
    what adapters may change; `max_rank` None: the default.

    Errors: `UserMistake` for a missing folder, a name that is not a task id, or an adapter that TensorRT-LLM
    could not load.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise UserMistake(
            f"`lora_adapter_dir` must be a directory, got `{directory}`",
            "pass a folder with one adapter per task id, such as `7/adapter_config.json`",
        )
    limit = max_rank or MAX_RANK
    for adapter in _subdirectories(folder):
        if not adapter.name.isdecimal():
            raise UserMistake(
                f"`{adapter}` in `lora_adapter_dir` is not named after a LoRA task id",
                "rename it to the number that requests send as `lora_task_id`",
            )
        try:
            check_adapter(adapter, modules, limit)
        except Unloadable as error:
            raise UserMistake(str(error), error.remedy) from error
    return Adapters(folder, modules, limit)


def check_adapter(directory: Path, modules: Sequence[str], max_rank: int) -> None:
    """Raises `Unloadable` for what would end TensorRT-LLM's worker process."""
    again = "download the adapter again, or remove it"
    config, weights = directory / PEFT_CONFIG, directory / PEFT_WEIGHTS
    try:
        rank = int(load_json(config)["r"])
    except (OSError, ValueError, OverflowError, KeyError, TypeError) as error:
        raise Unloadable(f"`{config}` is not an adapter's config: {error!r}", again) from error
    if not weights.is_file():
        raise Unloadable(
            f"`{weights}` does not exist", "convert the adapter to safetensors, or copy the whole directory"
        )
    try:
        tensors = read_shard(weights).tensors
    except CheckpointError as error:
        raise Unloadable(error.what, again) from error
    changed = {}
    for tensor in tensors:
        module, found, part = tensor.name.rpartition(".lora_")
        if not found:
            continue
        changed[module.rpartition(".")[2]] = tensor.name
        if part.startswith("A") and tensor.shape:
            rank = max(rank, tensor.shape[0])
    if not changed:
        raise Unloadable(f"`{weights}` has no weights of LoRA", again)
    if rank > max_rank:
        raise Unloadable(
            f"the adapter `{directory}` has rank `{rank}`, and `max_lora_rank` is `{max_rank}`",
            f"start with `max_lora_rank={rank}`",
        )
    if all(module in HF_MODULES for module in modules):
        allowed = {HF_MODULES[module] for module in modules}
        unknown = sorted(set(changed) - allowed)
        if unknown:
            raise Unloadable(
                f"the adapter `{directory}` changes `{unknown[0]}`, "
                "which `lora_target_modules` does not name",
                f"name all that it changes: {', '.join(sorted(changed))}",
            )


def _state(directory: Path) -> _State:
    """A file that is missing has no size and no time."""
    found = []
    for name in (PEFT_CONFIG, PEFT_WEIGHTS):
        try:
            stat = (directory / name).stat()
        except OSError:
            found.append((0, 0))
        else:
            found.append((stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def _subdirectories(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
