"""`inflight inspect`: sizes against known models, and verdicts on what is there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from inflight.launch.model import DEMO_DIRECTORY
from inflight.model.checkpoint import read_checkpoint
from inflight.model.config import parse_config
from inflight.model.memory import count_parameters, human_bytes, needs
from support.double.package import write_double

from .checkpoints import CONFIGS, checkpoint_of
from .shell import Shell

GIB = 1 << 30


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("gpt2-medium", 0.355),
        ("llama-2-70b", 69.0),
        ("mixtral-8x22b", 140.6),
        ("baichuan2-13b", 13.9),
        ("codellama-13b", 13.0),
        ("t5-small", 0.0605),
    ],
)
def test_parameters_are_those_that_the_models_are_known_for(model: str, billions: float) -> None:
    facts = read_checkpoint(CONFIGS / model).facts
    assert count_parameters(facts) / 1e9 == pytest.approx(billions, rel=0.005)


_DEEPSEEK = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
#: As they are published, without keys that change no size.
MIXTURES: dict[str, dict[str, Any]] = {
    "DeepseekV2ForCausalLM": _DEEPSEEK
    | {
        "vocab_size": 102400,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "first_k_dense_replace": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "q_lora_rank": None,
    },
    "DeepseekV3ForCausalLM": _DEEPSEEK
    | {
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "q_lora_rank": 1536,
    },
    "GptOssForCausalLM": {
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
    },
}


@pytest.mark.parametrize(
    ("architecture", "billions", "kv_numbers"),
    [
        ("DeepseekV2ForCausalLM", 15.7, 27 * 576),
        ("DeepseekV3ForCausalLM", 671.0, 61 * 576),
        ("GptOssForCausalLM", 20.9, 24 * 2 * 8 * 64),
    ],
)
def test_mixtures_are_counted_with_what_they_share(
    architecture: str, billions: float, kv_numbers: int
) -> None:
    facts = parse_config(MIXTURES[architecture] | {"architectures": [architecture], "dtype": "bfloat16"})
    assert count_parameters(facts) / 1e9 == pytest.approx(billions, rel=0.005)
    assert needs(facts).kv_bytes_per_token == 2 * kv_numbers
    assert needs(facts, tp_size=2).weight_bytes < 0.6 * needs(facts).weight_bytes


def test_the_embedded_models_parameters_are_those_of_its_file() -> None:
    checkpoint = read_checkpoint(DEMO_DIRECTORY)
    in_file = sum((tensor.end - tensor.begin) // 2 for tensor in checkpoint.shards[0].tensors)
    assert count_parameters(checkpoint.facts) == pytest.approx(in_file, rel=0.01)


def test_kv_cache_follows_heads_layers_and_precision() -> None:
    facts = read_checkpoint(CONFIGS / "llama-2-70b").facts
    # Keys and values, 80 layers, 8 heads of 128, two bytes.
    assert needs(facts).kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert needs(facts, tp_size=4, pp_size=2).kv_bytes_per_token == 2 * 40 * 2 * 128 * 2
    # More ranks than key-value heads: each keeps a whole one.
    assert needs(facts, tp_size=16).kv_bytes_per_token == 2 * 80 * 1 * 128 * 2
    assert needs(facts, kv_cache_dtype="fp8").kv_bytes_per_token == 2 * 80 * 8 * 128


def test_blocks_and_batches_follow_the_memory_that_is_left() -> None:
    facts = read_checkpoint(CONFIGS / "codellama-13b").facts
    need = needs(facts, tokens_per_block=64)
    left = 80 * GIB - need.weight_bytes
    blocks = need.blocks(80 * GIB)
    assert blocks == int(left * 0.9) // (need.kv_bytes_per_token * 64)
    assert need.batch(blocks, 64) == blocks
    assert need.batch(blocks, 65) == blocks // 2
    assert need.blocks(need.weight_bytes) == 0
    assert need.blocks(0) == 0


def test_quantized_weights_are_smaller_and_embeddings_are_not() -> None:
    facts = read_checkpoint(CONFIGS / "llama-2-70b").facts
    half, quarter = needs(facts), needs(facts, quantization="int4_awq")
    embeddings = 2 * 32000 * 8192 * 2
    assert (half.weight_bytes - embeddings) == pytest.approx(4 * (quarter.weight_bytes - embeddings))


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 << 40, "3072.0 GiB")]
)
def test_bytes_are_readable(size: int, text: str) -> None:
    assert human_bytes(size) == text


def test_a_checkpoint_is_shown_as_table_and_json(shell: Shell) -> None:
    shutil.copytree(CONFIGS / "llama-2-70b", shell.folder / "llama")
    told = shell(
        "inspect", "llama", "--tp-size", "4", "--pp-size", "2", "--gpu-memory", "80", "--length", "2048"
    )
    assert told.code == 0, told
    for words in (
        "LlamaForCausalLM",
        "69.0 billion",
        "no weights, no tokenizer",
        "in 80.0 GiB",
        "no NVIDIA GPU",
    ):
        assert words in told.output
    found = shell(
        "inspect", "llama", "--json", "--gpu-memory", "80", "--tp-size", "4", "--pp-size", "2"
    ).json()
    assert found["needs"]["tp_size"] == 4
    fit = found["fits"][0]
    assert fit["memory_bytes"] == 80 * GIB
    assert fit["length"] == 4096
    assert fit["max_batch_size"] == fit["blocks"] // 128
    assert [entry["can_serve"] for entry in found["runtimes"]] == [False, False, False]


def test_the_embedded_model_can_be_served_anywhere(shell: Shell) -> None:
    found = shell("inspect", str(DEMO_DIRECTORY), "--json").json()
    verdicts = {entry["runtime"]: entry for entry in found["runtimes"]}
    assert verdicts["reference"]["can_serve"]
    assert verdicts["pytorch"]["verdict"] == "no: TensorRT-LLM is not installed"


def test_a_build_is_shown_with_what_it_was_built_for(double: Shell) -> None:
    checkpoint_of("gpt2-medium", double.folder / "gpt2")
    assert double("build", "gpt2", "--output", "engine", "--tp-size", "2").code == 0
    found = double("inspect", "engine", "--json").json()
    assert found["kind"] == "a TensorRT engine, built with TensorRT-LLM 1.2.1"
    assert found["needs"]["tp_size"] == 2
    split = "no: it is split over `2` GPUs, and this machine has `1`"
    assert found["runtimes"] == [{"runtime": "tensorrt", "can_serve": False, "verdict": split}]
    assert found["fits"][0]["memory_bytes"] == 81559 << 20
    larger = Shell(double.folder, write_double(double.folder / "larger", gpus=2))
    assert larger("inspect", "engine", "--json").json()["runtimes"][0]["verdict"] == "yes"
    (double.folder / "engine/rank1.engine").write_bytes(b"")
    found = double("inspect", "engine", "--json").json()
    assert not found["runtimes"][0]["can_serve"]
    assert "rank1.engine` is truncated" in found["runtimes"][0]["verdict"]


@pytest.mark.parametrize(
    ("version", "capability", "gpus", "said"),
    [
        ("1.2.0", "9.0", 1, "was built with TensorRT-LLM `1.2.1`, but `1.2.0` is installed"),
        ("1.2.1", "8.0", 1, "was built for GPU architecture `sm90`, but this machine has `sm80`"),
        ("1.2.1", "9.0", 0, "no NVIDIA GPU is visible"),
    ],
)
def test_an_engine_that_cannot_run_here_is_one_sentence(
    version: str, capability: str, gpus: int, said: str, double: Shell
) -> None:
    checkpoint_of("gpt2-medium", double.folder / "gpt2")
    assert double("build", "gpt2", "--output", "engine").code == 0
    elsewhere = write_double(double.folder / "elsewhere", version=version, gpus=gpus, capability=capability)
    verdict = Shell(double.folder, elsewhere)("inspect", "engine", "--json").json()["runtimes"][0]["verdict"]
    assert said in verdict


def write_engine(directory: Path, architecture: str) -> None:
    """An engine of `trtllm-build` for two GPUs, with its tokenizer."""
    directory.mkdir()
    for rank in range(2):
        (directory / f"rank{rank}.engine").write_bytes(b"engine")
    pretrained = {
        "architecture": architecture,
        "dtype": "float16",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1},
    }
    config = {"version": "1.2.1", "pretrained_config": pretrained, "build_config": {"max_seq_len": 512}}
    (directory / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_DIRECTORY / name, directory)


def test_an_engine_without_a_manifest_is_read_from_its_own_config(shell: Shell) -> None:
    write_engine(shell.folder / "engine", "LlamaForCausalLM")
    found = shell("inspect", "engine", "--json").json()
    assert found["kind"] == "a TensorRT engine of TensorRT-LLM 1.2.1, without a manifest"
    assert found["needs"]["tp_size"] == 2
    assert found["fits"][0]["length"] == 512


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "GPTForCausalLM", "QWenForCausalLM"])
def test_an_engine_that_exists_needs_no_build_of_ours(architecture: str, double: Shell) -> None:
    write_engine(double.folder / "engine", architecture)
    machine = Shell(double.folder, write_double(double.folder / "two", gpus=2))
    runtimes = machine("inspect", "engine", "--json").json()["runtimes"]
    assert runtimes == [{"runtime": "tensorrt", "can_serve": True, "verdict": "yes"}]


def test_weights_that_do_not_fit_are_a_reason_against_serving(double: Shell) -> None:
    checkpoint_of("llama-2-70b", double.folder / "llama")
    verdicts = {
        entry["runtime"]: entry["verdict"]
        for entry in double("inspect", "llama", "--json").json()["runtimes"]
    }
    assert verdicts["pytorch"] == (
        "no: its weights take `128.5 GiB` of a GPU, and `NVIDIA H100 80GB HBM3` has `79.6 GiB`"
    )
    assert verdicts["tensorrt"].startswith("no: it is not built")
    found = double("inspect", "llama", "--quantization", "int4_awq", "--json").json()
    assert [entry["verdict"] for entry in found["runtimes"] if entry["runtime"] == "pytorch"] == ["yes"]


@pytest.mark.parametrize(
    ("algorithm", "bytes_of_a_weight"),
    [("FP8", 1), ("W8A8_SQ_PER_CHANNEL", 1), ("W4A16_AWQ", 0.5), ("W4A16", 0.5), ("MIXED_PRECISION", 2)],
)
def test_an_engine_of_others_is_reckoned_with_its_own_formats(
    double: Shell, algorithm: str, bytes_of_a_weight: float
) -> None:
    facts = read_checkpoint(CONFIGS / "codellama-13b").facts
    engine = double.folder / "engine"
    engine.mkdir()
    (engine / "rank0.engine").write_bytes(b"engine")
    shutil.copyfile(DEMO_DIRECTORY / "tokenizer.json", engine / "tokenizer.json")
    pretrained = {
        **json.loads((CONFIGS / "codellama-13b/config.json").read_text()),
        "architecture": facts.architecture,
        "dtype": "float16",
        "quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": "INT8"},
    }
    config = {
        "version": "1.2.1",
        "pretrained_config": pretrained,
        "build_config": {"max_seq_len": 512, "plugin_config": {"tokens_per_block": 64}},
    }
    (engine / "config.json").write_text(json.dumps(config))
    found = double("inspect", "engine", "--json").json()
    embeddings = 2 * facts.vocab_size * facts.hidden_size
    layers = count_parameters(facts) - embeddings
    assert found["needs"]["weight_bytes"] == pytest.approx(embeddings * 2 + layers * bytes_of_a_weight)
    assert found["needs"]["kv_bytes_per_token"] == 2 * 40 * 40 * 128
    assert found["needs"]["tokens_per_block"] == 64
    assert found["runtimes"][0]["verdict"] == "yes"
    elsewhere = Shell(double.folder, write_double(double.folder / "elsewhere", version="1.2.0"))
    verdict = elsewhere("inspect", "engine", "--json").json()["runtimes"][0]["verdict"]
    assert verdict == "no: it was built with TensorRT-LLM `1.2.1`, but `1.2.0` is installed"


def test_what_is_nothing_is_refused(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for directory, said in (
        ("nowhere", "does not exist"),
        ("file", "is not a directory"),
        ("empty", "it has no `config.json`"),
    ):
        told = shell("inspect", directory)
        assert told.code == 2
        assert said in told.errors


@pytest.mark.parametrize("command", [["inspect"], ["build", "--output", "out"]])
@pytest.mark.parametrize(
    ("directory", "said"),
    [
        ("repository", "`repository` is a Triton model repository"),
        ("repository/tensorrt_llm", "`repository/tensorrt_llm` is a model of a Triton repository"),
        ("repository/tensorrt_llm/1", "is a version of a model in a Triton repository"),
    ],
)
def test_a_triton_repository_is_told_with_the_command_that_checks_it(
    command: list[str], directory: str, said: str, shell: Shell
) -> None:
    assert shell("repository", "create", str(DEMO_DIRECTORY), "--output", "repository").code == 0
    told = shell(*command, directory)
    assert told.code == 2
    assert said in told.errors
    named = re.search(r"`inflight (repository check \S+)`", told.errors)
    assert named is not None
    assert shell(*named[1].split()).code == 0


def test_a_repository_of_the_llmapi_model_has_its_directory_elsewhere(shell: Shell) -> None:
    made = shell("repository", "create", str(DEMO_DIRECTORY), "--output", "repository", "--backend=llmapi")
    assert made.code == 0
    for directory in ("repository", "repository/tensorrt_llm", "repository/tensorrt_llm/1"):
        assert "that `model` in its `model.yaml` names" in shell("inspect", directory).errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tp-size", "3"), "`--tp-size 3` does not divide the model's `8` attention heads"),
        (("--pp-size", "6"), "`--pp-size 6` is more than the model's `5` layers"),
        (("--gpu-memory", "nan"), "nan is not a finite number"),
        (("--gpu-memory", "1e300"), "not in the range"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(arguments: tuple[str, str], said: str, shell: Shell) -> None:
    told = shell("inspect", str(DEMO_DIRECTORY), *arguments)
    assert told.code == 2
    assert said in told.errors


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("mapping", {"tp_size": 0}, "its tp_size is 0"),
        ("mapping", {"pp_size": "two"}, "its pp_size is 'two'"),
        ("settings", {"max_seq_len": "long"}, "its max_seq_len is 'long'"),
        ("settings", {"quantization": []}, "its quantization is []"),
    ],
)
def test_a_manifest_with_impossible_values_is_damaged(
    part: str, changes: dict[str, object], said: str, shell: Shell
) -> None:
    assert shell("build", str(DEMO_DIRECTORY), "--output", "built").code == 0
    path = shell.folder / "built" / "inflight.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, part: {**manifest[part], **changes}}))
    told = shell("inspect", "built")
    assert told.code == 2
    assert f"inflight.json` is damaged: {said}\n" in told.errors
