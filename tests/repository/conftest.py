"""One real Triton for the tests of this directory, with the created models and variants of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from inflight.cli.app import inflight
from inflight.triton.repository.tables import MODELS
from support import real_triton

#: Variant -> the model it is made of, and the options of its repository.
VARIANTS = {
    # One sequence at a time, and few that wait.
    "narrow": ("tensorrt_llm", ["--set", "max_batch_size=1", "--set", "max_queue_size=4"]),
    # Answers return, and are not sent.
    "single": ("tensorrt_llm", ["--decoupled", "false"]),
    "single_bls": ("tensorrt_llm_bls", ["--decoupled", "false", "--set", "tensorrt_llm_model_name=single"]),
    "single_ensemble": ("ensemble", ["--decoupled", "false"]),
    "accumulating": ("tensorrt_llm_bls", ["--set", "accumulate_tokens=true"]),
    # See `full_executor`.
    "full": ("tensorrt_llm", ["--executor", "scripted", "--logits-datatype", "TYPE_FP16"]),
    "ignored": ("tensorrt_llm", []),
    "drafting": ("tensorrt_llm_bls", []),
}
#: Never ready: tests try to load them.
UNREADY = {"ignored", "drafting"}
LOADED = [*MODELS, *(VARIANTS.keys() - UNREADY)]


@pytest.fixture(scope="package")
def triton(tmp_path_factory: pytest.TempPathFactory, model_directory: Path) -> Iterator[real_triton.Triton]:
    """tritonserver, ready with the five models and the variants."""
    why_not = real_triton.why_not()
    if why_not is not None:
        pytest.skip(why_not)
    scratch = tmp_path_factory.mktemp("triton")
    repository = scratch / "repository"
    create(model_directory, repository)
    for name, (model, options) in VARIANTS.items():
        other = scratch / name
        create(model_directory, other, *options)
        config = other / model / "config.pbtxt"
        text = re.sub(r"^name: .*", f'name: "{name}"', config.read_text())
        config.write_text(text.replace('model_name: "tensorrt_llm"', 'model_name: "single"'))
        shutil.move(other / model, repository / name)
    shutil.copy(Path(__file__).with_name("full_executor.py"), repository / "full" / "1" / "model.py")
    # What `create` refuses to write.
    for model, key, value in (
        ("ignored", "recv_poll_period_ms", "4"),
        ("ignored", "normalize_log_probs", "false"),
        ("ignored", "unknown", "1"),
        ("drafting", "tensorrt_llm_draft_model_name", "narrow"),
    ):
        with (repository / model / "config.pbtxt").open("a") as file:
            file.write(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n')
    server = real_triton.start(repository, scratch, LOADED)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def triton_lives(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Another Triton in the place of one that has crashed.

    Where a client leaves a stream whose answer is being sent, tritonserver itself sometimes ends with a
    segmentation fault, after the test that left. The tests after it are not about that.
    """
    if "triton" not in request.fixturenames:
        return
    server: real_triton.Triton = request.getfixturevalue("triton")
    if not server.has_crashed():
        return
    if server.process.poll() is None:
        server.kill()
    repository = server.log.parent / "repository"
    other = real_triton.start(repository, tmp_path_factory.mktemp("triton"), LOADED, server.ports)
    # Its repository stays where it is, and so does this name of it.
    shutil.copy(server.log, server.log.with_suffix(".crashed"))
    server.process = other.process
    server.log.unlink()
    server.log.symlink_to(other.log)


def create(model_directory: Path, output: Path, *options: str) -> None:
    """`inflight repository create` for the Python backend."""
    arguments = ["repository", "create", str(model_directory), "--output", str(output), *options]
    made = CliRunner().invoke(inflight, arguments)
    assert made.exit_code == 0, made.output
