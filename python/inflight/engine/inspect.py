"""What a directory is, needs, and whether a machine serves it: facts as one JSON object.

Reads configs, headers and the manifest; no weights. Owns no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inflight.engine import manifest as manifests
from inflight.engine.checkpoint import TOKENIZERS, ModelFacts, parse_config, read_checkpoint, read_json
from inflight.engine.families import runtimes_of
from inflight.engine.files import CHECKPOINT_CONFIG
from inflight.engine.installed import Installed, has_engines, has_pytorch
from inflight.engine.options import PYTORCH, REFERENCE, RUNTIMES, TENSORRT
from inflight.engine.sizes import FREE_MEMORY_FRACTION, needs
from inflight.errors import UserMistake

#: GPUs that people ask about, where this machine has none: 24, 48, 80 and 141 GB cards.
USUAL_MEMORY = tuple(size << 30 for size in (24, 48, 80, 141))

#: A sequence that a reckoning of batches assumes where neither the user nor the model says.
USUAL_LENGTH = 2048


def inspect(
    directory: Path,
    installed: Installed,
    *,
    overrides: Mapping[str, Any],
    gpu_memory_bytes: int | None = None,
    length: int | None = None,
) -> dict[str, Any]:
    """Everything about `directory`. Raises `UserMistake` where it is neither checkpoint nor build."""
    if not directory.is_dir():
        raise UserMistake(
            f"the directory `{directory}` does not exist", "give a checkpoint, or what `inflight build` wrote"
        )
    manifest = manifests.read(directory)
    if manifest is None and (directory / "rank0.engine").is_file():
        facts, settings, kind, files = _foreign_engine(directory)
    elif manifest is None:
        checkpoint = read_checkpoint(directory)
        facts, settings = checkpoint.facts, {}
        kind = "a Hugging Face checkpoint" + (f", quantized ({facts.quantized})" if facts.quantized else "")
        files = (
            f"{len(checkpoint.shards)} weight files, {checkpoint.weight_bytes} bytes"
            if checkpoint.has_weights
            else "no weights"
        ) + ("" if checkpoint.has_tokenizer else ", no tokenizer")
    else:
        facts, settings, kind, files = _build_of(directory, manifest)
    settings = {**settings, **overrides}
    longest = settings.get("max_seq_len") or facts.max_position_embeddings or USUAL_LENGTH
    return {
        "directory": str(directory),
        "kind": kind,
        "files": files,
        "model": asdict(facts),
        **_reckon(facts, settings, installed, gpu_memory_bytes, length or longest),
        "runtimes": [
            {"runtime": runtime, **_verdict(directory, runtime, facts, manifest, installed)}
            for runtime in RUNTIMES
            if manifest is None or runtime == manifest["runtime"]
        ],
        "machine": {
            "inflight": installed.inflight,
            "tensorrt_llm": installed.tensorrt_llm,
            "tensorrt": installed.tensorrt,
            "gpus": [
                f"{gpu.name} ({gpu.architecture}, {gpu.memory_bytes >> 20} MiB)" for gpu in installed.gpus
            ],
        },
    }


def _build_of(directory: Path, manifest: Mapping[str, Any]) -> tuple[ModelFacts, dict[str, Any], str, str]:
    config = directory / CHECKPOINT_CONFIG
    facts = parse_config(read_json(config if config.is_file() else directory / "config.json"))
    runtime = manifest["runtime"]
    kinds = {
        TENSORRT: "a TensorRT engine",
        PYTORCH: "a serving configuration for TensorRT-LLM's PyTorch runtime",
        REFERENCE: "weights for the reference executor",
    }
    version = manifest["versions"].get("tensorrt_llm")
    kind = kinds[runtime] + (f", built with TensorRT-LLM {version}" if version else "")
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    settings = {**manifest["settings"], **manifest["mapping"]}
    return facts, settings, kind, f"{len(manifest['files'])} files, {size} bytes"


def _foreign_engine(directory: Path) -> tuple[ModelFacts, dict[str, Any], str, str]:
    """An engine that trtllm-build wrote without us; its own config has everything."""
    config = read_json(directory / "config.json")
    pretrained, build = config.get("pretrained_config"), config.get("build_config")
    if not isinstance(pretrained, dict) or not isinstance(build, dict):
        raise UserMistake(
            f"`{directory / 'config.json'}` is not the config of an engine", "build the engine again"
        )
    named = {**pretrained, "architectures": [pretrained.get("architecture", "unknown")]}
    mapping = pretrained.get("mapping")
    settings = {name: build[name] for name in ("max_seq_len",) if isinstance(build.get(name), int)}
    if isinstance(mapping, dict):
        settings |= {
            name: mapping[name] for name in ("tp_size", "pp_size") if isinstance(mapping.get(name), int)
        }
    engines = sorted(directory.glob("rank*.engine"))
    size = sum(path.stat().st_size for path in engines)
    kind = f"a TensorRT engine of TensorRT-LLM {config.get('version', 'unknown')}, without a manifest"
    return parse_config(named), settings, kind, f"{len(engines)} engines, {size} bytes"


def _reckon(
    facts: ModelFacts,
    settings: Mapping[str, Any],
    installed: Installed,
    gpu_memory_bytes: int | None,
    length: int,
) -> dict[str, Any]:
    tp_size, pp_size = settings.get("tp_size", 1), settings.get("pp_size", 1)
    needed = needs(
        facts,
        tp_size=tp_size,
        pp_size=pp_size,
        dtype=settings.get("dtype"),
        quantization=settings.get("quantization", "none"),
        kv_cache_dtype=settings.get("kv_cache_dtype", "auto"),
        tokens_per_block=settings.get("tokens_per_block", 32),
    )
    if gpu_memory_bytes is not None:
        memories: tuple[int, ...] = (gpu_memory_bytes,)
    else:
        memories = tuple(sorted({gpu.memory_bytes for gpu in installed.gpus})) or USUAL_MEMORY
    fits = []
    for memory in memories:
        blocks = needed.blocks(memory)
        fits.append(
            {
                "memory_bytes": memory,
                "free_gpu_memory_fraction": FREE_MEMORY_FRACTION,
                "blocks": blocks,
                "length": length,
                "max_batch_size": needed.batch(blocks, length),
            }
        )
    return {
        "needs": {
            "tp_size": tp_size,
            "pp_size": pp_size,
            **asdict(needed),
            "kv_bytes_per_block": needed.kv_bytes_per_block,
        },
        "fits": fits,
    }


def _verdict(
    directory: Path,
    runtime: str,
    facts: ModelFacts,
    manifest: Mapping[str, Any] | None,
    installed: Installed,
) -> dict[str, Any]:
    """Whether `runtime` serves it here, and the first reason against it."""
    reason = _reason_against(directory, runtime, facts, manifest, installed)
    return {"can_serve": reason is None, "verdict": f"no: {reason}" if reason else "yes"}


def _reason_against(
    directory: Path,
    runtime: str,
    facts: ModelFacts,
    manifest: Mapping[str, Any] | None,
    installed: Installed,
) -> str | None:
    if manifest is not None:
        try:
            manifests.check(directory, manifests.EXECUTORS[runtime])
        except UserMistake as error:
            return error.what
    if runtime not in runtimes_of(facts.architecture):
        return f"it does not take `{facts.architecture}`"
    if runtime == REFERENCE:
        if facts.quantized:
            return f"the checkpoint is quantized (`{facts.quantized}`)"
        if not any(directory.glob("*.safetensors")):
            return "there are no safetensors weights"
    else:
        version = installed.tensorrt_llm
        if version is None:
            return "TensorRT-LLM is not installed"
        if runtime == TENSORRT and not has_engines(version):
            return f"TensorRT-LLM {version} has no engines"
        if runtime == PYTORCH and not has_pytorch(version):
            return f"TensorRT-LLM {version} has no PyTorch runtime"
        if not installed.gpus:
            return "no NVIDIA GPU is visible"
        if runtime == TENSORRT and manifest is None and not (directory / "rank0.engine").is_file():
            return "it is not built: `inflight build` makes an engine of it"
    if not any((directory / name).is_file() for name in TOKENIZERS):
        return "there is no tokenizer"
    return None
