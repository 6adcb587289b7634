"""Small checkpoints for tests: configs, tokenizers and safetensors made on the spot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inflight.launch.model import DEMO_DIRECTORY

CONFIGS = Path(__file__).parent / "configs"

#: Bytes of an element, by safetensors' name.
WIDTHS = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """Writes name -> (dtype, shape, bytes) as the format says."""
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    encoded = json.dumps(header).encode()
    data = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def checkpoint_of(model: str, directory: Path) -> Path:
    """The config of a public model with a tokenizer and weights that nobody reads."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(CONFIGS / model / "config.json", directory / "config.json")
    shutil.copyfile(DEMO_DIRECTORY / "tokenizer.json", directory / "tokenizer.json")
    write_safetensors(directory / "model.safetensors", {"a": ("F16", (2,), b"\0\0\0\0")})
    return directory


def demo_copy(directory: Path) -> Path:
    """A copy of the embedded model, for tests to spoil."""
    shutil.copytree(DEMO_DIRECTORY, directory, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return directory
