"""The executors over the doubles, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inflight.executors.base import Request
from inflight.executors.tensorrt_llm import pytorch
from trtllm import doubles
from trtllm.harness import collect, start_engines
from trtllm.pytorch_setup import start, write_adapter


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Any]:
    with doubles.installed():
        made = start_engines(tmp_path)
        yield made
        made.shutdown()


@pytest.fixture(params=["tap", "public"])
def pytorch_executor(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    # Set first, so that monkeypatch removes what the adapter sets.
    monkeypatch.setenv(pytorch.N_GREEDY, "1")
    monkeypatch.setenv(pytorch.SINGLE_PROCESS, "1" if request.param == "tap" else "0")
    # Relative, so that a case can name it.
    monkeypatch.chdir(tmp_path)
    write_adapter(Path("adapters"))
    with doubles.installed():
        made = start(
            tmp_path,
            batch_tap="auto" if request.param == "tap" else "off",
            lora_adapter_dir="adapters",
            lora_target_modules="attn_q,attn_v",
        )
        # As the worker's own first request.
        made.enqueue([Request(client_id=1000, input_token_ids=[8], max_tokens=1)])
        collect(made, 1000)
        assert made._tap_is_live == (request.param == "tap")
        yield made
        made.shutdown()
