"""As much of `torch` as tensors need on their way to and from the bindings, over NumPy."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

DTYPES = {
    "float16": np.float16,
    "bfloat16": np.uint16,  # bits only
    "float32": np.float32,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "bool": np.bool_,
}


class Tensor:
    def __init__(self, array: Any, dtype: str) -> None:
        self.array = array
        self.dtype = dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def reshape(self, shape: tuple[int, ...]) -> Tensor:
        return Tensor(self.array.reshape(shape), self.dtype)

    def __setitem__(self, key: Any, value: float) -> None:
        self.array[key] = value

    def to(self, dtype: str) -> Tensor:
        return Tensor(self.array.astype(DTYPES[dtype]), dtype)

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> Any:
        return self.array


def make() -> ModuleType:
    module: Any = ModuleType("torch")
    for name in DTYPES:
        setattr(module, name, name)
    module.Tensor = Tensor
    module.frombuffer = lambda buffer, dtype: Tensor(np.frombuffer(buffer, DTYPES[dtype]), dtype)
    module.empty = lambda shape, dtype: Tensor(np.empty(shape, DTYPES[dtype]), dtype)
    return module  # type: ignore[no-any-return]
