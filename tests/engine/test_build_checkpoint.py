"""Checkpoints that are not what they should be: one sentence each, and the hash that tells them apart."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from inflight.build.api_call import CallError, make, resolve
from inflight.errors import UserMistake
from inflight.machine import Gpu, has_engines, has_pytorch, parse_gpus
from inflight.model import shards
from inflight.model.checkpoint import read_checkpoint
from inflight.model.config import parse_config

from .checkpoints import write_safetensors

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def test_a_directory_without_weights_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = read_checkpoint(tmp_path)
    assert not found.has_weights
    assert not found.has_tokenizer
    assert found.facts.dtype == "float32"
    assert found.facts.max_position_embeddings is None


def test_the_weights_tell_a_precision_that_the_config_does_not(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_safetensors(tmp_path / "model.safetensors", {"a": ("BF16", (1,), b"\0\0")})
    assert read_checkpoint(tmp_path).facts.dtype == "bfloat16"


def test_pytorch_weights_are_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    found = read_checkpoint(tmp_path)
    assert found.has_weights
    assert not found.has_safetensors


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": None}, "`hidden_size`"),
        ({"hidden_size": "64"}, '`hidden_size` in `config.json` must be a positive integer, got `"64"`'),
        (
            {"num_attention_heads": 0},
            "`num_attention_heads` in `config.json` must be a positive integer, got `0`",
        ),
        (
            {"num_key_value_heads": 3},
            "`num_key_value_heads` in `config.json` must be a divisor of the number of heads (4), got `3`",
        ),
        ({"vocab_size": True}, "`vocab_size` in `config.json` must be a positive integer, got `true`"),
        ({"architectures": []}, "`architectures`"),
    ],
)
def test_a_config_that_makes_no_sense_names_the_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserMistake) as refusal:
        parse_config({**CONFIG, **changes})
    assert said in refusal.value.what
    assert refusal.value.remedy


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_config_that_is_no_object_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserMistake) as refusal:
        read_checkpoint(tmp_path)
    assert "config.json" in refusal.value.what


def test_quantization_is_seen_in_either_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert read_checkpoint(tmp_path).facts.quantized == "FP8"
    assert parse_config({**CONFIG, "quantization_config": {"quant_method": "awq"}}).quantized == "awq"


def header(values: object, data: bytes = b"") -> bytes:
    encoded = json.dumps(values).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "truncated"),
        (b"\xff" * 8, "truncated"),
        ((5).to_bytes(8, "little") + b"hello", "not JSON"),
        (header([1]), "not an object"),
        ((100_000).to_bytes(8, "little") + b"[" * 100_000, "not JSON"),
        (header({"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 3]}}, b"123"), "in the shape `[2]`"),
        (
            header({"a": {"dtype": "F16", "shape": [-2], "data_offsets": [0, 4]}}, b"1234"),
            "`a` has an impossible shape",
        ),
        (header({"a": {"dtype": "F32"}}), "the entry of `a` is incomplete"),
        (header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}), "outside its data"),
        (header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234"), "truncated: it has"),
    ],
)
def test_a_damaged_shard_is_told_without_reading_it(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserMistake) as refusal:
        shards.read_shard(path)
    assert said in refusal.value.what
    assert str(path) in refusal.value.what


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("{}", "is not an index"),
        ('{"weight_map": {"a": "missing.safetensors"}}', "does not exist"),
        ('{"weight_map": {"a": "../other.safetensors"}}', "outside its directory"),
    ],
)
def test_a_wrong_index_is_told(index: str, said: str, tmp_path: Path) -> None:
    (tmp_path / shards.INDEX).write_text(index)
    with pytest.raises(UserMistake) as refusal:
        shards.find_shards(tmp_path)
    assert said in refusal.value.what


def test_a_large_file_is_told_apart_by_its_ends_its_size_and_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "WHOLE_BYTES", 1024)
    path = tmp_path / "large"
    content = bytes(8 * 1024 * 1024)
    variants = [content, b"x" + content[1:], content[:-1] + b"x", content + b"\0", b"\1" * len(content)]
    found = []
    for variant in variants:
        path.write_bytes(variant)
        found.append(shards.fingerprint_file(path))
    assert len(set(found)) == len(variants)
    assert all(value.startswith("sampled-sha256:") for value in found)


@pytest.mark.parametrize(
    ("version", "engines", "pytorch"),
    [("0.21.0", True, False), ("1.0.0", True, True), ("1.2.1", True, True), ("1.3.0rc0", False, True)],
)
def test_releases_have_what_they_have(version: str, engines: bool, pytorch: bool) -> None:
    assert has_engines(version) is engines
    assert has_pytorch(version) is pytorch


def test_the_listing_of_gpus_is_read_and_noise_is_not() -> None:
    listing = "NVIDIA H200, Inc, 143771, 9.0\nFailed to initialize NVML\nNVIDIA L4, 23034, 8.9\n"
    assert parse_gpus(listing) == (
        Gpu("NVIDIA H200, Inc", 143771 << 20, "sm90"),
        Gpu("NVIDIA L4", 23034 << 20, "sm89"),
    )


def test_calls_as_data_are_made_in_order_with_results_and_checked_keywords() -> None:
    results: dict[str, Any] = {}
    nested = {"call": "fractions.Fraction", "args": [1, 2], "kwargs": {}}
    made = make({"call": "fractions.Fraction", "args": [nested], "kwargs": {}, "result": "half"}, results)
    assert float(made) == 0.5
    assert make({"call": "half.limit_denominator", "args": [], "kwargs": {}}, results) == made
    with pytest.raises(CallError, match="takes different arguments"):
        make({"call": "fractions.Fraction", "args": [], "kwargs": {"numerators": 1}}, results)
    with pytest.raises(CallError, match="has no `Fractional`"):
        resolve("fractions.Fractional", {})
    with pytest.raises(CallError, match="is not installed"):
        resolve("no_such_package_of_ours.thing", {})


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_weights_that_may_not_be_read_are_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).touch()

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    # Root may read everything, and tests may run as root.
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserMistake, match="cannot be read: Permission denied") as caught:
        shards.find_shards(tmp_path)
    assert caught.value.remedy == "check its permissions"
