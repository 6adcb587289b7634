"""Builds for TensorRT-LLM, executed against a double that answers to recorded names only."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inflight.build.named_files import fingerprint_named_files
from inflight.build.options import OPTIONS, Values
from inflight.build.options.declaration import BuildOption
from inflight.errors import UserMistake
from inflight.launch.model import find_model
from support.double.package import (
    calls,
    write_double,
    write_encoder_decoder_script,
    write_quantize_script,
)
from support.processes import exists, wait_until

from .checkpoints import checkpoint_of
from .shell import INFLIGHT, Shell


def made_by(shell: Shell) -> list[str]:
    """The names called, constructors of plain arguments left out."""
    return [name for name, _, _ in calls(shell.environment) if "from_hugging_face" in name or "-" in name]


def test_an_engine_is_converted_built_and_published(double: Shell) -> None:
    checkpoint_of("gpt2-medium", double.folder / "gpt2")
    told = double("build", "gpt2", "--output", "engine", "--tp-size", "2", "--json")
    assert told.json()["status"] == "built", told
    engine = double.folder / "engine"
    files = {path.name for path in engine.iterdir()}
    assert files == {
        *("config.json", "rank0.engine", "rank1.engine"),
        *("tokenizer.json", "checkpoint_config.json", "inflight.json", "build-logs"),
    }
    assert (engine / "rank0.engine").read_bytes() == b"engine"
    assert made_by(double) == ["GPTForCausalLM.from_hugging_face"] * 2 + ["trtllm-build"]
    assert not (double.folder / ".engine.building").exists()
    manifest = json.loads((engine / "inflight.json").read_text())
    assert manifest["runtime"] == "tensorrt"
    assert manifest["versions"]["tensorrt_llm"] == "1.2.1"
    assert manifest["versions"]["tensorrt"] == "10.14.1.48"
    assert manifest["gpu_architecture"] == "sm90"
    assert manifest["mapping"] == {"world_size": 2, "tp_size": 2, "pp_size": 1}
    assert manifest["options"] == {"tp_size": 2}
    assert "rank1.engine" in manifest["files"]
    assert not any(name.startswith("build-logs") for name in manifest["files"])
    logs = {path.name for path in (engine / "build-logs").iterdir()}
    assert logs == {"01-convert-rank0.log", "02-convert-rank1.log", "03-build.log", "04-files.log"}


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ((), " --executor tensorrt_llm"),
        (("--tp-size", "2"), " --executor tensorrt_llm --executor-option communication_mode=orchestrator"),
    ],
)
def test_what_to_type_next_starts_every_rank(options: tuple[str, ...], flags: str, double: Shell) -> None:
    checkpoint_of("gpt2-medium", double.folder / "gpt2")
    told = double("build", "gpt2", "--output", "engine", *options)
    assert told.output.endswith(f"\nserve it with: inflight serve engine{flags}\n"), told


def test_a_failed_build_goes_on_where_it_stopped(double: Shell) -> None:
    checkpoint_of("gpt2-medium", double.folder / "gpt2")
    command = ("build", "gpt2", "--output", "engine", "--tp-size", "2")
    told = double(*command, DOUBLE_FAIL="convert1")
    assert told.code == 1
    assert "the step `convert-rank1` failed with exit status 3" in told.errors
    assert "told to fail at convert1" in told.errors
    assert "rerun the same command to resume at this step" in told.errors
    told = double(*command, DOUBLE_FAIL="build")
    assert told.code == 1
    assert "the step `build` failed" in told.errors
    # A half written engine lies in the staging directory and never under the final name.
    assert (double.folder / ".engine.building/result/rank0.engine").read_bytes() == b"half"
    assert not (double.folder / "engine").exists()
    told = double(*command)
    assert told.code == 0, told
    assert told.errors.count("already done") == 2
    assert made_by(double) == [
        "GPTForCausalLM.from_hugging_face",
        "GPTForCausalLM.from_hugging_face",
        "GPTForCausalLM.from_hugging_face",
        "trtllm-build",
        "trtllm-build",
    ]
    assert (double.folder / "engine/rank0.engine").read_bytes() == b"engine"


def test_other_builder_options_keep_the_converted_checkpoint(double: Shell) -> None:
    checkpoint_of("gpt2-medium", double.folder / "gpt2")
    assert double("build", "gpt2", "--output", "engine", DOUBLE_FAIL="build").code == 1
    assert double("build", "gpt2", "--output", "engine", "--max-batch-size", "8").code == 0
    assert made_by(double) == ["GPTForCausalLM.from_hugging_face", "trtllm-build", "trtllm-build"]


def test_other_weights_start_anew(double: Shell) -> None:
    checkpoint = checkpoint_of("gpt2-medium", double.folder / "gpt2")
    assert double("build", "gpt2", "--output", "engine", DOUBLE_FAIL="build").code == 1
    data = bytearray((checkpoint / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (checkpoint / "model.safetensors").write_bytes(bytes(data))
    assert double("build", "gpt2", "--output", "engine").code == 0
    assert made_by(double).count("GPTForCausalLM.from_hugging_face") == 2


def test_an_adapter_counts_by_its_content(double: Shell) -> None:
    checkpoint_of("gpt2-medium", double.folder / "gpt2")
    adapter = double.folder / "adapter"
    adapter.mkdir()
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(b"one")
    (adapter / ".cache").mkdir()
    command = ("build", "gpt2", "--output", "engine", "--lora-dir", "adapter", "--json")
    assert double(*command).json()["status"] == "built"
    first = (double.folder / "engine/inflight.json").read_bytes()
    (adapter / ".cache/stamp").write_text("now")
    assert double(*command).json()["status"] == "up to date"
    weights.write_bytes(b"two")
    told = double(*command)
    assert told.code == 2
    assert "contains a build of other inputs" in told.errors
    assert double(*command, "--force").json()["status"] == "built"
    assert (double.folder / "engine/inflight.json").read_bytes() != first
    weights.write_bytes(b"one")
    assert double(*command, "--force").json()["status"] == "built"
    assert (double.folder / "engine/inflight.json").read_bytes() == first
    adapter.rename(double.folder / "moved")
    told = double(*command)
    assert told.code == 2
    assert "`--lora-dir` is `adapter`, which does not exist" in told.errors


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.reads], ids=lambda o: o.name)
def test_every_option_that_names_files_is_fingerprinted(option: BuildOption, tmp_path: Path) -> None:
    path = tmp_path / "named"
    path.write_text("one")
    given = Values({option.name: (str(path),) if option.kind == "texts" else str(path)})
    first = fingerprint_named_files(given)
    path.write_text("two")
    assert first[option.name][0].keys() == {"named"}
    assert fingerprint_named_files(given) != first


def test_a_data_set_may_be_a_name_and_no_path() -> None:
    assert fingerprint_named_files(Values({"calib_dataset": "cnn_dailymail"})) == {}


def test_ranks_convert_side_by_side_with_workers(tmp_path: Path) -> None:
    shell = Shell(tmp_path, write_double(tmp_path / "double", gpus=2))
    checkpoint_of("gpt2-medium", tmp_path / "gpt2")
    told = shell("build", "gpt2", "--output", "engine", "--tp-size", "4", "--workers", "2")
    assert told.code == 0, told
    assert made_by(shell).count("GPTForCausalLM.from_hugging_face") == 4
    assert (tmp_path / "engine/rank3.engine").is_file()


def test_a_failure_among_workers_keeps_the_ranks_that_ended_well(tmp_path: Path) -> None:
    shell = Shell(tmp_path, write_double(tmp_path / "double", gpus=2))
    checkpoint_of("gpt2-medium", tmp_path / "gpt2")
    command = ("build", "gpt2", "--output", "engine", "--tp-size", "2", "--workers", "2")
    assert shell(*command, DOUBLE_FAIL="convert0").code == 1
    told = shell(*command)
    assert told.code == 0, told
    assert told.errors.count("already done") == 1


def test_the_llm_api_builds_what_its_class_alone_converts(double: Shell) -> None:
    config = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 128,
        "max_position_embeddings": 256,
        "n_routed_experts": 4,
    }
    checkpoint = checkpoint_of("gpt2-medium", double.folder / "deepseek")
    (checkpoint / "config.json").write_text(json.dumps(config))
    told = double(
        *("build", "deepseek", "--output", "engine", "--tp-size", "2", "--moe-ep-size", "2"),
        *("--use-paged-context-fmha", "disable", "--gemm-plugin", "disable", "--fast-build"),
    )
    assert told.code == 0, told
    made = {name: kwargs for name, _, kwargs in calls(double.environment)}
    llm = made["tensorrt_llm._tensorrt_engine.LLM"]
    assert llm["moe_expert_parallel_size"] == "2"
    assert llm["fast_build"] == "True"
    assert made["tensorrt_llm.plugin.PluginConfig"] == {
        "gemm_plugin": "None",
        "use_paged_context_fmha": "False",
    }
    assert made["tensorrt_llm.llmapi.BuildConfig"]["max_seq_len"] == "256"


def test_weight_only_formats_convert_with_the_wheel_alone(double: Shell) -> None:
    checkpoint_of("codellama-13b", double.folder / "llama")
    told = double(
        "build", "llama", "--output", "engine", "--quantization", "int4_wo", "--max-seq-len", "4096"
    )
    assert told.code == 0, told
    quantization = [kwargs for name, _, kwargs in calls(double.environment) if name.endswith("QuantConfig")]
    assert quantization == [{"quant_algo": "W4A16"}]


def test_calibrated_formats_run_the_example_script(double: Shell) -> None:
    checkpoint_of("codellama-13b", double.folder / "llama")
    write_quantize_script(double.folder / "TensorRT-LLM/examples")
    version = double.folder / "TensorRT-LLM/tensorrt_llm/version.py"
    version.parent.mkdir(parents=True)
    command = ("build", "llama", "--output", "engine", "--quantization", "fp8", "--kv-cache-dtype", "fp8")
    told = double(*command)
    assert told.code == 2
    assert "needs `quantization/quantize.py` from TensorRT-LLM's examples" in told.errors
    examples = ("--examples-dir", "TensorRT-LLM/examples")
    version.write_text('__version__ = "1.1.0"\n')
    told = double(*command, *examples)
    assert told.code == 2
    assert "is from release `1.1.0`, but TensorRT-LLM `1.2.1` is installed" in told.errors
    version.write_text('__version__ = "1.2.1"\n')
    told = double(*command, *examples)
    assert told.code == 0, told


def test_an_encoder_decoder_becomes_two_engines(double: Shell) -> None:
    checkpoint_of("t5-small", double.folder / "t5")
    write_encoder_decoder_script(double.folder / "examples")
    told = double("build", "t5", "--output", "engine", "--examples-dir", "examples", "--tp-size", "2")
    assert told.code == 0, told
    engine = double.folder / "engine"
    assert (engine / "encoder/rank1.engine").is_file()
    assert (engine / "decoder/rank1.engine").is_file()
    assert not (engine / "config.json").exists()
    two = Shell(double.folder, write_double(double.folder / "two", gpus=2))
    found = two("inspect", "engine", "--json").json()
    assert found["model"]["architecture"] == "T5ForConditionalGeneration"
    assert found["runtimes"][0]["can_serve"]


def test_a_gateway_gets_the_checkpoints_config_and_not_the_engines(
    double: Shell,
) -> None:
    source = checkpoint_of("gpt2-medium", double.folder / "gpt2")
    assert double("build", "gpt2", "--output", "engine").code == 0
    # Files only: this process does not see the double.
    found = find_model(str(double.folder / "engine"), None, weights=True)
    assert found.served_name == "engine"
    assert found.vocab_size() == 50257
    assert found.assets()["config.json"] == (source / "config.json").read_bytes()
    with pytest.raises(UserMistake) as refusal:
        find_model(str(double.folder / "engine"), None, weights=True, executor="tensorrt_llm")
    assert "needs TensorRT-LLM `1.2.1`, which is not installed" in refusal.value.what


def test_a_model_with_images_is_built_for_the_pytorch_runtime(double: Shell) -> None:
    source = checkpoint_of("llama-2-70b", double.folder / "seeing")
    # The facts of Qwen2.5-VL-7B-Instruct.
    config = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 128000,
        "vocab_size": 152064,
        "torch_dtype": "bfloat16",
        "vision_config": {"depth": 32, "hidden_size": 1280},
    }
    (source / "config.json").write_text(json.dumps(config))
    (source / "preprocessor_config.json").write_text('{"min_pixels": 3136}')
    plan = double("build", "seeing", "--output", "served", "--runtime", "pytorch", "--dry-run")
    assert plan.code == 0, plan
    assert "blocked by" not in plan.output
    told = double("build", "seeing", "--output", "served", "--runtime", "pytorch")
    assert told.code == 0, told
    # Without it, nobody makes tokens of an image.
    assert (double.folder / "served" / "preprocessor_config.json").read_text() == '{"min_pixels": 3136}'
    refused = double("build", "seeing", "--output", "engine", "--runtime", "tensorrt", "--dry-run")
    assert "Qwen2_5_VLForConditionalGeneration" in refused.errors


def test_the_pytorch_runtime_gets_links_and_checked_arguments(double: Shell) -> None:
    checkpoint_of("llama-2-70b", double.folder / "llama")
    told = double(
        *("build", "llama", "--output", "served", "--runtime", "pytorch", "--tp-size", "4"),
        *("--kv-cache-dtype", "fp8", "--lora-target-modules", "attn_q", "--lora-target-modules", "attn_v"),
    )
    assert told.code == 0, told
    served = double.folder / "served"
    assert (served / "model.safetensors").is_symlink()
    assert (served / "model.safetensors").resolve() == double.folder / "llama/model.safetensors"
    arguments = json.loads((served / "llm_args.json").read_text())
    assert arguments == {
        "dtype": "auto",
        "enable_lora": True,
        "kv_cache_config": {"dtype": "fp8"},
        "lora_config": {"lora_target_modules": ["attn_q", "attn_v"]},
        "max_batch_size": 2048,
        "max_beam_width": 1,
        "max_num_tokens": 8192,
        "max_seq_len": 4096,
        "pipeline_parallel_size": 1,
        "tensor_parallel_size": 4,
        "trust_remote_code": False,
    }
    name, _, checked = calls(double.environment)[-1]
    assert name == "tensorrt_llm.llmapi.TorchLlmArgs"
    assert set(checked) == {"model", *arguments}


@pytest.mark.parametrize(
    ("version", "model", "runtime", "why"),
    [
        ("1.2.1", "llama-2-70b", "tensorrt", "TensorRT-LLM 1.2.1 builds engines"),
        ("1.4.0rc1", "llama-2-70b", "pytorch", "TensorRT-LLM 1.4.0rc1 builds no engines"),
    ],
)
def test_auto_picks_by_what_is_installed(
    version: str, model: str, runtime: str, why: str, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, write_double(tmp_path / "double", version=version))
    checkpoint_of(model, tmp_path / "model")
    plan = shell("build", "model", "--output", "out", "--dry-run", "--json").json()
    assert plan["runtime"] == runtime
    assert why in plan["why"]
    assert plan["blockers"] == []


def test_engines_of_a_release_without_them_are_refused(tmp_path: Path) -> None:
    shell = Shell(tmp_path, write_double(tmp_path / "double", version="1.3.0rc25"))
    checkpoint_of("llama-2-70b", tmp_path / "model")
    told = shell("build", "model", "--output", "out", "--runtime", "tensorrt")
    assert told.code == 2
    assert "TensorRT-LLM `1.3.0rc25` does not support engines" in told.errors
    assert "--runtime pytorch" in told.errors


def test_a_class_of_another_release_is_one_sentence(double: Shell) -> None:
    # The double has no class for Baichuan, as a release without it would not.
    checkpoint_of("baichuan2-13b", double.folder / "baichuan")
    told = double("build", "baichuan", "--output", "engine", "--trust-remote-code")
    assert told.code == 1
    assert "is not in the installed TensorRT-LLM: it has no `BaichuanForCausalLM`" in told.errors
    assert "Traceback" not in told.errors


class Gate:
    """A `trtllm-build` that says that it runs and builds once it may; open, it is the double's."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._running = shell.folder / "running"
        self._opened = shell.folder / "opened"
        builder = shell.folder / "double/bin/trtllm-build"
        real = builder.with_name("real-build")
        shutil.move(builder, real)
        builder.write_text(
            f"#!{sys.executable}\nimport os, sys, time\n"
            f"open({str(self._running)!r}, 'w').write(str(os.getpid()))\n"
            f"while not os.path.exists({str(self._opened)!r}): time.sleep(0.01)\n"
            f"os.execv({str(real)!r}, [{str(real)!r}, *sys.argv[1:]])\n"
        )
        builder.chmod(0o755)

    def start(self, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
        """Starts a build and waits until its builder runs; the build, and the builder's process id."""
        build = subprocess.Popen(
            [str(INFLIGHT), "build", *arguments],
            cwd=self._shell.folder,
            env={**os.environ, **self._shell.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        running = self._running
        wait_until("the builder runs", lambda: running.is_file() and bool(running.read_text()))
        return build, int(running.read_text())

    def open(self) -> None:
        self._opened.touch()


def test_two_builders_do_not_meet(double: Shell) -> None:
    checkpoint_of("gpt2-medium", double.folder / "gpt2")
    gate = Gate(double)
    first, _ = gate.start("gpt2", "--output", "engine")
    try:
        told = double("build", "gpt2", "--output", "engine")
        assert told.code == 2
        assert "`engine` is being built by another process" in told.errors
    finally:
        gate.open()
        assert first.wait(30) == 0
    assert (double.folder / "engine/inflight.json").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_build_leaves_no_process_and_goes_on(number: signal.Signals, double: Shell) -> None:
    checkpoint_of("gpt2-medium", double.folder / "gpt2")
    gate = Gate(double)
    build, builder = gate.start("gpt2", "--output", "engine")
    build.send_signal(number)
    assert build.wait(30) == 130
    wait_until("the builder is gone", lambda: not exists(builder))
    assert not (double.folder / "engine").exists()
    gate.open()
    told = double("build", "gpt2", "--output", "engine")
    assert told.code == 0, told
    assert made_by(double) == ["GPTForCausalLM.from_hugging_face", "trtllm-build"]


def test_a_builder_that_outlives_its_build_keeps_others_out(double: Shell) -> None:
    checkpoint_of("gpt2-medium", double.folder / "gpt2")
    gate = Gate(double)
    build, builder = gate.start("gpt2", "--output", "engine")
    build.kill()
    build.wait(30)
    try:
        assert exists(builder)
        told = double("build", "gpt2", "--output", "engine")
        assert told.code == 2
        assert "is being built by another process" in told.errors
    finally:
        gate.open()
    wait_until("the builder is gone", lambda: not exists(builder))
