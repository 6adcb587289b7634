"""Writes the double where processes find it: packages for PYTHONPATH, commands for PATH, example scripts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from support import double

TESTS = Path(__file__).parents[2]

#: The text of `tensorrt_llm/__init__.py` and of `torch/__init__.py`.
_PACKAGE = """
import sys
sys.path.insert(0, {tests!r})
from support import double
with double.line({line!r}):
    sys.modules.update(double.build())
"""

_COMMAND = """#!{python}
import sys
sys.path.insert(0, {tests!r})
from support.double import builder
builder.{name}()
"""

_NVIDIA_SMI = """#!/bin/sh
i=0
while [ $i -lt {count} ]; do echo "NVIDIA H100 80GB HBM3, 81559, {capability}"; i=$((i+1)); done
"""


def write_double(
    folder: Path, *, version: str = "1.2.1", gpus: int = 1, capability: str = "9.0"
) -> dict[str, str]:
    """Writes it below `folder`; returns the environment in which processes meet it."""
    site, commands = folder / "site", folder / "bin"
    # 1.3 begins a line; what comes before is close to 1.2.1.
    line = next((line for line in double.LINES if line.startswith(version[:3])), double.version())
    for name in ("tensorrt_llm", "torch", "xgrammar"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(_PACKAGE.format(tests=str(TESTS), line=line))
    for name, number in (("tensorrt_llm", version), ("tensorrt", "10.14.1.48")):
        metadata = site / f"{name}-{number}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    _write_command(commands / "trtllm-build", "trtllm_build")
    (commands / "nvidia-smi").write_text(_NVIDIA_SMI.format(count=gpus, capability=capability))
    (commands / "nvidia-smi").chmod(0o755)
    return {
        # In front of the sources under test, where these come by the same way.
        "PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))),
        "PATH": f"{commands}:{os.environ['PATH']}",
        "DOUBLE_LOG": str(folder / "calls.jsonl"),
        "DOUBLE_REQUESTS": str(folder / "requests.jsonl"),
        "DOUBLE_ENGINES": str(folder / "engines.jsonl"),
    }


def write_encoder_decoder_script(examples: Path) -> None:
    """Writes the example script that converts T5 and BART below `examples`."""
    _write_command(examples / "models/core/enc_dec/convert_checkpoint.py", "convert_encoder_decoder")


def write_quantize_script(examples: Path) -> None:
    """Writes the example script that calibrates below `examples`."""
    _write_command(examples / "quantization/quantize.py", "quantize")


def _write_command(path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_COMMAND.format(python=sys.executable, tests=str(TESTS), name=name))
    path.chmod(0o755)


def calls(environment: dict[str, str]) -> list[tuple[str, list[str], dict[str, str]]]:
    """What was called so far: name, positional arguments, keywords."""
    path = Path(environment["DOUBLE_LOG"])
    if not path.is_file():
        return []
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]
