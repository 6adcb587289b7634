"""The kernels for NVIDIA's Hopper attend to prompts as the plain operations do.

On such a GPU alone: neither another one nor Triton's interpreter has what they use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
pytest.importorskip("triton", reason="Triton is not installed; it comes with PyTorch for CUDA")

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("there is no GPU of compute capability 9.0", allow_module_level=True)

from inflight.executors.reference.pytorch import context_kernels, hopper, kernels, operations  # noqa: E402
from inflight.executors.reference.pytorch.operations import AttentionShape  # noqa: E402
from reference.pytorch.packing import context_of  # noqa: E402

#: First position and rows of each chunk; the last two have contexts that are cut between programs.
CHUNKS = [
    [(0, 1)],
    [(0, 64), (5, 60), (127, 1)],
    [(0, 150), (128, 128), (100, 28), (1000, 3)],
    [(63, 70)] * 20,
    [(3000, 65)],
    [(5000, 1), (2047, 129), (0, 700)],
]
Tensor = Any


def packed(chunks: Sequence[tuple[int, int]], tokens_per_block: int, kv_heads: int, dtype: Any) -> Any:
    """Keys, values, block tables and the chunks; what no chunk sees of their blocks is NaN."""
    lengths = [first + count for first, count in chunks]
    blocks = [-(-length // tokens_per_block) for length in lengths]
    made = (2, sum(blocks) + 1, kv_heads, tokens_per_block, 128)
    keys, values = torch.randn(made, device="cuda").to(dtype)
    order = torch.randperm(sum(blocks), device="cuda", dtype=torch.int32)
    # Behind a sequence's blocks, one of nobody.
    tables = torch.full((len(chunks), max(blocks) + 2), sum(blocks), dtype=torch.int32, device="cuda")
    keys[-1], values[-1] = float("nan"), float("nan")
    for row, own in enumerate(order.split(blocks)):
        tables[row, : len(own)] = own
        if seen := lengths[row] % tokens_per_block:
            keys[own[-1], :, seen:], values[own[-1], :, seen:] = float("nan"), float("nan")
    return keys, values, tables, context_of(chunks, "cuda", first_slot=0)


@pytest.mark.parametrize(
    ("heads", "tokens_per_block", "dtype"),
    [
        ((2, 1), 16, "bfloat16"),
        ((32, 8), 32, "bfloat16"),
        ((8, 2), 64, "bfloat16"),
        ((12, 2), 128, "bfloat16"),
        ((8, 2), 32, "float16"),
    ],
)
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("multiprocessors", [8, 132])
def test_prompts_from_any_position_on(
    chunks: list[tuple[int, int]],
    heads: tuple[int, int],
    tokens_per_block: int,
    dtype: str,
    multiprocessors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context_kernels, "_multiprocessors", lambda _: multiprocessors)
    torch.manual_seed(5)
    keys, values, tables, context = packed(chunks, tokens_per_block, heads[1], getattr(torch, dtype))
    shape = AttentionShape(*heads, 128, tokens_per_block, 8192)
    rows = sum(count for _, count in chunks)
    queries = torch.randn((rows, heads[0], 128), device="cuda").to(keys.dtype)
    expected = torch.empty_like(queries, dtype=torch.float32)
    # Without NaN, which a mask does not keep from the sums of plain operations.
    plain = (queries.float(), keys.float().nan_to_num(), values.float().nan_to_num())
    operations.context_attention(*plain, tables, context, None, shape, None, expected)
    plan = kernels.plan_context(context, shape, 2)
    assert plan is not None
    assert plan.on_hopper
    # As the layers of an iteration do, with one plan; the sums of a tile are made in one order.
    found = [torch.full_like(queries, float("nan")) for _ in range(3)]
    for one in found:
        kernels.context_attention(queries, keys, values, tables, context, None, shape, plan, one)
        assert float((one.float() - expected).norm() / expected.norm()) < 6e-3
        assert torch.equal(one, found[0])


def test_what_they_have_not_is_left_to_the_others() -> None:
    device = torch.device("cuda")
    shape = AttentionShape(8, 2, 128, 32, 1024)
    assert hopper.is_usable(device, shape, 2, False)
    assert not hopper.is_usable(device, shape, 4, False)
    assert not hopper.is_usable(device, shape, 2, True)
    assert not hopper.is_usable(device, AttentionShape(8, 2, 64, 32, 1024), 2, False)
    assert not hopper.is_usable(device, AttentionShape(6, 2, 128, 32, 1024), 2, False)
    assert not hopper.is_usable(device, AttentionShape(8, 2, 128, 8, 1024), 2, False)
    slopes = torch.linspace(0.05, 0.5, 8, device=device)
    assert not hopper.is_usable(device, AttentionShape(8, 2, 128, 32, 1024, slopes=slopes), 2, False)
    assert not hopper.is_usable(torch.device("cpu"), shape, 2, False)


@pytest.mark.parametrize("error", [RuntimeError("no such instruction"), None])
def test_kernels_that_fail_or_are_wrong_are_not_used(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(hopper, "attend", fail)
    hopper._is_available.cache_clear()
    try:
        assert not hopper.is_usable(torch.device("cuda"), AttentionShape(8, 2, 128, 32, 1024), 2, False)
    finally:
        hopper._is_available.cache_clear()
