"""The way off engines: a repository of NVIDIA's models for an engine becomes one for its checkpoint.

NVIDIA removed the C++ backend and engines from its Triton backend in July 2026. The five models stay, with
their tensors; the core model becomes Inflight's in Triton's Python backend, over TensorRT-LLM's PyTorch
runtime. Owns what becomes of every setting and why: what is not known is asked, and what is lost has its
reason. Reads files; writes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from inflight.errors import UserMistake
from inflight.executors.tensorrt_llm.fields import FIELDS, Refusal, Unsupported
from inflight.executors.tensorrt_llm.options import OPTIONS
from inflight.model.files import load_json
from inflight.options import instance_lists
from inflight.triton.repository.check import (
    UNFILLED,
    Problem,
    decoupled_of,
    one,
    parameters_of,
    read,
    role_of,
    types_of,
)
from inflight.triton.repository.executor_options import is_default
from inflight.triton.repository.llmapi_check import is_llmapi
from inflight.triton.repository.options import options
from inflight.triton.repository.parameters import FORMER, PARAMETERS, REFUSED
from inflight.triton.repository.pbtxt import Message
from inflight.triton.repository.tables import MODELS
from inflight.triton.repository.without_engine import DRAFTERS, LEFT_OUT, LOST

#: `kept`: as it was; `changed`: another value or option; `unset`: it had no value; `lost`: it has no
#: counterpart; `left out`: it has no counterpart and changes no answer; `ask`: you must decide.
State = Literal["kept", "changed", "unset", "lost", "left out", "ask"]

#: Sizes of an engine -> the option of the PyTorch runtime with the same effect.
_SIZES = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width")


@dataclass(frozen=True)
class Change:
    """What becomes of one setting: the model that had it, its name, and what a person should know."""

    model: str
    name: str
    state: State
    what: str


@dataclass(frozen=True)
class Conversion:
    """The options of the new repository, and an account of each of the old one's."""

    given: Mapping[str, str]
    changes: tuple[Change, ...]


def convert(old: Path, checkpoint: Path, chosen: Mapping[str, str]) -> Conversion:
    """The options for `create` with the backend `python`. `chosen`: what the user decides, which wins.

    Raises `UserMistake` for a directory that is not such a repository.
    """
    models = models_of(old)
    core_name, core = models["tensorrt_llm"]
    given: dict[str, str] = {"executor": "tensorrt_llm", "engine_dir": str(checkpoint)}
    changes: list[Change] = []
    engine = parameters_of(core).get("gpt_model_path", "")
    changes.append(
        Change(core_name, "gpt_model_path", "changed", f"`{engine or 'not set'}` becomes `{checkpoint}`")
    )
    changes += _shape(models, given)
    for role, (name, config) in models.items():
        if role != "tensorrt_llm":
            changes += _text_model(role, name, parameters_of(config), given)
    changes += _core(core_name, parameters_of(core), given)
    changes += _engine(core_name, engine, given)
    if "tokenizer_dir" not in given:
        given["tokenizer_dir"] = str(checkpoint)
    for name, value in chosen.items():
        if name in given and given[name] != value:
            changes.append(Change("you", name, "changed", f"`{given[name]}` becomes `{value}`"))
        given[name] = value
    changes = [change for change in changes if change.state != "ask" or change.name not in chosen]
    changes += _tensors(core_name, core)
    return Conversion(given, tuple(changes))


def models_of(old: Path) -> dict[str, tuple[str, Message]]:
    """Role -> name and config of the one set of models that is there."""
    found: dict[str, tuple[str, Message]] = {}
    problems: list[Problem] = []
    for path in sorted(old.glob("*/config.pbtxt")):
        name = path.parent.name
        role = role_of(name)
        config = read(name, path, problems)
        if config is None:
            broken = problems[-1]
            raise UserMistake(f"`{path}` cannot be read: {broken.what}", "fix the file, and retry")
        if role is None:
            continue
        if role in found:
            raise UserMistake(
                f"`{old}` has two models of the kind `{role}`: `{found[role][0]}` and `{name}`",
                "put each set into a separate directory, and convert one at a time",
            )
        found[role] = name, config
    if "tensorrt_llm" not in found:
        raise UserMistake(
            f"`{old}` has no `tensorrt_llm/config.pbtxt`", "pass the directory of a model repository"
        )
    name, core = found["tensorrt_llm"]
    if is_llmapi(types_of(core, "input"), old / name):
        raise UserMistake(
            f"`{name}` is TensorRT-LLM's llmapi model already, which needs no engine",
            f"serve it with `inflight serve {old}`",
        )
    backend = one(core, "backend", "tensorrtllm")
    if backend not in ("tensorrtllm", UNFILLED) and parameters_of(core).get("executor"):
        raise UserMistake(
            f"`{name}` runs Inflight's executor already", "write it again with `inflight repository create`"
        )
    return {role: found[role] for role in MODELS if role in found}


