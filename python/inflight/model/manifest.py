"""`inflight.json`: what a directory was built from and for, and the check before anything loads it.

Owns its fields and the sentences of every mismatch. The same inputs give the same bytes: no clock, no path,
no host name. The check reads metadata and sizes only, so that it is over in a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.machine import INSTALL, find_gpus, package_version, release
from inflight.model.files import load_json
from inflight.model.runtimes import EXECUTORS, REFERENCE, TENSORRT
from inflight.model.shards import fingerprint_file
from inflight.model.tokenizer import TOKENIZER_FILES

NAME = "inflight.json"
FORMAT = 1

#: Settings and mapping entries that others calculate with.
_COUNTS = frozenset({"tp_size", "pp_size", "cp_size", "max_seq_len", "tokens_per_block"})
_NAMES = frozenset({"dtype", "quantization", "kv_cache_dtype"})

_BUILD_AGAIN = "rebuild it with `inflight build --force`"


def read(directory: Path) -> dict[str, Any] | None:
    """The manifest in `directory`, None where there is none. Raises `UserMistake` where it is not whole."""
    path = directory / NAME
    if not path.is_file():
        return None
    try:
        manifest = load_json(path)
        if not isinstance(manifest, dict):
            raise ValueError("it is not an object")
        if isinstance(manifest["format"], int) and manifest["format"] > FORMAT:
            raise UserMistake(f"`{path}` was written by a newer version of Inflight", "update Inflight")
        if manifest["runtime"] not in EXECUTORS:
            raise ValueError(f"it names the runtime {manifest['runtime']!r}")
        for name, entry in manifest["files"].items():
            if not isinstance(entry["bytes"], int) or not isinstance(entry["hash"], str):
                raise ValueError(f"its entry of {name!r} is incomplete")
        for field in ("versions", "mapping", "settings"):
            if not isinstance(manifest[field], dict):
                raise ValueError(f"its {field} are not an object")
        shape = {**manifest["settings"], **manifest["mapping"]}
        for field in _COUNTS & shape.keys():
            if not isinstance(shape[field], int) or shape[field] < 1:
                raise ValueError(f"its {field} is {shape[field]!r}")
        for field in _NAMES & shape.keys():
            if not isinstance(shape[field], str):
                raise ValueError(f"its {field} is {shape[field]!r}")
    except OSError as error:
        raise UserMistake(f"`{path}` cannot be read: {error.strerror}", "check its permissions") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserMistake(f"`{path}` is damaged: {error}", _BUILD_AGAIN) from error
    return manifest


def check(directory: Path, executor: str | None = None) -> dict[str, Any] | None:
    """Refuses, in one sentence, a build that cannot run here; returns its manifest, None without one.

    Called before an engine, a package or a weight file is touched. `executor` None checks the files only.
    """
    manifest = read(directory)
    if manifest is None:
        return None
    # The others take nothing but the tokenizer.
    reads_weights = executor in EXECUTORS.values()
    if executor is not None and reads_weights:
        _check_executor(directory, manifest["runtime"], executor)
        _check_versions(directory, manifest)
    check_files(directory, manifest)
    if reads_weights and manifest["runtime"] == TENSORRT:
        _check_gpus(directory, manifest)
    return manifest


def _check_executor(directory: Path, runtime: str, executor: str) -> None:
    needed = EXECUTORS[runtime]
    if executor != needed:
        raise UserMistake(
            f"`{directory}` was built for runtime `{runtime}`, which the executor `{executor}` cannot serve",
            f"serve it with `--executor {needed}`",
        )


def _check_versions(directory: Path, manifest: Mapping[str, Any]) -> None:
    runtime, versions = manifest["runtime"], manifest["versions"]
    if runtime == REFERENCE:
        return
    built, here = versions.get("tensorrt_llm"), package_version("tensorrt_llm")
    if here is None:
        raise UserMistake(f"`{directory}` needs TensorRT-LLM `{built}`, which is not installed", INSTALL)
    same = here == built if runtime == TENSORRT else release(here) == release(str(built))
    if not same:
        raise UserMistake(
            f"`{directory}` was built with TensorRT-LLM `{built}`, but `{here}` is installed",
            f"install `{built}`, or {_BUILD_AGAIN}",
        )
    if runtime != TENSORRT or versions.get("tensorrt") is None:
        return
    tensorrt = package_version("tensorrt", "tensorrt-cu13", "tensorrt-cu12")
    if tensorrt != versions["tensorrt"]:
        raise UserMistake(
            f"`{directory}` was built with TensorRT `{versions['tensorrt']}`, but `{tensorrt}` is installed",
            f"install `{versions['tensorrt']}`, or {_BUILD_AGAIN}",
        )


def check_files(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Sizes of all files, and the content of the tokenizer's, which decide what a prompt means."""
    tokenizers = 0
    for name, entry in manifest["files"].items():
        path = directory / name
        try:
            size = path.stat().st_size
        except OSError:
            raise UserMistake(f"`{path}` is missing", f"restore it, or {_BUILD_AGAIN}") from None
        if size != entry["bytes"]:
            word = "truncated" if size < entry["bytes"] else "not the file that was built"
            raise UserMistake(
                f"`{path}` is {word}: it has `{size}` of `{entry['bytes']}` bytes",
                f"copy it again, or {_BUILD_AGAIN}",
            )
        if name in TOKENIZER_FILES:
            tokenizers += 1
            if fingerprint_file(path) != entry["hash"]:
                raise UserMistake(f"`{path}` was changed after the build", f"restore it, or {_BUILD_AGAIN}")
    if not tokenizers:
        raise UserMistake(f"`{directory}` has no tokenizer", "build it from a checkpoint with one")


def _check_gpus(directory: Path, manifest: Mapping[str, Any]) -> None:
    built = manifest.get("gpu_architecture")
    gpus = find_gpus(timeout_s=0.8)
    if gpus is None or built is None:
        return
    if not gpus:
        raise UserMistake(
            f"`{directory}` is a TensorRT engine, and no NVIDIA GPU is visible",
            "serve it on a machine with a GPU, or check the driver with `nvidia-smi`",
        )
    here = "+".join(sorted({gpu.architecture for gpu in gpus}))
    if here != built:
        raise UserMistake(
            f"`{directory}` was built for GPU architecture `{built}`, but this machine has `{here}`",
            f"serve it on a `{built}` GPU, or {_BUILD_AGAIN}",
        )
