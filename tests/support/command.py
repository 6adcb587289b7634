"""`inflight ARGUMENTS` that ends by itself: what it printed and its exit status. In the process of the tests,
where starting it costs nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner

from inflight.cli.app import inflight


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def object(self) -> Any:
        """What it printed with `--json`."""
        return json.loads(self.out)


def run(*arguments: str, code: int = 0) -> Done:
    """Runs a command and checks its exit status."""
    result = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "100"}).invoke(inflight, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.output}"
    return Done(result.exit_code, result.stdout, result.stderr)
