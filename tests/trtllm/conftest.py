"""The executors over the double, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inflight.executors.tensorrt_llm import pytorch_start
from support import double
from trtllm.harness import start_engines
from trtllm.pytorch_setup import start, write_adapter


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of a module with `BOTH_LINES` run on the double of either line of releases."""
    if getattr(metafunc.module, "BOTH_LINES", False):
        metafunc.parametrize("line", double.LINES, indirect=True)


@pytest.fixture(autouse=True)
def line(request: pytest.FixtureRequest) -> Iterator[str]:
    """The version that the double passes for."""
    chosen = getattr(request, "param", double.version())
    with double.line(chosen):
        yield chosen


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Any]:
    with double.installed():
        made = start_engines(tmp_path)
        yield made
        made.shutdown()


@pytest.fixture
def pytorch_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # Set first, so that monkeypatch removes what the adapter sets.
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    # Relative, so that a case can name it.
    monkeypatch.chdir(tmp_path)
    write_adapter(Path("adapters"))
    with double.installed():
        made = start(tmp_path, lora_adapter_dir="adapters", lora_target_modules="attn_q,attn_v")
        yield made
        made.shutdown()


@pytest.fixture
def plain_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """With the sampler that 1.2 takes by itself."""
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    with double.installed():
        made = start(tmp_path, sampler_type="TorchSampler")
        yield made
        made.shutdown()


@pytest.fixture
def beams_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    with double.installed():
        made = start(tmp_path, max_beam_width=2)
        yield made
        made.shutdown()
