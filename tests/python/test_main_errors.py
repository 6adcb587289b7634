"""tests/python/main_errors.txt shows the errors that people meet first; `UPDATE_SNAPSHOTS=1` rewrites it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from inflight.cli.app import inflight

SHOWN = Path(__file__).with_name("main_errors.txt")
#: Run in an empty directory, so that no path on the page depends on the machine.
COMMANDS = (
    "serv",
    "serve missing",
    "serve --port many",
    "serve --port 70000",
    "serve --executor tensorrt_llm",
    "serve --replicas 2 --gpus 0",
    "serve --metrics-port 8000",
    "launch missing.yaml",
    "worker missing",
    "worker --executor reference --num-blocks 4",
    "worker --executor reference --executor-option a=b --grpc-port 0 --metrics-port 0",
    "worker --executor tensorrt_llm --executor-option beams",
    "worker --step-us nan",
    "worker --executor simulated --answer /dev/null",
    "build missing --output out",
    "build . --output out",
    "build .",
    "inspect missing",
    "inspect .",
    "repository create missing --output out",
    "repository check missing",
)


def error_of(command: str) -> str:
    """The command, its exit code and what it prints, as the page shows them."""
    environment: dict[str, str | None] = {name: None for name in os.environ if name.startswith("INFLIGHT_")}
    runner = CliRunner(env=environment | {"COLUMNS": "100", "NO_COLOR": "1"})
    result = runner.invoke(inflight, shlex.split(command), prog_name="inflight")
    # Anything but a refusal is a defect, and never part of the page.
    assert isinstance(result.exception, SystemExit), (command, result.exception)
    assert result.exit_code != 0, command
    return f"$ inflight {command}\n{result.output.strip()}\nexit code {result.exit_code}\n"


def test_main_errors_are_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = "\n".join(error_of(command) for command in COMMANDS)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SHOWN.write_text(made, encoding="utf-8")
    command = "UPDATE_SNAPSHOTS=1 pytest tests/python/test_main_errors.py"
    assert SHOWN.read_text(encoding="utf-8") == made, f"run `{command}` and review the difference"
