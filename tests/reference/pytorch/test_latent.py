"""The kernels of latent attention compute what the plain operations do, and a choice in groups is NumPy's.

On a GPU in the types that models have; with TRITON_INTERPRET=1 on a CPU, in float32 and small.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")

from inflight.executors.reference.model.config import load_config  # noqa: E402
from inflight.executors.reference.model.mixture import GroupedRouting  # noqa: E402
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights  # noqa: E402
from inflight.executors.reference.numpy import experts  # noqa: E402
from inflight.executors.reference.pytorch import operations  # noqa: E402
from inflight.executors.reference.pytorch.model import TorchModel  # noqa: E402
from inflight.executors.reference.pytorch.operations import AttentionShape  # noqa: E402
from inflight.executors.reference.pytorch.weights import DeviceWeights  # noqa: E402
from reference.pytorch.packing import context_of, scattered  # noqa: E402
from reference.support import FIXTURES  # noqa: E402

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
KERNELS = pytest.mark.skipif(
    not HAS_GPU and "TRITON_INTERPRET" not in os.environ,
    reason="there is no NVIDIA GPU; TRITON_INTERPRET=1 runs it",
)
TYPES = ["float32", "bfloat16"] if HAS_GPU else ["float32"]
TOLERANCES = {"float32": 3e-6, "bfloat16": 8e-3}
SIZE = 4
#: Heads, numbers of a vector, numbers that are turned: as published models, and none a power of two.
SHAPES = [(4, 16, 8), (20, 24, 12)] + ([(16, 512, 64), (128, 512, 64)] if HAS_GPU else [])
Tensor = Any


def cache(
    lengths: list[int], sizes: tuple[int, int, int], dtype: str
) -> tuple[AttentionShape, Tensor, Tensor]:
    """A shape, keys and block tables: blocks are in any order, and one row is nobody's."""
    heads, rank, turned = sizes
    blocks, tables = scattered(lengths, SIZE, DEVICE)
    keys = torch.randn((blocks, 1, SIZE, rank + turned), device=DEVICE).to(getattr(torch, dtype))
    scale = (rank + turned) ** -0.5
    shape = AttentionShape(
        heads, 1, rank + turned, SIZE, tables.shape[1] * SIZE, attention_scale=0.8 * scale, value_dim=rank
    )
    return shape, keys, tables


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


@KERNELS
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("lengths", [[1], [300], [1, 64, 65, 128, 129, 200], [5] * 40])
def test_new_tokens(lengths: list[int], sizes: tuple[int, int, int], dtype: str) -> None:
    from inflight.executors.reference.pytorch import kernels

    torch.manual_seed(3)
    shape, keys, tables = cache(lengths, sizes, dtype)
    queries = torch.randn((len(lengths), sizes[0], sum(sizes[1:])), device=DEVICE).to(keys.dtype)
    positions = torch.tensor(lengths, dtype=torch.int32, device=DEVICE) - 1
    slots = torch.arange(1, len(lengths) + 1, dtype=torch.int32, device=DEVICE)
    wide = keys.float()
    expected = operations.generation_attention(
        queries.float(), wide, wide[..., : sizes[1]], tables, slots, positions, None, shape, None
    )
    plan = kernels.plan_generation(positions, shape)
    found = kernels.generation_attention(
        queries, keys, keys[..., : sizes[1]], tables, slots, positions, None, shape, plan
    )
    assert found.dtype == queries.dtype
    assert found.shape == expected.shape
    assert error(found, expected) < TOLERANCES[dtype]


@KERNELS
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("chunks", [[(0, 5)], [(0, 150), (7, 1), (63, 70)], [(90, 65), (64, 64)]])
def test_prompts_from_any_position_on(
    chunks: list[tuple[int, int]], sizes: tuple[int, int, int], dtype: str
) -> None:
    from inflight.executors.reference.pytorch import kernels

    torch.manual_seed(4)
    shape, keys, tables = cache([first + count for first, count in chunks], sizes, dtype)
    rows = sum(count for _, count in chunks)
    queries = torch.randn((rows, sizes[0], sum(sizes[1:])), device=DEVICE).to(keys.dtype)
    context = context_of(chunks, DEVICE)
    wide = keys.float()
    expected = torch.empty((rows, *sizes[:2]), device=DEVICE)
    values = wide[..., : sizes[1]]
    operations.context_attention(queries.float(), wide, values, tables, context, None, shape, None, expected)
    plan = kernels.plan_context(context, shape, queries.element_size())
    found = torch.full_like(expected, float("nan"), dtype=queries.dtype)
    kernels.context_attention(queries, keys, keys[..., : sizes[1]], tables, context, None, shape, plan, found)
    assert error(found, expected) < TOLERANCES[dtype]


