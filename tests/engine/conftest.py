"""Fixtures of the build's tests: the command with and without the double of TensorRT-LLM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.double.package import write_double

from .shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Without TensorRT-LLM, and without a GPU whatever the machine."""
    commands = tmp_path / "no-gpu"
    commands.mkdir()
    (commands / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (commands / "nvidia-smi").chmod(0o755)
    return Shell(tmp_path, {"PATH": f"{commands}:{os.environ['PATH']}"})


@pytest.fixture
def double(tmp_path: Path) -> Shell:
    """With the double of TensorRT-LLM 1.2.1 and one GPU."""
    return Shell(tmp_path, write_double(tmp_path / "double"))
