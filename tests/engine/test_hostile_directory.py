"""Model directories that were made to break what reads them: one sentence each, and no traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.errors import CheckpointError
from inflight.executors.reference import create
from inflight.launch.model import DEMO_DIRECTORY
from inflight.model.tokenizer import read_assets

from .checkpoints import demo_copy
from .shell import Shell

DEEP = "[" * 100_000 + "]" * 100_000
SAFETENSORS = "model.safetensors"

Spoil = Callable[[Path], object]


def _text(name: str, text: str) -> Spoil:
    return lambda directory: (directory / name).write_text(text)


def _config(**changes: object) -> Spoil:
    def spoil(directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**config, **changes}))

    return spoil


def _header(header: str) -> Spoil:
    def spoil(directory: Path) -> None:
        encoded = header.encode()
        (directory / SAFETENSORS).write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"\0" * 4)

    return spoil


def _index(directory: Path) -> None:
    (directory / SAFETENSORS).unlink()
    (directory / f"{SAFETENSORS}.index.json").write_text(DEEP)


def _nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


#: What is wrong -> how to make it so.
CASES: dict[str, Spoil] = {
    "deep config": _text("config.json", f'{{"a": {DEEP}}}'),
    "deep value": _config(hidden_size=_nested(400)),
    "long value": _config(hidden_size="x" * 1_000_000),
    "deep quantization": _text("hf_quant_config.json", DEEP),
    "list as quantization": _text("hf_quant_config.json", '{"quantization": [1]}'),
    "deep tokenizer": _text("tokenizer.json", DEEP),
    "deep tokenizer config": _text("tokenizer_config.json", f'{{"a": {DEEP}}}'),
    "deep generation config": _text("generation_config.json", f'{{"a": {DEEP}}}'),
    "deep manifest": _text("inflight.json", DEEP),
    "deep header": _header(f'{{"a": {DEEP}}}'),
    "deep shape": _header(
        '{"a": {"dtype": "F32", "shape": ' + "[" * 400 + "]" * 400 + ', "data_offsets": [0, 4]}}'
    ),
    "infinite offset": _header('{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1e999]}}'),
    "huge shape": _header('{"a": {"dtype": "F32", "shape": [1' + "0" * 4000 + '], "data_offsets": [0, 4]}}'),
    "deep index": _index,
    "huge vocabulary": _config(vocab_size=10**12),
    "huge layers": _config(num_hidden_layers=10**12),
    "huge heads": _config(num_attention_heads=10**12),
    "huge positions": _config(max_position_embeddings=10**12),
    "huge number": _config(vocab_size=10**4000),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_directory_gets_a_sentence(case: str, shell: Shell, tmp_path: Path) -> None:
    directory = demo_copy(tmp_path / "model")
    CASES[case](directory)
    for command in (
        ("inspect", str(directory)),
        ("build", str(directory), "--output", str(tmp_path / "out"), "--dry-run"),
    ):
        told = shell(*command)
        said = told.output + told.errors
        assert told.code in (0, 1, 2), told
        assert "Traceback" not in said, said[-2000:]
        assert len(said) < 10_000, said[:2000]


@pytest.mark.parametrize(
    ("case", "executor"),
    [
        ("deep config", "reference"),
        ("deep config", "simulated"),
        ("deep header", "reference"),
        ("huge vocabulary", "reference"),
        ("huge vocabulary", "simulated"),
        ("huge number", "simulated"),
    ],
)
def test_a_worker_refuses_it_before_it_serves(case: str, executor: str, shell: Shell, tmp_path: Path) -> None:
    directory = demo_copy(tmp_path / "model")
    CASES[case](directory)
    ports = ("--grpc-port", "0", "--metrics-port", "0")
    told = shell("worker", str(directory), "--executor", executor, *ports)
    assert told.code == 2, told
    # The worker logs each stage of loading.
    words = [line for line in told.errors.splitlines() if " INFO " not in line]
    assert words[0].startswith("error: "), told
    assert len(words) <= 2, told


@pytest.mark.parametrize("token", [10**14, -1, 3072])
def test_an_end_token_that_the_model_has_not_is_ignored(token: int, tmp_path: Path) -> None:
    """It never comes, so that it cannot do harm; another one still ends a guided answer."""
    pytest.importorskip("llguidance")
    directory = demo_copy(tmp_path / "model")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [token]}))
    executor = create(directory, "cpu")
    try:
        assert "guided_decoding" in executor.info().capabilities
    finally:
        executor.shutdown()


def _link(directory: Path, target: Path) -> Path:
    path = directory / "tokenizer_config.json"
    path.unlink()
    path.symlink_to(os.path.relpath(target, directory))
    return path


def test_a_link_out_of_the_directory_is_not_read(shell: Shell, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": "x"}')
    directory = demo_copy(tmp_path / "model")
    _link(directory, secret)
    with pytest.raises(CheckpointError, match="outside the model directory"):
        read_assets(directory)
    told = shell("worker", str(directory), "--grpc-port", "0", "--metrics-port", "0")
    assert told.code == 2, told
    assert "outside the model directory" in told.errors, told


def test_a_blob_that_links_out_of_the_cache_is_not_read(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    (repository / "blobs").mkdir(parents=True)
    (repository / "blobs" / "1").symlink_to("/etc/passwd")
    directory = demo_copy(repository / "snapshots" / "revision")
    _link(directory, repository / "blobs" / "1")
    with pytest.raises(CheckpointError, match="outside the model directory"):
        read_assets(directory)


def test_links_within_it_and_in_the_cache_of_hugging_face_are_followed(tmp_path: Path) -> None:
    expected = read_assets(DEMO_DIRECTORY)
    repository = tmp_path / "models--org--name"
    (repository / "blobs").mkdir(parents=True)
    directory = demo_copy(repository / "snapshots" / "revision")
    for number, path in enumerate(sorted(directory.iterdir())):
        blob = repository / "blobs" / str(number)
        path.rename(blob)
        path.symlink_to(os.path.relpath(blob, directory))
    assert read_assets(directory) == expected
    # A directory that is a link itself, and one whose files are links within it, as Kubernetes mounts them.
    (tmp_path / "latest").symlink_to(directory)
    assert read_assets(tmp_path / "latest") == expected
    mounted = demo_copy(tmp_path / "mounted" / "..data")
    for path in list(mounted.iterdir()):
        (mounted.parent / path.name).symlink_to(f"..data/{path.name}")
    assert read_assets(mounted.parent) == expected
