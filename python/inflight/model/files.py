"""Files of a model directory: their names, and reading and writing JSON.

Owns the names that a build and whoever serves it must agree on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inflight.errors import CheckpointError

#: The checkpoint's `config.json` beside an engine, whose own config has that name.
CHECKPOINT_CONFIG = "checkpoint_config.json"
#: Keyword arguments of `LLM`, without the model, for the PyTorch runtime.
ARGUMENTS_FILE = "llm_args.json"


def config_path(directory: Path) -> Path:
    """The checkpoint's config, which has another name beside an engine's."""
    beside_engine = directory / CHECKPOINT_CONFIG
    return beside_engine if beside_engine.is_file() else directory / "config.json"


def check_inside(directory: Path, path: Path) -> None:
    """Raises `CheckpointError` where `path`, a file of the model in `directory`, is a link to a file outside.

    A directory can come from anywhere, and what it links to is sent to every gateway that asks. A snapshot of
    Hugging Face's cache may link to its repository's `blobs`.
    """
    target, root = path.resolve(), directory.resolve()
    if target.is_relative_to(root):
        return
    for parent in (root, *root.parents):
        if parent.parent.name == "snapshots" and target.parent == parent.parent.parent / "blobs":
            return
    raise CheckpointError(
        f"`{path}` is a link to `{target}`, outside the model directory",
        "replace the link with a copy of the file, if you trust the directory",
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"`{path.parent}` is not a Hugging Face checkpoint: it has no `{path.name}`",
            "pass a directory with `config.json`, a tokenizer and weights",
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"`{path}` cannot be read: {error.strerror}", "check its permissions"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"`{path}` is not JSON: {error}", "copy or download the checkpoint again"
        ) from error
    if not isinstance(values, dict):
        raise CheckpointError(
            f"`{path}` does not contain a JSON object", "copy or download the checkpoint again"
        )
    return values


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Sorted and indented, so that equal values are equal files."""
    path.write_text(json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