def _shape(models: Mapping[str, tuple[str, Message]], given: dict[str, str]) -> Iterator[Change]:
    """Fields of the configs other than parameters."""
    name, core = models["tensorrt_llm"]
    batch = one(core, "max_batch_size", 0)
    if isinstance(batch, int) and batch > 0:
        given["triton_max_batch_size"] = str(batch)
        yield Change(name, "max_batch_size", "kept", f"`{batch}`")
    else:
        yield Change(name, "max_batch_size", "unset", "the default of `triton_max_batch_size` is used")
    given["decoupled_mode"] = str(decoupled_of(core)).lower()
    yield Change(name, "decoupled", "kept", f"`{given['decoupled_mode']}`")
    queue = one(core, "dynamic_batching", {})
    policy = one(queue, "default_queue_policy", {}) if isinstance(queue, dict) else {}
    found = {
        "max_queue_delay_microseconds": one(queue, "max_queue_delay_microseconds")
        if isinstance(queue, dict)
        else None,
        "max_queue_size": one(policy, "max_queue_size") if isinstance(policy, dict) else None,
    }
    for option, value in found.items():
        if isinstance(value, int):
            given[option] = str(value)
            yield Change(name, option, "kept", f"`{value}`")
    for role, option in (
        ("preprocessing", "preprocessing_instance_count"),
        ("postprocessing", "postprocessing_instance_count"),
        ("tensorrt_llm_bls", "bls_instance_count"),
    ):
        if role not in models:
            yield Change(role, "the model", "changed", "it was missing, and is written with its defaults")
            continue
        its, config = models[role]
        groups = [group for group in config.get("instance_group", []) if isinstance(group, dict)]
        counts = [one(group, "count", 1) for group in groups]
        if counts and all(isinstance(count, int) and count > 0 for count in counts):
            given[option] = str(sum(counts))
            yield Change(its, "instance count", "kept", f"`{sum(counts)}`")


def _text_model(role: str, name: str, held: Mapping[str, str], given: dict[str, str]) -> Iterator[Change]:
    known = {parameter.key: parameter for parameter in PARAMETERS.get(role, ())}
    for key, value in held.items():
        if value in ("", UNFILLED):
            yield Change(name, key, "unset", "the default is used")
        elif key in REFUSED.get(role, ()):
            why = "images reach TensorRT-LLM's PyTorch runtime as `inflight_images`"
            if "draft" in key:
                why = "draft models run inside TensorRT-LLM (`speculative_config` in the file of `llm_args`)"
            yield Change(name, key, "lost", f"`{value}`: {why}")
        elif key in FORMER.get(role, {}):
            yield Change(name, key, "left out", f"`{value}`: only releases {FORMER[role][key]} read it")
        elif key not in known:
            yield Change(name, key, "lost", f"`{value}`: it is not a parameter of NVIDIA's model")
        elif key in ("gpt_model_path", "tensorrt_llm_model_name"):
            yield Change(name, key, "changed", f"`{value}` becomes what the new repository has")
        else:
            option = known[key].option
            if given.get(option, value) != value:
                what = f"`{value}`, and `{given[option]}` in another model: pass `--set {option}=`"
                yield Change(name, key, "ask", what)
                continue
            given[option] = value
            yield Change(name, key, "kept", f"`{value}`")


def _core(name: str, held: Mapping[str, str], given: dict[str, str]) -> Iterator[Change]:
    """Parameters of the core model."""
    known = options()
    ours = {"exclude_input_in_output", "cancellation_check_period_ms", "stats_check_period_ms"}
    defaults = {parameter.key: parameter for parameter in PARAMETERS["tensorrt_llm"]}
    for key, value in held.items():
        if key in ("gpt_model_path", "executor", "device"):
            continue
        has_default = key in defaults and is_default(defaults[key], value)
        option = OPTIONS.get(key)
        if value in ("", UNFILLED):
            if key != "encoder_model_path":
                yield Change(name, key, "unset", "the PyTorch runtime's default is used")
        elif key == "gpu_device_ids":
            yield from _devices(name, value, given)
        elif key == "decoding_mode":
            if value in DRAFTERS:
                yield Change(name, key, "lost", f"`{value}`: {DRAFTERS[value]}")
            else:
                yield Change(name, key, "left out", f"`{value}`: each request chooses")
        elif has_default and key not in ours and key not in LEFT_OUT:
            what = f"`{value}` is NVIDIA's default; the PyTorch runtime's holds"
            yield Change(name, key, "left out", what)
        elif key in ours or (option is not None and "pytorch" in option.runtimes and key in known):
            given[defaults[key].option if key in defaults else key] = value
            yield Change(name, key, "kept", f"`{value}`")
        elif key in LEFT_OUT:
            yield Change(name, key, "left out", f"`{value}`: {LEFT_OUT[key]}")
        elif key in LOST:
            yield Change(name, key, "lost", f"`{value}`: {LOST[key]}")
        elif key in FORMER["tensorrt_llm"]:
            yield Change(
                name, key, "left out", f"`{value}`: only releases {FORMER['tensorrt_llm'][key]} read it"
            )
        elif key in defaults:
            yield Change(name, key, "lost", f"`{value}`: the PyTorch runtime has no such option")
        else:
            yield Change(name, key, "lost", f"`{value}`: it is not a parameter of NVIDIA's model")


