"""Checkpoint tensors: safetensors files to float32 arrays.

Owns the file format, the sharded index and the widening of bf16 and fp16. Knows nothing of layers. Files
are memory mapped and widened tensor by tensor, so that loading needs no second copy of a shard; the
`safetensors` package cannot give NumPy a bf16 tensor, and its raw route reads whole files.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Float32
from .errors import CheckpointError, UnsupportedModelError

#: The format's own limit on its JSON header, so that a damaged length cannot ask for all memory.
_MAX_HEADER_BYTES = 100 * 1024 * 1024

#: The dtypes that are read, and what holds their bytes in NumPy, which has no bf16.
_STORAGE: Mapping[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F64": np.float64}

_FETCH_AGAIN = "fetch the checkpoint again"


def _widen_bf16(raw: npt.NDArray[Any]) -> Float32:
    """bf16 is the upper half of a float32."""
    return (raw.astype(np.uint32) << 16).view(np.float32)


class Checkpoint:
    """The tensors of a checkpoint directory, read on demand. Close it when the model is built."""

    def __init__(self, model_dir: Path) -> None:
        """Opens ``model.safetensors`` or the shards of ``model.safetensors.index.json``."""
        self._files: list[_SafetensorsFile] = []
        self._where: dict[str, _SafetensorsFile] = {}
        try:
            for path in _shards(model_dir):
                shard = _SafetensorsFile(path)
                self._files.append(shard)
                self._where.update(dict.fromkeys(shard.names, shard))
        except BaseException:
            self.close()
            raise

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        """The tensor as a float32 array of its own memory. Errors: missing, another shape, integer types."""
        return self._shard(name).tensor(name, shape)

    def raw(self, name: str, shape: tuple[int, ...]) -> tuple[str, bytearray]:
        """The tensor as it is stored: its safetensors dtype and little-endian bytes. Errors as `tensor`."""
        return self._shard(name).raw(name, shape)

    def _shard(self, name: str) -> _SafetensorsFile:
        shard = self._where.get(name)
        if shard is None:
            raise CheckpointError(
                f"tensor `{name}` is missing from the checkpoint",
                "check that config.json belongs to these weights",
            )
        return shard

    def close(self) -> None:
        """Unmaps the files; arrays given out stay valid."""
        for shard in self._files:
            shard.close()


def _shards(model_dir: Path) -> list[Path]:
    single = model_dir / "model.safetensors"
    if single.is_file():
        return [single]
    index = model_dir / "model.safetensors.index.json"
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted({str(name) for name in weight_map.values()})
    except FileNotFoundError:
        raise CheckpointError(
            f"`{model_dir}` has neither model.safetensors nor model.safetensors.index.json",
            "give a Hugging Face checkpoint directory with safetensors weights",
        ) from None
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"`{index}` is not an index of shards: {error!r}", _FETCH_AGAIN) from error
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"`{index}` names a shard outside its directory: `{name}`", _FETCH_AGAIN)
        if not (model_dir / name).is_file():
            raise CheckpointError(f"shard `{model_dir / name}` does not exist", _FETCH_AGAIN)
    return [model_dir / name for name in names]


class _SafetensorsFile:
    """One file: eight bytes of header length, a JSON header, then the data that it describes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"`{path}` cannot be read: {error}", _FETCH_AGAIN) from error
        length = int.from_bytes(self._map[:8], "little")
        if len(self._map) < 8 or length > min(len(self._map) - 8, _MAX_HEADER_BYTES):
            raise self._damaged("its header is longer than the file")
        try:
            header = json.loads(self._map[8 : 8 + length])
        except ValueError:
            raise self._damaged("its header is not JSON") from None
        if not isinstance(header, dict):
            raise self._damaged("its header is not an object")
        header.pop("__metadata__", None)
        self._header: Mapping[str, Any] = header
        self._data_start = 8 + length

    @property
    def names(self) -> list[str]:
        return list(self._header)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        dtype, data = self.raw(name, shape)
        raw = np.frombuffer(data, dtype=_STORAGE[dtype])
        widened = _widen_bf16(raw) if dtype == "BF16" else raw.astype(np.float32)
        return widened.reshape(shape)

    def raw(self, name: str, shape: tuple[int, ...]) -> tuple[str, bytearray]:
        entry = self._header[name]
        try:
            dtype, found = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
            begin, end = (int(offset) for offset in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise self._damaged(f"the entry of tensor `{name}` is incomplete") from None
        if found != shape:
            raise CheckpointError(
                f"tensor `{name}` has shape `{list(found)}` where config.json implies `{list(shape)}`",
                "check that config.json belongs to these weights",
            )
        storage = _STORAGE.get(dtype)
        if storage is None:
            raise UnsupportedModelError(
                f"tensor `{name}` has dtype `{dtype}`",
                "use a checkpoint in F32, F16 or BF16 with the reference executor",
            )
        count = int(np.prod(shape, dtype=np.int64))
        size = count * np.dtype(storage).itemsize
        if begin < 0 or end - begin != size or self._data_start + end > len(self._map):
            raise self._damaged(f"tensor `{name}` lies outside its data")
        # A copy, and not a view of the map, which could then never be closed.
        with memoryview(self._map) as view:
            return dtype, bytearray(view[self._data_start + begin : self._data_start + end])

    def close(self) -> None:
        self._map.close()

    def _damaged(self, how: str) -> CheckpointError:
        return CheckpointError(f"`{self._path}` is damaged: {how}", _FETCH_AGAIN)
