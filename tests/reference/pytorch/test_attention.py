"""The kernels of attention compute what the plain operations do, whatever the lengths of the contexts.

On a GPU in the types that models have; with TRITON_INTERPRET=1 on a CPU, in float32 and small.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
pytest.importorskip("triton", reason="Triton is not installed; it comes with PyTorch for CUDA")

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU and "TRITON_INTERPRET" not in os.environ:
    pytest.skip("there is no NVIDIA GPU; TRITON_INTERPRET=1 runs it", allow_module_level=True)

from inflight.executors.reference.pytorch import context_kernels, generation_kernels, kernels, operations  # noqa: E402
from inflight.executors.reference.pytorch.operations import CONTEXT_TILE, AttentionShape, Context  # noqa: E402
from reference.pytorch.packing import context_of, scattered  # noqa: E402

DEVICE = "cuda" if HAS_GPU else "cpu"
TYPES = ["float32", "bfloat16"] if HAS_GPU else ["float32"]
TOLERANCES = {"float32": 3e-6, "bfloat16": 6e-3}
#: Heads, key heads, numbers of a head: shared and not, and a head that is not a power of two.
SHAPES = [(4, 2, 16), (3, 3, 24), (8, 1, 32)]
#: As Gemma's.
WIDE = (2, 1, 256)
SIZE = 4
Tensor = Any


def cache(
    lengths: Sequence[int], heads: int, kv_heads: int, head_dim: int, dtype: str
) -> tuple[AttentionShape, Tensor, Tensor, Tensor]:
    """A shape, keys, values and block tables: blocks are in any order, and one row is nobody's."""
    blocks, tables = scattered(lengths, SIZE, DEVICE)
    shape = AttentionShape(heads, kv_heads, head_dim, SIZE, tables.shape[1] * SIZE)
    made = torch.randn((2, blocks, kv_heads, SIZE, head_dim), device=DEVICE)
    keys, values = made.to(getattr(torch, dtype))
    return shape, keys, values, tables


