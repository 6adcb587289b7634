"""The environments of the frameworks: one for each, because they do not agree on their versions.

Owns where they are kept and how they are made; a changed list of requirements makes a new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CLIENTS = HERE / "clients"


@dataclass(frozen=True)
class Framework:
    """A framework, the file that uses it, and the packages whose versions the table names."""

    name: str
    script: Path
    packages: tuple[str, ...]

    @property
    def is_node(self) -> bool:
        """Whether it runs in Node.js."""
        return self.script.suffix == ".mjs"


def _python(name: str, script: str, *packages: str) -> Framework:
    return Framework(name, CLIENTS / f"{script}.py", packages)


def _node(name: str, script: str, *packages: str) -> Framework:
    return Framework(name, CLIENTS / "node" / f"{script}.mjs", packages)


FRAMEWORKS = (
    _python("openai", "openai_python", "openai"),
    _node("openai-node", "openai_node", "openai"),
    _python("langchain", "langchain_client", "langchain", "langchain-openai", "langchain-anthropic"),
    _python("llama-index", "llama_index_client", "llama-index-core", "llama-index-llms-openai-like"),
    _python("pydantic-ai", "pydantic_ai_client", "pydantic-ai-slim"),
    _python("instructor", "instructor_client", "instructor"),
    _python("openai-agents", "agents_client", "openai-agents"),
    _node("ai-sdk", "ai_sdk", "ai", "@ai-sdk/openai", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic"),
    _python("outlines", "outlines_client", "outlines"),
    _python("litellm", "litellm_client", "litellm"),
)


def prepare(framework: Framework) -> list[str]:
    """Makes a framework's environment if it is missing; the command that runs its script."""
    if framework.is_node:
        return ["node", str(_node_folder() / framework.script.name)]
    requirements = HERE / "requirements" / f"{framework.name}.txt"
    folder = _folder(framework.name, requirements.read_bytes())
    python = folder / "bin" / "python"
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        _run(str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements))
        (folder / "whole").touch()
    return [str(python), str(framework.script)]


def _node_folder() -> Path:
    source = CLIENTS / "node"
    lock = (source / "package-lock.json").read_bytes()
    folder = _folder("node", lock)
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(source / name, folder)
        _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=folder)
        (folder / "whole").touch()
    # Node.js looks for packages beside the file that imports them.
    for script in source.glob("*.mjs"):
        shutil.copy(script, folder)
    return folder


def versions(framework: Framework) -> str:
    """The versions of a framework's own packages, as they are pinned."""
    if framework.is_node:
        lock = json.loads((CLIENTS / "node" / "package-lock.json").read_text())["packages"]
        found = {name: lock[f"node_modules/{name}"]["version"] for name in framework.packages}
    else:
        lines = (HERE / "requirements" / f"{framework.name}.txt").read_text().splitlines()
        pins = dict(line.split("==") for line in lines if "==" in line)
        found = {name: pins[name] for name in framework.packages}
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _folder(name: str, pinned: bytes) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "inflight" / "frameworks" / f"{name}-{hashlib.sha256(pinned).hexdigest()[:12]}"


def _run(*command: str, cwd: Path | None = None) -> None:
    print("  ", *command, file=sys.stderr, flush=True)
    subprocess.run(command, cwd=cwd, check=True)
