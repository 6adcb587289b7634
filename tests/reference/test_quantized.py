"""Quantized checkpoints compute what the same model with their numbers in float32 does, on both runners."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inflight.build.inspect import inspect
from inflight.build.runtimes.reference import verify, write_weights
from inflight.errors import UserMistake
from inflight.executors.base import Request
from inflight.executors.reference import create
from inflight.executors.reference.model.config import load_config, parse_config
from inflight.executors.reference.model.dequantize import E4M3
from inflight.executors.reference.model.split import require_splittable
from inflight.executors.reference.numpy.batch import Span, build_batch
from inflight.executors.reference.numpy.cache import PagedCache
from inflight.executors.reference.numpy.model import load_model
from inflight.machine import Installed
from inflight.model.checkpoint import read_config
from reference.quantize import SCHEMES, e4m3, fp8, make, read_floats, write_checkpoint
from reference.support import FIXTURES
from reference.support import read_config as fixture_config

CASES = [("llama", scheme) for scheme in SCHEMES] + [
    ("mixtral", "fp8_block"),
    ("mixtral", "awq"),
    ("mixtral", "fp8_rows"),
    ("qwen3_moe", "fp8_large_block"),
    ("qwen2_5_vl", "fp8_block"),
    ("gpt_oss", "mxfp4"),
    ("deepseek_v3", "fp8_block"),
    ("deepseek_v3", "packed"),
]
TOKENS = [3, 9, 4, 40, 5, 6, 61, 7, 33, 12, 13]


def numpy_logits(directory: Path) -> npt.NDArray[np.float32]:
    model = load_model(directory)
    cache = PagedCache.of(model.config, 4, 8)
    batch = build_batch([], [Span(TOKENS, 0, [2, 0])], 8)
    return model.logits(model.forward(batch, cache, np.arange(len(TOKENS))))


def log_probs(directory: Path, device: str = "cpu", **options: Any) -> tuple[list[int], list[float]]:
    """Greedy tokens and their log probabilities, from an executor on PyTorch."""
    executor = create(directory, device, backend="pytorch", max_batch_size=4, max_num_tokens=32, **options)
    request = Request(1, TOKENS, 12)
    request.output_config.return_log_probs = True
    executor.enqueue([request])
    tokens: list[int] = []
    values: list[float] = []
    done = False
    while not done:
        rows = executor.await_responses(10.0)
        tokens += np.frombuffer(rows.token_ids, "<i4").tolist()
        values += np.frombuffer(rows.log_probs, "<f4").tolist()
        done = any(rows.finals)
    executor.shutdown()
    return tokens, values


@pytest.mark.parametrize(("name", "scheme"), CASES)
def test_numpy_computes_what_the_twin_does(name: str, scheme: str, tmp_path: Path) -> None:
    quantized, twin = make(name, scheme, tmp_path)
    expected = numpy_logits(twin)
    np.testing.assert_allclose(numpy_logits(quantized), expected, atol=1e-5, rtol=0)
    # And the model is another than before.
    assert np.abs(numpy_logits(FIXTURES / name) - expected).max() > 1e-3


@pytest.mark.parametrize(("name", "scheme"), CASES)
def test_pytorch_computes_what_the_twin_does(name: str, scheme: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
    device = os.environ.get("INFLIGHT_TEST_DEVICE", "cpu")
    quantized, twin = make(name, scheme, tmp_path)
    if device == "cuda" and (name, scheme) in {("mixtral", "awq"), ("deepseek_v3", "packed")}:
        with pytest.raises(UserMistake, match="groups of `16` inputs"):
            log_probs(quantized, device, dtype="float32")
        return
    tokens, values = log_probs(quantized, device, dtype="float32")
    expected_tokens, expected = log_probs(twin, device, dtype="float32")
    assert tokens == expected_tokens
    np.testing.assert_allclose(values, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_an_fp8_cache_rounds_and_no_more(name: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'inflight-llm[torch]'")
    device = os.environ.get("INFLIGHT_TEST_DEVICE", "cpu")
    _, exact = log_probs(FIXTURES / name, device, dtype="float32")
    _, rounded = log_probs(FIXTURES / name, device, dtype="float32", kv_cache_dtype="fp8")
    # The first token alone is certain to have the same text in front.
    assert rounded[0] == pytest.approx(exact[0], abs=0.1)
    assert rounded[0] != exact[0]


def test_numpy_has_no_fp8_cache() -> None:
    with pytest.raises(UserMistake, match="kv_cache_dtype `fp8` needs PyTorch"):
        create(FIXTURES / "llama", "cpu", backend="numpy", kv_cache_dtype="fp8")


def test_the_table_of_e4m3_is_the_formats() -> None:
    """The largest, the smallest and the gaps between, by the OCP specification; PyTorch's where it is."""
    assert (E4M3[0x7E], E4M3[0x01], E4M3[0x08], E4M3[0xFE]) == (448, 2**-9, 2**-6, -448)
    assert np.isnan(E4M3[[0x7F, 0xFF]]).all()
    codes, numbers = e4m3(E4M3[:127].astype(np.float64))
    np.testing.assert_array_equal(numbers, E4M3[:127])
    np.testing.assert_array_equal(codes, np.arange(127))
    torch = pytest.importorskip("torch")
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(theirs, E4M3)


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ["`bitsandbytes`", "AWQ"]),
        ({"quant_method": "mxfp8"}, ["`mxfp8`", "MXFP4"]),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, ["GPTQ with `8` bits", "FP8"]),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"}, ["layout `gemv`"]),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ["`quant_algo` `NVFP4`"]),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}},
            },
            ["8 bits", "`int`"],
        ),
        ({}, ["`unknown`"]),
    ],
)
def test_other_schemes_are_refused_by_name(stated: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserMistake) as caught:
        parse_config(fixture_config("llama") | {"quantization_config": stated})
    for word in (*words, "quantization_config"):
        assert word in f"{caught.value.what}; {caught.value.remedy}"


