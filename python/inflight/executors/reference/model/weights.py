"""Tensors of a checkpoint as float32 arrays: which of them are missing or unusable, and their reading.

Owns the widening of float16, bfloat16 and float64; quantized matrices are `compressed`'s, the file format is
`inflight.model.shards`', and which names and shapes are needed is `tensors`'. Imports NumPy only to read, so
that a check of headers stays light; the `safetensors` package cannot give NumPy a bfloat16 tensor, and its
raw route reads whole files.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from inflight.executors.progress import Progress
from inflight.executors.reference.errors import CheckpointError, UnsupportedModelError
from inflight.model.files import open_regular
from inflight.model.shards import FETCH_AGAIN, INDEX, SINGLE, Shard, Tensor, find_shards

from .compressed import Compressed, find
from .config import QUANTIZATIONS, ModelConfig
from .tensors import required_tensors

if TYPE_CHECKING:
    import numpy.typing as npt

    from inflight.model.quantization import Quantization

    from .array_types import Array, Float32
    from .split import Part

#: Types that quantized matrices are made of, by the same.
_RAW = {"F8_E4M3": "u1", "U8": "u1", "I32": "<i4", "I64": "<i8"}

#: Types that are widened to float32, by NumPy's name for what is stored.
STORED_AS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}

#: Bytes of a matrix that are read at once where a part of each row is kept.
_READ_AT_ONCE = 1 << 24

_OTHER_WEIGHTS = "check that `config.json` belongs to these weights"


class CheckpointWeights:
    """The tensors that a model needs, checked against the headers of its shards and read on demand."""

    @classmethod
    def of(
        cls, config: ModelConfig, shards: Iterable[Shard], parts: Mapping[str, Part] | None = None
    ) -> CheckpointWeights:
        """The tensors of a configuration. Errors as the constructor's."""
        names = config.names
        return cls(
            shards,
            required_tensors(config),
            names.optional_prefix,
            parts,
            config.quantization,
            (f"{names.embedding}.weight",),
            names.spellings,
        )

    def __init__(
        self,
        shards: Iterable[Shard],
        required: Iterable[tuple[str, tuple[int, ...]]],
        optional_prefix: str = "",
        parts: Mapping[str, Part] | None = None,
        scheme: Quantization | None = None,
        plain: Collection[str] = (),
        spellings: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Of the tensors in ``parts``, by name, only these are read. Matrices may be quantized as ``scheme``
        says, but those in ``plain``; which of them are is seen by their tensors.

        Raises `CheckpointError` for a tensor that is missing or has another shape, and
        `UnsupportedModelError` for one of another type than a float. Names may lack ``optional_prefix``,
        or begin otherwise, as ``spellings`` say.
        """
        found = {tensor.name: (shard.path, tensor) for shard in shards for tensor in shard.tensors}
        if optional_prefix and not any(name.startswith(optional_prefix) for name in found):
            found |= {optional_prefix + name: place for name, place in found.items()}
        for own, other in spellings:
            found |= {
                own + name[len(other) :]: place for name, place in found.items() if name.startswith(other)
            }
        self._parts = parts or {}
        self._where: dict[str, tuple[Path, Tensor]] = {}
        self._compressed: dict[str, Compressed] = {}
        headers = {name: tensor for name, (_, tensor) in found.items()}
        for name, shape in required:
            how = None if name in plain else find(name, shape, headers, scheme)
            if how is not None:
                self._compressed[name] = how
                self._where |= {stored: found[stored] for stored in how.tensors.values()}
                continue
            if name not in found:
                raise CheckpointError(f"tensor `{name}` is missing from the checkpoint", _OTHER_WEIGHTS)
            tensor = found[name][1]
            if tensor.shape != shape:
                raise CheckpointError(
                    f"tensor `{name}` has shape `{list(tensor.shape)}`, but `config.json` implies"
                    f" `{list(shape)}`",
                    _OTHER_WEIGHTS,
                )
            if tensor.dtype not in STORED_AS:
                raise UnsupportedModelError(
                    f"tensor `{name}` has dtype `{tensor.dtype}`",
                    f"use a checkpoint in F32, F16 or BF16, or one quantized to {QUANTIZATIONS}",
                )
            self._where[name] = found[name]
        self._progress = Progress(sum(self._bytes(name) for name in self._where))

    def _bytes(self, name: str) -> int:
        """What is kept of a tensor, as it is stored."""
        _, tensor = self._where[name]
        whole = tensor.end - tensor.begin
        part = self._parts.get(name)
        if part is None:
            return whole
        return whole // max(math.prod(tensor.shape), 1) * math.prod(part.shape(tensor.shape))

    def compressed(self, name: str) -> Compressed | None:
        """How a required matrix is stored, if it is quantized."""
        return self._compressed.get(name)

    def place(self, name: str) -> tuple[Path, Tensor]:
        """The file and the header of a tensor, as it is stored."""
        return self._where[name]

    def is_part(self, name: str) -> bool:
        """Whether only a part of the tensor is read."""
        return name in self._parts

    def note(self, count: int) -> None:
        """Counts bytes that were read otherwise than by `raw`."""
        self._progress.add(count)

    def raw(self, name: str) -> tuple[Tensor, bytearray]:
        """A required tensor, or its part, as it is stored: its header and its bytes, little-endian. Raises
        `CheckpointError` if its file can no longer be read.
        """
        path, tensor = self._where[name]
        part = self._parts.get(name)
        try:
            with open_regular(path) as file:
                if part is None:
                    data = _read(file, tensor.begin, tensor.end - tensor.begin)
                else:
                    data = _read_part(file, tensor, part)
                    tensor = replace(tensor, shape=part.shape(tensor.shape))
        except OSError as error:
            raise CheckpointError(
                f"`{path}` cannot be read: {error.strerror}", "check its permissions"
            ) from error
        except EOFError as error:
            raise CheckpointError(f"`{path}` ends before tensor `{name}` does", FETCH_AGAIN) from error
        self._progress.add(len(data))
        return tensor, data

    def tensor(self, name: str) -> Float32:
        """A required tensor as a float32 array that shares no memory. Errors as `raw`."""
        how = self._compressed.get(name)
        if how is not None:
            from .dequantize import dequantized

            return dequantized(how, lambda role: self._array(how.tensors[role]))
        return self._array(name)

    def wide(self, name: str) -> Float32:
        """The same: all tensors are float32 here."""
        return self.tensor(name)

    def _array(self, name: str) -> Array:
        """A tensor as it is stored, floats widened."""
        import numpy as np

        tensor, data = self.raw(name)
        if tensor.dtype in _RAW:
            return np.frombuffer(data, dtype=_RAW[tensor.dtype]).reshape(tensor.shape)
        return widen(np.frombuffer(data, dtype=STORED_AS[tensor.dtype]), tensor.dtype).reshape(tensor.shape)


def _read(file: BinaryIO, begin: int, count: int) -> bytearray:
    data = bytearray(count)
    file.seek(begin)
    if file.readinto(data) != count:  # type: ignore[attr-defined]
        raise EOFError
    return data


def _read_part(file: BinaryIO, tensor: Tensor, part: Part) -> bytearray:
    """The bytes of a part. Of an axis behind others, some rows are read whole at a time, since what lies
    along it is scattered."""
    rows = math.prod(tensor.shape[: part.axis])
    row = (tensor.end - tensor.begin) // rows
    element = row // tensor.shape[part.axis]
    missing = bytes((part.length - sum(stop - start for start, stop in part.ranges)) * element)
    if not part.ranges:
        return bytearray(rows * missing)
    data = bytearray()
    if part.axis == 0:
        for start, stop in part.ranges:
            data += _read(file, tensor.begin + start * element, (stop - start) * element)
        return data + missing
    step = max(1, _READ_AT_ONCE // row)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        block = memoryview(_read(file, tensor.begin + first * row, count * row))
        for place in range(count):
            for start, stop in part.ranges:
                data += block[place * row + start * element : place * row + stop * element]
            data += missing
    return data


def find_weights(directory: Path) -> tuple[Shard, ...]:
    """The safetensors files of a checkpoint directory; shards need their index, so that none is missing
    unnoticed. Raises `CheckpointError`.
    """
    if not any((directory / name).is_file() for name in (SINGLE, INDEX)):
        raise CheckpointError(
            f"`{directory}` contains neither `{SINGLE}` nor `{INDEX}`",
            "pass a checkpoint with safetensors weights; `inflight build` makes one file of shards without an"
            " index",
        )
    return find_shards(directory)


def widen(raw: npt.NDArray[Any], dtype: str) -> Float32:
    """Elements as stored (`STORED_AS`) to float32; float32 itself is not copied."""
    import numpy as np

    if dtype == "BF16":
        # bfloat16 is the upper half of a float32.
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32, copy=False)