def sink_scores(heads: int) -> Tensor:
    """Some that hardly count, and some that count more than most keys."""
    return torch.linspace(-2, 5, heads, device=DEVICE)


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", [*SHAPES, WIDE])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize(
    "lengths", [[1, 1], [700, 3], [1, 64, 65, 128, 129, 500], [5] * 20, [900, *range(1, 12)]]
)
@pytest.mark.parametrize("has_sinks", [False, True])
def test_generation_over_contexts_of_any_lengths(
    lengths: list[int],
    softcap: float | None,
    sizes: tuple[int, int, int],
    dtype: str,
    has_sinks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # So few that long contexts are cut, as they are where there are more of them.
    for name in ("_MORE_PROGRAMS", "_MORE_PROGRAMS_OF_FEW"):
        monkeypatch.setattr(generation_kernels, name, 16)
    torch.manual_seed(3)
    shape, keys, values, tables = cache(lengths, *sizes, dtype)
    shape = replace(shape, softcap=softcap)
    queries = torch.randn((len(lengths), sizes[0], sizes[2]), device=DEVICE).to(keys.dtype)
    positions = torch.tensor(lengths, dtype=torch.int32, device=DEVICE) - 1
    slots = torch.arange(1, len(lengths) + 1, dtype=torch.int32, device=DEVICE)
    plan = kernels.plan_generation(positions, shape)
    assert plan is not None
    plain = (queries.float(), keys.float(), values.float())
    sinks = sink_scores(sizes[0]) if has_sinks else None
    expected = operations.generation_attention(*plain, tables, slots, positions, None, shape, None, sinks)
    # As the layers of an iteration do, with one plan.
    for _ in range(3):
        found = kernels.generation_attention(
            queries, keys, values, tables, slots, positions, None, shape, plan, sinks
        )
        assert found.dtype == queries.dtype
        assert error(found, expected) < TOLERANCES[dtype]
    count = int(plan.chunks[0])
    rows = plan.chunks[1:][:count].tolist()
    assert rows == sorted(rows)
    assert set(rows) == set(range(len(lengths)))
    assert count <= plan.most
    assert not plan.counters.any()


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize(("lengths", "window"), [([300], None), ([300], 40), ([9, 41, 200] * 30, 40)])
def test_scores_that_have_no_key_count_once(
    lengths: list[int], window: int | None, sizes: tuple[int, int, int]
) -> None:
    """Where a context is cut into shares, and where a window slides."""
    torch.manual_seed(5)
    shape, keys, values, tables = cache(lengths, *sizes, "float32")
    queries = torch.randn((len(lengths), sizes[0], sizes[2]), device=DEVICE)
    positions = torch.tensor(lengths, dtype=torch.int32, device=DEVICE) - 1
    slots = torch.arange(1, len(lengths) + 1, dtype=torch.int32, device=DEVICE)
    given = (queries, keys, values, tables, slots, positions, window, shape, None)
    without = operations.generation_attention(*given)
    expected = operations.generation_attention(*given, sink_scores(sizes[0]))
    assert error(kernels.generation_attention(*given, sink_scores(sizes[0])), expected) < 3e-6
    assert error(without, expected) > 0.05


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", [*SHAPES, WIDE])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize(("lengths", "window"), [([300], None), ([300, 3, 40], 40), ([200] * 70, 9)])
def test_generation_of_one_row_or_within_a_window(
    lengths: list[int], window: int | None, softcap: float | None, sizes: tuple[int, int, int], dtype: str
) -> None:
    torch.manual_seed(5)
    shape, keys, values, tables = cache(lengths, *sizes, dtype)
    shape = replace(shape, softcap=softcap, attention_scale=0.3)
    queries = torch.randn((len(lengths), sizes[0], sizes[2]), device=DEVICE).to(keys.dtype)
    positions = torch.tensor(lengths, dtype=torch.int32, device=DEVICE) - 1
    slots = torch.arange(1, len(lengths) + 1, dtype=torch.int32, device=DEVICE)
    plain = (queries.float(), keys.float(), values.float())
    expected = operations.generation_attention(*plain, tables, slots, positions, window, shape, None)
    plan = kernels.plan_generation(positions, shape)
    assert (plan is None) == (len(lengths) == 1)
    found = kernels.generation_attention(queries, keys, values, tables, slots, positions, window, shape, plan)
    assert error(found, expected) < TOLERANCES[dtype]


def test_long_contexts_are_cut_and_short_ones_are_not() -> None:
    lengths = [32000, *[20] * 63]
    positions = torch.tensor(lengths, dtype=torch.int32, device=DEVICE) - 1
    plan = kernels.plan_generation(positions, AttentionShape(32, 8, 128, 32, 32768))
    assert plan is not None
    rows = plan.chunks[1:][: int(plan.chunks[0])]
    counts = torch.bincount(rows, minlength=64).tolist()
    assert counts[1:] == [1] * 63
    assert 16 <= counts[0] <= 32


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", [*SHAPES, WIDE])
@pytest.mark.parametrize("chunks", [[(0, 5)], [(0, 150), (7, 1), (63, 70)], [(200, 65), (64, 64), (65, 3)]])
@pytest.mark.parametrize(
    "kind",
    [
        "whole",
        "cut often",
        "window",
        "sinks",
        "linear biases",
        "caps",
        "caps, cut often",
        "caps, window",
        "scored, cut often",
        "scored, window",
    ],
)
def test_prompts_from_any_position_on(
    chunks: list[tuple[int, int]],
    sizes: tuple[int, int, int],
    dtype: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of a device with as many programs as there are tiles, or with many more.
    monkeypatch.setattr(context_kernels, "_multiprocessors", lambda _: 64 if "cut often" in kind else 8)
    monkeypatch.setattr(context_kernels, "_JOINING", 0)
    torch.manual_seed(4)
    shape, keys, values, tables = cache([first + count for first, count in chunks], *sizes, dtype)
    window = 40 if kind == "sinks" or kind.endswith("window") else None
    scores = sink_scores(sizes[0]) if kind.startswith("scored") else None
    if kind == "sinks":
        shape = replace(shape, sink_tokens=3)
    if "caps" in kind:
        shape = replace(shape, softcap=1.5, attention_scale=0.3)
    if kind == "linear biases":
        shape = replace(shape, slopes=torch.linspace(0.05, 0.5, sizes[0], device=DEVICE))
    rows = sum(count for _, count in chunks)
    queries = torch.randn((rows, sizes[0], sizes[2]), device=DEVICE).to(keys.dtype)
    context = context_of(chunks, DEVICE)
    expected = torch.empty_like(queries, dtype=torch.float32)
    plain = (queries.float(), keys.float(), values.float())
    operations.context_attention(*plain, tables, context, window, shape, None, expected, scores)
    plan = kernels.plan_context(context, shape, queries.element_size())
    # As the layers of an iteration do, with one plan.
    for _ in range(3):
        found = torch.full_like(queries, float("nan"))
        kernels.context_attention(queries, keys, values, tables, context, window, shape, plan, found, scores)
        assert error(found, expected) < TOLERANCES[dtype]
    assert (plan is None) == (kind == "linear biases")
    if plan is not None:
        parts = plan.cuts[1 + 2 * len(context.rows) :][: int(plan.cuts[0])].tolist()
        assert sorted(set(parts)) == list(range(len(context.rows) - 3))
        is_cut = "cut often" in kind and max(map(sum, chunks)) > 64
        assert len(parts) > len(context.rows) - 3 or not is_cut


def test_few_tiles_are_cut_and_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_kernels, "_multiprocessors", lambda _: 132)
    shape = AttentionShape(32, 8, 128, 32, 32768)
    parts = {}
    for tiles in (1, 4, 16, 17, 33, 200):
        positions = torch.full((tiles,), 24576, dtype=torch.int32, device=DEVICE)
        counts = torch.full((tiles,), CONTEXT_TILE, dtype=torch.int32, device=DEVICE)
        packed = Context(positions, positions, positions, counts, ())
        # With a cache in FP8: otherwise some devices have other kernels, of which fewer run at a time.
        plan = kernels.plan_context(packed, shape, 2, True)
        assert plan is not None
        parts[tiles] = int(plan.cuts[0])
        assert parts[tiles] <= plan.most
    # 16 programs at a time for a group of heads.
    assert parts[1] == 16
    assert parts[4] == 16
    assert parts[16] == 16
    assert 2 * 17 <= parts[17] <= 5 * 17
    assert 2 * 33 <= parts[33] <= 5 * 33
    assert parts[200] == 200
