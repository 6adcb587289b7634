"""The TensorRT-LLM executors: engines through the executor bindings, checkpoints through the PyTorch `LLM`.

    fields    the table: which input feeds which field of each runtime
    promises  what follows from it: names needed, capabilities
    convert   values of the wire as what fields take     options   what it is started with
    rows      columns of a response batch                verify    the installed names, at start
    document  tables of docs/reference/tensorrt-llm.md   health    why it is broken
    engines, engine_directory, engine_config, engine_requests, guides, results, ranks: the engines
    pytorch, pytorch_config, pytorch_requests, pytorch_results, adapters: the PyTorch runtime
    thinking  a bound on reasoning, which runs in TensorRT-LLM's processes
    encoder, encoder_start: embedding models, through `LLM.encode`

This file looks at directories and package metadata only; TensorRT-LLM is imported once a model is to be
loaded. Nothing here was run on the real package: see docs/STATUS.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.errors import InflightError, UserMistake
from inflight.executors.tensorrt_llm.health import EngineFailed
from inflight.model.files import load_json

if TYPE_CHECKING:
    from inflight.executors.base import Executor

__all__ = ["create", "require"]


def require() -> str:
    """The installed version, from metadata. Raises `UserMistake` where it is absent or too old."""
    from inflight import machine

    version = machine.package_version("tensorrt_llm")
    if version is None:
        raise UserMistake(
            "the executor `tensorrt_llm` needs TensorRT-LLM, which is not installed", machine.INSTALL
        )
    if not machine.has_pytorch(version):
        raise UserMistake(
            f"the executor `tensorrt_llm` needs TensorRT-LLM 1.0 or later, and `{version}` is installed",
            f"install {machine.WRITTEN_AGAINST}, which it was written against",
        )
    return version


def find_runtime(model_dir: Path) -> str:
    """`engines` or `pytorch`: what the directory is. Errors: `UserMistake` where it is neither."""
    from inflight.executors.tensorrt_llm.engine_directory import is_encoder_decoder

    path = model_dir / "config.json"
    if not path.exists() and is_encoder_decoder(model_dir):
        return "engines"
    try:
        config = load_json(path)
    except (OSError, ValueError) as error:
        raise UserMistake(
            f"`{model_dir}` is neither an engine nor a checkpoint: `config.json` cannot be read ({error})",
            "pass a directory that `inflight build` wrote, or a Hugging Face checkpoint",
        ) from error
    if not isinstance(config, dict):
        config = {}
    if "pretrained_config" in config and "build_config" in config:
        return "engines"
    if "mapping" in config and "quantization" in config and "architecture" in config:
        raise UserMistake(
            f"`{model_dir}` is a TensorRT-LLM checkpoint, from which no worker serves",
            "build an engine of it with `inflight build` or `trtllm-build`",
        )
    if "architectures" in config or "model_type" in config:
        return "pytorch"
    raise UserMistake(
        f"`{model_dir}` is neither an engine nor a checkpoint: its `config.json` names no model",
        "pass a directory that `inflight build` wrote, or a Hugging Face checkpoint",
    )


def create(model_dir: Path | str, device: str = "auto", **options: Any) -> Executor:
    """Loads an engine directory or a Hugging Face checkpoint.

    `options` are the fields of `options.Options`. Raises `UserMistake` within a second for what cannot
    work, and `InflightError` where loading fails.
    """
    try:
        return _create(Path(model_dir), device, options)
    except EngineFailed as error:
        raise InflightError(str(error), "TensorRT-LLM's own log, above, says more") from error


def _create(model_dir: Path, device: str, options: dict[str, Any]) -> Executor:
    from inflight import machine
    from inflight.executors.tensorrt_llm.options import parse

    version = require()
    if device == "cpu":
        raise UserMistake(
            "the device `cpu` is not one that TensorRT-LLM serves on", "use `cuda`, or `--executor reference`"
        )
    runtime = find_runtime(model_dir)
    parsed = parse(options, runtime)
    if runtime == "engines":
        if not machine.has_engines(version):
            raise UserMistake(
                f"`{model_dir}` is an engine, and TensorRT-LLM `{version}` no longer runs engines",
                f"install {machine.WRITTEN_AGAINST}, or serve the checkpoint itself",
            )
        from inflight.executors.tensorrt_llm.engines import create_engines

        return create_engines(model_dir, parsed, version)
    from inflight.executors.tensorrt_llm.pytorch_start import create_pytorch

    return create_pytorch(model_dir, parsed, version)
