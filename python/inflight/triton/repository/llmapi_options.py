"""Options of `create` for the llmapi model: which become arguments of `LLM`, which `triton_config`, and why
the others have no meaning there. Reads the file of `llm_args` and what `inflight build` wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.executors.tensorrt_llm.options import OPTIONS as EXECUTOR
from inflight.executors.tensorrt_llm.options import parse
from inflight.executors.tensorrt_llm.pytorch_config import chosen_arguments
from inflight.launch import hub
from inflight.model import llm_names
from inflight.model.llm_args import suggest
from inflight.model.llmapi import CANCELLATION_CHECK_PERIOD_MS
from inflight.options import instance_lists
from inflight.triton.repository.options import options, validated
from inflight.triton.repository.parameters import PARAMETERS
from inflight.triton.repository.without_engine import LEFT_OUT, LOST

#: Options of every repository that the llmapi model has too.
OWN = ("decoupled_mode", "cancellation_check_period_ms", "gpu_device_ids", "tokenizer_dir")
#: Options of the PyTorch runtime that Inflight's executor reads itself, and other options whose counterpart
#: is worth a word -> why they have no meaning, and what to do.
_REASONS = {
    "lora_adapter_dir": "each request names its adapter with `lora_id`, `lora_name` and `lora_path`",
    "lora_prefetch_dir": "each request names its adapter with `lora_id`, `lora_name` and `lora_path`",
    "triton_max_batch_size": "a request has one prompt, and `--set max_batch_size=N` bounds the batch",
    "exclude_input_in_output": "each request chooses, with `sampling_param_exclude_input_from_output`",
    "executor": "it is TensorRT-LLM, and Inflight's executors need `--backend python`",
    "device": "it runs on the GPUs of `CUDA_VISIBLE_DEVICES`",
    "engine_dir": "the checkpoint is the argument of the command",
    "stats_check_period_ms": "it exports no statistics",
    "logits_datatype": "it returns no logits",
    "encoder_input_features_data_type": "it does not read an encoder's features",
    "prompt_embedding_table_data_type": "it does not read prompt tables",
    "max_queue_delay_microseconds": "Triton hands each request on at once",
    "max_queue_size": "Triton hands each request on at once",
    "add_special_tokens": "`LLM` tokenizes as the checkpoint says",
    "skip_special_tokens": "`LLM` decides it",
    "accumulate_tokens": "each streamed response has all text so far",
}
#: Of what models next to it would read.
ALONE = "the llmapi model is alone"
_MODELS = {"preprocessing", "postprocessing", "tensorrt_llm_bls"}


@dataclass(frozen=True)
class Settings:
    """What the repository is written from."""

    #: A directory, or a name on the Hub.
    model: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    decoupled: bool = True
    cancellation_check_period_ms: int = CANCELLATION_CHECK_PERIOD_MS
    #: GPUs of each instance; `None`: one instance, with all that are visible.
    gpu_device_ids: str | None = None


def settings(model: str, given: Mapping[str, str]) -> Settings:
    """The options as the model takes them. Raises `UserMistake` naming every option without a meaning."""
    problems = [problem for name in given if (problem := _problem(name)) is not None]
    if problems:
        raise UserMistake("; ".join(problems), "leave out what has no meaning, and retry")
    own = {name: _own(name, given[name]) for name in OWN if name in given}
    chosen = {name: value for name, value in given.items() if name not in OWN}
    where = Path(model)
    arguments = chosen_arguments(where, parse(chosen, "pytorch"))
    if isinstance(adapters := arguments.get("lora_config"), dict) and adapters.get("lora_target_modules"):
        arguments["enable_lora"] = True
    for name, near in llm_names.unknown(arguments):
        if near is not None:
            raise UserMistake(
                f"TensorRT-LLM {llm_names.RELEASES} has no argument `{name}`", f"did you mean `{near}`?"
            )
    revision: dict[str, Any] = {}
    if hub.is_hub_id(model) and "@" in model:
        model, _, revision["revision"] = model.partition("@")
    tokenizer = own.get("tokenizer_dir")
    differs = tokenizer is not None and tokenizer != model
    devices = own.get("gpu_device_ids")
    if devices is not None and len(instance_lists(devices)) == 1:
        raise UserMistake(
            f"`gpu_device_ids` is `{devices}`, which is for one instance, and the llmapi model reads it for"
            " several",
            "set `CUDA_VISIBLE_DEVICES` for Triton instead, or separate the GPUs of instances with `;`",
        )
    return Settings(
        model,
        {**revision, **({"tokenizer": tokenizer} if differs else {}), **arguments},
        own.get("decoupled_mode", "true") == "true",
        int(own.get("cancellation_check_period_ms", CANCELLATION_CHECK_PERIOD_MS)),
        devices,
    )


def _own(name: str, value: str) -> str:
    try:
        return validated(options()[name], value)
    except ValueError as error:
        raise UserMistake(f"`{name}` is `{value}`, but must be {error}", "correct the value") from error


def _problem(name: str) -> str | None:
    """What is wrong with giving the option."""
    why = meaningless(name)
    if why is not None:
        return f"`{name}` has no meaning for the llmapi model: {why}"
    if name in OWN or name in EXECUTOR or name in options():
        return None
    near = suggest(name, [one for one in (*options(), *EXECUTOR, *OWN) if meaningless(one) is None])
    return f"unknown option `{name}`" + ("" if near is None else f" (did you mean `{near}`?)")


def meaningless(name: str) -> str | None:
    """Why a known option does nothing for the llmapi model; `None` for one that does something."""
    if name in _REASONS:
        return _REASONS[name]
    if name in OWN or (name in EXECUTOR and "pytorch" in EXECUTOR[name].runtimes):
        return None
    key = next((one.key for one in PARAMETERS["tensorrt_llm"] if one.option == name), name)
    if key in LEFT_OUT or key in LOST:
        return LEFT_OUT.get(key) or LOST[key]
    if key in EXECUTOR:
        return "it needs an engine"
    if name not in options():
        return None
    owners = [model for model in _MODELS if any(one.option == name for one in PARAMETERS[model])]
    if owners or name.endswith("_instance_count"):
        return ALONE
    return "it is an option of Inflight's executors, which need `--backend python`"
