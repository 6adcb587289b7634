"""Quantized matrices as they are kept on the device: FP8 with scales, and 4-bit numbers in tiles.

Owns their layouts there, how they are made of a checkpoint's tensors, and their expansion to the model's
type, which decides what the kernels must compute. Knows nothing of files or kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inflight.executors.reference.errors import UnsupportedModelError
from inflight.executors.reference.model.compressed import Compressed, unpack
from inflight.executors.reference.model.dequantize import E2M1

Tensor = Any  # torch.Tensor; torch is not there where types are checked

#: Rows of integers that lie in one piece, and inputs of a row in such a piece.
_TILE_ROWS = 64
_TILE_INPUTS = 128


def has_fp8(device: Tensor) -> bool:
    """Whether a GPU has FP8: from Ada and Hopper on."""
    return bool(device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9))


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """FP8 E4M3 times scales; of experts, with a first axis more."""

    weight: Tensor  #: ``[out, in]``
    scales: Tensor  #: float32 ``[out / rows, in / columns]``
    #: Outputs and inputs that share a scale.
    rows: int
    columns: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    @property
    def nbytes(self) -> int:
        return int(self.weight.nbytes + self.scales.nbytes)

    def __getitem__(self, expert: int) -> Fp8Matrix:
        return replace(self, weight=self.weight[expert], scales=self.scales[expert])

    @property
    def is_by_row(self) -> bool:
        """Whether each row has one scale."""
        return self.rows == 1 and self.columns >= self.shape[-1]

    def expanded(self, dtype: Tensor) -> Tensor:
        """``[out, in]`` in ``dtype``."""
        outputs, inputs = self.shape
        scales = self.scales.repeat_interleave(self.rows, 0)[:outputs]
        if self.columns < inputs:
            scales = scales.repeat_interleave(self.columns, 1)[:, :inputs]
        return (self.weight.to(torch.float32) * scales).to(dtype)


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """4-bit integers less a zero point, times a scale for each group of inputs; of experts, with a first axis
    more.

    A byte holds two inputs that are half a tile apart, the first in its low bits, so that what a kernel loads
    in one piece are consecutive inputs.
    """

    #: ``[out / tile rows, in / tile inputs, tile rows, tile inputs / 2]``, uint8.
    weight: Tensor
    #: ``[groups, out]``, int32: of each group its scale and zero point, as `with_zeros` puts them together.
    scales: Tensor
    #: Inputs of a group.
    group: int
    #: Which input each column takes ``[in]``, int32, where groups are not consecutive inputs.
    order: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        *experts, rows, inputs, tile_rows, half = self.weight.shape
        return (*experts, rows * tile_rows, inputs * 2 * half)

    @property
    def tile_inputs(self) -> int:
        return int(2 * self.weight.shape[-1])

    @property
    def nbytes(self) -> int:
        order = 0 if self.order is None else self.order.nbytes
        return int(self.weight.nbytes + self.scales.nbytes + order)

    def __getitem__(self, expert: int) -> Int4Matrix:
        return replace(self, weight=self.weight[expert], scales=self.scales[expert])

    def expanded(self, dtype: Tensor) -> Tensor:
        """``[out, in]`` in ``dtype``, its columns in the order of the model's inputs."""
        outputs, inputs = self.shape
        quants = torch.cat((self.weight & 15, self.weight >> 4), -1).transpose(1, 2).reshape(outputs, inputs)
        words = self.scales.t().repeat_interleave(self.group, 1)
        scales, zeros = (words & ~255).view(torch.float32), words & 255
        matrix = ((quants.float() - zeros) * scales).to(dtype)
        if self.order is None:
            return matrix
        turned = torch.empty_like(matrix)
        turned[:, self.order.long()] = matrix
        return turned


