"""Which runtime a checkpoint is built for, and whether it is installed."""

from __future__ import annotations

from inflight.build.families import runtimes_of, supported
from inflight.errors import Problem, UserMistake
from inflight.machine import INSTALL, WRITTEN_AGAINST, Installed, has_engines, has_pytorch
from inflight.model.runtimes import PYTORCH, REFERENCE, RUNTIMES, TENSORRT


def choose_runtime(asked: str, architecture: str, installed: Installed) -> tuple[str, str]:
    """The runtime, and why it was chosen."""
    if asked != "auto":
        return asked, "asked for with `--runtime`"
    taken = runtimes_of(architecture)
    version = installed.tensorrt_llm
    if version is None:
        if REFERENCE in taken:
            return REFERENCE, "TensorRT-LLM is not installed"
        _require_any(architecture)
        raise UserMistake(
            f"TensorRT-LLM is not installed, and the reference runtime does not support `{architecture}`",
            INSTALL,
        )
    if has_engines(version) and TENSORRT in taken:
        return TENSORRT, f"TensorRT-LLM {version} builds engines for `{architecture}`"
    if has_pytorch(version) and PYTORCH in taken:
        reason = "builds no engines" if not has_engines(version) else f"builds no engine for `{architecture}`"
        return PYTORCH, f"TensorRT-LLM {version} {reason}, but its PyTorch runtime supports it"
    if REFERENCE in taken:
        return REFERENCE, f"TensorRT-LLM {version} does not support `{architecture}`"
    _require_any(architecture)
    raise UserMistake(
        f"TensorRT-LLM {version} does not support `{architecture}`",
        "see `docs/reference/build-options.md` for the architectures of each runtime",
    )


def _require_any(architecture: str) -> None:
    if not runtimes_of(architecture):
        everything = sorted({name for runtime in RUNTIMES for name in supported(runtime)})
        raise UserMistake(
            f"no runtime supports the architecture `{architecture}`",
            f"use a checkpoint of one of {', '.join(everything)}",
        )


def require_supported(runtime: str, architecture: str) -> None:
    """Raises `UserMistake` where the runtime does not support the architecture."""
    if architecture not in supported(runtime):
        others = [other for other in runtimes_of(architecture) if other != runtime]
        instead = f", or choose `--runtime {others[0]}`" if others else ""
        raise UserMistake(
            f"the runtime `{runtime}` does not support the architecture `{architecture}`",
            f"use a checkpoint of one of {', '.join(supported(runtime))}{instead}",
        )


def check_installed(runtime: str, installed: Installed) -> list[Problem]:
    """What of TensorRT-LLM the runtime needs and this machine lacks."""
    version = installed.tensorrt_llm
    if version is None:
        return [Problem(f"the runtime `{runtime}` needs TensorRT-LLM, which is not installed", INSTALL)]
    if runtime == TENSORRT and not has_engines(version):
        return [
            Problem(
                f"TensorRT-LLM `{version}` does not support engines: 1.2 was the last release with them",
                f"choose `--runtime pytorch`, or install {WRITTEN_AGAINST}",
            )
        ]
    if runtime == PYTORCH and not has_pytorch(version):
        return [
            Problem(
                f"TensorRT-LLM `{version}` has no PyTorch runtime: 1.0 was the first release with it",
                f"choose `--runtime tensorrt`, or install {WRITTEN_AGAINST}",
            )
        ]
    return []
