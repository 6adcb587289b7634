"""TensorRT-LLM's example scripts in `--examples-dir`, which its wheel does not hold. Runs none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Examples:
    """TensorRT-LLM's example scripts: which of those asked for exist, and of which release they are."""

    directory: str
    scripts: frozenset[str]
    version: str | None = None
    #: Whether there is such a directory.
    exists: bool = True


def find_examples(directory: Path, scripts: tuple[str, ...]) -> Examples:
    """Which of `scripts` lie below `directory`; the release, where the sources lie beside it."""
    version = None
    source = directory.parent / "tensorrt_llm" / "version.py"
    if source.is_file():
        found = re.search(
            r"__version__\s*=\s*[\"']([^\"']+)", source.read_text(encoding="utf-8", errors="replace")
        )
        version = found[1] if found else None
    there = frozenset(script for script in scripts if (directory / script).is_file())
    return Examples(str(directory), there, version, directory.is_dir())