@dataclass(frozen=True, slots=True)
class Fp4Matrix:
    """The matrices of experts in MXFP4: FP4 E2M1 times a power of two for each group of inputs, in tiles as
    `Int4Matrix` has."""

    weight: Tensor  #: ``[experts, out / tile rows, in / tile inputs, tile rows, tile inputs / 2]``, uint8
    #: ``[experts, groups / 4, out]``, int32: of four groups, the first lowest, the power of two plus 127.
    scales: Tensor
    #: Inputs of a group.
    group: int

    @property
    def shape(self) -> tuple[int, ...]:
        *experts, rows, inputs, tile_rows, half = self.weight.shape
        return (*experts, rows * tile_rows, inputs * 2 * half)

    @property
    def nbytes(self) -> int:
        return int(self.weight.nbytes + self.scales.nbytes)

    def __getitem__(self, expert: int) -> Fp4Matrix:
        return replace(self, weight=self.weight[expert], scales=self.scales[expert])

    def expanded(self, dtype: Tensor) -> Tensor:
        """One expert's ``[out, in]`` in ``dtype``."""
        outputs, inputs = self.shape
        nibbles = torch.cat((self.weight & 15, self.weight >> 4), -1).transpose(1, 2)
        numbers = torch.from_numpy(E2M1).to(self.weight.device)[nibbles.reshape(outputs, inputs).long()]
        exponents = self.scales.t().contiguous().view(torch.uint8)[:, : inputs // self.group]
        scales = torch.exp2(exponents.float() - 127)
        return (numbers * scales.repeat_interleave(self.group, 1)).to(dtype)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Matrices of the same input that cannot be one, as the outputs of each in turn."""

    parts: tuple[Tensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(part.shape[0] for part in self.parts), self.parts[0].shape[1])

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in self.parts)

    def expanded(self, dtype: Tensor) -> Tensor:
        """``[out, in]`` in ``dtype``."""
        return torch.cat(
            [part if isinstance(part, torch.Tensor) else part.expanded(dtype) for part in self.parts]
        )


def load(how: Compressed, read: Callable[[str], Tensor]) -> Fp8Matrix | Int4Matrix | Fp4Matrix:
    """A matrix from its stored tensors, on the device; ``read`` gives one by what it is."""
    if how.layout == "mxfp4":
        return _experts(read("weight"), read("scale"))
    if how.layout == "fp8":
        rows, columns = how.block
        scales = read("scale").float().reshape(how.scale_shape)
        if rows >= how.shape[0]:
            # A scale for each row, so that it can be joined with others.
            scales, rows = scales.expand(how.shape[0], -1).contiguous(), 1
        return Fp8Matrix(read("weight"), scales, rows, columns)
    found = unpack(how, read, lambda arrays: torch.stack(arrays, -1))
    quants, order = found.quants, None
    if found.group_of is not None:
        quants, order = _ordered(quants, found.group_of, how.block[1])
    zeros = torch.full_like(found.scales, 8) if found.zeros is None else found.zeros
    scales = with_zeros(found.scales.t(), zeros.t())
    return Int4Matrix(tiled(quants.to(torch.uint8), how.block[1]), scales, how.block[1], order)


def with_zeros(scales: Tensor, zeros: Tensor) -> Tensor:
    """`Int4Matrix.scales`: float32 whose lowest eight bits are the zero point, so that a kernel gets both by
    one load of four bytes. Scales stored in 16 bits are exact, others to one part in 2**16."""
    bits = scales.float().contiguous().view(torch.int32)
    return ((bits + 128) & ~255) | zeros.to(torch.int32)


def _experts(stored: Tensor, exponents: Tensor) -> Fp4Matrix:
    """From ``[experts, out, groups, bytes]``, whose low nibbles come first, and the exponents of scales. One
    expert at a time: nibbles by themselves take twice the memory."""
    group = 2 * stored.shape[-1]
    made = []
    for own in stored:
        nibbles = torch.stack((own & 15, own >> 4), -1).reshape(own.shape[0], -1)
        made.append(tiled_by_pairs(nibbles, group))
    return Fp4Matrix(torch.stack(made), by_fours(exponents), group)


def _ordered(quants: Tensor, group_of: Tensor, group: int) -> tuple[Tensor, Tensor | None]:
    """Columns by their groups, and the input of each; None: they were in order."""
    groups = group_of.long()
    expected = torch.arange(len(groups), device=groups.device) // group
    if torch.equal(groups, expected):
        return quants, None
    order = groups.argsort(stable=True)
    if not torch.equal(groups[order], expected):
        raise UnsupportedModelError(
            "the checkpoint's `g_idx` has groups of different sizes", "use a checkpoint quantized by GPTQ"
        )
    return quants[:, order], order.to(torch.int32)


def tiled(quants: Tensor, group: int) -> Tensor:
    """Integers ``[out, in]`` below 16 in the layout of `Int4Matrix`."""
    rows, inputs = (math.gcd(_TILE_ROWS, quants.shape[0]), math.gcd(_TILE_INPUTS, group))
    tiles = quants.reshape(-1, rows, quants.shape[1] // inputs, 2, inputs // 2)
    return (tiles[:, :, :, 0] | (tiles[:, :, :, 1] << 4)).transpose(1, 2).contiguous()


def tiled_by_pairs(nibbles: Tensor, group: int) -> Tensor:
    """As `tiled`, in the layout of `Fp4Matrix`: where there are pairs of groups, the first is in the low bits
    and the other in the high ones, so that whole groups are multiplied at once."""
    return tiled(nibbles, group if nibbles.shape[1] % (2 * group) else 2 * group)


def by_fours(exponents: Tensor) -> Tensor:
    """`Fp4Matrix.scales` of ``[experts, out, groups]``."""
    fours = torch.nn.functional.pad(exponents, (0, -exponents.shape[-1] % 4)).view(torch.int32)
    return fours.transpose(1, 2).contiguous()


def joined(parts: Sequence[Tensor]) -> Tensor:
    """One matrix of all rows."""
    first = parts[0]
    if all(isinstance(part, Fp8Matrix) for part in parts):
        if len({(part.rows, part.columns) for part in parts}) > 1 or any(
            part.shape[0] % part.rows for part in parts[:-1]
        ):
            parts = [_by_row(part) for part in parts]
        if len({part.columns for part in parts}) == 1:
            weight = torch.cat([part.weight.view(torch.uint8) for part in parts]).view(first.weight.dtype)
            return Fp8Matrix(weight, torch.cat([part.scales for part in parts]), parts[0].rows, first.columns)
    elif all(isinstance(part, Int4Matrix) and _fits(part, first) for part in parts):
        return replace(
            first,
            weight=torch.cat([part.weight for part in parts]),
            scales=torch.cat([part.scales for part in parts], 1),
        )
    return SideBySide(tuple(parts))


def _by_row(part: Fp8Matrix) -> Fp8Matrix:
    """The same with scales for each row."""
    scales = part.scales.repeat_interleave(part.rows, 0)[: part.shape[0]]
    return replace(part, scales=scales, rows=1)


def _fits(part: Int4Matrix, first: Int4Matrix) -> bool:
    if part.group != first.group or part.weight.shape[1:] != first.weight.shape[1:]:
        return False
    if part.order is None or first.order is None:
        return part.order is first.order
    return bool(torch.equal(part.order, first.order))


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """The matrices of experts as one. Raises `UnsupportedModelError` where they are stored in different
    ways."""
    first = parts[0]
    names = ("weight", "scales") if isinstance(first, Fp8Matrix | Int4Matrix) else ()
    alike = all(
        type(part) is type(first)
        and all(getattr(part, name).shape == getattr(first, name).shape for name in names)
        for part in parts
    )
    if isinstance(first, Int4Matrix) and any(part.order is not None for part in parts):
        raise UnsupportedModelError(
            "the experts of the checkpoint are quantized in the order of activations (`desc_act`), which is"
            " not supported on PyTorch",
            "use a checkpoint quantized without `desc_act`, or backend `numpy`",
        )
    if not names or not alike:
        raise UnsupportedModelError(
            "the experts of the checkpoint are quantized in different ways",
            "use a checkpoint whose experts are quantized alike, or one that is not quantized",
        )
    bytes_of = {"weight": torch.uint8}
    made = {}
    for name in names:
        arrays = [getattr(part, name) for part in parts]
        # Not all operations take FP8.
        made[name] = torch.stack([one.view(bytes_of.get(name, one.dtype)) for one in arrays]).view(
            arrays[0].dtype
        )
    return replace(first, **made)