def _devices(name: str, value: str, given: dict[str, str]) -> Iterator[Change]:
    """GPUs by number, which the PyTorch runtime takes from the environment."""
    del given
    try:
        count = len(instance_lists(value))
    except ValueError:
        count = 0
    what = f"`{value}`: set `CUDA_VISIBLE_DEVICES` for Triton instead"
    if count > 1:
        what += f"; {count} instances become one, so start {count} servers"
    yield Change(name, "gpu_device_ids", "lost", what)


def _engine(name: str, path: str, given: dict[str, str]) -> Iterator[Change]:
    """What the engine itself decided: its sizes, ranks and quantization."""
    try:
        config = load_json(Path(path) / "config.json")
        built, model = config["build_config"], config["pretrained_config"]
        if not isinstance(built, dict) or not isinstance(model, dict):
            raise TypeError("it is not an engine's")
    except (OSError, ValueError, KeyError, TypeError):
        for option in ("tensor_parallel_size", *_SIZES[:3]):
            yield Change(
                name, option, "ask", f"the engine's `config.json` cannot be read: pass `--set {option}=`"
            )
        return
    mapping = _section(model, "mapping")
    for ours, theirs in (("tensor_parallel_size", "tp_size"), ("pipeline_parallel_size", "pp_size")):
        ranks = mapping.get(theirs)
        if isinstance(ranks, int) and ranks > 1:
            given[ours] = str(ranks)
            yield Change("engine", theirs, "changed", f"`{ranks}` becomes `{ours}={ranks}`")
    for option in _SIZES:
        value = built.get(option)
        if isinstance(value, int) and value > 0 and option not in given:
            given[option] = str(value)
            yield Change("engine", option, "kept", f"`{value}`")
    yield from _quantization(model.get("quantization"), given)
    if built.get("gather_context_logits"):
        given["enable_kv_cache_reuse"] = "false"
        what = "`true` becomes `enable_kv_cache_reuse=false`, without which prompts have no logits"
        yield Change("engine", "gather_context_logits", "changed", what)
    if built.get("gather_generation_logits"):
        given["gather_generation_logits"] = "true"
        yield Change("engine", "gather_generation_logits", "kept", "`true`; not in streams any more")
    if _section(built, "plugin_config").get("lora_plugin"):
        modules = _section(built, "lora_config").get("lora_target_modules")
        if modules:
            given["lora_target_modules"] = ",".join(map(str, modules))
            yield Change("engine", "lora_target_modules", "kept", f"`{given['lora_target_modules']}`")
        else:
            what = "the engine takes LoRA adapters: pass `--set lora_target_modules=`"
            yield Change("engine", "lora_target_modules", "ask", what)


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of an engine's config; empty where there is none."""
    held = config.get(name)
    return held if isinstance(held, dict) else {}


def _quantization(held: Any, given: dict[str, str]) -> Iterator[Change]:
    """Weights are quantized in the checkpoint, or not at all."""
    held = held if isinstance(held, dict) else {}
    algorithm, cache = held.get("quant_algo"), held.get("kv_cache_quant_algo")
    if algorithm:
        what = f"`{algorithm}`: a checkpoint is served in its own precision; pass one that is quantized so"
        yield Change("engine", "quant_algo", "lost", what)
    if cache == "FP8":
        given["kv_cache_dtype"] = "fp8"
        yield Change("engine", "kv_cache_quant_algo", "changed", "`FP8` becomes `kv_cache_dtype=fp8`")
    elif cache:
        yield Change(
            "engine", "kv_cache_quant_algo", "lost", f"`{cache}`: the KV cache has the checkpoint's type"
        )


def _tensors(name: str, core: Message) -> Iterator[Change]:
    """Inputs that clients may send today and that will be refused."""
    declared = {str(one(tensor, "name")) for tensor in core.get("input", []) if isinstance(tensor, dict)}
    for field in FIELDS:
        if field.tensor in declared and isinstance(field.pytorch, Unsupported | Refusal):
            reason = "it needs an engine"
            if isinstance(field.pytorch, Refusal):
                reason = field.pytorch.reason
            yield Change(name, f"input {field.tensor}", "lost", reason)
