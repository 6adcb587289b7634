"""Matrices that a checkpoint keeps quantized: which tensors one is made of, and their integers unpacked.

Owns the layouts of FP8 (a scale per tensor, row or block), of 4-bit integers (AWQ's, GPTQ's and
compressed-tensors') and of MXFP4, in which gpt-oss has its experts. Knows headers, not
files; what it unpacks may be NumPy's or PyTorch's arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inflight.executors.reference.errors import CheckpointError, UnsupportedModelError
from inflight.model.quantization import MXFP4_GROUP, Layout, Quantization
from inflight.model.shards import Tensor

from .config import QUANTIZATIONS
from .tensors import Shape

#: Integers in a stored word, and the shifts to them in the order of the columns or rows that they are.
_IN_WORD = 8
_SHIFTS = tuple(range(0, 32, 4))
_AWQ_SHIFTS = tuple(4 * place for place in (0, 4, 1, 5, 2, 6, 3, 7))

#: The tensor by which a matrix of integers is recognized.
_MARKS = {"awq": "qweight", "gptq": "qweight", "packed": "weight_packed"}

_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class Compressed:
    """One matrix ``[out, in]``, or in MXFP4 those of all experts, in the tensors that store it."""

    layout: Layout
    shape: Shape
    #: Name by what it is: ``weight``, ``scale``, and of integers ``zeros`` and ``groups`` where they are.
    tensors: Mapping[str, str]
    #: Rows and columns that share a scale.
    block: tuple[int, int]
    zero_offset: int = 0

    @property
    def scale_shape(self) -> Shape:
        """Scales as a matrix: of rows, then of columns."""
        return tuple(-(-whole // part) for whole, part in zip(self.shape, self.block, strict=True))


@dataclass(frozen=True, slots=True)
class Integers:
    """A matrix of 4-bit integers, in int32: ``(quants - zeros) * scales`` by the group of each column."""

    quants: Any  #: ``[out, in]``
    zeros: Any | None  #: ``[out, groups]``; None: all 8
    scales: Any  #: ``[out, groups]``
    #: The group of each column ``[in]``, where they are not in order.
    group_of: Any | None = None


def find(
    name: str, shape: Shape, found: Mapping[str, Tensor], scheme: Quantization | None
) -> Compressed | None:
    """How the tensor ``name`` is stored if it is a quantized matrix. Raises `CheckpointError` for parts that
    are missing or do not fit, `UnsupportedModelError` for a layout that is not implemented."""
    if scheme is not None and scheme.layout == "mxfp4":
        return _mxfp4(name, shape, found)
    if len(shape) != 2 or not name.endswith(".weight") or scheme is None or scheme.layout is None:
        return None
    module = name.removesuffix(".weight")
    if name in found:
        return _fp8(module, shape, found, scheme) if found[name].dtype.startswith("F8") else None
    if f"{module}.{_MARKS.get(scheme.layout)}" not in found:
        return None
    return _integers(module, shape, found, scheme, scheme.layout)


def _fp8(module: str, shape: Shape, found: Mapping[str, Tensor], scheme: Quantization) -> Compressed:
    weight = found[f"{module}.weight"]
    if weight.dtype != "F8_E4M3":
        raise _unsupported(f"`{weight.name}` is of type `{weight.dtype}`")
    _require(weight, shape, ("F8_E4M3",))
    names = [
        f"{module}.{suffix}"
        for suffix in ("weight_scale_inv", "weight_scale")
        if f"{module}.{suffix}" in found
    ]
    if not names:
        raise CheckpointError(
            f"tensor `{module}.weight_scale` is missing from the checkpoint",
            "copy or download the checkpoint again: the FP8 matrix next to it cannot be read without",
        )
    scale = found[names[0]]
    rows, columns = shape
    if math.prod(scale.shape) == 1:
        block = shape
    elif scale.shape in ((rows,), (rows, 1)):
        block = (1, columns)
    else:
        block = scheme.block or shape
    how = Compressed("fp8", shape, {"weight": weight.name, "scale": scale.name}, (block[0], block[1]))
    if math.prod(scale.shape) != math.prod(how.scale_shape):
        raise CheckpointError(
            f"tensor `{scale.name}` has shape `{list(scale.shape)}`, but the matrix `{list(shape)}` needs"
            f" `{list(how.scale_shape)}`",
            "check that `quantization_config` belongs to these weights",
        )
    _require(scale, scale.shape, _FLOATS)
    return how


def _integers(
    module: str, shape: Shape, found: Mapping[str, Tensor], scheme: Quantization, layout: Layout
) -> Compressed:
    rows, columns = shape
    group = columns if scheme.group_size < 0 else scheme.group_size
    if columns % group or rows % _IN_WORD or columns % _IN_WORD:
        raise _unsupported(f"`{module}` is `{list(shape)}` in groups of `{group}`")
    groups = columns // group
    expected: dict[str, tuple[str, Shape, tuple[str, ...]]] = {}
    if layout == "awq":
        expected["weight"] = ("qweight", (columns, rows // _IN_WORD), ("I32",))
    elif layout == "gptq":
        expected["weight"] = ("qweight", (columns // _IN_WORD, rows), ("I32",))
    if layout in ("awq", "gptq"):
        expected["scale"] = ("scales", (groups, rows), _FLOATS)
        expected["zeros"] = ("qzeros", (groups, rows // _IN_WORD), ("I32",))
        order = f"{module}.g_idx"
    else:
        expected["weight"] = ("weight_packed", (rows, columns // _IN_WORD), ("I32",))
        expected["scale"] = ("weight_scale", (rows, groups), _FLOATS)
        if f"{module}.weight_zero_point" in found:
            expected["zeros"] = ("weight_zero_point", (rows // _IN_WORD, groups), ("I32",))
        order = f"{module}.weight_g_idx"
    if order in found:
        expected["groups"] = (order.removeprefix(f"{module}."), (columns,), ("I32", "I64"))
    tensors = {}
    for role, (suffix, stored, dtypes) in expected.items():
        name = f"{module}.{suffix}"
        if name not in found:
            raise CheckpointError(
                f"tensor `{name}` is missing from the checkpoint", "copy or download the checkpoint again"
            )
        _require(found[name], stored, dtypes)
        tensors[role] = name
    return Compressed(layout, shape, tensors, (1, group), scheme.zero_offset)


def _mxfp4(name: str, shape: Shape, found: Mapping[str, Tensor]) -> Compressed | None:
    """All experts' matrices ``[experts, in, out]``, stored as ``[experts, out, in / 32, 16]`` bytes of two
    numbers, with the exponents of their scales."""
    blocks, scales = f"{name}_blocks", f"{name}_scales"
    if len(shape) != 3 or blocks not in found:
        return None
    experts, inputs, outputs = shape
    groups = inputs // MXFP4_GROUP
    if inputs % MXFP4_GROUP:
        raise _unsupported(f"`{name}` has `{inputs}` inputs, and {MXFP4_GROUP} share a scale")
    if scales not in found:
        raise CheckpointError(
            f"tensor `{scales}` is missing from the checkpoint", "copy or download the checkpoint again"
        )
    _require(found[blocks], (experts, outputs, groups, MXFP4_GROUP // 2), ("U8",))
    _require(found[scales], (experts, outputs, groups), ("U8",))
    return Compressed("mxfp4", shape, {"weight": blocks, "scale": scales}, (1, MXFP4_GROUP))


def _require(tensor: Tensor, shape: Shape, dtypes: Sequence[str]) -> None:
    if tensor.shape != shape:
        raise CheckpointError(
            f"tensor `{tensor.name}` has shape `{list(tensor.shape)}`, but `config.json` implies"
            f" `{list(shape)}`",
            "check that `config.json` belongs to these weights",
        )
    if tensor.dtype not in dtypes:
        raise _unsupported(f"`{tensor.name}` is of type `{tensor.dtype}`")


def _unsupported(what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the reference executor cannot read this quantized matrix: {what}",
        f"use a checkpoint in {QUANTIZATIONS}, or one that is not quantized",
    )


def unpack(how: Compressed, read: Callable[[str], Any], stack: Callable[[list[Any]], Any]) -> Integers:
    """The integers of a matrix; ``read`` gives a stored tensor by what it is, ``stack`` joins arrays along a
    new last axis."""

    def columns(words: Any, shifts: Sequence[int] = _SHIFTS) -> Any:
        """``[n, words]`` to ``[n, 8 x words]``."""
        return stack([(words >> shift) & 15 for shift in shifts]).reshape(words.shape[0], -1)

    weight, scale = read("weight"), read("scale")
    zeros = read("zeros") if "zeros" in how.tensors else None
    group_of = read("groups") if "groups" in how.tensors else None
    if how.layout == "awq":
        return Integers(columns(weight, _AWQ_SHIFTS).T, columns(zeros, _AWQ_SHIFTS).T, scale.T, group_of)
    if how.layout == "gptq":
        return Integers(columns(weight.T), columns(zeros).T + how.zero_offset, scale.T, group_of)
    zeros = None if zeros is None else columns(zeros.T).T
    return Integers(columns(weight), zeros, scale, group_of)
