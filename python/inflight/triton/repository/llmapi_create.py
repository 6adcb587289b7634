"""Writes the repository of the llmapi model: `config.pbtxt` and `1/model.yaml`, and its code where the
sources are given. Owns the form of these files.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.model.llm_args import BACKEND, TRITON
from inflight.model.llmapi import FILE
from inflight.options import instance_lists
from inflight.triton.repository.create import declare, named, publish
from inflight.triton.repository.llmapi_options import Settings
from inflight.triton.repository.llmapi_tables import INPUTS, MODEL, OUTPUTS, Sources
from inflight.triton.repository.pbtxt import quote
from inflight.triton.repository.tables import MODELS

HEADER = """\
# Arguments of TensorRT-LLM's `LLM`, and `triton_config` for Triton's llmapi model.
# Written by `inflight repository create`; `inflight repository check` reads it, `inflight serve` serves it.
"""


def create(
    output: Path, settings: Settings, sources: Sources | None, *, prefix: str = "", force: bool = False
) -> None:
    """Writes the repository. Raises `UserMistake` as `publish`, and where other models are in `output` that
    need the core model under the same name.
    """
    others = [named(model, prefix) for model in MODELS if model != MODEL]
    left = [name for name in others if (output / name).exists()]
    if left:
        raise UserMistake(
            f"`{output}` has the model `{left[0]}`, which needs a core model that takes token ids",
            "choose another directory",
        )
    files = {"config.pbtxt": config(settings, sources, prefix), f"1/{FILE}": model_file(settings)}
    code = {} if sources is None else {f"1/{name}": text for name, text in sources.code.items()}
    publish(output, {MODEL: {**files, **code}}, prefix=prefix, force=force)


def config(settings: Settings, sources: Sources | None, prefix: str = "") -> str:
    """The `config.pbtxt`.

    Batch size and policy are in `model.yaml` too, with the same values: Triton reads those only where it
    completes configs, which launchers turn off.
    """
    inputs, outputs = (INPUTS, OUTPUTS) if sources is None else (sources.inputs, sources.outputs)
    lines = [
        f"name: {quote(named(MODEL, prefix))}",
        'backend: "python"',
        "max_batch_size: 0",
        f"model_transaction_policy {{ decoupled: {str(settings.decoupled).lower()} }}",
    ]
    for field, declared in (("input", inputs), ("output", outputs)):
        lines.append(f"{field} [")
        lines.append(",\n".join(declare(tensor, {}) for tensor in declared))
        lines.append("]")
    count = 1
    if settings.gpu_device_ids is not None:
        count = len(instance_lists(settings.gpu_device_ids))
        value = quote(settings.gpu_device_ids)
        lines.append(f'parameters {{ key: "gpu_device_ids" value {{ string_value: {value} }} }}')
    lines.append(f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]")
    return "\n".join(lines) + "\n"


def model_file(settings: Settings) -> str:
    """The `model.yaml`."""
    # By name: it has no types.
    yaml: Any = import_module("yaml")
    first = {
        "model": settings.model,
        "backend": BACKEND,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
    }
    triton = {
        "max_batch_size": 0,
        "decoupled": settings.decoupled,
        "cancellation_check_period_ms": settings.cancellation_check_period_ms,
    }
    values = {**first, **settings.arguments, TRITON: triton}
    return HEADER + str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=1000))
