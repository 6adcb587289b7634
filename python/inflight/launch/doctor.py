"""Whether this machine can serve: one finding for each thing that servers trip over, with the remedy.

Owns what is looked at and how it is judged. Looks only: starts nothing that stays, imports no engine, and
waits no longer than a few seconds for a command.
"""

from __future__ import annotations

import ctypes.util
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from inflight import machine
from inflight.errors import UserMistake
from inflight.launch.model import find_model
from inflight.launch.ports import require_free
from inflight.model import manifest

#: A driver that hangs must not hang this.
COMMAND_TIMEOUT_S = 10.0
#: NCCL and Open MPI keep the buffers of a machine's ranks here; containers begin with 64 MiB.
SHARED_MEMORY_BYTES = 1 << 30
#: A gateway's default of 16384 connections, and its workers, files and pipes.
OPEN_FILES = 20_000
#: Less is soon full of logs and of an engine's temporary files.
DISK_BYTES = 10 << 30
#: What `inflight serve` listens on by default.
PORTS = {"--port": 8000, "--grpc-port": 8001, "--metrics-port": 8002}
#: Name, package, our extra, and what is missing without it.
EXTRAS = (
    ("PyTorch", "torch", "torch", "the reference executor computes with NumPy, on the CPU"),
    ("llguidance", "llguidance", "guided", "the reference executor refuses structured output"),
    ("tritonclient", "tritonclient", "client", "`inflight client` needs `--protocol http`"),
)


@dataclass(frozen=True)
class Finding:
    """`state` is `ok`, `note` (absent, but not everybody needs it), `warning` or `problem` (cannot serve)."""

    name: str
    state: str
    what: str
    remedy: str | None = None


def examine(model: Path | None = None) -> list[Finding]:
    """Everything, in a fixed order; with `model`, also whether this machine serves it."""
    found = []
    for check in (_versions, _extras, _gpus, _mig, _nccl, _mpi, _shared_memory, _limits, _ports, _disk):
        found += _guarded(check)
    if model is not None:
        found += _guarded(lambda: _model(model))
    return found


def as_json(findings: list[Finding]) -> list[dict[str, str | None]]:
    """For programs."""
    return [asdict(finding) for finding in findings]


