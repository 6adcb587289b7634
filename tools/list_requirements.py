"""Prints the requirements of the package and of its `dev` extra, one per line.

pip must have them before maturin builds the package, because maturin is one of them.
Runs on the virtual environment's own Python, with nothing installed yet.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib


def requirements(pyproject: str) -> list[str]:
    """Returns the requirement strings of `pyproject`'s text, spaces removed (one shell word each)."""
    project = tomllib.loads(pyproject)["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    return [re.sub(r"\s+", "", requirement) for requirement in wanted]


if __name__ == "__main__":
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    sys.stdout.write("\n".join(requirements(text)) + "\n")
