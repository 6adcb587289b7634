"""Which device is used, and the one sentence for each that cannot be."""

from __future__ import annotations

import importlib.machinery
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from inflight.executors.reference.errors import OptionError
from inflight.executors.reference.pytorch import device


def fake_torch(
    monkeypatch: pytest.MonkeyPatch,
    *,
    version: str = "2.11.0+cu130",
    cuda: str | None = "13.0",
    devices: int = 1,
    capability: tuple[int, int] = (9, 0),
) -> None:
    """A PyTorch that says these things of its machine."""
    torch: Any = SimpleNamespace(
        __version__=version,
        __spec__=importlib.machinery.ModuleSpec("torch", None),
        version=SimpleNamespace(cuda=cuda),
        device=lambda name, index=None: SimpleNamespace(type=name.split(":")[0], index=index),
        cuda=SimpleNamespace(
            device_count=lambda: devices,
            is_available=lambda: devices > 0,
            get_device_capability=lambda _: capability,
            get_device_name=lambda _: "NVIDIA Test",
        ),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_without_pytorch_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "installed", lambda: False)
    with pytest.raises(OptionError, match="needs PyTorch, which is not installed") as error:
        device.find_device("cuda")
    assert "inflight-llm[torch]" in str(error.value.remedy)
    assert device.find_device("auto") == "cpu"


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"version": "2.1.2"}, "PyTorch 2.1.2 is too old; install 2.6 or later"),
        ({"cuda": None}, "PyTorch 2.11.0+cu130 is built without CUDA; install a CUDA build"),
        ({"devices": 0}, "no usable NVIDIA GPU or its driver is missing; check `nvidia-smi`"),
        ({"capability": (7, 5)}, "NVIDIA Test has compute capability 7.5; use a GPU of 8.0"),
    ],
)
def test_a_device_that_cannot_be_used_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], words: str
) -> None:
    fake_torch(monkeypatch, **machine)
    with pytest.raises(OptionError) as error:
        device.find_device("cuda")
    told = f"{error.value.what}; {error.value.remedy}"
    assert words in told
    assert "\n" not in told


def test_a_usable_gpu_is_taken_and_other_names_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch)
    assert device.find_device("cuda") == "cuda"
    assert device.find_device("cpu") == "cpu"
    with pytest.raises(OptionError, match="device `tpu` is not available"):
        device.find_device("tpu")


def test_a_gpu_without_a_number_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch)
    assert device.open_device("cuda").index == 0


def test_wide_models_take_pytorch_on_a_cpu_where_it_can_be_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_torch(monkeypatch)
    assert [device.is_faster_on_cpu(width) for width in (256, 1023, 1024, 4096)] == [False, False, True, True]
    fake_torch(monkeypatch, version="2.1.2")
    assert not device.is_faster_on_cpu(4096)
    assert "PyTorch is not used: PyTorch 2.1.2 is too old" in caplog.text
    monkeypatch.setattr(device, "installed", lambda: False)
    assert not device.is_faster_on_cpu(4096)
