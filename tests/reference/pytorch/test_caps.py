"""Caps by tanh, norms of what is added and gates: each kernel computes what its plain operation does.

On a GPU in the types that models have; with TRITON_INTERPRET=1 on a CPU, in float32.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
pytest.importorskip("triton", reason="Triton is not installed; it comes with PyTorch for CUDA")

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU and "TRITON_INTERPRET" not in os.environ:
    pytest.skip("there is no NVIDIA GPU; TRITON_INTERPRET=1 runs it", allow_module_level=True)

from inflight.executors.reference.pytorch import hopper, kernels, operations  # noqa: E402
from inflight.executors.reference.pytorch.operations import AttentionShape  # noqa: E402

DEVICE = "cuda" if HAS_GPU else "cpu"
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2} if HAS_GPU else {"float32": 1e-5}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("rows", "width"), [(0, 64), (1, 64), (3, 5000)])
@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_logits_are_capped_in_their_place(softcap: float, rows: int, width: int, dtype: str) -> None:
    torch.manual_seed(1)
    # A part of wider rows, as several ranks give it; some numbers are far beyond the cap.
    whole = (40 * torch.randn((rows, width + 3), device=DEVICE)).to(getattr(torch, dtype))
    whole[:1, :2] = torch.tensor([1e30, -1e30])
    before, logits = whole.clone(), whole[:, :width]
    expected = softcap * (logits.double() / softcap).tanh()
    assert kernels.capped(logits, softcap) is logits
    torch.testing.assert_close(logits.double(), expected, atol=softcap * TOLERANCES[dtype], rtol=0)
    assert torch.equal(whole[:, width:], before[:, width:])
    plain = operations.capped(before[:, :width], softcap)
    torch.testing.assert_close(plain.double(), expected, atol=softcap * TOLERANCES[dtype], rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("adapted", [False, True])
def test_what_is_added_is_normed_first(adapted: bool, dtype: str) -> None:
    torch.manual_seed(2)
    made = torch.randn((3, 5, 48), device=DEVICE).to(getattr(torch, dtype))
    weight, delta_norm = torch.randn((2, 48), device=DEVICE)
    (x, delta, more), (own_x, own_delta, own_more) = made.clone(), made.clone()
    given = (x, delta, weight, 1e-6, more if adapted else None, delta_norm)
    found = kernels.add_rms_norm(*given)
    expected = operations.add_rms_norm(
        own_x, own_delta, weight, 1e-6, own_more if adapted else None, delta_norm
    )
    for one, other in ((found, expected), (x, own_x)):
        torch.testing.assert_close(one.float(), other.float(), atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize("adapted", [False, True])
def test_gates_are_those_of_the_operations(adapted: bool, activation: Any, dtype: str) -> None:
    torch.manual_seed(3)
    x, more = torch.randn((2, 5, 2 * 1100), device=DEVICE).to(getattr(torch, dtype))
    given = (activation, True, more if adapted else None)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(
        kernels.activate(x, *given), operations.activate(x, *given), atol=tolerance, rtol=tolerance
    )


def test_hoppers_kernels_are_left_to_models_without_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "_is_available", lambda _: True)
    device = torch.device("cuda")
    assert hopper.is_usable(device, AttentionShape(8, 2, 128, 32, 1024), 2, False)
    assert hopper.is_usable(device, AttentionShape(8, 2, 128, 32, 1024, attention_scale=0.1), 2, False)
    assert not hopper.is_usable(device, AttentionShape(8, 2, 128, 32, 1024, softcap=50.0), 2, False)
