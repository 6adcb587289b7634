"""What this machine has: package versions and GPUs. Reads metadata and runs `nvidia-smi`.

Imports none of the packages it names: reading `tensorrt_llm`'s version costs a millisecond, importing it
half a minute. Decides nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

#: A driver that hangs must not hang a command that only looks.
NVIDIA_SMI_TIMEOUT_S = 5.0

#: First line without engines; the release that the plans are written against.
NO_ENGINES_FROM = (1, 3)
PYTORCH_FROM = (1, 0)
WRITTEN_AGAINST = "1.2.1"

#: PyPI's own package of that name is a stub.
INSTALL = (
    "install `tensorrt_llm` from NVIDIA's package index, as its installation guide describes"
    " (PyPI's package of that name is a stub)"
)


@dataclass(frozen=True)
class Gpu:
    """A GPU; memory in bytes, architecture as `sm90`."""

    name: str
    memory_bytes: int
    architecture: str


@dataclass(frozen=True)
class Installed:
    """Versions of packages (None: not installed) and GPUs."""

    inflight: str
    tensorrt_llm: str | None = None
    tensorrt: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()

    @property
    def gpu_architecture(self) -> str | None:
        """That of the GPUs, several joined; None without one."""
        return "+".join(sorted({gpu.architecture for gpu in self.gpus})) or None


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a version; `(0, 0)` where there are none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def has_engines(version: str) -> bool:
    """Whether that TensorRT-LLM builds and runs engines."""
    return release(version) < NO_ENGINES_FROM


def has_pytorch(version: str) -> bool:
    """Whether that TensorRT-LLM has the PyTorch runtime."""
    return release(version) >= PYTORCH_FROM


def package_version(*names: str) -> str | None:
    """The version of the first of `names` that is installed, from its metadata."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def find_installed(*, gpus: bool = True) -> Installed:
    """Looks; `gpus` False leaves `nvidia-smi` out."""
    return Installed(
        inflight=package_version("inflight-llm") or "0",
        tensorrt_llm=package_version("tensorrt_llm"),
        tensorrt=package_version("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
        cuda=package_version("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"),
        gpus=(find_gpus() or ()) if gpus else (),
    )


def find_gpus(timeout_s: float = NVIDIA_SMI_TIMEOUT_S) -> tuple[Gpu, ...] | None:
    """The GPUs that `nvidia-smi` lists: none where it is missing or fails, `None` where it does not
    answer in time, so that it is unknown."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        done = subprocess.run(
            [command, "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return None
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(done.stdout)


def parse_gpus(listing: str) -> tuple[Gpu, ...]:
    """GPUs from lines of `name, memory in MiB, compute capability`; other lines are skipped."""
    found = []
    for line in listing.splitlines():
        parts = [part.strip() for part in line.rsplit(",", 2)]
        if len(parts) == 3 and parts[1].isdigit():
            found.append(Gpu(parts[0], int(parts[1]) << 20, "sm" + parts[2].replace(".", "")))
    return tuple(found)


def beside_python(command: str) -> str:
    """A console script of this environment, else the bare name for PATH to find."""
    path = Path(sys.executable).parent / command
    return str(path) if path.is_file() else command
