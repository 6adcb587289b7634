"""Templates in the manner of NVIDIA's, made of the facts in `tables`, with the syntax that theirs have.

A colon before a message or none, a space before a colon, commas between fields, tabs, comments with braces
and quotes within lists, an empty message, an output declared twice, tensors and values that ours lack.
"""

from __future__ import annotations

from pathlib import Path

from inflight.triton.repository.create import tensors
from inflight.triton.repository.options import parameters
from inflight.triton.repository.parameters import Parameter
from inflight.triton.repository.tables import MODELS, STEPS, Tensor

#: Documented, and in no template.
_ABSENT = frozenset({"recv_poll_period_ms"})
_INSTANCES = {
    "preprocessing": "${preprocessing_instance_count}",
    "postprocessing": "${postprocessing_instance_count}",
    "tensorrt_llm_bls": "${bls_instance_count}",
    "tensorrt_llm": "1",
}
_BATCHING = """dynamic_batching {
    preferred_batch_size: [ ${triton_max_batch_size} ]
    max_queue_delay_microseconds: ${max_queue_delay_microseconds}
    default_queue_policy: { max_queue_size: ${max_queue_size} }
}
"""


def write(directory: Path) -> Path:
    """The five templates, with a model.py where theirs have one."""
    for model in MODELS:
        folder = directory / model
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(template(model))
        if model != "ensemble":
            (folder / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    return directory


def template(model: str) -> str:
    """One template."""
    text = f'# A comment with "quotes", {{ braces }} and a colon: here.\nname: "{model}"\n'
    if model == "ensemble":
        text += 'platform: "ensemble"\n'
    else:
        backend = "${triton_backend}" if model == "tensorrt_llm" else "python"
        text += f'backend: "{backend}"\n'
    text += "max_batch_size: ${triton_max_batch_size}\n"
    if model in ("tensorrt_llm", "tensorrt_llm_bls"):
        text += "model_transaction_policy {\n  decoupled: ${decoupled_mode}\n}\n"
    if model in ("tensorrt_llm", "preprocessing"):
        text += _BATCHING
    elif model == "postprocessing":
        text += "dynamic_batching {}\n"
    inputs, outputs = (list(half) for half in tensors(model, "tensorrtllm"))
    if model == "preprocessing":
        inputs.append(Tensor("IMAGES", "TYPE_STRING", (-1,), optional=True))
    if model == "ensemble":
        outputs.append(next(one for one in outputs if one.name == "kv_cache_alloc_total_blocks"))
    text += f"input [\n{_tensors(inputs)}]\noutput [\n{_tensors(outputs)}]\n"
    if model == "ensemble":
        return text + _steps()
    text += f"instance_group [\n  {{\n    count: {_INSTANCES[model]}\n    kind : KIND_CPU\n  }}\n]\n"
    return text + "".join(_parameter(model, one) for one in parameters(model, "tensorrtllm"))


def _tensors(declared: list[Tensor]) -> str:
    rows = []
    for place, one in enumerate(declared):
        data_type = one.data_type.replace("<", "${").replace(">", "}")
        comma = "," if place % 3 == 0 else ""
        row = f'  # as in "attn_qkv": 0  [ {{ ]\n  {{\n    name: "{one.name}"{comma}\n'
        row += f"\tdata_type: {data_type}{comma}\n"
        row += f"    dims: [ {', '.join(map(str, one.dims))} ]\n"
        row += "    reshape: { shape: [ ] }\n" if one.squeeze else ""
        row += "    optional: true\n" if one.optional else ""
        row += "\tallow_ragged_batch: true\n" if one.ragged else ""
        rows.append(row + "  }")
    return ",\n".join(rows) + "\n"


def _parameter(model: str, one: Parameter) -> str:
    if "Inflight's own" in one.meaning or one.key in _ABSENT:
        return ""
    value = f"${{{one.option}}}"
    if one.key in ("FORCE_CPU_ONLY_INPUT_TENSORS", "executor_worker_path"):
        value = str(one.default)
    colon = "" if model in ("preprocessing", "postprocessing") else ":"
    return f'parameters{colon} {{\n  key: "{one.key}"\n  value: {{\n    string_value: "{value}"\n  }}\n}}\n'


def _steps() -> str:
    text = "ensemble_scheduling {\n  step [\n"
    steps = []
    for model, halves in STEPS.items():
        step = f'    {{\n      model_name: "{model}"\n      model_version: -1\n'
        for field, mapping in zip(("input_map", "output_map"), halves, strict=True):
            for key, value in mapping.items():
                step += f'      {field} {{\n        key: "{key}",\n        value: "{value}"\n      }},\n'
        steps.append(step + "    }")
    return text + ",\n".join(steps) + "\n  ]\n}\n"
