"""What a directory is, needs, and whether a machine serves it: facts as one JSON object.

Reads configs, headers and the manifest; no weights. Owns no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inflight.build.checks.parallelism import check_division
from inflight.build.checks.reference import check_config, check_tensors
from inflight.build.families import runtimes_of
from inflight.errors import Problem, UserMistake, raise_problems
from inflight.machine import Installed, has_engines, has_pytorch
from inflight.model import manifest as manifests
from inflight.model.checkpoint import Checkpoint, read_checkpoint
from inflight.model.config import ModelFacts, parse_config
from inflight.model.files import ARGUMENTS_FILE, CHECKPOINT_CONFIG, read_json
from inflight.model.foreign import foreign_engine, formats_of_checkpoint, read_foreign_engine
from inflight.model.memory import FREE_MEMORY_FRACTION, Needs, human_bytes, needs
from inflight.model.runtimes import EXECUTORS, PYTORCH, REFERENCE, RUNTIMES, TENSORRT
from inflight.model.shards import INDEX
from inflight.model.tokenizer import check_tokenizer

#: GPUs that people ask about, where this machine has none: 24, 48, 80 and 141 GB cards.
USUAL_MEMORY = tuple(size << 30 for size in (24, 48, 80, 141))

#: Length of a sequence to assume if neither the user nor the model states one.
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
        state = "is not a directory" if directory.exists() else "does not exist"
        raise UserMistake(
            f"`{directory}` {state}", "pass a checkpoint, or a directory written by `inflight build`"
        )
    manifest = manifests.read(directory)
    engine = foreign_engine(directory) if manifest is None else None
    checkpoint = None
    if engine is not None:
        facts, settings, kind, files = read_foreign_engine(engine)
    elif manifest is None:
        checkpoint = read_checkpoint(directory)
        facts, settings = checkpoint.facts, formats_of_checkpoint(checkpoint.facts)
        kind = "a Hugging Face checkpoint" + _scheme_of(facts)
        files = (
            f"{len(checkpoint.shards)} weight files, {checkpoint.weight_bytes} bytes"
            if checkpoint.has_weights
            else "no weights"
        ) + ("" if checkpoint.has_tokenizer else ", no tokenizer")
    else:
        facts, settings, kind, files = _build_of(directory, manifest)
    settings = {**settings, **overrides}
    raise_problems(check_division(settings.get("tp_size", 1), settings.get("pp_size", 1), facts))
    tokenizer = check_tokenizer(directory)
    longest = settings.get("max_seq_len") or facts.max_position_embeddings or USUAL_LENGTH
    needed = _needs(facts, settings)
    only = TENSORRT if engine is not None else None if manifest is None else manifest["runtime"]
    ranks = settings.get("tp_size", 1) * settings.get("pp_size", 1) * settings.get("cp_size", 1)
    return {
        "directory": str(directory),
        "kind": kind,
        "files": files,
        "llm_args": None if manifest is None else _arguments_of(directory, manifest),
        "model": asdict(facts),
        "needs": {
            "tp_size": settings.get("tp_size", 1),
            "pp_size": settings.get("pp_size", 1),
            "gpus": ranks,
            **asdict(needed),
            "kv_bytes_per_block": needed.kv_bytes_per_block,
        },
        "fits": _fits(needed, installed, gpu_memory_bytes, length or longest),
        "runtimes": [
            {
                "runtime": runtime,
                **_verdict(
                    _Asked(
                        directory, runtime, facts, manifest, checkpoint, tokenizer, installed, needed, ranks
                    )
                ),
            }
            for runtime in RUNTIMES
            if only in (None, runtime)
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
    settings = {**manifest["settings"], **manifest["mapping"], **formats_of_checkpoint(facts)}
    return facts, settings, kind, f"{len(manifest['files'])} files, {size} bytes"


def _scheme_of(facts: ModelFacts) -> str:
    return "" if facts.quantization is None else f", quantized ({facts.quantization.describe()})"


def _arguments_of(directory: Path, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of `LLM` in a build for the PyTorch runtime."""
    path = directory / ARGUMENTS_FILE
    if manifest["runtime"] != PYTORCH or not path.is_file():
        return None
    found: dict[str, Any] = read_json(path)
    return found


