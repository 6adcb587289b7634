"""Triton's tensors as `inflight._native` takes and gives them: packed bytes with a KServe datatype.

Owns the packing only; what the tensors mean is the worker's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from inflight.triton.models.python_backend import BadRequest, pb_utils, tensor

#: KServe datatypes that NumPy has.
DTYPES: dict[str, type[np.generic]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
}
_DATATYPES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


def pack(name: str, value: np.ndarray[Any, Any]) -> tuple[str, str, tuple[int, ...], bytes]:
    """An input: name, datatype, shape, bytes. Raises `BadRequest` for a datatype that no input has."""
    if value.dtype == np.object_:
        parts = [bytes(item) for item in value.reshape(-1)]
        data = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return name, "BYTES", value.shape, data
    datatype = _DATATYPES.get(value.dtype)
    if datatype is None:
        raise BadRequest(f"`{name}` has the datatype `{value.dtype}`, which no input of this model has")
    return name, datatype, value.shape, np.ascontiguousarray(value).tobytes()


def unpack(
    outputs: Sequence[tuple[str, str, tuple[int, ...], bytes]], declared: Mapping[str, str]
) -> list[Any]:
    """Outputs as Triton's tensors, in the data types that the config declares (`TYPE_FP32`)."""
    made = []
    for name, datatype, shape, data in outputs:
        array = np.frombuffer(data, DTYPES[datatype]).reshape(shape)
        made.append(tensor(name, array, DTYPES[declared[name].removeprefix("TYPE_")]))
    return made


def unpack_all(tensors: Sequence[tuple[str, str, tuple[int, ...], bytes]]) -> list[Any]:
    """Tensors as Triton's, in the datatypes that they have."""
    return [
        pb_utils.Tensor(name, _texts(data, shape))
        if datatype == "BYTES"
        else tensor(name, np.frombuffer(data, DTYPES[datatype]).reshape(shape), DTYPES[datatype])
        for name, datatype, shape, data in tensors
    ]


def _texts(data: bytes, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The elements of a BYTES tensor, each behind its length."""
    elements = []
    place = 0
    while place < len(data):
        end = place + 4 + int.from_bytes(data[place : place + 4], "little")
        elements.append(data[place + 4 : end])
        place = end
    return np.array(elements, dtype=np.object_).reshape(shape)
