"""TensorRT-LLM's example scripts in `--examples-dir`, which its wheel does not contain: which are there, and
whether they are those of the installed release. Runs none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from inflight.errors import Problem
from inflight.machine import WRITTEN_AGAINST


@dataclass(frozen=True)
class Examples:
    """TensorRT-LLM's example scripts: which of those asked for exist, and of which release they are."""

    directory: str
    scripts: frozenset[str]
    version: str | None = None
    #: Whether there is such a directory.
    exists: bool = True


def find_examples(directory: Path, scripts: tuple[str, ...]) -> Examples:
    """Finds which of `scripts` are in `directory`, and the release if the sources are next to it."""
    version = None
    source = directory.parent / "tensorrt_llm" / "version.py"
    if source.is_file():
        found = re.search(
            r"__version__\s*=\s*[\"']([^\"']+)", source.read_text(encoding="utf-8", errors="replace")
        )
        version = found[1] if found else None
    there = frozenset(script for script in scripts if (directory / script).is_file())
    return Examples(str(directory), there, version, directory.is_dir())


def check_examples(
    examples: Examples | None, needed: tuple[str, ...], installed: str | None
) -> list[Problem]:
    """Problems with running the scripts that the plan needs."""
    if examples is not None and not examples.exists:
        return [
            Problem(
                f"`--examples-dir` must be a directory, got `{examples.directory}`",
                "pass the `examples` directory of TensorRT-LLM's sources",
            )
        ]
    if not needed:
        return []
    version = installed or WRITTEN_AGAINST
    if examples is None:
        return [
            Problem(
                f"this build needs `{needed[0]}` from TensorRT-LLM's examples, which its wheel does"
                " not contain",
                f"download the sources of release {version} and pass their `examples` directory as"
                " `--examples-dir`",
            )
        ]
    problems = [
        Problem(
            f"`--examples-dir {examples.directory}` has no `{script}`",
            f"pass the `examples` directory of TensorRT-LLM {version}",
        )
        for script in needed
        if script not in examples.scripts
    ]
    found = examples.version
    if found is not None and found != version:
        problems.append(
            Problem(
                f"`--examples-dir {examples.directory}` is from release `{found}`, but TensorRT-LLM"
                f" `{version}` is installed",
                f"pass `--examples-dir` from the sources of TensorRT-LLM `{version}`",
            )
        )
    return problems
