"""The safetensors reader: every stored type, shards, and damaged files."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from inflight.errors import UserMistake
from inflight.executors.reference.errors import CheckpointError, UnsupportedModelError
from inflight.executors.reference.model.config import ModelConfig, load_config, parse_config
from inflight.executors.reference.model.tensors import required_tensors
from inflight.executors.reference.model.weights import CheckpointWeights, find_weights
from inflight.executors.reference.numpy.model import NumpyModel

from .support import FIXTURES


def write(path: Path, header: Any, data: bytes = b"") -> None:
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


def read(folder: Path, **shapes: tuple[int, ...]) -> CheckpointWeights:
    return CheckpointWeights(find_weights(folder), shapes.items())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_files_of_the_safetensors_package_are_read(tmp_path: Path, dtype: type) -> None:
    values: npt.NDArray[Any] = np.linspace(-3, 3, 12).reshape(3, 4).astype(dtype)
    save_file(
        {"a": values, "b": np.ones(2, dtype=dtype)}, tmp_path / "model.safetensors", metadata={"x": "y"}
    )
    found = read(tmp_path, a=(3, 4), b=(2,)).tensor("a")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values.astype(np.float32))


def test_bf16_is_widened_exactly(tmp_path: Path) -> None:
    bits = np.array([0x0000, 0x3F80, 0xBF80, 0x4049, 0x7F80, 0x0001], dtype="<u2")
    entry = {"dtype": "BF16", "shape": [6], "data_offsets": [0, 12]}
    write(tmp_path / "model.safetensors", {"a": entry}, bits.tobytes())
    found = read(tmp_path, a=(6,)).tensor("a")
    np.testing.assert_array_equal(
        found, np.array([0, 1, -1, 3.140625, np.inf, 9.18355e-41], dtype=np.float32)
    )


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    save_file({"a": np.ones(2, dtype=np.float32)}, tmp_path / "one.safetensors")
    save_file({"b": np.zeros(3, dtype=np.float32)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = read(tmp_path, a=(2,), b=(3,))
    assert weights.tensor("a").tolist() == [1, 1]
    assert weights.tensor("b").tolist() == [0, 0, 0]


def _entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("header", "kind", "words"),
    [
        (_entry(dtype="I8", data_offsets=[0, 2]), UnsupportedModelError, "I8"),
        (_entry(shape=[3]), CheckpointError, "shape"),
        (_entry(shape=[1, 2]), CheckpointError, "shape"),
        (_entry(data_offsets=[0, 4]), CheckpointError, "`4` bytes"),
        (_entry(data_offsets=[-8, 0]), CheckpointError, "outside"),
        (_entry(data_offsets=[8, 16]), CheckpointError, "truncated"),
        (_entry(data_offsets=[0]), CheckpointError, "incomplete"),
        (_entry(shape=None), CheckpointError, "incomplete"),
        ({"a": 7}, CheckpointError, "incomplete"),
        (_entry() | {"b": _entry()["a"]}, CheckpointError, "`c` is missing"),
        ([], CheckpointError, "object"),
    ],
)
def test_damaged_headers_are_refused(
    tmp_path: Path, header: Any, kind: type[UserMistake], words: str
) -> None:
    write(tmp_path / "model.safetensors", header, bytes(8))
    with pytest.raises(kind, match=words):
        read(tmp_path, a=(2,), **({"c": (2,)} if "`c`" in words else {}))


@pytest.mark.parametrize(
    "content", [b"", b"\x01", struct.pack("<Q", 1 << 62) + b"{}", struct.pack("<Q", 4) + b"nope", bytes(8)]
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        find_weights(tmp_path)


def _index(folder: Path, value: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda _: None, "neither"),
        (lambda folder: _index(folder, {}), "not an index"),
        (lambda folder: _index(folder, {"weight_map": []}), "not an index"),
        (lambda folder: _index(folder, {"weight_map": {"a": "gone.safetensors"}}), "gone"),
        (lambda folder: _index(folder, {"weight_map": {"a": "../other.safetensors"}}), "outside"),
    ],
)
def test_missing_shards_are_named(tmp_path: Path, prepare: Callable[[Path], None], words: str) -> None:
    prepare(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        find_weights(tmp_path)


def test_a_file_that_shrank_after_the_check_is_named(tmp_path: Path) -> None:
    save_file({"a": np.ones(2, dtype=np.float32)}, tmp_path / "model.safetensors")
    weights = read(tmp_path, a=(2,))
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(16)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        weights.tensor("a")


#: Sizes that differ from each other, so that no two can be mistaken.
SIZES = {
    "vocab_size": 11,
    "hidden_size": 12,
    "intermediate_size": 10,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 2,
}


DEEPSEEK = {
    "kv_lora_rank": 6,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 4,
    "v_head_dim": 2,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 7,
}


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("LlamaForCausalLM", {}),
        ("LlamaForCausalLM", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
        ("MistralForCausalLM", {}),
        ("Qwen2ForCausalLM", {}),
        ("Qwen3ForCausalLM", {"attention_bias": True}),
        ("GPT2LMHeadModel", {"n_positions": 20}),
        ("MixtralForCausalLM", {"num_local_experts": 3, "num_experts_per_tok": 2}),
        ("Phi3ForCausalLM", {}),
        ("GemmaForCausalLM", {}),
        ("Gemma2ForCausalLM", {}),
        ("Gemma3ForCausalLM", {}),
        ("Gemma3ForConditionalGeneration", {"tie_word_embeddings": False}),
        ("BaichuanForCausalLM", {"num_key_value_heads": 3, "head_dim": 4}),
        ("GptOssForCausalLM", {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 8}),
        ("DeepseekV2ForCausalLM", DEEPSEEK | {"q_lora_rank": None}),
        ("DeepseekV3ForCausalLM", DEEPSEEK | {"q_lora_rank": 5, "n_group": 2, "topk_group": 1}),
    ],
)
def test_the_loader_reads_every_tensor_of_the_table(architecture: str, more: dict[str, Any]) -> None:
    config: ModelConfig = parse_config({"architectures": [architecture], **SIZES, **more})
    table = dict(required_tensors(config))
    asked: set[str] = set()

    class Recorder:
        def tensor(self, name: str) -> Any:
            asked.add(name)
            return np.zeros(table[name], np.float32)

        wide = tensor

    NumpyModel(config, Recorder(), 1)
    assert asked == table.keys()


def test_a_prefix_that_a_checkpoint_leaves_out_is_understood(tmp_path: Path) -> None:
    """OpenAI's own GPT-2 has `wte.weight` where transformers writes `transformer.wte.weight`."""
    name = FIXTURES / "gpt2"
    with safe_open(name / "model.safetensors", "np") as file:
        tensors = {key.removeprefix("transformer."): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((name / "config.json").read_bytes())
    weights = CheckpointWeights.of(load_config(tmp_path), find_weights(tmp_path))
    np.testing.assert_array_equal(weights.tensor("transformer.wte.weight"), tensors["wte.weight"])
