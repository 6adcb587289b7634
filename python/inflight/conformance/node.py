"""The checks of `node.mjs`, which ask through the SDKs for Node, as results among the others."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from inflight.conformance.check import Result, line
from inflight.conformance.target import Target
from inflight.errors import InflightError, UserMistake

SCRIPT = Path(__file__).with_name("node.mjs")
PACKAGES = ("openai", "@anthropic-ai/sdk")


def run_node(target: Target, folder: Path) -> Iterator[Result]:
    """Runs them with the packages of `folder`; each result comes as soon as it is there.

    Raises `UserMistake` without Node or its packages, `InflightError` if the script ends early.
    """
    node = shutil.which("node")
    if node is None:
        raise UserMistake("`node` is not installed", "install Node.js, or leave out `--node`")
    missing = [name for name in PACKAGES if not (folder / "node_modules" / name).is_dir()]
    if missing:
        names = " ".join(missing)
        raise UserMistake(f"`{folder}` has no package {names}", f"run `npm install {names}` there")
    command = [node, str(SCRIPT), target.root, target.model, target.api_key or "none"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            for text in process.stdout or ():
                told = json.loads(text)
                yield Result(told["topic"], told["check"], told["state"], line(told["reason"]))
        finally:
            process.terminate()
    if process.returncode != 0:
        raise InflightError(f"the checks for Node ended with status {process.returncode}")
