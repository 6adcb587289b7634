"""The llmapi model that `inflight repository create` writes, loaded by a real Triton: with configs that
models complete and without, and where the two files disagree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inflight.triton.repository.check import check
from support import real_triton
from support.fronted import LLMAPI, create
from support.http import get


def written(model_directory: Path, output: Path, *options: str) -> Path:
    return create(model_directory, output, "--backend=llmapi", f"--sources={LLMAPI}", *options)


@pytest.mark.parametrize("completes", [False, True])
@pytest.mark.parametrize("decoupled", ["true", "false"])
def test_it_loads_as_model_yaml_says(
    tmp_path: Path, model_directory: Path, decoupled: str, completes: bool
) -> None:
    repository = written(model_directory, tmp_path / "repository", f"--decoupled={decoupled}")
    assert check(repository) == []
    triton = real_triton.start(repository, tmp_path, completes=completes)
    try:
        config = json.loads(get(triton.http, "/v2/models/tensorrt_llm/config").body)
    finally:
        triton.stop()
    assert config["max_batch_size"] == 0
    assert config.get("model_transaction_policy", {}).get("decoupled", False) == (decoupled == "true")


def test_check_says_why_it_would_not_load(tmp_path: Path, model_directory: Path) -> None:
    repository = written(model_directory, tmp_path / "repository")
    file = repository / "tensorrt_llm" / "1" / "model.yaml"
    file.write_text(file.read_text().replace("decoupled: true", "decoupled: false"))
    [problem] = check(repository)
    assert problem.what == "`decoupled` is `true`, but `false` in `1/model.yaml`; it must be the same in both"
    with pytest.raises(AssertionError, match="decoupled"):
        real_triton.start(repository, tmp_path, completes=True)


def test_check_says_why_it_would_not_stream(tmp_path: Path, model_directory: Path) -> None:
    """As in the sources: `decoupled` is in `model.yaml` alone, and models may not complete their configs."""
    repository = written(model_directory, tmp_path / "repository")
    config = repository / "tensorrt_llm" / "config.pbtxt"
    config.write_text(config.read_text().replace("model_transaction_policy { decoupled: true }\n", ""))
    [problem] = check(repository)
    assert "which Triton does not read with `--disable-auto-complete-config`" in problem.what
    triton = real_triton.start(repository, tmp_path)
    try:
        held = json.loads(get(triton.http, "/v2/models/tensorrt_llm/config").body)
    finally:
        triton.stop()
    assert not held.get("model_transaction_policy", {}).get("decoupled", False)
