"""The kernels of products and of experts compute what the plain operations do, with every kind of matrix.

On a GPU in the types and sizes that models have; with TRITON_INTERPRET=1 on a CPU, in float32 and small.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
pytest.importorskip("triton", reason="Triton is not installed; it comes with PyTorch for CUDA")

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU and "TRITON_INTERPRET" not in os.environ:
    pytest.skip("there is no NVIDIA GPU; TRITON_INTERPRET=1 runs some of it", allow_module_level=True)

from inflight.executors.reference.model.compressed import Compressed  # noqa: E402
from inflight.executors.reference.pytorch import compressed, kernels, operations  # noqa: E402
from inflight.executors.reference.pytorch.cuts import (  # noqa: E402
    WIDENED_FP8_ROWS,
    Plan,
    expert_plan,
    expert_rows,
)
from inflight.executors.reference.pytorch.expert_kernels import choose, sort  # noqa: E402
from inflight.executors.reference.pytorch.linear_kernels import (  # noqa: E402
    expert_kind,
    expert_tile_rows,
)
from inflight.executors.reference.pytorch.product_kernels import Tiles, product  # noqa: E402

DEVICE = "cuda" if HAS_GPU else "cpu"
Tensor = Any

#: Relative to the same numbers in float32. FP8 with many rows in bfloat16 rounds the rows to FP8, too.
TOLERANCES = {"float32": 3e-6, "float16": 1e-3, "bfloat16": 4e-3}
ROUNDED_ROWS = 4e-2
#: In two products, one behind the other.
ROUNDED_TWICE = 6e-2

TYPES = ["float32", "float16", "bfloat16"] if HAS_GPU else ["float32"]
SHAPES = [(96, 160), (1536, 2048)] if HAS_GPU else [(96, 160)]
KINDS = ("rows", "blocks", "small_blocks", "groups", "groups_of_32", "whole_rows", "ordered")


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def fp8(outputs: int, inputs: int, rows: int, columns: int) -> compressed.Fp8Matrix:
    weight = (16 * draw(outputs, inputs)).clamp(-448, 448).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-outputs // rows), -(-inputs // columns), device=DEVICE) * 0.1 + 0.01
    return compressed.Fp8Matrix(weight, scales, rows, columns)


def int4(outputs: int, inputs: int, group: int, ordered: bool = False) -> compressed.Int4Matrix:
    quants = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, device=DEVICE)
    places = (inputs // group, outputs)
    scales = (torch.rand(places, device=DEVICE) * 0.1 + 0.01).half()
    zeros = torch.randint(0, 17, places, dtype=torch.uint8, device=DEVICE)
    return compressed.Int4Matrix(
        compressed.tiled(quants, group),
        compressed.with_zeros(scales, zeros),
        group,
        torch.randperm(inputs, device=DEVICE).to(torch.int32) if ordered else None,
    )


def make(kind: str, outputs: int, inputs: int) -> Tensor:
    group = 128 if inputs % 128 == 0 else 16
    made: dict[str, Callable[[], Tensor]] = {
        "rows": lambda: fp8(outputs, inputs, 1, inputs),
        "blocks": lambda: fp8(outputs, inputs, 128, 128),
        "small_blocks": lambda: fp8(outputs, inputs, 16, 32),
        "groups": lambda: int4(outputs, inputs, group),
        "groups_of_32": lambda: int4(outputs, inputs, 32),
        "whole_rows": lambda: int4(outputs, inputs, inputs),
        "ordered": lambda: int4(outputs, inputs, 32, ordered=True),
    }
    return made[kind]()


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_product_with_a_compressed_matrix(kind: str, shape: tuple[int, int], dtype: str) -> None:
    torch.manual_seed(1)
    outputs, inputs = shape
    weight = make(kind, outputs, inputs)
    for rows in (1, 2, 20, 64, 70, 300, 516) if HAS_GPU else (1, 20):
        x = draw(rows, inputs).to(getattr(torch, dtype))
        bias = draw(outputs).to(x.dtype) if rows in (1, 70) else None
        expected = operations.linear(x.float(), weight, None if bias is None else bias.float())
        found = kernels.linear(x, weight, bias)
        assert found.dtype == x.dtype
        is_rounded = isinstance(weight, compressed.Fp8Matrix) and rows > WIDENED_FP8_ROWS
        tolerance = ROUNDED_ROWS if is_rounded and dtype == "bfloat16" else TOLERANCES[dtype]
        assert error(found, expected) < tolerance, rows


@pytest.mark.parametrize(
    ("shape", "block"),
    [((20, 2880), None), ((10, 4160), None), ((136, 2880), (128, 128)), ((136, 4160), (8, 32))],
)
@pytest.mark.parametrize("dtype", TYPES)
def test_one_row_times_fp8(shape: tuple[int, int], block: tuple[int, int] | None, dtype: str) -> None:
    """In one turn and in several, with parts of tiles and of programs."""
    torch.manual_seed(4)
    weight = fp8(*shape, *(block or (1, shape[1])))
    x = draw(1, shape[1]).to(getattr(torch, dtype))
    bias = draw(shape[0]).to(x.dtype)
    expected = operations.linear(x.float(), weight, bias.float())
    assert error(kernels.linear(x, weight, bias), expected) < TOLERANCES[dtype]


def test_experts_stored_in_two_ways_have_tiles_that_suit_both() -> None:
    x, plain = draw(5, 64), draw(8, 64, 64)
    packed = compressed.stacked([int4(64, 64, 32) for _ in range(8)])
    for pair in ((plain, packed), (packed, plain)):
        assert expert_tile_rows(x, pair, 8192, 8) == 128
        assert expert_tile_rows(x, pair, 16, 8) == 16


@pytest.mark.skipif(not HAS_GPU, reason="there is no NVIDIA GPU")
@pytest.mark.parametrize("splits", [1, 2, 8])
def test_a_share_of_the_inputs_each(splits: int) -> None:
    for kind in ("rows", "blocks", "groups"):
        weight, x = make(kind, 4096, 1152), draw(33, 1152).bfloat16()
        bias = draw(4096).bfloat16()
        expected = operations.linear(x.float(), weight, bias.float())
        found = product(x, weight, bias, cut=Plan(64, 64, splits, 4, 3))
        assert error(found, expected) < TOLERANCES["bfloat16"]


@pytest.mark.parametrize(
    ("stored", "error"), [(torch.float16, 0.0), (torch.bfloat16, 0.0), (torch.float32, 2.0**-16)]
)
def test_a_scale_and_its_zero_are_one_word(stored: Tensor, error: float) -> None:
    """The smallest and the largest scales of sixteen bits, too."""
    numbers = [1.0, 0.1, -0.37, 2.0**-24, 65504.0, 1 / 3, 1 + 127 * 2.0**-23]
    scales = torch.tensor(numbers, dtype=stored, device=DEVICE)[:, None].expand(-1, 17)
    zeros = torch.arange(17, device=DEVICE).to(torch.uint8).expand(len(numbers), -1)
    words = compressed.with_zeros(scales, zeros)
    assert torch.equal(words & 255, zeros.int())
    found = (words & ~255).view(torch.float32)
    assert ((found - scales.float()).abs() <= error * scales.float().abs()).all()


@pytest.mark.skipif(not HAS_GPU, reason="there is no NVIDIA GPU")
def test_bytes_are_widened_exactly() -> None:
    """All codes of FP8 that are numbers, and all integers with all zeros."""
    codes = torch.arange(256, dtype=torch.uint8, device=DEVICE)
    codes[[127, 255]] = 0
    weight = codes.view(torch.float8_e4m3fn).repeat(64, 1).contiguous()
    matrix = compressed.Fp8Matrix(weight, torch.ones(64, 1, device=DEVICE), 1, 256)
    eye = torch.eye(256, device=DEVICE).bfloat16()
    found = torch.cat([product(part.contiguous(), matrix) for part in eye.split(64)])
    assert torch.equal(found.t().float(), weight.float())
    zeros = (torch.arange(64, device=DEVICE) % 17).to(torch.uint8)
    quants = torch.arange(128, device=DEVICE).to(torch.uint8).remainder(16).repeat(64, 1)
    words = compressed.with_zeros(torch.ones(1, 64, device=DEVICE), zeros[None])
    integers = compressed.Int4Matrix(compressed.tiled(quants, 128), words, 128)
    found = torch.cat([product(part.contiguous(), integers) for part in eye[:128, :128].split(64)])
    assert torch.equal(found.t().float(), quants.float() - zeros.float()[:, None])

    nibbles = torch.arange(256, device=DEVICE).to(torch.uint8).remainder(16).repeat(64, 1)
    tiles = compressed.tiled_by_pairs(nibbles, 32)[None]
    exponents = (torch.arange(8 * 64, device=DEVICE) % 120).to(torch.uint8).view(1, 64, 8) + 70
    floats = compressed.Fp4Matrix(tiles, compressed.by_fours(exponents), 32)
    rows = torch.arange(64, dtype=torch.int32, device=DEVICE)
    none = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    for part in eye.split(64):
        found = product(part.contiguous(), floats, tiles=Tiles(rows, none, none, none + 64, 64, 1))
        expected = part.float() @ floats[0].expanded(torch.float32).t()
        assert torch.equal(found.float(), expected)


def fp4(experts: int, outputs: int, inputs: int) -> Tensor:
    """As gpt-oss has its experts."""
    stored = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, device=DEVICE)
    exponents = torch.randint(120, 126, stored.shape[:3], dtype=torch.uint8, device=DEVICE)
    how = Compressed("mxfp4", (experts, inputs, outputs), {}, (1, 32))
    return compressed.load(how, lambda role: {"weight": stored, "scale": exponents}[role])


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_mixture_with_biases_and_a_bounded_gate(is_plain: bool) -> None:
    torch.manual_seed(2)
    sizes = [(8, 3, 64, 32)] + ([(32, 4, 2880, 2880)] if HAS_GPU else [])
    for experts, chosen, hidden, inner in sizes:
        for dtype in ("float32", "bfloat16") if HAS_GPU else ("float32",):
            kind = getattr(torch, dtype)
            gate_up, down = (
                draw(experts, *shape).mul(0.05).to(kind) if is_plain else fp4(experts, *shape)
                for shape in ((2 * inner, hidden), (hidden, inner))
            )
            wide, wide_down = (one.float() if is_plain else one for one in (gate_up, down))
            biases = (4 * draw(experts, 2 * inner), draw(experts, hidden))
            for rows in (1, 5, 64, 700) if HAS_GPU else (1, 40):
                x = (draw(rows, hidden) * hidden**-0.5).to(kind)
                scores = draw(rows, experts).to(kind)
                expected = operations.experts(
                    x.float(), scores, wide, wide_down, chosen, "clamped_swiglu", True, None, *biases
                )
                own = (one.to(kind) for one in biases)
                found = kernels.experts(x, scores, gate_up, down, chosen, "clamped_swiglu", True, None, *own)
                assert error(found, expected) < (1e-2 if dtype == "bfloat16" else 1e-5), (rows, dtype)


@pytest.mark.parametrize("kind", ["plain", "blocks", "rows", "groups_of_32", "groups"])
@pytest.mark.parametrize("normalized", [True, False])
def test_a_mixture_of_experts(kind: str, normalized: bool) -> None:
    torch.manual_seed(2)
    sizes = [(8, 3, 64, 32)] + ([(128, 8, 1024, 384)] if HAS_GPU else [])
    for experts, chosen, hidden, inner in sizes:
        if kind == "groups" and hidden < 128:
            continue
        for dtype in ("float32", "bfloat16") if HAS_GPU else ("float32",):
            gate_up, down = (
                draw(experts, *shape).mul(0.05).to(getattr(torch, dtype))
                if kind == "plain"
                else compressed.stacked([make(kind, *shape) for _ in range(experts)])
                for shape in ((2 * inner, hidden), (hidden, inner))
            )
            wide, wide_down = (one.float() if kind == "plain" else one for one in (gate_up, down))
            for rows in (1, 5, 64, 700, 1400) if HAS_GPU else (1, 5, 40):
                x = draw(rows, hidden).to(getattr(torch, dtype))
                scores = draw(rows, experts).to(x.dtype)
                expected = operations.experts(x.float(), scores, wide, wide_down, chosen, "silu", normalized)
                found = kernels.experts(x, scores, gate_up, down, chosen, "silu", normalized)
                size = expert_tile_rows(x, (gate_up, down), rows * chosen, experts)
                is_rounded = "narrow" in expert_kind(x, gate_up) and size > WIDENED_FP8_ROWS
                tolerance = ROUNDED_TWICE if is_rounded else 1e-2
                assert error(found, expected) < (tolerance if dtype == "bfloat16" else 1e-5), (rows, dtype)


@pytest.mark.parametrize(
    ("assigned", "experts", "stored", "rows"),
    [
        (8, 128, "plain", 16),
        (512, 128, "plain", 32),
        (2048, 128, "plain", 32),
        (8192, 128, "plain", 128),
        (512, 8, "plain", 128),
        (512, 128, "fp8", 16),
        (1024, 128, "narrow", 16),
        (2048, 128, "narrow", 64),
        (32768, 128, "narrow", 128),
        (65536, 128, "narrow", 256),
        (65536, 128, "narrow_blocks", 64),
        (65536, 128, "plain", 256),
        (65536, 128, "fp8", 128),
        (2048, 128, "int4", 16),
        (4, 32, "fp4", 16),
        (1024, 32, "fp4", 64),
        (32768, 32, "fp4", 128),
    ],
)
def test_tiles_have_room_for_what_an_expert_computes(
    assigned: int, experts: int, stored: str, rows: int
) -> None:
    assert expert_rows(assigned, experts, stored) == rows
    assert expert_rows(assigned, experts, stored, 128) == min(rows, 128)
    assert expert_plan(rows, stored, 64).rows == rows


def test_rows_are_sorted_by_expert() -> None:
    torch.manual_seed(3)
    for rows, experts, chosen in ((1, 8, 2), (37, 8, 2), (700, 5, 4)):
        scores = draw(rows, experts)
        if rows > 1:
            scores[:, 3] = -100.0  # nobody's
        best, shares = choose(scores, chosen, True)
        plain, plain_shares = operations.choose_experts(scores, chosen)
        assert best.tolist() == plain.tolist()
        torch.testing.assert_close(shares, plain_shares)
        tiles = sort(best, experts, 16)
        flat = best.flatten()
        assert tiles.order.tolist() == flat.argsort(stable=True).tolist()
        counts = flat.bincount(minlength=experts)
        assert tiles.ends.tolist() == counts.cumsum(0).tolist()
        expected = [
            (expert, int(counts[:expert].sum()) + start)
            for expert in range(experts)
            for start in range(0, int(counts[expert]), tiles.size)
        ]
        found = list(zip(tiles.experts.tolist(), tiles.places.tolist(), strict=True))
        assert found[: len(expected)] == expected
        assert all(expert == -1 for expert, _ in found[len(expected) :])


@pytest.mark.skipif(not HAS_GPU, reason="there is no NVIDIA GPU")
def test_a_mixture_is_part_of_a_graph() -> None:
    """Who computes what is decided at each replay."""
    gate_up, down = draw(8, 128, 64).bfloat16(), draw(8, 64, 64).bfloat16()
    x, scores = draw(16, 64).bfloat16(), draw(16, 8).bfloat16()
    kernels.experts(x, scores, gate_up, down, 2, "silu")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mixed = kernels.experts(x, scores, gate_up, down, 2, "silu")
    for _ in range(3):
        scores.copy_(draw(16, 8))
        graph.replay()
        expected = operations.experts(x.float(), scores, gate_up.float(), down.float(), 2, "silu")
        assert error(mixed, expected) < 1e-2


@pytest.mark.parametrize("rows", [(32, 48), (16, 16)])
def test_matrices_of_one_input_are_joined(rows: tuple[int, int]) -> None:
    x = draw(3, 64)
    pairs = [
        (fp8(rows[0], 64, 1, 64), fp8(rows[1], 64, 1, 64)),
        (fp8(rows[0], 64, 32, 32), fp8(rows[1], 64, 32, 32)),
        (fp8(rows[0], 64, 1, 64), fp8(rows[1], 64, 16, 16)),
        (int4(rows[0], 64, 32), int4(rows[1], 64, 32)),
        (int4(rows[0], 64, 32, True), int4(rows[1], 64, 32, True)),
        (int4(rows[0], 64, 32), draw(rows[1], 64)),
    ]
    for pair in pairs:
        joined = operations.joined(list(pair))
        assert joined.shape == (sum(rows), 64)
        expected = torch.cat([operations.linear(x, part) for part in pair], -1)
        assert error(operations.linear(x, joined), expected) < 1e-6
        assert error(kernels.linear(x, joined), expected) < TOLERANCES["float32"]
