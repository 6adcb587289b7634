"""Finds everything that is wrong with a repository, NVIDIA's or ours. Owns the rules; changes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.options import instance_lists
from inflight.triton.repository import executor_options
from inflight.triton.repository import llmapi_check as llmapi
from inflight.triton.repository.create import NEEDED_EMPTY, tensors
from inflight.triton.repository.fill import PLACEHOLDER, is_optional
from inflight.triton.repository.options import parameters, validated
from inflight.triton.repository.parameters import FORMER, REFUSED
from inflight.triton.repository.pbtxt import Message, PbtxtError, parse
from inflight.triton.repository.tables import DATA_TYPES, MODELS, REPEATED_FIELDS, SINGLE_FIELDS

_PATHS = frozenset({"tokenizer_dir", "gpt_model_path", "encoder_model_path"})


#: Where a created `model.py` imports the model's code from, and where earlier releases had it.
MODULES = "inflight.triton.models"
MOVED = "inflight.repository.backend"

#: How an unfilled value is read, so that its surroundings can be checked.
UNFILLED = "UNFILLED"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and the file or model that it is in."""

    where: str
    what: str
    #: Worth knowing, but the repository works.
    is_note: bool = False


def check(directory: Path) -> list[Problem]:
    """Every problem of the repository. Raises `UserMistake` if the directory is not a repository."""
    if not directory.is_dir():
        raise UserMistake(f"`{directory}` is not a directory", "pass the directory of a model repository")
    found = {path.parent.name: path for path in sorted(directory.glob("*/config.pbtxt"))}
    if not found:
        raise UserMistake(
            f"`{directory}` has no `MODEL/config.pbtxt`", "pass the directory of a model repository"
        )
    problems: list[Problem] = []
    models: dict[str, Message] = {}
    for name, path in found.items():
        config = read(name, path, problems)
        if config is not None:
            models[name] = config
    for name, config in models.items():
        role = role_of(name)
        if llmapi.is_llmapi(types_of(config, "input"), directory / name):
            problems += [Problem(name, what) for what in _model(name, None, config, directory / name)]
            problems += _llmapi(name, config, directory / name)
            continue
        problems += [Problem(name, what) for what in _model(name, role, config, directory / name)]
        problems += [Problem(name, what, is_note=True) for what in _former(role, config)]
        if role == "ensemble":
            problems += [Problem(name, what) for what in _ensemble(config, models, set(found))]
        elif role == "tensorrt_llm_bls":
            problems += [Problem(name, what) for what in _bls(config, models, set(found))]
    return problems


def _llmapi(name: str, config: Message, folder: Path) -> list[Problem]:
    """What is wrong with TensorRT-LLM's llmapi model."""
    policy = one(config, "model_transaction_policy")
    said = one(policy, "decoupled") if isinstance(policy, dict) else None
    counts = [one(group, "count", 1) for group in _messages(config, "instance_group")]
    read = llmapi.Config(
        backend=one(config, "backend"),
        max_batch_size=one(config, "max_batch_size"),
        decoupled=said if isinstance(said, bool) else None,
        parameters=parameters_of(config),
        instances=sum(count for count in counts if isinstance(count, int)) or 1,
    )
    found = llmapi.check(read, types_of(config, "input"), types_of(config, "output"), folder)
    return [Problem(name, what, is_note=is_note) for what, is_note in found]


def role_of(name: str) -> str | None:
    """Which of the five models this one is, by its name: one repository may have `tensorrt_llm` and
    `llama_tensorrt_llm`, as `create --prefix llama` writes it, or `tensorrt_llm_llama`.
    """
    longest_first = sorted(MODELS, key=len, reverse=True)
    if name in MODELS:
        return name
    ends = (model for model in longest_first if name.endswith(f"_{model}"))
    begins = (model for model in longest_first if name.startswith(f"{model}_"))
    return next(ends, next(begins, None))


def _former(role: str | None, config: Message) -> list[str]:
    """Parameters that only earlier releases read."""
    former = FORMER.get(role or "", {})
    return [
        f"the parameter `{key}` is of releases {former[key]}; others ignore it"
        for key in parameters_of(config)
        if key in former
    ]


def read(name: str, path: Path, problems: list[Problem]) -> Message | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(name, f"config.pbtxt cannot be read: {error}"))
        return None
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("#")[0]
        for match in PLACEHOLDER.finditer(code):
            what = f"line {number}: the placeholder `{match[0]}` has no value"
            if is_optional(code, match):
                problems.append(Problem(name, what + "; the backend uses its own default", is_note=True))
            else:
                problems.append(Problem(name, what))
    try:
        return parse(re.sub(r"\$\{[^}\n]*\}", UNFILLED, text))
    except PbtxtError as error:
        problems.append(Problem(name, str(error)))
        return None


def one(message: Message, field: str, default: Any = None) -> Any:
    values = message.get(field)
    return values[-1] if values else default


