"""Finds what is wrong with a llmapi model, NVIDIA's or one that `create` wrote. Owns the rules for its files;
fields and names that every model has are `repository.check`'s. Changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.executors.tensorrt_llm import find_runtime
from inflight.launch import hub
from inflight.model import llm_names
from inflight.model.llm_args import BACKEND, PROCESSORS, TRITON, TRITONS, load, suggest
from inflight.model.llmapi import FILE, PROPOSED_TRITON_KEYS, TRITON_KEYS, ModelFile, of_model
from inflight.options import instance_lists
from inflight.triton.repository.llmapi_tables import CODE, FOLDERS, HELPERS, INPUTS, LATER_INPUTS, OUTPUTS
from inflight.triton.repository.tables import Tensor

#: A problem, and whether it is only worth knowing.
Found = tuple[str, bool]

_PARAMETERS = ("gpu_device_ids",)
_BACKENDS = (BACKEND, "_autodeploy", "tensorrt")
_COPY = f"copy `{CODE}` and `{HELPERS}` from `{FOLDERS[0]}/1` of TensorRT-LLM's sources"
#: `module.path:attribute`.
_IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Config:
    """What the model's `config.pbtxt` says; `None` where it does not."""

    backend: Any
    max_batch_size: Any
    decoupled: bool | None
    parameters: Mapping[str, str]
    instances: int


def is_llmapi(inputs: Mapping[str, str], folder: Path) -> bool:
    """Whether a model with these inputs is one: by its tensors, or its `model.yaml`."""
    if "input_ids" in inputs:
        return False
    return "sampling_param_max_tokens" in inputs or of_model(folder) is not None


def check(
    config: Config, inputs: Mapping[str, str], outputs: Mapping[str, str], folder: Path
) -> Iterator[Found]:
    """What is wrong. `inputs` and `outputs` are the declared tensors with their types."""
    if config.backend != "python":
        yield f"`backend` is `{config.backend}`, not `python`", False
    yield from _tensors("input", inputs, (*INPUTS, *LATER_INPUTS), "text_input")
    yield from _tensors("output", outputs, OUTPUTS, "text_output")
    for key in config.parameters:
        if key not in _PARAMETERS:
            where = f"; arguments of `LLM` are in `1/{FILE}`" if key in llm_names.ARGUMENTS else ""
            yield f"the parameter `{key}` is unknown{where}", False
    yield from _code(folder)
    path = of_model(folder)
    if path is None:
        yield f"`1/{FILE}` is missing, which names the model and how it is served", False
        return
    try:
        held = load(path, f"`1/{FILE}`")
    except UserMistake as error:
        yield error.what, False
        return
    yield from _triton(held.get(TRITON), config)
    yield from _arguments(held)
    yield from _instances(held, config)


def _tensors(
    field: str, declared: Mapping[str, str], table: Sequence[Tensor], needed: str
) -> Iterator[Found]:
    known = {tensor.name: tensor.data_type for tensor in table}
    if needed not in declared:
        yield f"the {field} `{needed}` is missing", False
    for name, data_type in declared.items():
        if name not in known:
            near = suggest(name, known.keys() - declared.keys())
            guess = "" if near is None else f"; did you mean `{near}`?"
            yield f"NVIDIA's model has no {field} `{name}`{guess}", near is None
        elif data_type != known[name]:
            yield f"the {field} `{name}` is `{data_type}`, not `{known[name]}`", False


