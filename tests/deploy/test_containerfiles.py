"""What the Containerfiles install, read from their text: what the package imports, and no list by hand.

Building them is `test_containers.py`'s.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "deploy" / "containers"
#: Modules that are called otherwise than the package that has them.
PACKAGES = {"yaml": "pyyaml"}
WITH_PYTHON = ["Containerfile", "Containerfile.tensorrt-llm", "Containerfile.triton"]


def declared(table: str) -> set[str]:
    """Names of the requirements in a table of pyproject.toml; Python 3.10 has no parser."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pattern = r"^dependencies = \[\n(.*?)^\]" if table == "dependencies" else rf"^{table} = (\[.*?\])$"
    found = re.search(pattern, text, re.DOTALL | re.MULTILINE)
    assert found is not None, table
    return {name.lower() for name in re.findall(r'"([A-Za-z_][\w-]*)', found[1])}


def installed(file: str) -> str:
    text = (CONTAINERS / file).read_text(encoding="utf-8").replace("\\\n", " ")
    command: str
    (command,) = re.findall(r"pip install ([^&]*\.whl\S*)", text)
    return command


@pytest.mark.parametrize("file", WITH_PYTHON)
def test_pip_reads_what_is_needed_from_the_wheel(file: str) -> None:
    command = installed(file)
    assert "--no-deps" not in command
    # No list beside the wheel's own, which would be forgotten.
    assert re.findall(r"[\w.-]+(?:[<>=~]=)[\w.]+", command) == []


@pytest.mark.parametrize("file", WITH_PYTHON[1:])
def test_packages_of_nvidias_images_keep_their_versions(file: str) -> None:
    text = (CONTAINERS / file).read_text(encoding="utf-8")
    assert "pip list --format=freeze > /tmp/pinned.txt" in text
    assert "--constraint /tmp/pinned.txt" in installed(file)


def test_the_cpu_image_decodes_under_grammars() -> None:
    assert "[guided]" in installed("Containerfile")
    assert declared("guided") == {"llguidance"}


def test_what_every_command_imports_is_declared() -> None:
    """Imports when a module is loaded; those inside functions are what extras are for."""
    imported = set()
    for path in sorted((ROOT / "python" / "inflight").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(str(node.module).partition(".")[0])
    theirs = imported - set(sys.stdlib_module_names) - {"inflight"}
    needed = {PACKAGES.get(name, name) for name in theirs}
    # Modules that are loaded only where Triton's Python backend, PyTorch or Triton's clients are.
    elsewhere = {"triton_python_backend_utils", "torch", "triton", "tritonclient"}
    assert {"click", "rich", "prompt_toolkit"} <= needed
    assert needed - elsewhere <= declared("dependencies")