def _needs(facts: ModelFacts, settings: Mapping[str, Any]) -> Needs:
    return needs(
        facts,
        tp_size=settings.get("tp_size", 1),
        pp_size=settings.get("pp_size", 1),
        dtype=None if settings.get("dtype") == "auto" else settings.get("dtype"),
        quantization=settings.get("quantization", "none"),
        kv_cache_dtype=settings.get("kv_cache_dtype", "auto"),
        tokens_per_block=settings.get("tokens_per_block", 32),
    )


def _fits(
    needed: Needs, installed: Installed, gpu_memory_bytes: int | None, length: int
) -> list[dict[str, Any]]:
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
    return fits


@dataclass(frozen=True)
class _Asked:
    """Whether `runtime` serves this on that machine."""

    directory: Path
    runtime: str
    facts: ModelFacts
    manifest: Mapping[str, Any] | None
    #: None: the directory is a build or an engine.
    checkpoint: Checkpoint | None
    #: The problem with its tokenizer.
    tokenizer: Problem | None
    installed: Installed
    needed: Needs
    ranks: int


def _verdict(asked: _Asked) -> dict[str, Any]:
    """Whether the runtime serves it here, and the first reason against it."""
    reason = _reason_against(asked)
    return {"can_serve": reason is None, "verdict": f"no: {reason}" if reason else "yes"}


def _reason_against(asked: _Asked) -> str | None:
    directory, runtime, facts = asked.directory, asked.runtime, asked.facts
    if asked.manifest is not None:
        try:
            manifests.check(directory, EXECUTORS[runtime])
        except UserMistake as error:
            return error.what
    # An engine that exists was built, whether or not `inflight build` could.
    is_built = runtime == TENSORRT and foreign_engine(directory) is not None
    if not is_built and runtime not in runtimes_of(facts.architecture):
        return f"it does not support `{facts.architecture}`"
    if runtime == REFERENCE:
        reason = _reason_of_reference(asked)
        if reason is not None:
            return reason
    else:
        reason = _reason_of_tensorrt_llm(asked) or _reason_of_gpus(asked)
        if reason is not None:
            return reason
    return None if asked.tokenizer is None else asked.tokenizer.what


def _reason_of_reference(asked: _Asked) -> str | None:
    if not any(asked.directory.glob("*.safetensors")):
        return "there are no safetensors weights"
    if asked.checkpoint is None:
        # A build was loaded when it was made.
        return None
    for problem in check_config(asked.checkpoint.config):
        return problem.what
    if not any((asked.directory / name).is_file() for name in ("model.safetensors", INDEX)):
        return f"it has neither `model.safetensors` nor `{INDEX}`: run `inflight build` first"
    return next((problem.what for problem in check_tensors(asked.checkpoint)), None)


def _reason_of_tensorrt_llm(asked: _Asked) -> str | None:
    version = asked.installed.tensorrt_llm
    if version is None:
        return "TensorRT-LLM is not installed"
    if asked.runtime == PYTORCH:
        return None if has_pytorch(version) else f"TensorRT-LLM {version} has no PyTorch runtime"
    if not has_engines(version):
        return f"TensorRT-LLM {version} has no engines"
    if asked.manifest is not None:
        return None
    engine = foreign_engine(asked.directory)
    if engine is None:
        return "it is not built: run `inflight build` first"
    built = read_json(engine / "config.json").get("version")
    if built not in (None, version):
        return f"it was built with TensorRT-LLM `{built}`, but `{version}` is installed"
    return None


def _reason_of_gpus(asked: _Asked) -> str | None:
    gpus = asked.installed.gpus
    if not gpus:
        return "no NVIDIA GPU is visible"
    if asked.ranks > len(gpus):
        return f"it is split over `{asked.ranks}` GPUs, and this machine has `{len(gpus)}`"
    smallest = min(gpus, key=lambda gpu: gpu.memory_bytes)
    if not asked.needed.blocks(smallest.memory_bytes):
        weights, memory = human_bytes(asked.needed.weight_bytes), human_bytes(smallest.memory_bytes)
        return f"its weights take `{weights}` of a GPU, and `{smallest.name}` has `{memory}`"
    return None