def _code(folder: Path) -> Iterator[Found]:
    path = of_model(folder)
    # The version that Triton loads, or any where that is not known.
    versions = [path.parent] if path is not None else sorted(folder.glob("[1-9]*"))
    version = next((one for one in versions if (one / CODE).is_file()), None)
    if version is None:
        yield f"`1/{CODE}` is missing, without which Triton does not load the model: {_COPY}", False
        return
    try:
        text = (version / CODE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        yield f"`1/{CODE}` cannot be read: {error}", False
        return
    if re.search(r"^(from|import) helpers\b", text, re.MULTILINE) and not (version / HELPERS).is_file():
        yield f"`1/{HELPERS}` is missing, which `{CODE}` imports: {_COPY}", False


def _triton(triton: Any, config: Config) -> Iterator[Found]:
    """`triton_config`, and whether `config.pbtxt` agrees."""
    if not isinstance(triton, dict):
        yield f"`1/{FILE}` has no `{TRITON}`; write `{', '.join(TRITON_KEYS[:2])}` below it", False
        return
    for name in triton:
        if name not in (*TRITON_KEYS, *PROPOSED_TRITON_KEYS):
            near = suggest(str(name), TRITON_KEYS)
            guess = "" if near is None else f"; did you mean `{near}`?"
            yield f"`{TRITON}.{name}` in `1/{FILE}` is unknown{guess}", False
    batch, decoupled = triton.get("max_batch_size"), triton.get("decoupled")
    if batch is None:
        yield f"`{TRITON}.max_batch_size` in `1/{FILE}` is missing; set it to `0`", False
    elif batch != 0 or isinstance(batch, bool):
        yield f"`{TRITON}.max_batch_size` is `{batch}`, but must be `0`: a request has one prompt", False
    if config.max_batch_size not in (None, 0):
        yield (
            f"`max_batch_size` is `{config.max_batch_size}`, but must be `0`: a request has one prompt",
            False,
        )
    if not isinstance(decoupled, bool):
        what = "missing" if decoupled is None else f"`{decoupled}`"
        yield f"`{TRITON}.decoupled` in `1/{FILE}` is {what}; set it to `true` or `false`", False
    elif config.decoupled is not None and config.decoupled != decoupled:
        said, other = str(config.decoupled).lower(), str(decoupled).lower()
        yield f"`decoupled` is `{said}`, but `{other}` in `1/{FILE}`; it must be the same in both", False
    elif decoupled and config.decoupled is None:
        what = (
            f"`decoupled` is `true` in `1/{FILE}` alone, which Triton does not read with "
            "`--disable-auto-complete-config`, as launchers start it; add `model_transaction_policy "
            "{ decoupled: true }` here too"
        )
        yield what, False
    period = triton.get("cancellation_check_period_ms", 1)
    if not isinstance(period, int) or isinstance(period, bool) or period < 1:
        yield f"`{TRITON}.cancellation_check_period_ms` is `{period}`; it must be at least 1", False


def _arguments(held: Mapping[str, Any]) -> Iterator[Found]:
    """Arguments of `LLM`."""
    arguments = {name: value for name, value in held.items() if name not in TRITONS}
    yield from _checkpoint(held.get("model"), arguments)
    backend = arguments.get("backend", BACKEND)
    if backend not in _BACKENDS:
        near = suggest(str(backend), _BACKENDS)
        yield f"`backend` in `1/{FILE}` is `{backend}`" + (f"; did you mean `{near}`?" if near else ""), False
    elif backend != BACKEND:
        yield f"`backend` in `1/{FILE}` is `{backend}`; `inflight serve` runs `{BACKEND}` only", True
    for name, near in llm_names.unknown(arguments):
        what = f"TensorRT-LLM {llm_names.RELEASES} has no argument `{name}`, which `1/{FILE}` sets"
        yield what + (f"; did you mean `{near}`?" if near else ""), near is None
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        size = arguments.get(name, 1)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            yield f"`{name}` in `1/{FILE}` is `{size}`; it must be at least 1", False
    named = held.get(PROCESSORS)
    if named is not None and not isinstance(named, dict):
        yield f"`{PROCESSORS}` in `1/{FILE}` is not a mapping of names to `module.path:attribute`", False
    for name, spec in named.items() if isinstance(named, dict) else ():
        if not isinstance(spec, str) or _IMPORT.fullmatch(spec) is None:
            yield f"`{PROCESSORS}.{name}` is `{spec}`, but must be `module.path:attribute`", False


def _checkpoint(model: Any, arguments: Mapping[str, Any]) -> Iterator[Found]:
    if not isinstance(model, str) or not model:
        what = "is missing" if model is None else f"is `{model}`"
        hint = "set it to the checkpoint's directory or its name on the Hub (ORG/NAME)"
        yield f"`model` in `1/{FILE}` {what}; {hint}", False
        return
    path = Path(model).expanduser()
    if not path.exists() and hub.is_hub_id(ModelFile(path, model, arguments).name):
        return
    if not path.is_dir():
        yield (
            f"`model` in `1/{FILE}` must be a directory or a name on the Hub (ORG/NAME), got `{model}`",
            False,
        )
        return
    try:
        runtime = find_runtime(path)
    except UserMistake as error:
        yield f"`model` in `1/{FILE}`: {error.what}", False
        return
    if runtime == "engines":
        yield f"`model` in `1/{FILE}` is `{model}`, an engine; set it to the engine's checkpoint", False
    tokenizer = arguments.get("tokenizer")
    if isinstance(tokenizer, str) and not hub.is_hub_id(tokenizer) and not Path(tokenizer).is_dir():
        yield f"`tokenizer` in `1/{FILE}` must be a directory, got `{tokenizer}`", False


def _instances(held: Mapping[str, Any], config: Config) -> Iterator[Found]:
    """Several instances need separate GPUs, each as many as the model is split over."""
    devices = config.parameters.get("gpu_device_ids", "")
    if config.instances == 1:
        if devices:
            yield "`gpu_device_ids` has no effect with one instance; set `CUDA_VISIBLE_DEVICES`", True
        return
    if not devices:
        yield (
            f"the instance count is `{config.instances}`, and `gpu_device_ids` names no GPUs for them",
            False,
        )
        return
    try:
        lists = instance_lists(devices)
    except ValueError:
        yield f"the parameter `gpu_device_ids` is `{devices}`; write `0,1;2,3` for two instances", False
        return
    if len(lists) != config.instances:
        given = f"but `gpu_device_ids` names GPUs for `{len(lists)}`"
        yield f"the instance count is `{config.instances}`, {given}", False
    file = ModelFile(Path(FILE), "", held)
    ranks = file.size("tensor_parallel_size") * file.size("pipeline_parallel_size")
    for number, gpus in enumerate(lists):
        if len(gpus) != ranks:
            yield f"instance `{number}` has `{len(gpus)}` GPUs, and `1/{FILE}` needs `{ranks}`", False