def test_a_quantized_embedding_is_refused(tmp_path: Path) -> None:
    config = fixture_config("llama") | {"quantization_config": {"quant_method": "fp8"}}
    plain, _ = make("llama", "fp8_static", tmp_path / "made")
    names = ["model.embed_tokens.weight"]
    stored = read_floats(FIXTURES / "llama" / "model.safetensors", names)[names[0]]
    packed = fp8(stored, (stored.shape[0], stored.shape[1]), "weight_scale")
    tensors = {f"model.embed_tokens.{end}": array for end, array in packed.tensors.items()}
    write_checkpoint(tmp_path / "embedding", config, tensors)
    assert load_model(plain)
    with pytest.raises(UserMistake, match=r"`model.embed_tokens.weight` has dtype `F8_E4M3`"):
        load_model(tmp_path / "embedding")


def test_a_quantized_model_is_not_split(tmp_path: Path) -> None:
    quantized, twin = make("llama", "awq", tmp_path)
    require_splittable(load_config(twin), 2)
    with pytest.raises(UserMistake, match="quantized, which the reference executor does not split"):
        require_splittable(load_config(quantized), 2)


@pytest.mark.parametrize(
    ("scheme", "lost", "words"),
    [
        ("fp8_block", "weight_scale_inv", "weight_scale` is missing"),
        ("awq", "qzeros", "qzeros` is missing"),
        ("gptq", "scales", "scales` is missing"),
    ],
)
def test_a_lost_tensor_is_named(scheme: str, lost: str, words: str, tmp_path: Path) -> None:
    quantized, _ = make("llama", scheme, tmp_path)
    path = quantized / "model.safetensors"
    name = f"model.layers.1.mlp.down_proj.{lost}".encode()
    data = path.read_bytes()
    assert name in data
    path.write_bytes(data.replace(name, name.replace(b"layers.1", b"layers.7")))
    with pytest.raises(UserMistake, match=words):
        load_model(quantized)


def test_a_checkpoint_with_other_groups_than_it_states_is_refused(tmp_path: Path) -> None:
    quantized, _ = make("llama", "awq", tmp_path)
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"]["group_size"] = 32
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserMistake, match=r"qzeros|scales|groups of `32`"):
        load_model(quantized)


@pytest.mark.parametrize(
    ("scheme", "words", "per_weight"),
    [
        ("fp8_block", "quantized (FP8, in blocks of 16 x 16, fp8)", 1.0),
        ("fp8_rows", "quantized (FP8, per tensor or row, compressed-tensors)", 1.0),
        ("modelopt", "quantized (FP8, per tensor or row, FP8)", 1.0),
        ("awq", "quantized (INT4, groups of 16, awq)", 0.5),
        ("gptq_v2", "quantized (INT4, whole rows, gptq)", 0.5),
    ],
)
def test_inspect_states_the_scheme(scheme: str, words: str, per_weight: float, tmp_path: Path) -> None:
    quantized, _ = make("llama", scheme, tmp_path)
    found = inspect(quantized, Installed("0"), overrides={})
    assert found["kind"] == f"a Hugging Face checkpoint, {words}"
    plain = inspect(FIXTURES / "llama", Installed("0"), overrides={})
    matrices = 2 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48)
    assert plain["needs"]["weight_bytes"] - found["needs"]["weight_bytes"] == matrices * (2 - per_weight)


@pytest.mark.parametrize("scheme", ["modelopt", "awq", "fp8_block"])
def test_a_build_stays_quantized(scheme: str, tmp_path: Path) -> None:
    from inflight.build.files import copy_for_reference

    quantized, twin = make("llama", scheme, tmp_path)
    built = tmp_path / "built"
    write_weights(str(quantized), str(built))
    copy_for_reference(str(quantized), str(built))
    verify(str(built))
    assert "quantization_config" in read_config(built)
    np.testing.assert_allclose(numpy_logits(built), numpy_logits(twin), atol=1e-5, rtol=0)
