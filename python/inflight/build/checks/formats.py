"""Quantization and precision: against the checkpoint, each other, the runtime and the GPUs."""

from __future__ import annotations

from inflight.build.options import BY_NAME, Values
from inflight.errors import Problem
from inflight.machine import Installed
from inflight.model.config import ModelFacts
from inflight.model.runtimes import PYTORCH, TENSORRT

#: Options of `quantize.py` alone.
CALIBRATION = ("calib_dataset", "calib_size", "calib_max_seq_length", "awq_block_size")

#: Quantization and cache formats -> the oldest GPU architecture with the instructions.
NEEDS_ARCHITECTURE = {"fp8": 89, "nvfp4": 100, "w4a8_awq": 89}

#: Formats that TensorRT-LLM builds no engine with on GPU architectures from 100 to below 120.
_NOT_ON_SM100 = frozenset({"int8", "int8_wo", "int4_wo", "int8_sq", "int4_awq", "w4a8_awq"})


def check_formats(values: Values, facts: ModelFacts, runtime: str, installed: Installed) -> list[Problem]:
    """Quantization against the checkpoint, the precision, the runtime and the GPUs."""
    problems = []
    quantization, cache = values["quantization"], values["kv_cache_dtype"]
    if quantization != "none" and facts.quantized:
        problems.append(
            Problem(
                f"`--quantization {quantization}` is given, but the checkpoint is already quantized"
                f" (`{facts.quantized}`)",
                "pass the unquantized checkpoint, or leave the option out",
            )
        )
    if quantization != "none" and values["dtype"] == "float32":
        problems.append(
            Problem(
                f"`--quantization {quantization}` cannot be combined with `--dtype float32`",
                "choose `--dtype float16` or `bfloat16`",
            )
        )
    if runtime == PYTORCH:
        if quantization != "none":
            problems.append(
                Problem(
                    f"`--quantization {quantization}` is not supported for runtime `pytorch`, which does"
                    " not quantize"
                    " checkpoints",
                    "pass a quantized checkpoint, or choose `--runtime tensorrt`",
                )
            )
        if cache == "int8":
            problems.append(
                Problem(
                    "`--kv-cache-dtype int8` is not a cache format of the runtime `pytorch`",
                    "choose `fp8` or `auto`",
                )
            )
    if installed.gpus and runtime in (PYTORCH, TENSORRT):
        problems += _gpu_formats(quantization, cache, runtime, installed)
    return problems


def _gpu_formats(quantization: str, cache: str, runtime: str, installed: Installed) -> list[Problem]:
    problems = []
    for flag, value in (("--quantization", quantization), ("--kv-cache-dtype", cache)):
        needed = NEEDS_ARCHITECTURE.get(value)
        for gpu in installed.gpus:
            digits = gpu.architecture.removeprefix("sm")
            if needed is not None and digits.isdigit() and int(digits) < needed:
                problems.append(
                    Problem(
                        f"`{flag} {value}` needs GPU architecture `sm{needed}`, and `{gpu.name}` is"
                        f" `{gpu.architecture}`",
                        "choose another format, or build on such a GPU",
                    )
                )
                break
            if (
                runtime == TENSORRT
                and value in _NOT_ON_SM100
                and digits.isdigit()
                and 100 <= int(digits) < 120
            ):
                problems.append(
                    Problem(
                        f"`{flag} {value}` is not supported on GPU architecture `{gpu.architecture}`"
                        f" (`{gpu.name}`)",
                        "choose `fp8` or `nvfp4`",
                    )
                )
                break
    return problems


def check_calibration(values: Values, *, calibrates: bool) -> list[Problem]:
    """Options of a calibration that does not take place."""
    return [
        Problem(
            f"`{BY_NAME[name].flag} {values[name]}` is given, but this build does not calibrate",
            f"leave `{BY_NAME[name].flag}` out, or choose a format that calibrates with `--quantization`",
        )
        for name in CALIBRATION
        if values.is_given(name) and not calibrates
    ]
