"""What a release is made of: one version, and a workflow that calls what exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest

from inflight import _native

yaml: Any = import_module("yaml")

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yaml"
ACTIONLINT = shutil.which("actionlint")


def test_the_version_stands_in_one_place() -> None:
    [version] = re.findall(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert _native.__version__ == version
    assert metadata.version("inflight-llm") == version
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in pyproject
    assert version not in re.sub(r"#.*", "", pyproject.partition("[project.optional")[0])
    # Helm wants a chart to have a version of its own; it is the same.
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "inflight" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version


def test_the_workflow_fits_githubs_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, str(WORKFLOW)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(ACTIONLINT is None, reason="`actionlint` is not installed")
def test_actionlint_finds_nothing() -> None:
    done = subprocess.run([str(ACTIONLINT), str(WORKFLOW)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_calls_targets_and_tools_that_exist() -> None:
    text = WORKFLOW.read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert {need for job in jobs.values() for need in [*job.get("needs", [])] if len(need) > 1} <= set(jobs)
    targets = set(re.findall(r"\bmake ([a-z-]+)", text))
    assert targets == {"wheel", "gateway-static"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    for tool in re.findall(r"tools/\w+\.py", text):
        assert (ROOT / tool).is_file()


@pytest.mark.parametrize(
    ("rustc", "message"),
    [
        (None, "Rust is not installed"),
        ("rustc 1.70.0 (90c541806 2023-05-31)", "Rust 1.70.0 is too old, and Inflight needs 1."),
        ("rustc 9.9.0-nightly (0 2030-01-01)", None),
    ],
)
def test_a_machine_without_rust_is_told_in_one_sentence(
    tmp_path: Path, rustc: str | None, message: str | None
) -> None:
    for name, says in (("cargo", ""), ("rustc", rustc or "")) if rustc else ():
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{says}"\n')
        (tmp_path / name).chmod(0o755)
    # Without those of this machine.
    for name in ("sh", "sed", "dirname", "cut", "sort", "head"):
        (tmp_path / name).symlink_to(Path("/usr/bin") / name)
    done = subprocess.run(
        [str(ROOT / "tools" / "require-rust")],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": str(tmp_path)},
    )
    assert done.returncode == (0 if message is None else 1), done.stderr
    assert len(done.stderr.splitlines()) == (0 if message is None else 1)
    assert (message or "") in done.stderr
