"""`inflight launch` with MPICH in place of Open MPI: two ranks serve, one that is killed ends both, and all
end in order.

Skipped where `mpiexec.hydra` is not installed, or mpi4py does not find MPICH: Debian's needs a link
`libmpi.so.12` to its `libmpich.so.12` on the library path.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.http import post
from support.metrics import total
from support.processes import START_S, exists
from support.servers import Start

TOPOLOGY = """
models: [{tp_size: 2, grpc_port: 0, metrics_port: 0}]
gateways: {port: 0}
mpi: {implementation: mpich}
"""
ASKED = {"model": "inflight-demo", "prompt": "Once upon", "max_tokens": 8, "temperature": 0}


def missing() -> str | None:
    if shutil.which("mpiexec.hydra") is None:
        return "`mpiexec.hydra` is not installed: apt-get install mpich"
    finds = [sys.executable, "-c", "from mpi4py import MPI; assert 'MPICH' in MPI.Get_library_version()"]
    done = subprocess.run(finds, env={**os.environ, "MPI4PY_MPIABI": "mpich"}, capture_output=True)
    return "mpi4py finds no MPICH: see docs/guides/several-ranks.md" if done.returncode else None


def ranks(pids: set[int]) -> dict[int, int]:
    """The process of each rank."""
    found: dict[int, int] = {}
    for pid in sorted(pids):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for number in (b"0", b"1"):
            if b"PMI_RANK=" + number in variables:
                found.setdefault(int(number), pid)
    return found


def test_two_ranks_serve_and_end_together(start: Start, tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    path = tmp_path / "topology.yaml"
    path.write_text(TOPOLOGY)
    launched = start("launch", str(path))
    launched.wait_until("all are ready", lambda: "Press Ctrl-C" in launched.log, START_S)
    gateway = launched.address("http")
    text = post(gateway, "/v1/completions", ASKED).json()["choices"][0]["text"]
    found = ranks(set(launched.descendants()))
    assert set(found) == {0, 1}
    os.kill(found[1], signal.SIGKILL)
    launched.wait_until("the supervisor notices", lambda: "restarting it in 1 s" in launched.log, 5)
    assert not any(map(exists, found.values()))
    up = "inflight_gateway_worker_up"
    launched.wait_until("it is back", lambda: total(gateway, up) == 1, START_S)
    assert post(gateway, "/v1/completions", ASKED).json()["choices"][0]["text"] == text
    children = launched.descendants()
    launched.send(signal.SIGTERM)
    assert launched.wait() == 0, launched.log
    assert not any(map(exists, children))
