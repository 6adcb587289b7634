"""A Hugging Face checkpoint directory: its config, weight files and tokenizer files.

Reads no weights, so that a directory with nothing but its config can be planned for. Knows nothing of
runtimes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inflight.errors import UserMistake
from inflight.model.config import ModelFacts, parse_config
from inflight.model.files import read_json
from inflight.model.shards import Shard, find_shards
from inflight.model.tokenizer import TOKENIZER_FILES, TOKENIZERS


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory."""

    directory: Path
    facts: ModelFacts
    shards: tuple[Shard, ...] = ()
    tokenizer_files: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: Files that name Python code of the checkpoint for transformers to run (`auto_map`).
    code_files: tuple[str, ...] = ()

    @property
    def has_weights(self) -> bool:
        return bool(self.shards)

    @property
    def has_safetensors(self) -> bool:
        return any(shard.tensors for shard in self.shards)

    @property
    def has_tokenizer(self) -> bool:
        return any(name in TOKENIZERS for name in self.tokenizer_files)

    @property
    def weight_bytes(self) -> int:
        return sum(shard.size for shard in self.shards)


def read_checkpoint(directory: Path) -> Checkpoint:
    """Reads a directory. Raises `UserMistake` if it is not a checkpoint, or a file in it is damaged."""
    if not directory.exists():
        raise UserMistake(
            f"the checkpoint directory `{directory}` does not exist",
            "pass the path of a Hugging Face checkpoint directory",
        )
    if not directory.is_dir():
        raise UserMistake(
            f"`{directory}` is not a directory", "pass the checkpoint's directory, not a file in it"
        )
    if not (directory / "config.json").exists():
        _refuse_repository(directory)
    config = read_config(directory)
    shards = find_shards(directory)
    return Checkpoint(
        directory=directory,
        facts=parse_config(config, shards),
        shards=shards,
        tokenizer_files=tuple(name for name in TOKENIZER_FILES if (directory / name).is_file()),
        config=config,
        code_files=tuple(_find_code_files(directory, config)),
    )


def read_config(directory: Path) -> Mapping[str, Any]:
    """The object of `config.json`, with how ModelOpt quantized the model, which it states in a separate
    file. Raises `CheckpointError`."""
    config = read_json(directory / "config.json")
    quantization = directory / "hf_quant_config.json"
    if quantization.is_file() and "quantization_config" not in config:
        config = {**config, "quantization_config": read_json(quantization).get("quantization", {})}
    return config


def _find_code_files(directory: Path, config: Mapping[str, Any]) -> Iterator[str]:
    if "auto_map" in config:
        yield "config.json"
    path = directory / "tokenizer_config.json"
    try:
        tokenizer = read_json(path) if path.is_file() else {}
    except UserMistake:
        # The tokenizer's own check says what is wrong with it.
        return
    if "auto_map" in tokenizer:
        yield "tokenizer_config.json"


def _refuse_repository(directory: Path) -> None:
    """Raises `UserMistake` for a Triton repository or a part of one: people have both side by side."""
    model = directory.resolve()
    if any(directory.glob("*/config.pbtxt")):
        what, repository = "a Triton model repository", directory
    elif (directory / "config.pbtxt").is_file():
        what, repository = "a model of a Triton repository", model.parent
    elif (model.parent / "config.pbtxt").is_file():
        what, repository = "a version of a model in a Triton repository", model.parent.parent
    else:
        return
    depths = ("model.yaml", "*/model.yaml", "*/*/model.yaml")
    is_llmapi = any(next(directory.glob(depth), None) is not None for depth in depths)
    raise UserMistake(
        f"`{directory}` is {what}, not a checkpoint or engine",
        f"check it with `inflight repository check {shlex.quote(str(repository))}`, or pass the directory"
        f" that {'`model` in its `model.yaml`' if is_llmapi else 'its `gpt_model_path`'} names",
    )