def _messages(message: Message, field: str) -> list[Message]:
    return [value for value in message.get(field, []) if isinstance(value, dict)]


def parameters_of(config: Message) -> dict[str, str]:
    pairs = {}
    for entry in _messages(config, "parameters"):
        value = one(entry, "value", {})
        pairs[str(one(entry, "key"))] = str(one(value, "string_value", "")) if isinstance(value, dict) else ""
    return pairs


def types_of(config: Message, field: str) -> dict[str, str]:
    return {str(one(t, "name")): str(one(t, "data_type")) for t in _messages(config, field)}


def decoupled_of(config: Message) -> bool:
    policy = one(config, "model_transaction_policy", {})
    return isinstance(policy, dict) and one(policy, "decoupled") is True


def _model(name: str, role: str | None, config: Message, folder: Path) -> list[str]:
    wrong = []
    for field, values in config.items():
        if field not in SINGLE_FIELDS | REPEATED_FIELDS:
            wrong.append(f"unknown field `{field}` in the model configuration")
        elif field in SINGLE_FIELDS and len(values) > 1:
            wrong.append(f"`{field}` appears `{len(values)}` times; it may appear once")
    batch = one(config, "max_batch_size", 0)
    least = 1 if role is not None else 0
    if batch != UNFILLED and (not isinstance(batch, int) or not least <= batch < 2**31):
        wrong.append(f"`max_batch_size` is `{batch}`; it must be a whole number of at least {least}")
    if one(config, "name", name) != name:
        wrong.append(f"`name` is `{one(config, 'name')}`, but its directory is `{name}`")
    for field in ("input", "output"):
        for tensor, data_type in types_of(config, field).items():
            if data_type not in DATA_TYPES and data_type != UNFILLED:
                wrong.append(f"the {field} `{tensor}` has the unknown data type `{data_type}`")
    if role is None:
        return wrong
    for field, table in zip(("input", "output"), tensors(role, "python"), strict=True):
        declared = types_of(config, field)
        for known in table:
            actual = declared.get(known.name)
            if actual is None or actual == UNFILLED or known.data_type.startswith("<"):
                continue
            # Newer releases leave the type of prompt tables open.
            if actual != known.data_type:
                wrong.append(f"the {field} `{known.name}` is `{actual}`, not `{known.data_type}`")
    wrong += _values(role, config, folder)
    if role == "ensemble":
        return wrong
    backend = one(config, "backend", "python")
    allowed = ("tensorrtllm", "python") if role == "tensorrt_llm" else ("python",)
    if backend not in allowed and backend != UNFILLED:
        wrong.append(f"`backend` is `{backend}`, not " + " or ".join(f"`{one}`" for one in allowed))
    if backend == "python" and not any(folder.glob("[1-9]*/model.py")):
        wrong.append("`1/model.py` is missing; the backend `python` needs it")
    if MOVED in _code(folder):
        wrong.append(
            f"`model.py` imports `{MOVED}`, which is now `{MODULES}`; change the import, or write the "
            "repository again with `inflight repository create --force`"
        )
    return wrong + _instances(role, config)


def _instances(role: str, config: Message) -> list[str]:
    """Counts that Triton refuses, and a core model whose instances do not have GPUs each."""
    wrong: list[str] = []
    counts: list[int] = []
    for group in _messages(config, "instance_group"):
        count = one(group, "count", 1)
        if count == UNFILLED:
            return wrong
        if not isinstance(count, int) or count < 1:
            wrong.append(f"the instance count is `{count}`; it must be at least 1")
        else:
            counts.append(count)
    total, devices = sum(counts), parameters_of(config).get("gpu_device_ids", "")
    if wrong or role != "tensorrt_llm" or not counts or devices == UNFILLED:
        return wrong
    if not devices:
        if total > 1:
            wrong.append(
                f"the instance count is `{total}`; it must be 1, because the core model batches by itself"
            )
        return wrong
    try:
        given = len(instance_lists(devices))
    except ValueError:
        return wrong
    if given != total:
        wrong.append(f"the instance count is `{total}`, but `gpu_device_ids` names GPUs for `{given}`")
    return wrong


