"""The safetensors reader: every stored type, shards, and damaged files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from inflight.executors.reference.errors import CheckpointError, ModelError, UnsupportedModelError
from inflight.executors.reference.weights import Checkpoint


def write(path: Path, header: Any, data: bytes = b"") -> None:
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_files_of_the_safetensors_package_are_read(tmp_path: Path, dtype: type) -> None:
    values: npt.NDArray[Any] = np.linspace(-3, 3, 12).reshape(3, 4).astype(dtype)
    save_file(
        {"a": values, "b": np.ones(2, dtype=dtype)}, tmp_path / "model.safetensors", metadata={"x": "y"}
    )
    checkpoint = Checkpoint(tmp_path)
    read = checkpoint.tensor("a", (3, 4))
    assert "b" in checkpoint
    checkpoint.close()
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, values.astype(np.float32))


def test_bf16_is_widened_exactly(tmp_path: Path) -> None:
    bits = np.array([0x0000, 0x3F80, 0xBF80, 0x4049, 0x7F80, 0x0001], dtype="<u2")
    entry = {"dtype": "BF16", "shape": [6], "data_offsets": [0, 12]}
    write(tmp_path / "model.safetensors", {"a": entry}, bits.tobytes())
    read = Checkpoint(tmp_path).tensor("a", (6,))
    np.testing.assert_array_equal(read, np.array([0, 1, -1, 3.140625, np.inf, 9.18355e-41], dtype=np.float32))


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    save_file({"a": np.ones(2, dtype=np.float32)}, tmp_path / "one.safetensors")
    save_file({"b": np.zeros(3, dtype=np.float32)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.tensor("a", (2,)).tolist() == [1, 1]
    assert checkpoint.tensor("b", (3,)).tolist() == [0, 0, 0]


def _entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("header", "kind", "words"),
    [
        (_entry(dtype="I8"), UnsupportedModelError, "I8"),
        (_entry(shape=[3]), CheckpointError, "shape"),
        (_entry(data_offsets=[0, 4]), CheckpointError, "outside"),
        (_entry(data_offsets=[-8, 0]), CheckpointError, "outside"),
        (_entry(data_offsets=[8, 16]), CheckpointError, "outside"),
        (_entry(data_offsets=[0]), CheckpointError, "incomplete"),
        (_entry(shape=None), CheckpointError, "incomplete"),
        ({"a": 7}, CheckpointError, "incomplete"),
        ({}, CheckpointError, "missing"),
        ([], CheckpointError, "object"),
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, header: Any, kind: type[ModelError], words: str) -> None:
    write(tmp_path / "model.safetensors", header, bytes(8))
    with pytest.raises(kind, match=words):
        Checkpoint(tmp_path).tensor("a", (2,))


@pytest.mark.parametrize(
    "content", [b"", b"\x01", struct.pack("<Q", 1 << 62) + b"{}", struct.pack("<Q", 4) + b"nope", bytes(8)]
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Checkpoint(tmp_path)


def _index(folder: Path, value: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda _: None, "neither"),
        (lambda folder: _index(folder, {}), "not an index"),
        (lambda folder: _index(folder, {"weight_map": []}), "not an index"),
        (lambda folder: _index(folder, {"weight_map": {"a": "gone.safetensors"}}), "gone"),
        (lambda folder: _index(folder, {"weight_map": {"a": "../other.safetensors"}}), "outside"),
    ],
)
def test_missing_shards_are_named(tmp_path: Path, prepare: Callable[[Path], None], words: str) -> None:
    prepare(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        Checkpoint(tmp_path)