def _guarded(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """One thing that cannot be looked at must not hide the others."""
    try:
        return list(check())
    except OSError as error:
        name = getattr(check, "__name__", "model").strip("_").replace("_", " ")
        return [Finding(name, "warning", f"cannot be examined: {error.strerror}")]


def _versions() -> Iterator[Finding]:
    installed = machine.find_installed(gpus=False)
    yield Finding("inflight", "ok", f"{installed.inflight}, Python {platform.python_version()}")
    if installed.tensorrt_llm is None:
        yield Finding(
            "TensorRT-LLM",
            "note",
            "not installed; the executors `reference` and `simulated` run without it",
            machine.INSTALL,
        )
    else:
        tensorrt = installed.tensorrt or "not installed"
        yield Finding("TensorRT-LLM", "ok", f"{installed.tensorrt_llm}, TensorRT {tensorrt}")


def _extras() -> Iterator[Finding]:
    """Packages that Inflight does without, until somebody asks for what they do."""
    for name, package, extra, without in EXTRAS:
        version = machine.package_version(package)
        if version is not None:
            yield Finding(name, "ok", version)
        else:
            yield Finding(
                name,
                "note",
                f"not installed; {without}",
                f"install it: `pip install 'inflight-llm[{extra}]'`",
            )


def _gpus() -> Iterator[Finding]:
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if shutil.which("nvidia-smi") is None:
        if devices:
            yield Finding(
                "GPUs",
                "problem",
                f"{len(devices)} in `/dev`, and no `nvidia-smi` that could list them",
                "install the driver's tools; in a container, use NVIDIA's container toolkit",
            )
        else:
            yield Finding("GPUs", "note", "none; the reference executor computes on the CPU")
        return
    gpus = machine.find_gpus()
    if not gpus:
        what = "`nvidia-smi` does not answer" if gpus is None else "`nvidia-smi` lists none"
        yield Finding(
            "GPUs",
            "problem",
            what,
            "check the driver with `nvidia-smi`; in a container, pass the GPUs: `--gpus all`",
        )
        return
    for index, gpu in enumerate(gpus):
        yield Finding(f"GPU {index}", "ok", f"{gpu.name}, {gpu.memory_bytes >> 20} MiB, {gpu.architecture}")
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    if driver:
        yield Finding("driver", "ok", driver.splitlines()[0].strip())


def _mig() -> Iterator[Finding]:
    modes = _output("nvidia-smi", "--query-gpu=index,mig.mode.current", "--format=csv,noheader")
    enabled = [line.partition(",")[0] for line in (modes or "").splitlines() if line.endswith("Enabled")]
    if not enabled:
        return
    listed = _output("nvidia-smi", "-L") or ""
    slices = [line.partition("UUID: ")[2].rstrip(")") for line in listed.splitlines() if "MIG-" in line]
    if slices:
        yield Finding("MIG", "ok", f"{len(slices)} slices for `--gpus`: {', '.join(slices)}")
    else:
        yield Finding(
            "MIG",
            "problem",
            f"enabled on GPU {', '.join(enabled)}, which has no slices",
            "create them: `nvidia-smi mig -cgi PROFILE -C`, or turn MIG off",
        )


def _nccl() -> Iterator[Finding]:
    version = machine.package_version("nvidia-nccl-cu13", "nvidia-nccl-cu12")
    library = ctypes.util.find_library("nccl")
    if version or library:
        yield Finding("NCCL", "ok", version or str(library))
    else:
        yield Finding("NCCL", "note", "not found; only tensor parallelism on GPUs needs it")


def _mpi() -> Iterator[Finding]:
    for command in ("mpirun", "mpiexec.hydra"):
        if shutil.which(command):
            said = (_output(command, "--version") or "version unknown").splitlines()
            yield Finding("MPI", "ok", f"`{command}`: {said[0].strip()}")
            break
    else:
        yield Finding(
            "MPI",
            "note",
            "no `mpirun`; only workers with several ranks need it",
            "install Open MPI: `apt-get install openmpi-bin`",
        )
    version = machine.package_version("mpi4py")
    if version is not None:
        yield Finding("mpi4py", "ok", version)


def _shared_memory() -> Iterator[Finding]:
    space = os.statvfs("/dev/shm")
    size = space.f_frsize * space.f_blocks
    if size >= SHARED_MEMORY_BYTES:
        yield Finding("shared memory", "ok", _bytes(size))
    else:
        yield Finding(
            "shared memory",
            "warning",
            f"{_bytes(size)} in `/dev/shm`, too small for several ranks",
            "start the container with `--shm-size=8g` or `--ipc=host`",
        )


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        yield Finding("open files", "ok", _limit(soft))
    else:
        enough = hard == resource.RLIM_INFINITY or hard >= OPEN_FILES
        yield Finding(
            "open files",
            "warning",
            f"{soft}, fewer than a gateway's connections",
            f"run `ulimit -n {OPEN_FILES}`"
            if enough
            else "raise the limit: `LimitNOFILE=` of a systemd unit, `--ulimit nofile=` of a container",
        )
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked == resource.RLIM_INFINITY:
        yield Finding("locked memory", "ok", "unlimited")
    else:
        yield Finding(
            "locked memory",
            "note",
            f"{_bytes(locked)}; InfiniBand and GPUDirect need it unlimited",
            "set `LimitMEMLOCK=infinity` or `--ulimit memlock=-1`",
        )


def _ports() -> Iterator[Finding]:
    for option, port in PORTS.items():
        try:
            require_free("127.0.0.1", port, option)
            yield Finding(f"port {port}", "ok", "free")
        except UserMistake as error:
            yield Finding(f"port {port}", "warning", error.what, error.remedy)


def _disk() -> Iterator[Finding]:
    for name, path in (("disk here", Path.cwd()), ("disk for temporary files", _temporary())):
        free = shutil.disk_usage(path).free
        if free >= DISK_BYTES:
            yield Finding(name, "ok", f"{_bytes(free)} free")
        else:
            yield Finding(name, "warning", f"{_bytes(free)} free in `{path}`", "free some space")


def _model(directory: Path) -> Iterator[Finding]:
    try:
        found = find_model(str(directory), None, weights=False)
        is_build = manifest.check(found.directory) is not None
    except UserMistake as error:
        yield Finding("model", "problem", error.what, error.remedy)
        return
    built = "; the installed versions and GPUs fit what it was built with" if is_build else ""
    yield Finding("model", "ok", f"`{found.name_for_clients}`{built}")


def _temporary() -> Path:
    return Path(os.environ.get("TMPDIR", "/tmp"))


def _output(*command: str) -> str | None:
    """What a command prints; `None` where it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _bytes(number: int) -> str:
    return f"{number / (1 << 30):.1f} GiB" if number >= 1 << 30 else f"{number / (1 << 20):.0f} MiB"


def _limit(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else str(number)
