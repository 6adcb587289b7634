"""What a build writes into `inflight.json`: its inputs, and every file of its result.

The same inputs give the same bytes: no clock, no path, no host name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from inflight.build.options import Values
from inflight.build.steps import LOGS, BuildPlan
from inflight.errors import UserMistake
from inflight.machine import Installed
from inflight.model import manifest
from inflight.model.checkpoint import Checkpoint
from inflight.model.runtimes import REFERENCE, TENSORRT
from inflight.model.shards import fingerprint_file


def source_record(checkpoint: Checkpoint) -> dict[str, str]:
    """Fingerprint by file name of everything in the checkpoint that a build depends on."""
    paths = [checkpoint.directory / name for name in ("config.json", *checkpoint.tokenizer_files)]
    paths += [shard.path for shard in checkpoint.shards]
    extra = checkpoint.directory / "hf_quant_config.json"
    if extra.is_file():
        paths.append(extra)
    return {path.name: fingerprint_file(path) for path in sorted(paths)}


def describe_inputs(
    plan: BuildPlan,
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
        "format": manifest.FORMAT,
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
        if path.is_file() and name != manifest.NAME and not name.startswith(f"{LOGS}/"):
            files[name] = {"bytes": path.stat().st_size, "hash": fingerprint_file(path)}
    return {**inputs, "inflight": version, "files": files, "content_hash": _hash(files)}


def _hash(values: Any) -> str:
    encoded = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    return f"sha256:{hashlib.sha256(encoded).hexdigest()}"


def is_up_to_date(directory: Path, inputs: Mapping[str, Any]) -> bool:
    """Whether `directory` holds what the same inputs gave, whole."""
    try:
        found = manifest.read(directory)
        if found is None or found.get("input_hash") != inputs["input_hash"]:
            return False
        manifest.check_files(directory, found)
    except UserMistake:
        return False
    return True
