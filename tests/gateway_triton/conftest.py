"""Fixtures for the gateway in front of a real Triton: one with all dialects, one that answers once each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support import real_triton
from support.fronted import Hosted, add_llmapi, create, front, hosted
from support.servers import Server, Start


@pytest.fixture(scope="package", autouse=True)
def _triton_runs_here() -> None:
    why_not = real_triton.why_not()
    if why_not is not None:
        pytest.skip(why_not)


@pytest.fixture(scope="package")
def triton(tmp_path_factory: pytest.TempPathFactory, model_directory: Path) -> Iterator[Hosted]:
    """The created repository, llmapi beside it, and `broken`, which cannot be loaded."""
    scratch = tmp_path_factory.mktemp("triton")
    repository = create(model_directory, scratch / "repository")
    add_llmapi(repository, scratch / "one", llmapi=model_directory, broken=scratch / "nothing")
    yield from hosted(repository, scratch, ["llmapi"])


@pytest.fixture(scope="package")
def gateway(start_for_session: Start, triton: Hosted, model_directory: Path) -> Server:
    """With the model's tokenizer."""
    return front(start_for_session, triton, f"--tokenizer={model_directory}")


@pytest.fixture(scope="package")
def single(
    tmp_path_factory: pytest.TempPathFactory, start_for_session: Start, model_directory: Path
) -> Iterator[Server]:
    """A gateway before models that answer once each."""
    scratch = tmp_path_factory.mktemp("single")
    repository = create(model_directory, scratch / "repository", "--decoupled", "false")
    for triton in hosted(repository, scratch, []):
        yield front(start_for_session, triton, f"--tokenizer={model_directory}")
