"""Writes the five models, and publishes any. Owns what a complete config.pbtxt of the five looks like; the
facts are in `tables` and `parameters`, the values come from `options`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from inflight.errors import UserMistake
from inflight.options import instance_lists
from inflight.triton.repository.options import parameters
from inflight.triton.repository.pbtxt import quote
from inflight.triton.repository.tables import (
    INFLIGHT_INPUTS,
    INFLIGHT_OUTPUTS,
    INPUTS,
    MODELS,
    OUTPUTS,
    STEPS,
    Tensor,
)

#: What NVIDIA's backend reads when it loads, and fails to load without; empty is not set.
NEEDED_EMPTY = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")

#: Inflight's class for each model that runs in Triton's Python backend.
CLASSES = {
    "preprocessing": "preprocessing",
    "tensorrt_llm": "core",
    "postprocessing": "postprocessing",
    "tensorrt_llm_bls": "bls",
}

MODEL_FILE = '''"""{model}: the code is Inflight's."""

from inflight.triton.models.{module} import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def tensors(model: str, backend: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The inputs and outputs of a model's config.pbtxt."""
    ours = model == "tensorrt_llm" and backend == "python"
    return (
        INPUTS[model] + (INFLIGHT_INPUTS if ours else ()),
        OUTPUTS[model] + (INFLIGHT_OUTPUTS if ours else ()),
    )


def named(model: str, prefix: str) -> str:
    """A model's name in a repository with several sets: `llama_ensemble`."""
    return f"{prefix}_{model}" if prefix else model


def render(model: str, backend: str, values: Mapping[str, str | None], prefix: str = "") -> str:
    """The complete config.pbtxt of one model."""
    lines = [f"name: {quote(named(model, prefix))}"]
    if model == "ensemble":
        lines.append('platform: "ensemble"')
    else:
        lines.append(f"backend: {quote(backend if model == 'tensorrt_llm' else 'python')}")
    lines.append(f"max_batch_size: {values['triton_max_batch_size']}")
    if model in ("tensorrt_llm", "tensorrt_llm_bls"):
        lines.append(f"model_transaction_policy {{ decoupled: {values['decoupled_mode']} }}")
    if model in ("preprocessing", "postprocessing", "tensorrt_llm"):
        lines += [
            "dynamic_batching {",
            f"  max_queue_delay_microseconds: {values['max_queue_delay_microseconds']}",
            f"  default_queue_policy {{ max_queue_size: {values['max_queue_size']} }}",
            "}",
        ]
    for field, declared in zip(("input", "output"), tensors(model, backend), strict=True):
        lines.append(f"{field} [")
        lines.append(",\n".join(declare(tensor, values) for tensor in declared))
        lines.append("]")
    for parameter in parameters(model, backend):
        value = values[parameter.option]
        if parameter.key == "tensorrt_llm_model_name" and value == "tensorrt_llm":
            value = named(value, prefix)
        if value is None and backend == "tensorrtllm" and parameter.key in NEEDED_EMPTY:
            value = ""
        if value is None:
            lines.append(f"# {parameter.key} ({parameter.kind}) is not set: {parameter.meaning}")
        else:
            lines.append(
                f"parameters {{ key: {quote(parameter.key)} value {{ string_value: {quote(value)} }} }}"
            )
    lines += _steps(prefix) if model == "ensemble" else [_instances(model, values)]
    return "\n".join(lines) + "\n"


def _instances(model: str, values: Mapping[str, str | None]) -> str:
    options = {
        "preprocessing": "preprocessing_instance_count",
        "postprocessing": "postprocessing_instance_count",
        "tensorrt_llm_bls": "bls_instance_count",
    }
    # The core model batches by itself: a second instance is a second engine, on separate GPUs.
    devices = values["gpu_device_ids"]
    count = values[options[model]] if model in options else len(instance_lists(devices)) if devices else 1
    return f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]"


def declare(tensor: Tensor, values: Mapping[str, str | None]) -> str:
    """An element of `input` or `output`."""
    data_type = tensor.data_type
    if data_type.startswith("<"):
        data_type = str(values[data_type[1:-1]])
    dims = ", ".join(str(size) for size in tensor.dims)
    text = f"  {{ name: {quote(tensor.name)} data_type: {data_type} dims: [ {dims} ]"
    if tensor.squeeze:
        text += " reshape: { shape: [ ] }"
    if tensor.optional:
        text += " optional: true"
    if tensor.ragged:
        text += " allow_ragged_batch: true"
    return text + " }"


def _steps(prefix: str) -> list[str]:
    lines = ["ensemble_scheduling {", "  step ["]
    steps = []
    for model, (inputs, outputs) in STEPS.items():
        rows = [f"      model_name: {quote(named(model, prefix))}", "      model_version: -1"]
        for field, mapping in (("input_map", inputs), ("output_map", outputs)):
            rows += [
                f"      {field} {{ key: {quote(key)} value: {quote(name)} }}" for key, name in mapping.items()
            ]
        steps.append("    {\n" + "\n".join(rows) + "\n    }")
    return [*lines, ",\n".join(steps), "  ]", "}"]


def create(
    output: Path, backend: str, values: Mapping[str, str | None], *, prefix: str = "", force: bool = False
) -> None:
    """Writes the repository; nothing half-written is left under `output`. With `prefix`, a set of models next
    to those that are there. Raises `UserMistake` as `publish`.
    """
    models = {model: _files(model, backend, values, prefix) for model in MODELS}
    publish(output, models, prefix=prefix, force=force)


def _files(model: str, backend: str, values: Mapping[str, str | None], prefix: str) -> dict[str, str]:
    """Path in the model's folder -> text."""
    files = {"config.pbtxt": render(model, backend, values, prefix)}
    if model in CLASSES and not (model == "tensorrt_llm" and backend == "tensorrtllm"):
        return {**files, "1/model.py": MODEL_FILE.format(model=model, module=CLASSES[model])}
    # Triton wants the version's directory; git and copies drop empty ones.
    return {**files, "1/.keep": ""}


def publish(
    output: Path, models: Mapping[str, Mapping[str, str]], *, prefix: str = "", force: bool = False
) -> None:
    """Writes models, each with the texts of its files by path, all of them or none.

    Raises `UserMistake` where something is there already and `force` is not given, or where `output` cannot
    be written.
    """
    try:
        _publish(output, models, prefix, force=force)
    except OSError as error:
        raise UserMistake(
            f"`{output}` cannot be written: {error.strerror}",
            "fix this, or choose another directory",
        ) from error


def _publish(output: Path, models: Mapping[str, Mapping[str, str]], prefix: str, *, force: bool) -> None:
    if output.exists() and not output.is_dir():
        raise UserMistake(f"`{output}` is not a directory", "choose another directory")
    taken = [name for model in models if (output / (name := named(model, prefix))).exists()]
    if prefix and taken and not force:
        raise UserMistake(
            f"`{output}` already has `{taken[0]}`", "choose another prefix, or pass `--force` to replace it"
        )
    if not prefix and output.exists() and any(output.iterdir()) and not force:
        raise UserMistake(
            f"`{output}` is not empty", "choose another directory, or pass `--force` to replace its models"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".repository-") as temporary:
        for model, files in models.items():
            for path, text in files.items():
                file = Path(temporary) / model / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
        output.mkdir(exist_ok=True)
        for model in models:
            target = output / named(model, prefix)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(Path(temporary) / model, target)
