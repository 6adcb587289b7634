"""A real tritonserver (the one that nvidia-pytriton carries) for tests: where it is, started, stopped.

The package's files lie beside the environment of the tests (`make install`), whose own interpreter and
packages serve Triton's Python backend; nothing of them is imported here.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Where `tools/install-triton` puts the package.
TRITON = Path(sys.prefix) / "triton"
SERVER = TRITON / "pytriton" / "tritonserver"
START_S = 90.0


def why_not() -> str | None:
    """Why Triton cannot run here, if it cannot."""
    if not (SERVER / "bin" / "tritonserver").is_file():
        return f"no tritonserver under {TRITON}: `make install` puts it there, on x86-64 Linux only"
    if not _stub().is_file():
        return f"the package has no stub for Python {sys.version_info[0]}.{sys.version_info[1]}"
    return None


def _stub() -> Path:
    version = "{}.{}".format(*sys.version_info[:2])
    return SERVER / "python_backend_stubs" / version / "triton_python_backend_stub"


@dataclass
class Triton:
    """A server that is ready."""

    process: subprocess.Popen[bytes]
    http: str
    grpc: str
    metrics: str
    log: Path

    def has_crashed(self) -> bool:
        """Whether it has ended or is about to: it writes its stack first."""
        return self.process.poll() is not None or b"\nSignal (11) received." in self.log.read_bytes()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if it does not help."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends it and the models' processes without asking, as a machine that fails would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    @property
    def ports(self) -> list[int]:
        """What `start` takes to put another in its place."""
        return [int(address.rpartition(":")[2]) for address in (self.http, self.grpc, self.metrics)]


def free_ports(count: int) -> list[int]:
    # Triton takes no port 0. All are held at once, so that no two are the same.
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def prepare(scratch: Path) -> tuple[Path, dict[str, str]]:
    """The directory of backends that a server needs, made in `scratch`, and the environment that it needs."""
    # A copy: the stub belongs beside the backend, and the environment stays as installed. The libraries
    # are found relative to the binaries, so the package's layout is kept.
    home = scratch / "pytriton" / "tritonserver"
    shutil.copytree(SERVER / "backends", home / "backends")
    (scratch / "nvidia_pytriton.libs").symlink_to(TRITON / "nvidia_pytriton.libs")
    backends = home / "backends"
    shutil.copy(_stub(), backends / "python")
    (backends / "python" / "triton_python_backend_stub").chmod(0o755)
    return backends, {
        # The stub finds its packages through the `python3` on PATH, and PYTHONPATH is nothing to it.
        "PATH": f"{TRITON / 'env' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        # The stub links libpython, which is not on the loader's path for every interpreter.
        "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")),
    }


def start(
    repository: Path,
    scratch: Path,
    models: Sequence[str] = (),
    ports: Sequence[int] | None = None,
    options: Sequence[str] = (),
    *,
    completes: bool = False,
) -> Triton:
    """Starts a server on `repository` and waits until it is ready; fails with its log.

    With `models`, only these are loaded, and others on demand (`POST v2/repository/models/NAME/load`).
    `ports` are those of HTTP, gRPC and metrics; any free ones without them. `scratch` is its own. With
    `completes`, models may complete their configs, which launchers turn off.
    """
    backends, environment = prepare(scratch)
    http, grpc, metrics = ports or free_ports(3)
    log = scratch / "triton.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [
                str(SERVER / "bin" / "tritonserver"),
                f"--model-repository={repository}",
                f"--backend-directory={backends}",
                "--http-address=127.0.0.1",
                f"--http-port={http}",
                "--grpc-address=127.0.0.1",
                f"--grpc-port={grpc}",
                "--metrics-address=127.0.0.1",
                f"--metrics-port={metrics}",
                "--allow-gpu-metrics=false",
                *([] if completes else ["--disable-auto-complete-config"]),
                f"--backend-config=python,shm-region-prefix-name=inflight{os.getpid()}",
                *(["--model-control-mode=explicit"] if models else []),
                *(f"--load-model={model}" for model in models),
                *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    triton = Triton(process, f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", f"127.0.0.1:{metrics}", log)
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"http://{triton.http}/v2/health/ready", timeout=5) as answer:
                if answer.status == 200:
                    return triton
        except (OSError, urllib.error.URLError):
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            triton.stop()
            raise AssertionError(f"Triton did not become ready:\n{log.read_text(errors='replace')[-6000:]}")
        time.sleep(0.1)
