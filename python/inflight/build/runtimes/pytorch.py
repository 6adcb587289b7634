"""The steps for TensorRT-LLM's PyTorch runtime, which builds no engine. Pure.

The result is the checkpoint by links, its tokenizer, and the keyword arguments of `LLM` as JSON, checked
against the installed release's own argument classes.
"""

from __future__ import annotations

from typing import Any

from inflight.build.checks.lengths import Lengths
from inflight.build.options import OPTIONS, Values
from inflight.build.steps import ApiCalls, Call, Layout, Mapping4D, Own, Step
from inflight.model.checkpoint import Checkpoint
from inflight.model.files import ARGUMENTS_FILE
from inflight.model.llm_args import merge
from inflight.model.speculation import CLASSES, DECODING_TYPES, ONE_MODEL, TWO_MODEL


def llm_arguments(values: Values, mapping: Mapping4D, lengths: Lengths) -> dict[str, Any]:
    """Fields of `TorchLlmArgs`: sizes and parallelism always, other options where given."""
    fixed: dict[str, Any] = {
        "tp_size": mapping.tp_size,
        "pp_size": mapping.pp_size,
        "moe_tp_size": mapping.moe_tp_size,
        "moe_ep_size": mapping.moe_ep_size,
        "dtype": values["dtype"],
        "max_batch_size": lengths.max_batch_size,
        "max_seq_len": lengths.max_seq_len,
        "max_num_tokens": lengths.max_num_tokens,
        "max_beam_width": lengths.max_beam_width,
        "trust_remote_code": values["trust_remote_code"],
    }
    if values["max_output_len"] is not None:
        fixed["max_input_len"] = lengths.max_input_len
    arguments: dict[str, Any] = {}
    for option in OPTIONS:
        if option.llm_args is None or (option.name not in fixed and not values.is_given(option.name)):
            continue
        value = fixed.get(option.name, values[option.name])
        if value is None:
            continue
        *outer, leaf = option.llm_args.split(".")
        target = arguments
        for name in outer:
            target = target.setdefault(name, {})
        target[leaf] = list(value) if isinstance(value, tuple) else value
    if "lora_config" in arguments:
        arguments["enable_lora"] = True
    mode = values["speculative_decoding_mode"]
    if mode in DECODING_TYPES:
        arguments["speculative_config"] = complete_config(mode, arguments["speculative_config"])
        if DECODING_TYPES[mode] in TWO_MODEL:
            # TensorRT-LLM up to 1.1 does not start with both; later versions turn it off themselves.
            arguments["disable_overlap_scheduler"] = True
    return merge(values.arguments, arguments)


def plan_pytorch(
    checkpoint: Checkpoint, values: Values, mapping: Mapping4D, lengths: Lengths, layout: Layout
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Steps, and the files that the result must hold."""
    source = str(checkpoint.directory)
    arguments = llm_arguments(values, mapping, lengths)
    checked: dict[str, Any] = {"model": source, **arguments}
    if values["speculative_decoding_mode"] in DECODING_TYPES:
        config = dict(arguments["speculative_config"])
        name = CLASSES[config.pop("decoding_type")]
        checked["speculative_config"] = Call(f"tensorrt_llm.llmapi.{name}", kwargs=config)
    steps = (
        Step(
            "validate",
            "check the arguments against TensorRT-LLM's own classes",
            ApiCalls((Call("tensorrt_llm.llmapi.TorchLlmArgs", kwargs=checked),)),
        ),
        Step(
            "files",
            "link the checkpoint, write the serving configuration",
            Own("files.link_checkpoint", {"source": source, "result": layout.result, "arguments": arguments}),
            outputs=(f"{layout.result}/{ARGUMENTS_FILE}", f"{layout.result}/config.json"),
        ),
    )
    return steps, ("config.json", ARGUMENTS_FILE)


def complete_config(mode: str, given: dict[str, Any]) -> dict[str, Any]:
    """The `speculative_config` of `mode` with the fields that were given."""
    config = {**given, "decoding_type": DECODING_TYPES[mode]}
    if config["decoding_type"] in ONE_MODEL:
        config["allow_advanced_sampling"] = True
    return config
