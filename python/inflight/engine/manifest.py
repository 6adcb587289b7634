"""`inflight.json`: what a directory was built from and for, and the check before anything loads it.

Owns its fields and the sentences of every mismatch. The same inputs give the same bytes: no clock, no path,
no host name. The check reads metadata and sizes only, so that it is over in a second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inflight.engine.checkpoint import TOKENIZER_FILES, Checkpoint
from inflight.engine.installed import INSTALL, Installed, find_gpus, package_version, release
from inflight.engine.options import PYTORCH, REFERENCE, TENSORRT, Values
from inflight.engine.shards import fingerprint_file
from inflight.engine.steps import Plan
from inflight.errors import UserMistake

NAME = "inflight.json"
FORMAT = 1
#: Logs of the build; beside what was built and no part of it.
LOGS = "build-logs"

#: Runtime -> the `--executor` that serves it.
EXECUTORS = {TENSORRT: "tensorrt_llm", PYTORCH: "tensorrt_llm", REFERENCE: "reference"}
#: Executors that take nothing but the tokenizer from a directory.
TOKENIZER_ONLY = frozenset({"simulated", "scripted"})

#: Of the settings and the mapping: what is reckoned with.
_COUNTS = frozenset({"tp_size", "pp_size", "cp_size", "max_seq_len", "tokens_per_block"})
_NAMES = frozenset({"dtype", "quantization", "kv_cache_dtype"})

_BUILD_AGAIN = "build it again with `inflight build --force`"


def source_record(checkpoint: Checkpoint) -> dict[str, str]:
    """Fingerprint by file name of everything in the checkpoint that a build depends on."""
    paths = [checkpoint.directory / name for name in ("config.json", *checkpoint.tokenizer_files)]
    paths += [shard.path for shard in checkpoint.shards]
    extra = checkpoint.directory / "hf_quant_config.json"
    if extra.is_file():
        paths.append(extra)
    return {path.name: fingerprint_file(path) for path in sorted(paths)}


def describe_inputs(
    plan: Plan,
    checkpoint: Checkpoint,
    values: Values,
    installed: Installed,
    source: Mapping[str, str],
    named_files: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """The part of the manifest that is known before the build; `input_hash` is over all of it.

    `named_files`: fingerprints of files that options name, absent where none does.
    """
    on_gpu = plan.runtime == TENSORRT
    versions = (
        {}
        if plan.runtime == REFERENCE
        else {
            "tensorrt_llm": installed.tensorrt_llm,
            "tensorrt": installed.tensorrt,
            "cuda": installed.cuda,
        }
    )
    inputs: dict[str, Any] = {
        "format": FORMAT,
        "runtime": plan.runtime,
        "architecture": checkpoint.facts.architecture,
        "source": {"files": dict(source), "hash": _hash(source)},
        "tokenizer": {name: source[name] for name in checkpoint.tokenizer_files if name in source},
        "options": values.record(),
        "settings": dict(plan.settings),
        "mapping": plan.mapping.record(),
        "versions": versions,
        "gpu_architecture": installed.gpu_architecture if on_gpu else None,
        **({"named_files": dict(named_files)} if named_files else {}),
    }
    return {**inputs, "input_hash": _hash(inputs)}


def describe_result(inputs: Mapping[str, Any], result: Path, version: str) -> dict[str, Any]:
    """The whole manifest: the inputs, and every file of the result with size and fingerprint."""
    files = {}
    for path in sorted(result.rglob("*")):
        name = path.relative_to(result).as_posix()
        if path.is_file() and name != NAME and not name.startswith(f"{LOGS}/"):
            files[name] = {"bytes": path.stat().st_size, "hash": fingerprint_file(path)}
    return {**inputs, "inflight": version, "files": files, "content_hash": _hash(files)}


def _hash(values: Any) -> str:
    encoded = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    return f"sha256:{hashlib.sha256(encoded).hexdigest()}"


def read(directory: Path) -> dict[str, Any] | None:
    """The manifest in `directory`, None where there is none. Raises `UserMistake` where it is not whole."""
    path = directory / NAME
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(manifest, dict):
            raise ValueError("it is no object")
        if isinstance(manifest["format"], int) and manifest["format"] > FORMAT:
            raise UserMistake(f"`{path}` was written by a newer Inflight", "update this one")
        if manifest["runtime"] not in EXECUTORS:
            raise ValueError(f"it names the runtime {manifest['runtime']!r}")
        for name, entry in manifest["files"].items():
            if not isinstance(entry["bytes"], int) or not isinstance(entry["hash"], str):
                raise ValueError(f"its entry of {name!r} is incomplete")
        for field in ("versions", "mapping", "settings"):
            if not isinstance(manifest[field], dict):
                raise ValueError(f"its {field} are no object")
        shape = {**manifest["settings"], **manifest["mapping"]}
        for field in _COUNTS & shape.keys():
            if not isinstance(shape[field], int) or shape[field] < 1:
                raise ValueError(f"its {field} is {shape[field]!r}")
        for field in _NAMES & shape.keys():
            if not isinstance(shape[field], str):
                raise ValueError(f"its {field} is {shape[field]!r}")
    except OSError as error:
        raise UserMistake(f"`{path}` cannot be read: {error.strerror}", "check its permissions") from error
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UserMistake(f"`{path}` is damaged: {error}", _BUILD_AGAIN) from error
    return manifest


def is_up_to_date(directory: Path, inputs: Mapping[str, Any]) -> bool:
    """Whether `directory` holds what the same inputs gave, whole."""
    try:
        manifest = read(directory)
        if manifest is None or manifest.get("input_hash") != inputs["input_hash"]:
            return False
        _check_files(directory, manifest)
    except UserMistake:
        return False
    return True


def check(directory: Path, executor: str | None = None) -> dict[str, Any] | None:
    """Refuses, in one sentence, a build that cannot run here; returns its manifest, None without one.

    Called before an engine, a package or a weight file is touched. `executor` None checks the files only.
    """
    manifest = read(directory)
    if manifest is None:
        return None
    if executor is not None and executor not in TOKENIZER_ONLY:
        _check_executor(directory, manifest["runtime"], executor)
        _check_versions(directory, manifest)
    _check_files(directory, manifest)
    if executor is not None and executor not in TOKENIZER_ONLY and manifest["runtime"] == TENSORRT:
        _check_gpus(directory, manifest)
    return manifest


def _check_executor(directory: Path, runtime: str, executor: str) -> None:
    needed = EXECUTORS[runtime]
    if executor != needed:
        raise UserMistake(
            f"`{directory}` was built for the runtime `{runtime}`, which the executor `{executor}` does not"
            " serve",
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
            f"`{directory}` was built with TensorRT-LLM `{built}`, and `{here}` is installed",
            f"install `{built}`, or {_BUILD_AGAIN}",
        )
    if runtime != TENSORRT or versions.get("tensorrt") is None:
        return
    tensorrt = package_version("tensorrt", "tensorrt-cu13", "tensorrt-cu12")
    if tensorrt != versions["tensorrt"]:
        raise UserMistake(
            f"`{directory}` was built with TensorRT `{versions['tensorrt']}`, and `{tensorrt}` is installed",
            f"install `{versions['tensorrt']}`, or {_BUILD_AGAIN}",
        )


def _check_files(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Sizes of all files, and the content of the tokenizer's, which decide what a prompt means."""
    tokenizers = 0
    for name, entry in manifest["files"].items():
        path = directory / name
        try:
            size = path.stat().st_size
        except OSError:
            raise UserMistake(f"`{path}` is missing", f"restore it, or {_BUILD_AGAIN}") from None
        if size != entry["bytes"]:
            word = "truncated" if size < entry["bytes"] else "not the one that was built"
            raise UserMistake(
                f"`{path}` is {word}: it has `{size}` of `{entry['bytes']}` bytes",
                f"copy it again, or {_BUILD_AGAIN}",
            )
        if name in TOKENIZER_FILES:
            tokenizers += 1
            if fingerprint_file(path) != entry["hash"]:
                raise UserMistake(f"`{path}` was changed after the build", f"restore it, or {_BUILD_AGAIN}")
    if not tokenizers:
        raise UserMistake(f"`{directory}` holds no tokenizer", "build it from a checkpoint that has one")


def _check_gpus(directory: Path, manifest: Mapping[str, Any]) -> None:
    built = manifest.get("gpu_architecture")
    gpus = find_gpus(timeout_s=0.8)
    if gpus is None or built is None:
        return
    if not gpus:
        raise UserMistake(
            f"`{directory}` is a TensorRT engine, and no NVIDIA GPU is visible",
            "serve it where there is one, or check the driver with `nvidia-smi`",
        )
    here = "+".join(sorted({gpu.architecture for gpu in gpus}))
    if here != built:
        raise UserMistake(
            f"`{directory}` was built for GPU architecture `{built}`, and this machine has `{here}`",
            f"serve it on a `{built}` GPU, or {_BUILD_AGAIN} here",
        )
