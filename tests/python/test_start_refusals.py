"""What a worker cannot serve, told by real processes at once: one sentence, one remedy, exit code 2.

TensorRT-LLM is the build's double, whose metadata and `nvidia-smi` say whatever a case needs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.checkpoints import checkpoint_of
from engine.shell import Shell
from support.double.package import write_double

#: Of processor time, which other work on the machine does not lengthen: a quiet one's wall time is no more.
AT_ONCE_S = 1.0
#: Machines: the double's folder, its options; `None` has no TensorRT-LLM.
MACHINES = {
    "same": {},
    "older": {"version": "1.2.0"},
    "another GPU": {"capability": "8.0"},
}


@dataclass(frozen=True)
class Place:
    """An engine that was built here, the checkpoint that it came from, and machines to serve them on."""

    folder: Path
    environments: dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("place")
    environments = {
        name: write_double(folder / name, **options)  # type: ignore[arg-type]
        for name, options in MACHINES.items()
    }
    environments["none"] = {}
    checkpoint_of("gpt2-medium", folder / "checkpoint")
    told = Shell(folder, environments["same"])("build", "checkpoint", "--output", "engine")
    assert told.code == 0, told
    return Place(folder, environments)


def truncate(directory: Path) -> None:
    engine = directory / "rank0.engine"
    engine.write_bytes(engine.read_bytes()[:3])


def without_tokenizer(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()


def of_something_else(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / "notes.txt").write_text("nothing to serve")


def as_it_is(directory: Path) -> None:
    pass


@pytest.mark.parametrize("command", ["worker", "serve"])
@pytest.mark.parametrize(
    ("machine", "model", "spoil", "sentence", "remedy"),
    [
        ("none", "engine", as_it_is, "needs TensorRT-LLM, which is not installed", "NVIDIA's package index"),
        (
            "older",
            "engine",
            as_it_is,
            "was built with TensorRT-LLM `1.2.1`, but `1.2.0` is installed",
            "install `1.2.1`",
        ),
        (
            "another GPU",
            "engine",
            as_it_is,
            "was built for GPU architecture `sm90`, but this machine has `sm80`",
            "serve it on a `sm90` GPU",
        ),
        ("same", "engine", truncate, "rank0.engine` is truncated: it has `3` of `6` bytes", "copy it again"),
        ("same", "engine", without_tokenizer, "tokenizer.json` is missing", "restore it"),
        (
            "same",
            "checkpoint",
            without_tokenizer,
            "has no `tokenizer.json`",
            "copy the checkpoint's `tokenizer.json` there",
        ),
        (
            "same",
            "checkpoint",
            of_something_else,
            "is neither a Hugging Face checkpoint nor written by `inflight build`: it has no `tok",
            "`inflight build`",
        ),
    ],
)
def test_what_cannot_be_served_is_told_at_once(
    command: str,
    machine: str,
    model: str,
    spoil: Callable[[Path], None],
    sentence: str,
    remedy: str,
    place: Place,
    tmp_path: Path,
) -> None:
    shutil.copytree(place.folder / model, tmp_path / "model")
    spoil(tmp_path / "model")
    shell = Shell(tmp_path, place.environments[machine])
    ports = ["--grpc-port=0", "--metrics-port=0", *(["--port=0"] if command == "serve" else [])]
    before = os.times()
    told = shell(command, "model", "--executor=tensorrt_llm", *ports)
    after = os.times()
    assert told.code == 2, told
    error, hint = told.errors.splitlines()
    assert error.startswith("error: "), told
    assert sentence in error
    assert hint.startswith("hint: "), told
    assert remedy in hint
    assert told.output == ""
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < AT_ONCE_S
