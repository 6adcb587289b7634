"""Builds for the reference executor, from the command to an answer."""

from __future__ import annotations

import json
import shutil
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from inflight.build.runtimes.reference import write_weights
from inflight.launch.model import DEMO_DIRECTORY
from inflight.model.shards import read_shard
from support.http import post
from support.servers import Start, wait_ready

from .checkpoints import demo_copy, write_safetensors
from .shell import Shell, Told

#: A refusal before anything heavy takes well under a second; a busy machine gets ten.
AT_ONCE_S = 10.0


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model, built once; tests that spoil it copy it."""
    folder = tmp_path_factory.mktemp("reference")
    told = Shell(folder)("build", str(DEMO_DIRECTORY), "--output", "demo", "--runtime", "reference")
    assert told.code == 0, told
    return folder / "demo"


def copy_of(built: Path, shell: Shell) -> Path:
    target = shell.folder / "spoiled"
    shutil.copytree(built, target)
    return target


def test_what_was_built_answers_like_the_checkpoint(built: Path, start: Start) -> None:
    answers = []
    ports = ("--port=0", "--grpc-port=0", "--metrics-port=0")
    for directory in (built, DEMO_DIRECTORY):
        address = wait_ready(start("serve", str(directory), "--served-model-name=it", *ports))
        answer = post(
            address,
            "/v1/chat/completions",
            {
                "model": "it",
                "messages": [{"role": "user", "content": "What is machine learning?"}],
                "max_tokens": 24,
                "temperature": 0,
            },
        )
        assert answer.status == 200, answer
        answers.append(answer.json()["choices"][0]["message"]["content"])
    assert answers[0] == answers[1]
    assert answers[0].strip()


def test_the_weights_are_float32_and_the_same_numbers(built: Path) -> None:
    from inflight.executors.reference.model.weights import CheckpointWeights, find_weights

    shard = read_shard(built / "model.safetensors")
    assert {tensor.dtype for tensor in shard.tensors} == {"F32"}
    assert shard.tensors[0].begin % 64 == 0
    shapes = [(tensor.name, tensor.shape) for tensor in shard.tensors]
    ours, theirs = (CheckpointWeights(find_weights(path), shapes) for path in (built, DEMO_DIRECTORY))
    for tensor in shard.tensors:
        assert np.array_equal(ours.tensor(tensor.name), theirs.tensor(tensor.name))
    config = json.loads((built / "config.json").read_text())
    assert "float32" in (config.get("dtype"), config.get("torch_dtype"))


def test_shards_of_every_precision_become_one_file(tmp_path: Path) -> None:
    source, result = tmp_path / "source", tmp_path / "result"
    source.mkdir()
    half = np.array([1.5, -2.0], dtype="<f2").tobytes()
    brain = (np.array([0.5, 3.0], dtype="<f4").view("<u4") >> 16).astype("<u2").tobytes()
    write_safetensors(source / "model-00001-of-00002.safetensors", {"half": ("F16", (2,), half)})
    write_safetensors(
        source / "model-00002-of-00002.safetensors",
        {"brain": ("BF16", (2, 1), brain), "mask": ("U8", (3,), b"\1\0\1")},
    )
    names = {"half": "model-00001-of-00002.safetensors", "brain": "model-00002-of-00002.safetensors"}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    write_weights(str(source), str(result))
    path = result / "model.safetensors"
    data = path.read_bytes()
    found = {
        tensor.name: (tensor.dtype, data[tensor.begin : tensor.end]) for tensor in read_shard(path).tensors
    }
    assert found == {
        "half": ("F32", struct.pack("<2f", 1.5, -2.0)),
        "brain": ("F32", struct.pack("<2f", 0.5, 3.0)),
        "mask": ("U8", b"\1\0\1"),
    }


def test_the_same_inputs_are_up_to_date_and_give_the_same_manifest(shell: Shell) -> None:
    demo_copy(shell.folder / "demo")
    for output in ("one", "two"):
        told = shell("build", "demo", "--output", output, "--json")
        assert told.json()["status"] == "built"
    manifests = [(shell.folder / output / "inflight.json").read_bytes() for output in ("one", "two")]
    assert manifests[0] == manifests[1]
    before = (shell.folder / "one/model.safetensors").stat().st_mtime_ns
    assert shell("build", "demo", "--output", "one", "--json").json()["status"] == "up to date"
    assert (shell.folder / "one/model.safetensors").stat().st_mtime_ns == before
    assert shell("build", "demo", "--output", "one", "--force", "--json").json()["status"] == "built"
    assert (shell.folder / "one/inflight.json").read_bytes() == manifests[0]


def test_another_checkpoint_needs_force(shell: Shell) -> None:
    source = demo_copy(shell.folder / "demo")
    assert shell("build", "demo", "--output", "out").code == 0
    (source / "generation_config.json").write_text("{}")
    told = shell("build", "demo", "--output", "out")
    assert told.code == 2
    assert "`--output out` contains a build of other inputs" in told.errors
    assert shell("build", "demo", "--output", "out", "--force").code == 0
    assert (shell.folder / "out/generation_config.json").read_text() == "{}"
    assert not (shell.folder / ".out.building").exists()


def test_a_truncated_result_is_not_up_to_date(built: Path, shell: Shell) -> None:
    spoiled = copy_of(built, shell)
    with (spoiled / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    told = shell("build", str(DEMO_DIRECTORY), "--output", "spoiled", "--force", "--json")
    assert told.json()["status"] == "built"


def test_somebody_elses_directory_is_never_replaced(shell: Shell) -> None:
    (shell.folder / "mine").mkdir()
    (shell.folder / "mine/thesis.txt").write_text("years of work")
    told = shell("build", str(DEMO_DIRECTORY), "--output", "mine", "--force")
    assert told.code == 2
    assert "`--output mine` exists and was not created by Inflight" in told.errors
    assert (shell.folder / "mine/thesis.txt").read_text() == "years of work"


def test_an_empty_directory_may_become_the_output(shell: Shell) -> None:
    (shell.folder / "out").mkdir()
    assert shell("build", str(DEMO_DIRECTORY), "--output", "out").code == 0
    assert (shell.folder / "out/inflight.json").is_file()


def test_a_build_killed_between_the_renames_is_mended(shell: Shell) -> None:
    assert shell("build", str(DEMO_DIRECTORY), "--output", "out").code == 0
    staging = shell.folder / ".out.building"
    staging.mkdir()
    (shell.folder / "out").rename(staging / "replaced")
    told = shell("build", str(DEMO_DIRECTORY), "--output", "out", "--json")
    assert told.json()["status"] == "built"
    assert not staging.exists()


def test_an_output_that_cannot_be_written_is_told(shell: Shell) -> None:
    (shell.folder / "file").write_text("")
    for output, said in (("file", "is a file"), ("file/out", "cannot be written")):
        told = shell("build", str(DEMO_DIRECTORY), "--output", output)
        assert told.code == 2
        assert said in told.errors


def test_an_output_inside_the_checkpoint_is_refused(shell: Shell) -> None:
    demo_copy(shell.folder / "demo")
    for output, said in (
        ("demo", "is the checkpoint `demo` itself"),
        ("demo/out", "is inside the checkpoint `demo`"),
        ("../" + shell.folder.name, "contains the checkpoint `demo`"),
        (".", "is not a valid directory name"),
        ("demo/..", "is not a valid directory name"),
    ):
        told = shell("build", "demo", "--output", output)
        assert told.code == 2, told
        assert said in told.errors


@pytest.mark.parametrize("target", ["elsewhere", "nowhere", "link"])
def test_an_output_that_is_a_link_is_refused_before_anything_is_built(target: str, shell: Shell) -> None:
    (shell.folder / "elsewhere").mkdir()
    (shell.folder / "link").symlink_to(target)
    told = shell("build", str(DEMO_DIRECTORY), "--output", "link")
    refused(told, "`--output link` is a symbolic link")
    assert not list(shell.folder.glob(".*.building"))


def test_what_to_type_next_is_quoted_for_a_shell(shell: Shell) -> None:
    told = shell("build", str(DEMO_DIRECTORY), "--output", "two words")
    assert "serve it with: inflight serve 'two words'\n" in told.output


def refused(told: Told, *sentences: str) -> None:
    assert told.code == 2, told
    for sentence in sentences:
        assert sentence in told.errors, told
    assert told.errors.count("\n") == 2, told.errors


@pytest.mark.parametrize("command", ["worker", "serve"])
@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: (path / "model.safetensors").write_bytes(b""), "is truncated: it has `0` of"),
        (lambda path: (path / "model.safetensors").unlink(), "model.safetensors` is missing"),
        (lambda path: (path / "tokenizer.json").unlink(), "tokenizer.json` is missing"),
        (
            lambda path: (path / "tokenizer_config.json").write_bytes(
                (path / "tokenizer_config.json").read_bytes().replace(b"t", b"u")
            ),
            "was changed after the build",
        ),
        (lambda path: (path / "inflight.json").write_text("{"), "is damaged"),
        (
            lambda path: (path / "inflight.json").write_text('{"format": 99}'),
            "was written by a newer version of Inflight",
        ),
    ],
)
def test_a_build_that_is_not_whole_is_refused_before_it_loads(
    command: str, spoil: object, sentence: str, built: Path, shell: Shell
) -> None:
    assert callable(spoil)
    spoil(copy_of(built, shell))
    began = time.monotonic()
    refused(shell(command, "spoiled", "--grpc-port=0", "--metrics-port=0"), sentence, "hint: ")
    assert time.monotonic() - began < AT_ONCE_S


def test_a_build_for_another_runtime_names_the_executor(built: Path, double: Shell) -> None:
    spoiled = copy_of(built, double)
    manifest = json.loads((spoiled / "inflight.json").read_text())
    manifest |= {"runtime": "tensorrt", "versions": {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"}}
    (spoiled / "inflight.json").write_text(json.dumps(manifest))
    refused(
        double("worker", "spoiled"),
        "was built for runtime `tensorrt`, which the executor `reference` cannot serve",
        "--executor tensorrt_llm",
    )


def test_the_simulated_executor_takes_any_build(built: Path, start: Start) -> None:
    process = start(*("worker", str(built), "--executor", "simulated", "--grpc-port=0", "--metrics-port=0"))
    assert process.address("grpc")