def _values(role: str, config: Message, folder: Path) -> list[str]:
    wrong, known = [], {parameter.key: parameter for parameter in parameters(role, "python")}
    given = parameters_of(config)
    ours = role == "tensorrt_llm" and _is_inflights(folder)
    if ours:
        wrong += _executor(given)
    if _is_inflights(folder):
        wrong += [
            f"Inflight's model does not support the parameter `{key}`; leave it out"
            for key in REFUSED.get(role, ())
            if given.get(key, UNFILLED) not in ("", UNFILLED)
        ]
    for key, value in given.items():
        if key not in known:
            if not ours and key not in FORMER.get(role, {}):
                wrong.append(f"the parameter `{key}` is unknown")
        elif value and value != UNFILLED:
            try:
                validated(known[key], value)
            except ValueError as error:
                wrong.append(f"the parameter `{key}` is `{value}`, but must be {error}")
            if key in _PATHS and not Path(value).is_dir():
                wrong.append(f"the parameter `{key}` must be a directory, got `{value}`")
    if role == "tensorrt_llm" and one(config, "backend") == "tensorrtllm":
        # Releases before guided decoding have neither the inputs nor the parameters.
        guided = "guided_decoding_guide" in types_of(config, "input")
        wrong += [
            f'the parameter `{key}` is missing, and the C++ backend does not load without it; set it to ""'
            for key in NEEDED_EMPTY
            if guided and key not in given
        ]
        if given.get("encoder_model_path", UNFILLED) not in ("", UNFILLED) and not given.get(
            "cross_kv_cache_fraction"
        ):
            wrong.append("the parameter `cross_kv_cache_fraction` is not set; an encoder-decoder needs it")
    for key in _needed(role, config, folder):
        if given.get(key, UNFILLED) in ("", UNFILLED):
            wrong.append(f"the parameter `{key}` is not set")
    return wrong


def _needed(role: str, config: Message, folder: Path) -> list[str]:
    """Parameters that have no default."""
    if role in ("preprocessing", "postprocessing"):
        return ["tokenizer_dir"]
    if role == "tensorrt_llm_bls":
        return ["tokenizer_dir"] if _is_inflights(folder) else []
    if role != "tensorrt_llm":
        return []
    encoder = parameters_of(config).get("encoder_model_path", UNFILLED)
    needed = [] if encoder not in ("", UNFILLED) else ["gpt_model_path"]
    return needed + (["gpt_model_type"] if one(config, "backend") == "tensorrtllm" else [])


def _is_inflights(folder: Path) -> bool:
    """Whether the model's code is this package's, of this release or an earlier one."""
    code = _code(folder)
    return f"{MODULES}." in code or MOVED in code


def _code(folder: Path) -> str:
    """The text of the model's `model.py`; empty where there is none to read."""
    for path in folder.glob("[1-9]*/model.py"):
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
    return ""


def _executor(given: dict[str, str]) -> list[str]:
    """What the executor would not apply."""
    executor = given.get("executor") or "reference"
    set_ = {key: value for key, value in given.items() if value != UNFILLED}
    runtime = executor_options.runtime(executor, given.get("gpt_model_path", ""))
    return executor_options.choose(executor, set_, runtime=runtime).problems


def _ensemble(config: Message, models: dict[str, Message], present: set[str]) -> list[str]:
    wrong: list[str] = []
    scheduling = one(config, "ensemble_scheduling", {})
    made = types_of(config, "input")
    largest = one(config, "max_batch_size", 0)
    steps = _messages(scheduling, "step") if isinstance(scheduling, dict) else []
    if not steps:
        wrong.append("`ensemble_scheduling` has no step")
    for field, types in (("output_map", "output"), ("input_map", "input")):
        for step in steps:
            model = str(one(step, "model_name"))
            if model not in models:
                if model not in present and field == "output_map":
                    wrong.append(f"the step `{model}` names a model that is missing")
                continue
            its = one(models[model], "max_batch_size", 0)
            if field == "output_map" and isinstance(its, int) and isinstance(largest, int) and its < largest:
                wrong.append(f"`max_batch_size` is `{largest}`, but `{its}` in its step `{model}`")
            declared = types_of(models[model], types)
            for entry in _messages(step, field):
                key, name = str(one(entry, "key")), str(one(entry, "value"))
                if key not in declared:
                    wrong.append(f"`{model}` has no {types} `{key}`")
                elif (
                    name in made
                    and UNFILLED not in (made[name], declared[key])
                    and made[name] != declared[key]
                ):
                    wrong.append(f"`{name}` is `{made[name]}`, but `{key}` of `{model}` is `{declared[key]}`")
                elif types == "output":
                    made[name] = declared[key]
    for name, data_type in types_of(config, "output").items():
        if name in made and UNFILLED not in (made[name], data_type) and made[name] != data_type:
            wrong.append(f"the output `{name}` is `{data_type}`, but its step makes `{made[name]}`")
    return wrong


def _bls(bls: Message, models: dict[str, Message], present: set[str]) -> list[str]:
    core_name = parameters_of(bls).get("tensorrt_llm_model_name", "")
    if core_name in ("", UNFILLED):
        core_name = "tensorrt_llm"
    core = models.get(core_name)
    if core is None:
        return [] if core_name in present else [f"the core model `{core_name}` is missing"]
    if decoupled_of(bls) != decoupled_of(core):
        mode = str(decoupled_of(bls)).lower()
        return [f"`decoupled` is `{mode}`, but not in `{core_name}`; it must be the same in both"]
    return []
