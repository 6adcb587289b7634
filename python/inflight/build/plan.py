"""Decides what to build and how: checkpoint, options and machine to a `BuildPlan`. Pure.

Every problem of the options is told at once. What only a real run lacks (weights, TensorRT-LLM, a GPU) is a
blocker in the plan, so that a plan can be read where nothing is installed.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.build.checks.features import check_features
from inflight.build.checks.formats import check_formats
from inflight.build.checks.lengths import resolve_lengths
from inflight.build.checks.parallelism import check_workers, resolve_mapping
from inflight.build.checks.reference import check_config, check_tensors
from inflight.build.checks.serving import check_servable, serving_notes
from inflight.build.checks.speculation import check_draft, check_speculation
from inflight.build.checks.values import check_applicable, check_magnitudes
from inflight.build.examples import Examples
from inflight.build.families import runtimes_of, supported
from inflight.build.options import BY_NAME, Values
from inflight.build.runtimes.pytorch import plan_pytorch
from inflight.build.runtimes.tensorrt import (
    calibrates,
    kv_cache_type,
    plan_engine,
    resolve_dtype,
    scripts_needed,
)
from inflight.build.steps import BuildPlan, Layout, Mapping4D, Own, Step
from inflight.errors import Problem, UserMistake, raise_problems
from inflight.machine import INSTALL, WRITTEN_AGAINST, Installed, has_engines, has_pytorch
from inflight.model.checkpoint import Checkpoint
from inflight.model.runtimes import PYTORCH, REFERENCE, RUNTIMES, TENSORRT

#: Options of `quantize.py` alone.
CALIBRATION = ("calib_dataset", "calib_size", "calib_max_seq_length", "awq_block_size")


@dataclass(frozen=True)
class Inputs:
    """Everything a plan follows from."""

    checkpoint: Checkpoint
    values: Values
    installed: Installed
    #: What lies in `--examples-dir`; None: not given.
    examples: Examples | None
    #: The model of `--speculative-model`; None: not given.
    draft: Checkpoint | None = None
    #: Why no worker could turn text into tokens with it; None: nothing.
    tokenizer: Problem | None = None
    #: Paths of options that are not there.
    missing: tuple[Problem, ...] = ()
    #: The interpreter that runs example scripts.
    python: str = "python3"


def make_plan(inputs: Inputs) -> BuildPlan:
    """The plan. Raises `UserMistake` where the options cannot be met."""
    runtime, why = choose_runtime(inputs)
    values, checkpoint = inputs.values, inputs.checkpoint
    _require_supported(runtime, checkpoint)
    layout = Layout(str(values["output"]))
    if runtime == REFERENCE:
        return _reference(inputs, layout, why)
    problems = check_applicable(values, runtime) + check_magnitudes(values)
    problems += inputs.missing
    mapping, more = resolve_mapping(values, checkpoint.facts)
    problems += more
    lengths, more, notes = resolve_lengths(values, checkpoint.facts)
    problems += more
    problems += check_formats(values, checkpoint.facts, runtime, inputs.installed)
    problems += check_speculation(values, runtime)
    if inputs.draft is not None:
        problems += check_draft(values, inputs.draft, checkpoint)
    blockers = [*_missing_files(inputs, runtime), *_missing_runtime(runtime, inputs.installed)]
    settings: dict[str, object] = {**mapping.record()}
    if runtime == TENSORRT:
        problems += check_features(values, checkpoint.facts)
        problems += check_servable(values)
        problems += check_workers(values, inputs.installed)
        problems += _examples(inputs) + _idle_calibration(values)
        if values.is_given("model_version"):
            notes.append(f"`--model-version {values['model_version']}` is not needed: config.json tells")
        steps, expected, more = plan_engine(checkpoint, values, mapping, lengths, layout, inputs.python)
        problems += more
        if not inputs.installed.gpus:
            blockers.append(
                Problem(
                    "no NVIDIA GPU is visible, and engines are built on the GPU they will run on",
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
    if checkpoint.facts.is_encoder_decoder:
        # The decoder's prompt is its start token; what people send goes to the encoder.
        settings |= {"max_input_len": 1, "max_encoder_input_len": values["max_encoder_input_len"]}
    notes += serving_notes(values, lengths, runtime, checkpoint.facts)
    gpus = len(inputs.installed.gpus)
    if 0 < gpus < mapping.world_size:
        notes.append(f"it will be served by {mapping.world_size} GPUs; this machine has {gpus}")
    if inputs.installed.tensorrt_llm is None:
        notes.append(f"TensorRT-LLM is not installed: the plan is that of {WRITTEN_AGAINST}")
    if inputs.examples is not None and inputs.examples.version is None:
        notes.append(f"`--examples-dir {inputs.examples.directory}` does not tell its release")
    return BuildPlan(runtime, why, layout, mapping, settings, steps, expected, tuple(notes), tuple(blockers))


def choose_runtime(inputs: Inputs) -> tuple[str, str]:
    """The runtime, and why it was chosen."""
    asked = inputs.values["runtime"]
    if asked != "auto":
        return asked, "asked for with `--runtime`"
    architecture = inputs.checkpoint.facts.architecture
    taken = runtimes_of(architecture)
    version = inputs.installed.tensorrt_llm
    if version is None:
        if REFERENCE in taken:
            return REFERENCE, "TensorRT-LLM is not installed"
        _require_any(inputs.checkpoint)
        raise UserMistake(
            f"TensorRT-LLM is not installed, and the reference runtime does not take `{architecture}`",
            INSTALL,
        )
    if has_engines(version) and TENSORRT in taken:
        return TENSORRT, f"TensorRT-LLM {version} builds engines, and takes `{architecture}`"
    if has_pytorch(version) and PYTORCH in taken:
        reason = "builds no engines" if not has_engines(version) else f"builds no engine of `{architecture}`"
        return PYTORCH, f"TensorRT-LLM {version} {reason}, and its PyTorch runtime takes it"
    if REFERENCE in taken:
        return REFERENCE, f"TensorRT-LLM {version} does not take `{architecture}`"
    _require_any(inputs.checkpoint)
    raise UserMistake(
        f"TensorRT-LLM {version} does not take `{architecture}`",
        "see `docs/reference/build-options.md` for the architectures of each runtime",
    )


def _require_any(checkpoint: Checkpoint) -> None:
    if not runtimes_of(checkpoint.facts.architecture):
        everything = sorted({name for runtime in RUNTIMES for name in supported(runtime)})
        raise UserMistake(
            f"no runtime takes the architecture `{checkpoint.facts.architecture}`",
            f"use a checkpoint of one of {', '.join(everything)}",
        )


def _require_supported(runtime: str, checkpoint: Checkpoint) -> None:
    architecture = checkpoint.facts.architecture
    if architecture not in supported(runtime):
        others = [other for other in runtimes_of(architecture) if other != runtime]
        instead = f", or choose `--runtime {others[0]}`" if others else ""
        raise UserMistake(
            f"the runtime `{runtime}` does not take the architecture `{architecture}`",
            f"use a checkpoint of one of {', '.join(supported(runtime))}{instead}",
        )


def _missing_files(inputs: Inputs, runtime: str) -> list[Problem]:
    checkpoint = inputs.checkpoint
    problems = []
    if not checkpoint.has_weights or (runtime != TENSORRT and not checkpoint.has_safetensors):
        kind = "weights" if runtime == TENSORRT else "safetensors weights"
        problems.append(Problem(f"`{checkpoint.directory}` has no {kind}", "fetch the whole checkpoint"))
    if inputs.tokenizer is not None:
        problems.append(inputs.tokenizer)
    return problems


def _missing_runtime(runtime: str, installed: Installed) -> list[Problem]:
    version = installed.tensorrt_llm
    if version is None:
        return [Problem(f"the runtime `{runtime}` needs TensorRT-LLM, which is not installed", INSTALL)]
    if runtime == TENSORRT and not has_engines(version):
        return [
            Problem(
                f"TensorRT-LLM `{version}` has no engines: they ended with 1.2.x",
                f"choose `--runtime pytorch`, or install {WRITTEN_AGAINST}",
            )
        ]
    if runtime == PYTORCH and not has_pytorch(version):
        return [
            Problem(
                f"TensorRT-LLM `{version}` has no PyTorch runtime: it came with 1.0",
                f"choose `--runtime tensorrt`, or install {WRITTEN_AGAINST}",
            )
        ]
    return []


def _examples(inputs: Inputs) -> list[Problem]:
    """What stands against running example scripts, where the plan needs them."""
    if inputs.examples is not None and not inputs.examples.exists:
        return [
            Problem(
                f"`--examples-dir` is `{inputs.examples.directory}`, which is no directory",
                "give the `examples` directory of TensorRT-LLM's sources",
            )
        ]
    needed = scripts_needed(inputs.checkpoint, inputs.values)
    if not needed:
        return []
    version = inputs.installed.tensorrt_llm or WRITTEN_AGAINST
    if inputs.examples is None:
        return [
            Problem(
                f"this build needs `{needed[0]}` of TensorRT-LLM's examples, which are not in its wheel",
                f"get the sources of release {version} and give `--examples-dir` their `examples` directory",
            )
        ]
    problems = [
        Problem(
            f"`--examples-dir {inputs.examples.directory}` has no `{script}`",
            f"give the `examples` directory of TensorRT-LLM {version}",
        )
        for script in needed
        if script not in inputs.examples.scripts
    ]
    found = inputs.examples.version
    if found is not None and found != version:
        problems.append(
            Problem(
                f"`--examples-dir {inputs.examples.directory}` is of release `{found}`, TensorRT-LLM here is"
                f" `{version}`",
                f"give the examples of {version}",
            )
        )
    return problems


def _idle_calibration(values: Values) -> list[Problem]:
    """Options of a calibration that does not take place."""
    return [
        Problem(
            f"`{BY_NAME[name].flag} {values[name]}` is given, and nothing is calibrated",
            f"leave `{BY_NAME[name].flag}` out, or choose a format that calibrates with `--quantization`",
        )
        for name in CALIBRATION
        if values.is_given(name) and not calibrates(values)
    ]


def _reference(inputs: Inputs, layout: Layout, why: str) -> BuildPlan:
    """One weight file in float32, which is what the executor computes in, and everything beside it."""
    checkpoint, values = inputs.checkpoint, inputs.values
    problems = check_applicable(values, REFERENCE)
    if values["dtype"] not in ("auto", "float32"):
        problems.append(
            Problem(
                f"`--dtype {values['dtype']}` is not to be had from the runtime `reference`,"
                " which computes in float32",
                "leave it out, or choose `float32`",
            )
        )
    if checkpoint.facts.quantized:
        problems.append(
            Problem(
                f"the checkpoint is quantized (`{checkpoint.facts.quantized}`), which the runtime `reference`"
                " does not take",
                "give the unquantized checkpoint",
            )
        )
    elif (problem := check_config(checkpoint.config)) is not None:
        problems.append(problem)
    raise_problems(problems)
    source = str(checkpoint.directory)
    arguments = {"source": source, "result": layout.result}
    steps = (
        Step(
            "weights",
            "widen the weights to float32 in one file",
            Own("runtimes.reference.write_weights", arguments),
            outputs=(f"{layout.result}/model.safetensors",),
        ),
        Step(
            "files",
            "copy the tokenizer and the config",
            Own("files.copy_for_reference", arguments),
            outputs=(f"{layout.result}/config.json",),
        ),
        Step(
            "verify",
            "load it as the executor does",
            Own("runtimes.reference.verify", {"result": layout.result}),
        ),
    )
    blockers = _missing_files(inputs, REFERENCE)
    if checkpoint.has_safetensors and (problem := check_tensors(checkpoint)) is not None:
        blockers.append(problem)
    return BuildPlan(
        REFERENCE,
        why,
        layout,
        Mapping4D(),
        {"dtype": "float32"},
        steps,
        ("config.json", "model.safetensors", "tokenizer.json"),
        (),
        tuple(blockers),
    )
