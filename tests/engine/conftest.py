"""Fixtures of the build's tests: the command in a process of its own, with or without the double."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from double import write_double

INFLIGHT = Path(sys.executable).parent / "inflight"


@dataclass
class Told:
    """How a command ended and what it said."""

    code: int
    output: str
    errors: str

    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.output)


@dataclass
class Shell:
    """Runs `inflight` in a folder, as a person there would."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str, **environment: str) -> Told:
        done = subprocess.run(
            [str(INFLIGHT), *arguments],
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Told(done.returncode, done.stdout, done.stderr)


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
