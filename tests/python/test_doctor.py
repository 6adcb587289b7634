"""`inflight doctor` on this machine, and on machines whose `nvidia-smi` is a double."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inflight import machine
from inflight.cli.app import inflight
from inflight.launch import doctor

NVIDIA_SMI = """#!/bin/sh
case "$*" in
*name,memory.total,compute_cap*) printf '{gpus}' ;;
*driver_version*) echo 580.65.06 ;;
*mig.mode.current*) printf '{mig}' ;;
-L) printf '{slices}' ;;
esac
"""
H100 = "NVIDIA H100 80GB HBM3, 81559, 9.0\\n"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(gpus: str = H100, mig: str = "0, Disabled\\n", slices: str = "") -> None:
        command = tmp_path / "nvidia-smi"
        command.write_text(NVIDIA_SMI.format(gpus=gpus, mig=mig, slices=slices))
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def findings(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    result = CliRunner().invoke(inflight, ["doctor", "--json", *arguments])
    return result.exit_code, {finding["name"]: finding for finding in json.loads(result.stdout)}


def test_a_machine_without_a_gpu_can_serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, found = findings()
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        assert code == 0
        assert found["GPUs"]["state"] == "note"
    assert found["inflight"]["state"] == "ok"
    assert found["MPI"]["remedy"] == "install Open MPI: `apt-get install openmpi-bin`"
    assert {"shared memory", "open files", "port 8000", "disk here"} <= set(found)


def test_packages_that_are_missing_have_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "package_version", lambda *_: None)
    code, found = findings()
    assert code == 0
    for name, extra in (("PyTorch", "torch"), ("llguidance", "guided"), ("tritonclient", "client")):
        assert found[name]["state"] == "note"
        assert found[name]["remedy"] == f"install it: `pip install 'inflight-llm[{extra}]'`"
    assert "refuses structured output" in found["llguidance"]["what"]
    monkeypatch.setattr(machine, "package_version", lambda *names: f"1.0 of {names[0]}")
    assert findings()[1]["llguidance"]["what"] == "1.0 of llguidance"


def test_gpus_and_driver_are_named(nvidia_smi: Any) -> None:
    nvidia_smi(gpus=H100 * 2)
    code, found = findings()
    assert code == 0
    assert found["GPU 1"]["what"] == "NVIDIA H100 80GB HBM3, 81559 MiB, sm90"
    assert found["driver"]["what"] == "580.65.06"
    assert "MIG" not in found


def test_a_driver_that_lists_no_gpu_is_a_problem(nvidia_smi: Any) -> None:
    nvidia_smi(gpus="")
    code, found = findings()
    assert (code, found["GPUs"]["state"]) == (1, "problem")
    assert "--gpus all" in found["GPUs"]["remedy"]


def test_mig_slices_are_shown_as_launch_takes_them(nvidia_smi: Any) -> None:
    nvidia_smi(
        mig="0, Enabled\\n",
        slices="GPU 0: NVIDIA H100 (UUID: GPU-1)\\n  MIG 3g.40gb Device  0: (UUID: MIG-c6d4f1ef)\\n",
    )
    code, found = findings()
    assert (code, found["MIG"]["what"]) == (0, "1 slices for `--gpus`: MIG-c6d4f1ef")
    nvidia_smi(mig="0, Enabled\\n")
    code, found = findings()
    assert (code, found["MIG"]["state"]) == (1, "problem")


def test_a_port_in_use_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, "PORTS", {"--port": port})
        code, found = findings()
    assert code == 0
    assert found[f"port {port}"]["state"] == "warning"
    assert "choose another with `--port`" in found[f"port {port}"]["remedy"]


def test_limits_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(doctor, "SHARED_MEMORY_BYTES", 1 << 60)
    monkeypatch.setattr(doctor, "DISK_BYTES", 1 << 60)
    code, found = findings()
    assert code == 0
    assert "LimitNOFILE=" in found["open files"]["remedy"]
    assert "memlock" in found["locked memory"]["remedy"]
    assert "--shm-size" in found["shared memory"]["remedy"]
    assert found["disk here"]["state"] == "warning"


def test_a_model_is_examined(tmp_path: Path) -> None:
    code, found = findings(str(tmp_path / "nothing"))
    assert (code, found["model"]["state"]) == (1, "problem")
    assert "does not exist" in found["model"]["what"]


def test_people_read_a_line_each() -> None:
    result = CliRunner().invoke(inflight, ["doctor"])
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ok    inflight")
    assert all(line[:4].strip() in ("ok", "note", "warn", "FAIL") for line in lines)
