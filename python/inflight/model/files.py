"""Files of a model directory: their names, and reading and writing JSON.

Owns the names that a build and its server must agree on, and how a file that anybody may have written
is opened: regular files only, of bounded size.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from inflight.errors import CheckpointError

#: The checkpoint's `config.json` next to an engine, whose own config has that name.
CHECKPOINT_CONFIG = "checkpoint_config.json"
#: Keyword arguments of `LLM`, without the model, for the PyTorch runtime.
ARGUMENTS_FILE = "llm_args.json"
#: The largest JSON file that is read. An index of the largest checkpoints has a few megabytes.
MAX_JSON_BYTES = 64 * 1024 * 1024


def config_path(directory: Path) -> Path:
    """The checkpoint's config, which has another name next to an engine's."""
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


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading. Raises `OSError`, also for a FIFO, which would block until someone
    writes to it, and for a device, which may have no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return open(descriptor, "rb")


def parse_json(text: str | bytes) -> Any:
    """The value of untrusted JSON. Raises `ValueError`, also for a value that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def load_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """The value in an untrusted JSON file. Raises `OSError` and `ValueError`."""
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes", str(path))
    return parse_json(content.decode("utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint."""
    try:
        values = load_json(path)
    except FileNotFoundError:
        raise CheckpointError(
            f"`{path.parent}` is not a Hugging Face checkpoint: it has no `{path.name}`",
            "pass a directory with `config.json`, a tokenizer and weights",
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"`{path}` cannot be read: {error.strerror}", "check its permissions"
        ) from error
    except ValueError as error:
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
