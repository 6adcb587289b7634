"""How products are cut into programs. `tools/measure_products.py tune` prints these tables; they are those of
an H200.

Pure: sizes in, sizes out. The kernels are in `product_kernels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Outputs from which on a product fills a GPU without sharing the inputs out.
_WIDE = 8192

#: Inputs of a share, at least.
_LEAST_SHARE = 512
_MOST_SHARES = 8

#: Tiles of experts from which on their programs fill a GPU.
_MANY_TILES = 32

#: Rows of a product up to which FP8 is widened, which is exact; more are rounded to FP8 themselves.
WIDENED_FP8_ROWS = 16

#: The same of experts: rows of each on average, since some have twice as many.
_WIDENED_AVERAGE = WIDENED_FP8_ROWS // 2

#: Rows of an expert, on average, from which on arithmetic takes all the time.
_MANY_ROWS = 512


@dataclass(frozen=True, slots=True)
class Plan:
    """How a product is cut up: outputs and rows of a program, shares of the inputs, warps, stages."""

    outputs: int
    rows: int
    splits: int
    warps: int
    stages: int


#: Outputs, warps, stages and programs that fill the GPU, by what is stored, rows (at most) and whether there
#: are many outputs.
CUTS: Mapping[tuple[str, int, bool], tuple[int, int, int, int]] = {
    ("fp8", 16, True): (64, 2, 3, 132),
    ("fp8", 16, False): (64, 2, 3, 528),
    ("fp8", 64, True): (64, 4, 3, 264),
    ("fp8", 64, False): (64, 4, 3, 132),
    ("int4", 16, True): (128, 2, 3, 264),
    ("int4", 16, False): (64, 2, 3, 528),
    ("int4", 64, True): (128, 4, 3, 132),
    ("int4", 64, False): (128, 4, 3, 132),
    ("int4", 128, True): (64, 4, 3, 132),
    ("int4", 128, False): (64, 4, 3, 132),
}

#: Of FP8 times FP8 also the rows of a program, by whether each row has one scale; None: PyTorch's product.
NARROW_CUTS: Mapping[tuple[bool, int, bool], tuple[int, int, int, int, int] | None] = {
    (True, 64, True): (64, 64, 4, 3, 264),
    (True, 64, False): (64, 64, 4, 4, 132),
    (True, 128, True): None,
    (True, 128, False): (128, 64, 4, 4, 132),
    (True, 256, True): None,
    (True, 256, False): (128, 64, 4, 4, 132),
    (False, 64, True): (64, 64, 4, 3, 132),
    (False, 64, False): (128, 64, 8, 3, 264),
    (False, 128, True): None,
    (False, 128, False): (128, 64, 4, 4, 132),
    (False, 256, True): None,
    (False, 256, False): None,
}

#: Where PyTorch's product cannot be used.
_NARROW_OTHERS = (128, 128, 8, 3, 264)


def _cut(rows: int, width: int, inputs: int, how: tuple[int, int, int, int, int]) -> Plan:
    outputs, size, warps, stages, programs = how
    tiles = -(-width // outputs) * -(-rows // size)
    splits = 1
    while splits < _MOST_SHARES and tiles * splits < programs and inputs // (2 * splits) >= _LEAST_SHARE:
        splits *= 2
    return Plan(outputs, size, splits, warps, stages)


def plan(rows: int, width: int, inputs: int, stored: str) -> Plan:
    """For ``rows`` of the model's type; ``stored`` is `fp8`, `int4` or `plain`."""
    size = 16 if rows <= 16 else 64 if rows <= 64 else 128
    outputs, warps, stages, programs = CUTS.get((stored, size, width >= _WIDE), (128, 8, 3, 264))
    return _cut(rows, width, inputs, (outputs, size, warps, stages, programs))


def expert_rows(assigned: int, experts: int, kind: str, most: int = 256) -> int:
    """Rows of a tile that belong to one expert, of ``assigned`` rows in all; ``kind`` is one of
    `linear_kernels`'s ``expert_kind``."""
    average = -(-assigned // experts)
    if kind in ("narrow", "narrow_blocks") and average > _WIDENED_AVERAGE:
        if kind == "narrow_blocks" or average <= 64:
            return 64
        return most if average >= _MANY_ROWS else 128
    if kind == "plain" and average >= _MANY_ROWS:
        return most
    least = 32 if kind == "plain" and assigned > experts else 16
    # Many experts have more rows than the average, and read their matrix again for a second tile. INT4's are
    # small: a second read costs little.
    wanted = average if kind == "int4" else 2 * average
    return min(128, max(least, 1 << (wanted - 1).bit_length()))


def expert_plan(tile_rows: int, kind: str, tiles: int) -> Plan:
    """For at most ``tiles`` tiles of `expert_rows`."""
    if kind.startswith("narrow") and tile_rows == 64:
        return Plan(128, tile_rows, 1, 4, 3)
    if kind == "plain" or kind.startswith("narrow"):
        if tile_rows == 16:
            return Plan(64, tile_rows, 1, 4, 6)
        return Plan(128, tile_rows, 1, 8, 3) if tile_rows > 32 else Plan(128, tile_rows, 1, 4, 4)
    if kind == "fp4" and tile_rows >= 64:
        return Plan(128, tile_rows, 1, 8, 3)
    if tile_rows >= 64:
        return Plan(64, tile_rows, 1, 4, 3)
    if kind == "fp4" and (tile_rows == 32 or tiles < _MANY_TILES):
        return Plan(64, tile_rows, 1, 4, 4)
    # Two warps need no exchange of widened values, and enough programs run at once to hide the wait.
    return Plan(64, tile_rows, 1, 2, 3)


def narrow_plan(rows: int, width: int, inputs: int, by_row: bool) -> Plan | None:
    """For rows of FP8; None: PyTorch's product is faster."""
    size = 64 if rows <= 64 else 128 if rows <= 128 else 256
    how = NARROW_CUTS[by_row, size, width >= _WIDE] if rows <= 256 else None
    return None if how is None else _cut(rows, width, inputs, how)


def narrow_plan_of_others(rows: int, width: int, inputs: int) -> Plan:
    """As `narrow_plan`, where PyTorch has no such product."""
    return _cut(rows, width, inputs, _NARROW_OTHERS)
