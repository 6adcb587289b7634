"""A model that sees, over PyTorch: on the CPU, and on a GPU where there is one, with its kernels and graphs.

`tests/reference/test_images.py` has what every runner must do; it runs on PyTorch with INFLIGHT_TEST_DEVICE.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from inflight.executors.reference.core.images import Picture
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights
from reference import seen
from reference.seen import CASES, IMAGES, NAME, asked, record, see
from reference.support import FIXTURES, request, torch_engine

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
)
DEVICES = ["cpu", CUDA]


def sight(device: str, dtype: str = "float32") -> Any:
    from inflight.executors.reference.pytorch.vision import TorchSight, TorchTower
    from inflight.executors.reference.pytorch.weights import DeviceWeights

    checkpoint = CheckpointWeights.of(load_config(FIXTURES / NAME), find_weights(FIXTURES / NAME))
    with closing(DeviceWeights(checkpoint, torch.device(device), getattr(torch, dtype))) as weights:
        return TorchSight(TorchTower(seen.vision(), weights), seen.processor(), 1 << 20)


def picture(number: int) -> Picture:
    [one] = seen.read(number)
    return one


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("number", range(IMAGES))
def test_embeddings_are_those_of_transformers(device: str, dtype: str, error: float, number: int) -> None:
    subject, one = sight(device, dtype), picture(number)
    with torch.inference_mode():
        patches = subject._patches(one.pixels).cpu().numpy()
        found = subject._compute(one).float().cpu().numpy()
    np.testing.assert_allclose(patches, record()[f"patches_{number}"], atol=1e-5, rtol=0)
    expected = record()[f"embeddings_{number}"]
    assert np.linalg.norm(found - expected) < error * np.linalg.norm(expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [256, 7])
def test_tokens_are_those_of_transformers(device: str, tokens: int) -> None:
    """Next to a request without images, whose iterations may take a graph, and in the slots of others."""
    subject = torch_engine(NAME, device, max_num_tokens=tokens, max_batch_size=4)
    for turn in range(2):
        cases = [seen.case(name) for name in (CASES if turn else reversed(CASES))]
        requests = [asked(at, one.prompt, one.numbers) for at, one in enumerate(cases)]
        told = see(subject, [*requests, request(9, [7, 8, 9], 40)])
        for at, one in enumerate(cases):
            assert told[at, 0].tokens == one.tokens
        alone = see(torch_engine(NAME, device), [request(9, [7, 8, 9], 40)])
        assert told[9, 0].tokens == alone[9, 0].tokens
    assert subject.pool.used == 0


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
# Spare rows hold whatever the memory held.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.skipif(
    "TRITON_INTERPRET" not in os.environ, reason="run with TRITON_INTERPRET=1 for the kernels"
)
@pytest.mark.parametrize("tokens", [256, 7])
def test_the_kernels_compute_what_the_operations_do(tokens: int) -> None:
    from inflight.executors.reference.pytorch import kernels

    case = seen.case("two")
    subject = torch_engine(NAME, kernels=kernels, max_num_tokens=tokens, max_batch_size=4)
    told = see(subject, [asked(1, case.prompt, case.numbers), request(2, [5, 6, 7], 4)])
    assert told[1, 0].tokens == case.tokens
