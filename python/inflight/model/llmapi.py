"""TensorRT-LLM's llmapi model of Triton, as it lies on disk: `tensorrt_llm/1/model.yaml` names the checkpoint
and has the arguments of `LLM`, next to keys for Triton.

Owns where that file is and what its keys mean. Does not know `config.pbtxt`, TensorRT-LLM or downloads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.model.llm_args import BACKEND, PROCESSORS, TRITON, TRITONS, load

FILE = "model.yaml"
#: The environment variable with which Triton's model looks for another file.
VARIABLE = "LLM_CONFIG_PATH"

#: Keys of `triton_config` that every release reads, and must have but for the last.
TRITON_KEYS = ("max_batch_size", "decoupled", "cancellation_check_period_ms")
#: Keys that a proposed change of TensorRT-LLM reads: images (pull request 18381).
PROPOSED_TRITON_KEYS = ("multimodal",)
CANCELLATION_CHECK_PERIOD_MS = 100

#: Arguments that say nothing, at these values.
_TRIVIAL = {
    "backend": BACKEND,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "trust_remote_code": False,
}


@dataclass(frozen=True)
class ModelFile:
    """What a `model.yaml` says; `arguments` is all but `model` and the keys for Triton."""

    path: Path
    model: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    triton: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The checkpoint: a directory, or a name on the Hub with its revision."""
        revision = self.arguments.get("revision")
        return f"{self.model}@{revision}" if revision and not Path(self.model).exists() else self.model

    @property
    def own(self) -> list[str]:
        """The arguments that change something."""
        same = _TRIVIAL | {"tokenizer": self.model, "revision": self.arguments.get("revision")}
        return [name for name, value in self.arguments.items() if name not in same or same[name] != value]

    def size(self, name: str) -> int:
        """`tensor_parallel_size` or another number of ranks; 1 where it is not given."""
        value = self.arguments.get(name)
        return value if isinstance(value, int) and value > 0 else 1


def find(path: Path) -> Path | None:
    """The `model.yaml` that `path` is or contains: of a model's folder, one of its versions, or a repository
    with one such model. `None` where there is none; raises `UserMistake` where there are several.
    """
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    found = (_of_version(path) if path.name.isdecimal() else None) or of_model(path)
    if found is not None:
        return found
    try:
        models = sorted(child for child in path.iterdir() if child.is_dir())
    except OSError:
        return None
    files = [file for file in map(of_model, models) if file is not None]
    if len(files) > 1:
        names = ", ".join(f"`{file.parents[1].name}`" for file in files)
        raise UserMistake(
            f"`{path}` has `{len(files)}` models with a `{FILE}`: {names}",
            f"pass one of them, `{path}/MODEL`",
        )
    return files[0] if files else None


def of_model(folder: Path) -> Path | None:
    """The file of a model's folder, in its latest version, which is the one that Triton loads."""
    try:
        versions = [child for child in folder.iterdir() if child.name.isdecimal() and child.is_dir()]
    except OSError:
        return None
    latest = max(versions, key=lambda version: int(version.name), default=None)
    return None if latest is None else _of_version(latest)


def _of_version(folder: Path) -> Path | None:
    file = folder / os.environ.get(VARIABLE, FILE)
    return file if file.is_file() else None


def read(path: Path) -> ModelFile:
    """The file's content. Raises `UserMistake` where it cannot be read, or is not a llmapi model's."""
    found = load(path, f"`{path}`")
    if TRITON not in found:
        raise UserMistake(
            f"`{path}` has no `{TRITON}`, which the `{FILE}` of Triton's llmapi model has",
            "pass the checkpoint as MODEL, and arguments of `LLM` with `--executor-option llm_args=FILE`",
        )
    triton = found[TRITON]
    if not isinstance(triton, dict):
        raise UserMistake(
            f"`{TRITON}` in `{path}` is not a mapping", f"write `{', '.join(TRITON_KEYS[:2])}` below it"
        )
    model = found.get("model")
    if not isinstance(model, str) or not model:
        raise UserMistake(
            f"`{path}` has no `model`",
            "set it to the checkpoint's directory or its name on the Hub (ORG/NAME)",
        )
    arguments = {name: value for name, value in found.items() if name not in (*TRITONS, "model")}
    return ModelFile(path, model, arguments, triton)


def processors(path: Path) -> list[str]:
    """The names of `logits_post_processors` in the file: code that requests to Triton's model choose."""
    found = load(path, f"`{path}`").get(PROCESSORS)
    return [str(name) for name in found] if isinstance(found, dict) else []
