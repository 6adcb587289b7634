"""A model that hears, over PyTorch: on the CPU, and on a GPU where there is one, with its kernels and graphs.

`tests/reference/test_hearing.py` has what every runner must do.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from inflight.executors.reference.core.transcript import Marks, TranscriptRules
from inflight.executors.reference.model.config import load_config
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights
from reference import heard
from reference.heard import CASES, CLIPS, NAME, asked, record
from reference.support import FIXTURES, run, torch_engine

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
)
DEVICES = ["cpu", CUDA]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("number", "mels", "name"), [(0, 80, "spectrum_0"), (2, 80, "spectrum_2"), (1, 128, "wide_1")]
)
def test_spectra_are_those_of_transformers(device: str, number: int, mels: int, name: str) -> None:
    from inflight.executors.reference.pytorch.hearing import spectrogram

    samples = torch.from_numpy(heard.clip(number).copy()).to(device)
    found = spectrogram(samples, mels, heard.hearing().frames)
    np.testing.assert_allclose(found.cpu().numpy(), record()[name], atol=2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("number", range(CLIPS))
def test_clips_are_encoded_as_by_transformers(device: str, dtype: str, error: float, number: int) -> None:
    subject = encoder(device, dtype)
    spectrum = torch.from_numpy(record()[f"spectrum_{number}"]).to(device)
    with torch.inference_mode():
        found = subject.encode(spectrum).float().cpu().numpy()
    expected = record()[f"encoded_{number}"]
    assert np.linalg.norm(found - expected) < error * np.linalg.norm(expected)


def encoder(device: str, dtype: str = "float32") -> Any:
    from inflight.executors.reference.pytorch import operations
    from inflight.executors.reference.pytorch.encoder import TorchEncoder
    from inflight.executors.reference.pytorch.weights import DeviceWeights

    checkpoint = CheckpointWeights.of(load_config(FIXTURES / NAME), find_weights(FIXTURES / NAME))
    with closing(DeviceWeights(checkpoint, torch.device(device), getattr(torch, dtype))) as weights:
        return TorchEncoder(heard.hearing(), weights, operations, 4)


@pytest.mark.parametrize("device", DEVICES)
def test_a_clip_stays_while_a_slot_hears_it(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clips in a batch of two: each is encoded once while it is heard, and in the place of one that is
    not."""
    subject = torch_engine(NAME, device, max_batch_size=2)
    own: Any = subject._runner
    encoder, encoded = own._hearing._encoder, []
    hear = encoder.hear

    def counted(place: int, spectrum: Any) -> None:
        encoded.append(place)
        hear(place, spectrum)

    monkeypatch.setattr(encoder, "hear", counted)
    cases = [heard.case(name) for name in CASES]
    for _ in range(2):
        told = run(subject, [asked(at, one.prompt, one.clip) for at, one in enumerate(cases)])
        assert [told[at, 0].tokens for at in range(len(cases))] == [one.tokens for one in cases]
    assert set(encoded) == {0, 1}
    assert CLIPS <= len(encoded) < 2 * len(cases)
    assert subject.pool.used == 0


@pytest.mark.parametrize("device", DEVICES)
def test_times_come_on_the_device_where_they_come_on_the_host(device: str) -> None:
    """Rows of a batch, of which some may get no time, with logits around the limit."""
    from inflight.executors.reference.pytorch import sampling

    marks = Marks(first_time=20, last_first_time=25, no_times=19, end=2)
    draw = np.random.default_rng(1)
    logits = draw.normal(0, 1, (40, 30)).astype(np.float32)
    logits[:, :20] += 1
    guided = []
    for row in range(0, 40, 2):
        rules = TranscriptRules(marks, [0], 30)
        rules.resume([[21, 3], [21, 3, 22, 22], [21]][row % 3])
        guided.append((row, rules))
    expected = logits.copy()
    for row, rules in guided:
        rules.weigh(expected[row])
    found = torch.from_numpy(logits.copy()).to(device)
    sampling._weigh(found, guided, lambda array: torch.from_numpy(array.copy()).to(device))
    np.testing.assert_array_equal(found.cpu().numpy(), expected)
    changed = (expected != logits).any(axis=1)
    assert 0 < changed.sum() < sum(rules.outweighs is not None for _, rules in guided)


@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
# Spare rows hold whatever the memory held.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value|All-NaN slice) encountered:RuntimeWarning")
@pytest.mark.skipif(
    "TRITON_INTERPRET" not in os.environ, reason="run with TRITON_INTERPRET=1 for the kernels"
)
@pytest.mark.parametrize("tokens", [256, 3])
def test_the_kernels_compute_what_the_operations_do(tokens: int) -> None:
    from inflight.executors.reference.pytorch import kernels

    case = heard.case("times")
    subject = torch_engine(NAME, kernels=kernels, max_num_tokens=tokens, max_batch_size=2)
    told = run(subject, [asked(1, case.prompt, case.clip), asked(2, heard.case("plain").prompt, 1)])
    assert told[1, 0].tokens == case.tokens
