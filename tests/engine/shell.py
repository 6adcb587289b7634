"""The command in a process of its own, in a folder, and what it told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
