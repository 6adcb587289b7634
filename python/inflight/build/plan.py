"""Decides what to build and how: checkpoint, options and machine to a `BuildPlan`. Pure.

All problems of the options are reported at once. What only a real run needs (weights, TensorRT-LLM, a GPU) is
a blocker in the plan, so that a plan can be shown where nothing is installed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inflight.build.checks.features import check_features
from inflight.build.checks.formats import check_calibration, check_formats
from inflight.build.checks.lengths import resolve_lengths
from inflight.build.checks.parallelism import check_workers, resolve_mapping
from inflight.build.checks.reference import check_config, check_precision, check_tensors
from inflight.build.checks.runtime import check_installed, choose_runtime, require_supported
from inflight.build.checks.serving import check_servable, serving_notes
from inflight.build.checks.speculation import check_draft, check_speculation
from inflight.build.checks.values import check_applicable, check_magnitudes
from inflight.build.examples import Examples, check_examples
from inflight.build.options import Values
from inflight.build.runtimes.pytorch import plan_pytorch
from inflight.build.runtimes.reference import plan_reference
from inflight.build.runtimes.tensorrt import (
    calibrates,
    kv_cache_type,
    plan_engine,
    resolve_dtype,
    scripts_needed,
)
from inflight.build.steps import BuildPlan, Layout, Mapping4D
from inflight.errors import Problem, raise_problems
from inflight.machine import WRITTEN_AGAINST, Installed
from inflight.model.checkpoint import Checkpoint
from inflight.model.runtimes import REFERENCE, TENSORRT


@dataclass(frozen=True)
class Inputs:
    """Everything that a plan follows from."""

    checkpoint: Checkpoint
    values: Values
    installed: Installed
    #: What `--examples-dir` contains; None: not given.
    examples: Examples | None
    #: The model of `--speculative-model`; None: not given.
    draft: Checkpoint | None = None
    #: Why no worker could tokenize with the checkpoint's tokenizer; None: nothing.
    tokenizer: Problem | None = None
    #: Paths of options that do not exist.
    missing: tuple[Problem, ...] = ()
    #: The interpreter that runs example scripts.
    python: str = "python3"


def make_plan(inputs: Inputs) -> BuildPlan:
    """The plan. Raises `UserMistake` where the options cannot be met."""
    architecture = inputs.checkpoint.facts.architecture
    runtime, why = choose_runtime(inputs.values["runtime"], architecture, inputs.installed)
    require_supported(runtime, architecture)
    if runtime == REFERENCE:
        return _plan_reference(inputs, why)
    return _plan_tensorrt_llm(inputs, runtime, why)


def _plan_reference(inputs: Inputs, why: str) -> BuildPlan:
    checkpoint, values = inputs.checkpoint, inputs.values
    problems = check_applicable(values, REFERENCE)
    problems += check_precision(values["dtype"])
    problems += check_config(checkpoint.config)
    raise_problems(problems)
    blockers = _missing_files(inputs, REFERENCE)
    if checkpoint.has_safetensors:
        blockers += check_tensors(checkpoint)
    layout = Layout(str(values["output"]))
    steps, expected = plan_reference(str(checkpoint.directory), layout)
    settings = {"dtype": "float32"}
    return BuildPlan(REFERENCE, why, layout, Mapping4D(), settings, steps, expected, blockers=tuple(blockers))


def _plan_tensorrt_llm(inputs: Inputs, runtime: str, why: str) -> BuildPlan:
    values, checkpoint, installed = inputs.values, inputs.checkpoint, inputs.installed
    facts = checkpoint.facts
    layout = Layout(str(values["output"]))
    mapping, mapping_problems = resolve_mapping(values, facts)
    lengths, length_problems, notes = resolve_lengths(values, facts)
    problems = [
        *check_applicable(values, runtime),
        *check_magnitudes(values),
        *inputs.missing,
        *mapping_problems,
        *length_problems,
        *check_formats(values, facts, runtime, installed),
        *check_speculation(values, runtime),
        *(check_draft(values, inputs.draft, checkpoint) if inputs.draft else ()),
    ]
    blockers = [*_missing_files(inputs, runtime), *check_installed(runtime, installed)]
    settings: dict[str, Any] = dict(mapping.record())
    if runtime == TENSORRT:
        needed = scripts_needed(checkpoint, values)
        problems += check_features(values, facts)
        problems += check_servable(values)
        problems += check_workers(values, installed)
        problems += check_examples(inputs.examples, needed, installed.tensorrt_llm)
        problems += check_calibration(values, calibrates=calibrates(values))
        if values.is_given("model_version"):
            notes.append(
                f"`--model-version {values['model_version']}` is not needed: `config.json` already"
                " specifies it"
            )
        steps, expected, more = plan_engine(checkpoint, values, mapping, lengths, layout, inputs.python)
        problems += more
        if not installed.gpus:
            blockers.append(
                Problem(
                    "no NVIDIA GPU is visible, and an engine is built on the kind of GPU that will run it",
                    "run the build on that machine",
                )
            )
        settings |= {
            "dtype": resolve_dtype(values["dtype"], checkpoint),
            "kv_cache_type": kv_cache_type(values),
        }
    else:
        steps, expected = plan_pytorch(checkpoint, values, mapping, lengths, layout)
        settings |= {"dtype": values["dtype"]}
    raise_problems(problems)
    settings |= vars(lengths) | {
        name: values[name] for name in ("quantization", "kv_cache_dtype", "tokens_per_block")
    }
    if facts.is_encoder_decoder:
        # The decoder's prompt is its start token; the encoder gets what clients send.
        settings |= {"max_input_len": 1, "max_encoder_input_len": values["max_encoder_input_len"]}
    notes += serving_notes(values, lengths, runtime, facts)
    notes += _machine_notes(inputs, mapping)
    return BuildPlan(runtime, why, layout, mapping, settings, steps, expected, tuple(notes), tuple(blockers))


def _missing_files(inputs: Inputs, runtime: str) -> list[Problem]:
    checkpoint = inputs.checkpoint
    problems = []
    if not checkpoint.has_weights or (runtime != TENSORRT and not checkpoint.has_safetensors):
        kind = "weights" if runtime == TENSORRT else "safetensors weights"
        problems.append(Problem(f"`{checkpoint.directory}` has no {kind}", "download the whole checkpoint"))
    if inputs.tokenizer is not None:
        problems.append(inputs.tokenizer)
    return problems


def _machine_notes(inputs: Inputs, mapping: Mapping4D) -> list[str]:
    notes = []
    gpus = len(inputs.installed.gpus)
    if 0 < gpus < mapping.world_size:
        notes.append(f"serving needs {mapping.world_size} GPUs, and this machine has {gpus}")
    if inputs.installed.tensorrt_llm is None:
        notes.append(f"TensorRT-LLM is not installed; this is the plan for {WRITTEN_AGAINST}")
    if inputs.examples is not None and inputs.examples.version is None:
        notes.append(f"`--examples-dir {inputs.examples.directory}` has no version information")
    return notes
