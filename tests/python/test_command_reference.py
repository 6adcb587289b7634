"""docs/reference/commands.md shows the help of every command; `UPDATE_SNAPSHOTS=1` rewrites it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from click.testing import CliRunner

from inflight.cli.app import inflight
from support.processes import INFLIGHT

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
#: Not `build`: its options have a page of their own.
COMMANDS = (
    "",
    "serve",
    "launch",
    "worker",
    "gateway",
    "chat",
    "client",
    "client tokens",
    "client text",
    "client health",
    "inspect",
    "doctor",
    "conformance",
    "top",
    "repository",
    "repository create",
    "repository check",
    "repository convert",
    "repository fill",
    "repository serve",
    "repository options",
    "bench",
    "bench requests",
    "bench load",
    "bench replay",
    "bench floor",
    "bench suite",
    "simulate",
)
#: Their help is clap's, printed by Rust.
RUST = ("gateway", "bench", "simulate")


def help_of(command: str) -> str:
    """What `inflight COMMAND --help` prints into a pipe of 80 columns."""
    unset = [name for name in os.environ if name.startswith("INFLIGHT_")]
    arguments = [*command.split(), "--help"]
    if arguments[0] in RUST:
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        done = subprocess.run([str(INFLIGHT), *arguments], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        output = done.stdout
    else:
        environment_changes = dict.fromkeys(unset) | {"COLUMNS": "80", "NO_COLOR": "1"}
        result = CliRunner(env=environment_changes).invoke(inflight, arguments, prog_name="inflight")
        assert result.exit_code == 0, result.output
        output = result.output
    return "\n".join(line.rstrip() for line in output.strip().splitlines())


def test_the_page_shows_the_help_of_every_command() -> None:
    shown = [
        f"## {' '.join(['inflight', command]).strip()}\n\n```text\n{help_of(command)}\n```\n"
        for command in COMMANDS
    ]
    page = PAGE.read_text(encoding="utf-8")
    head = page[: page.index("\n## ") + 1]
    made = head + "\n".join(shown)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        PAGE.write_text(made, encoding="utf-8")
    command = "UPDATE_SNAPSHOTS=1 pytest tests/python/test_command_reference.py"
    assert PAGE.read_text(encoding="utf-8") == made, f"run `{command}` and review the difference"