@KERNELS
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", SHAPES)
# Triton's interpreter rounds to FP8 in its own way.
@pytest.mark.parametrize("narrow", [False, True] if HAS_GPU else [False])
def test_keys_and_turned_queries(narrow: bool, sizes: tuple[int, int, int], dtype: str) -> None:
    from inflight.executors.reference.pytorch import kernels

    torch.manual_seed(5)
    heads, rank, turned = sizes
    kind, rows, ahead = getattr(torch, dtype), 9, 6
    made = torch.randn((rows, heads * (ahead + turned) + rank + turned), device=DEVICE).to(kind)
    # As of a layer whose queries are part of its first product.
    queries = made[:, : heads * (ahead + turned)].view(rows, heads, ahead + turned)
    vectors = made[:, heads * (ahead + turned) :]
    vectors[:, -1] *= 2000
    norm = torch.randn(rank, device=DEVICE).to(kind)
    tables = (torch.randn((50, turned // 2), device=DEVICE), torch.randn((50, turned // 2), device=DEVICE))
    positions = torch.arange(rows, dtype=torch.int32, device=DEVICE) * 5
    slots = torch.randperm(3 * SIZE, device=DEVICE)[:rows].int()
    kept = torch.float8_e4m3fn if narrow else kind
    found = [torch.full((rows, heads, rank + turned), 7.0, device=DEVICE, dtype=kind) for _ in range(2)]
    caches = [torch.zeros((3, 1, SIZE, rank + turned), device=DEVICE).to(kept) for _ in range(2)]
    for ops, out, keys in zip((operations, kernels), found, caches, strict=True):
        ops.turn_latent(queries, vectors, norm, 1e-6, positions, tables, slots, keys, out)
    # Neighbors in FP8 are up to an eighth apart.
    tolerance = 0.13 if narrow else TOLERANCES[dtype]
    torch.testing.assert_close(found[1], found[0], rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    torch.testing.assert_close(caches[1].float(), caches[0].float(), rtol=tolerance, atol=tolerance)
    assert (found[1][..., :rank] == 7).all()
    assert int((caches[1].float() != 0).any(-1).sum()) == rows


@pytest.mark.parametrize("by_kernel", [False, pytest.param(True, marks=KERNELS)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    "routing",
    [
        GroupedRouting(),
        GroupedRouting(groups=4, chosen_groups=2, factor=1.5),
        GroupedRouting(groups=4, chosen_groups=2, counted=2, by_sigmoid=True, normalized=True, factor=2.5),
        GroupedRouting(groups=3, chosen_groups=2, counted=2, by_sigmoid=True, normalized=True, factor=2.5),
    ],
)
def test_a_choice_in_groups(routing: GroupedRouting, has_bias: bool, by_kernel: bool) -> None:
    ops: Any = operations
    if by_kernel:
        from inflight.executors.reference.pytorch import kernels as ops

    draw = np.random.default_rng(7)
    count = 15 if routing.groups == 3 else 16
    size = count // routing.groups
    scores = draw.normal(size=(50, count)).astype(np.float32)
    bias = draw.normal(size=count).astype(np.float32) if has_bias else None
    best, shares = experts.choose_in_groups(scores.copy(), bias, 3, routing)
    found, own = ops.choose_in_groups(
        torch.from_numpy(scores).to(DEVICE),
        None if bias is None else torch.from_numpy(bias).to(DEVICE),
        3,
        routing,
    )
    assert found.tolist() == best.tolist()
    np.testing.assert_allclose(own.cpu().numpy(), shares, rtol=1e-5)
    if routing.groups > 1:
        assert all(len({one // size for one in row}) <= 2 for row in best.tolist())
    if routing.normalized:
        np.testing.assert_allclose(shares.sum(axis=1), 2.5, rtol=1e-5)


def test_what_decides_between_experts_is_not_rounded(tmp_path: Path) -> None:
    """Published checkpoints have the router's bias in float32 next to matrices in fewer bits."""
    from safetensors.torch import load_file, save_file

    source = FIXTURES / "deepseek_v3"
    shutil.copy(source / "config.json", tmp_path)
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    tensors[name] = torch.linspace(8.0, 8.001, 8)
    save_file(tensors, tmp_path / "model.safetensors")
    config = load_config(tmp_path)
    checkpoint = CheckpointWeights.of(config, find_weights(tmp_path))
    weights = DeviceWeights(checkpoint, torch.device(DEVICE), torch.bfloat16)
    model = TorchModel(config, weights, 32, SIZE)
    weights.close()
    layer = model._layers[1]
    assert layer.choice_bias is not None
    assert layer.choice_bias.cpu().tolist() == tensors[name].tolist()
    assert layer.router is not None
    assert layer.router.dtype == torch.float32
    assert layer.gate_up.dtype == torch.bfloat16
