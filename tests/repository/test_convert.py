"""`inflight repository convert`: what becomes of a repository for an engine, line by line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from inflight.cli.app import inflight
from inflight.launch.model import DEMO_DIRECTORY
from inflight.triton.repository.parameters import FORMER, PARAMETERS
from inflight.triton.repository.pbtxt import parse
from inflight.triton.repository.tables import MODELS
from inflight.triton.repository.without_engine import DRAFTERS, LEFT_OUT, LOST
from repository.test_templates import GUIDE
from support import templates

ENGINE = {
    "pretrained_config": {
        "mapping": {"tp_size": 2, "pp_size": 1},
        "quantization": {"quant_algo": "W8A16", "kv_cache_quant_algo": "FP8"},
    },
    "build_config": {
        "max_batch_size": 16,
        "max_num_tokens": 2048,
        "max_seq_len": 4096,
        "max_beam_width": 1,
        "gather_context_logits": True,
        "gather_generation_logits": True,
        "plugin_config": {"lora_plugin": "auto"},
        "lora_config": {"lora_target_modules": ["attn_q", "attn_v"]},
    },
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(inflight, ["repository", *map(str, arguments)])


def old_repository(tmp_path: Path, *options: str, engine: dict[str, Any] | None = None) -> Path:
    """A repository of NVIDIA's models, as `create` writes it for the C++ backend."""
    directory = tmp_path / "engine"
    directory.mkdir()
    if engine is not None:
        (directory / "config.json").write_text(json.dumps(engine))
    old = tmp_path / "old"
    made = run(
        "create",
        directory,
        "--output",
        old,
        "--backend=tensorrtllm",
        f"--tokenizer-dir={DEMO_DIRECTORY}",
        *options,
    )
    assert made.exit_code == 0, made.output
    return old


def lines(result: Result) -> dict[str, str]:
    """Model and setting -> state and words."""
    found = {}
    for line in result.output.splitlines():
        if match := re.match(r"(kept|changed|unset|lost|left out|ask) +(.+?: .+?): (.*)", line):
            found[match[2]] = f"{match[1]}: {match[3]}"
    return found


def parameters(model: Path) -> dict[str, str]:
    config = parse((model / "config.pbtxt").read_text())
    return {one["key"][0]: one["value"][0]["string_value"][0] for one in config["parameters"]}


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "a repository for an engine, whose C++ backend NVIDIA removed in July 2026",
    "`inflight repository convert OLD NEW --model CHECKPOINT`",
)
def test_a_repository_is_converted_and_passes_its_check(tmp_path: Path) -> None:
    old = old_repository(
        tmp_path,
        "--max-batch-size=32",
        "--set=kv_cache_free_gpu_mem_fraction=0.7",
        "--set=batch_scheduler_policy=max_utilization",
        "--set=guided_decoding_backend=xgrammar",
        "--set=recv_poll_period_ms=5",
        "--set=preprocessing_instance_count=3",
        "--set=max_queue_size=9",
        "--set=skip_special_tokens=false",
        engine=ENGINE,
    )
    new = tmp_path / "new"
    result = run("convert", old, new, "--model", DEMO_DIRECTORY)
    assert result.exit_code == 0, result.output
    said = lines(result)
    assert said["tensorrt_llm: kv_cache_free_gpu_mem_fraction"] == "kept: `0.7`"
    assert said["tensorrt_llm: recv_poll_period_ms"].startswith("left out: `5`: the PyTorch runtime plans")
    assert said["engine: tp_size"] == "changed: `2` becomes `tensor_parallel_size=2`"
    assert said["engine: quant_algo"].startswith("lost: `W8A16`: a checkpoint is served in its own precision")
    assert said["tensorrt_llm: input lora_weights"].startswith("lost: the PyTorch runtime reads adapters")
    assert {path.name for path in new.iterdir()} == set(MODELS)
    core = parameters(new / "tensorrt_llm")
    expected = {
        "executor": "tensorrt_llm",
        "gpt_model_path": str(DEMO_DIRECTORY),
        "kv_cache_free_gpu_mem_fraction": "0.7",
        "batch_scheduler_policy": "max_utilization",
        "guided_decoding_backend": "xgrammar",
        "tensor_parallel_size": "2",
        "max_batch_size": "16",
        "max_num_tokens": "2048",
        "max_seq_len": "4096",
        "kv_cache_dtype": "fp8",
        "enable_kv_cache_reuse": "false",
        "gather_generation_logits": "true",
        "lora_target_modules": "attn_q,attn_v",
    }
    assert expected.items() <= core.items()
    assert parameters(new / "postprocessing")["skip_special_tokens"] == "false"
    text = (new / "tensorrt_llm" / "config.pbtxt").read_text()
    assert "max_batch_size: 32" in text
    assert "max_queue_size: 9" in text
    assert "count: 3" in (new / "preprocessing" / "config.pbtxt").read_text()
    checked = run("check", new)
    assert checked.exit_code == 0, checked.output


def test_what_an_unreadable_engine_decided_is_asked(tmp_path: Path) -> None:
    old = old_repository(tmp_path)
    new = tmp_path / "new"
    result = run("convert", old, new, "--model", DEMO_DIRECTORY)
    assert result.exit_code == 2
    asked = ("tensor_parallel_size", "max_batch_size", "max_num_tokens", "max_seq_len")
    assert all(lines(result)[f"tensorrt_llm: {name}"].startswith("ask: ") for name in asked)
    assert "your decision is needed for `tensor_parallel_size`" in f"{result.output} {result.exception}"
    assert not new.exists()
    assert run("convert", old, new, "--model", DEMO_DIRECTORY, "--dry-run").exit_code == 0
    assert not new.exists()
    decided = [f"--set={name}=64" if name != "tensor_parallel_size" else f"--set={name}=1" for name in asked]
    result = run("convert", old, new, "--model", DEMO_DIRECTORY, *decided)
    assert result.exit_code == 0, result.output
    assert parameters(new / "tensorrt_llm")["max_seq_len"] == "64"


def test_a_decision_replaces_what_was_kept_and_is_said(tmp_path: Path) -> None:
    old = old_repository(tmp_path, engine=ENGINE)
    result = run("convert", old, tmp_path / "new", "--model", DEMO_DIRECTORY, "--set=tensor_parallel_size=1")
    assert lines(result)["you: tensor_parallel_size"] == "changed: `2` becomes `1`"
    assert parameters(tmp_path / "new" / "tensorrt_llm")["tensor_parallel_size"] == "1"


@pytest.mark.parametrize(
    ("options", "setting", "words"),
    [
        (["--set=decoding_mode=medusa"], "decoding_mode", "lost: `medusa`: Medusa needs an engine"),
        (["--set=decoding_mode=top_k"], "decoding_mode", "left out: `top_k`: each request chooses"),
        (["--set=normalize_log_probs=false"], "normalize_log_probs", "lost: `false`: cumulative log"),
        (["--set=gpu_device_ids=0,1;2,3"], "gpu_device_ids", "lost: `0,1;2,3`: set `CUDA_VISIBLE_DEVICES`"),
        (["--set=enable_chunked_context=true"], "enable_chunked_context", "kept: `true`"),
        # Kept, it would turn off what the PyTorch runtime has on by default.
        ([], "cuda_graph_mode", "left out: `false` is NVIDIA's default"),
        (["--set=cuda_graph_mode=true"], "cuda_graph_mode", "kept: `true`"),
        # TensorRT-LLM 1.3 does not start with it.
        ([], "kv_cache_onboard_blocks", "left out: `true` is NVIDIA's default"),
        ([], "max_attention_window_size", ""),
    ],
)
def test_each_setting_of_the_core_model_has_its_line(
    tmp_path: Path, options: list[str], setting: str, words: str
) -> None:
    old = old_repository(tmp_path, *options, engine=ENGINE)
    said = lines(run("convert", old, tmp_path / "new", "--model", DEMO_DIRECTORY))
    if words:
        assert said[f"tensorrt_llm: {setting}"].startswith(words)
    else:
        assert f"tensorrt_llm: {setting}" not in said


@pytest.mark.parametrize(
    ("model", "key", "words"),
    [
        ("tensorrt_llm", "max_num_sequences", "left out: `1`: only releases up to 0.7.2 read it"),
        ("tensorrt_llm", "of_somebody", "lost: `1`: it is not a parameter of NVIDIA's model"),
        ("preprocessing", "visual_model_path", "left out: `1`: only releases 0.12.0 to 0.18.2"),
        ("tensorrt_llm_bls", "tensorrt_llm_draft_model_name", "lost: `1`: draft models run inside"),
        ("preprocessing", "multimodal_model_path", "lost: `1`: images reach TensorRT-LLM's"),
    ],
)
def test_what_is_not_known_or_supported_is_said(tmp_path: Path, model: str, key: str, words: str) -> None:
    old = old_repository(tmp_path, engine=ENGINE)
    with (old / model / "config.pbtxt").open("a") as file:
        file.write(f'parameters {{ key: "{key}" value {{ string_value: "1" }} }}\n')
    result = run("convert", old, tmp_path / "new", "--model", DEMO_DIRECTORY)
    assert result.exit_code == 0, result.output
    assert lines(result)[f"{model}: {key}"].startswith(words)


def test_a_template_without_values_is_one_without_settings(tmp_path: Path) -> None:
    old = old_repository(tmp_path, engine=ENGINE)
    config = old / "tensorrt_llm" / "config.pbtxt"
    text = config.read_text().replace('"0.9"', '"${kv_cache_free_gpu_mem_fraction}"')
    config.write_text(text.replace("max_batch_size: 8", "max_batch_size: ${triton_max_batch_size}"))
    said = lines(run("convert", old, tmp_path / "new", "--model", DEMO_DIRECTORY))
    assert (
        said["tensorrt_llm: kv_cache_free_gpu_mem_fraction"] == "unset: the PyTorch runtime's default is used"
    )
    assert said["tensorrt_llm: max_batch_size"] == "unset: the default of `triton_max_batch_size` is used"


def test_settings_that_the_models_disagree_on_are_asked(tmp_path: Path) -> None:
    old = old_repository(tmp_path, engine=ENGINE)
    config = old / "postprocessing" / "config.pbtxt"
    config.write_text(config.read_text().replace(str(DEMO_DIRECTORY), str(tmp_path)))
    result = run("convert", old, tmp_path / "new", "--model", DEMO_DIRECTORY)
    assert result.exit_code == 2
    assert "pass `--set tokenizer_dir=`" in lines(result)["postprocessing: tokenizer_dir"]
    again = run(
        "convert", old, tmp_path / "new", "--model", DEMO_DIRECTORY, f"--set=tokenizer_dir={DEMO_DIRECTORY}"
    )
    assert again.exit_code == 0, again.output


def test_every_parameter_of_the_core_model_has_a_rule() -> None:
    for parameter in PARAMETERS["tensorrt_llm"]:
        rules = [parameter.key in table for table in (LEFT_OUT, LOST, FORMER["tensorrt_llm"])]
        assert sum(rules) <= 1, parameter.key
    assert set(DRAFTERS) == {"medusa", "redrafter", "lookahead", "eagle"}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda old: (old / "tensorrt_llm" / "config.pbtxt").unlink(), "has no `tensorrt_llm/config.pbtxt`"),
        (lambda old: (old / "tensorrt_llm" / "config.pbtxt").write_text("{"), "cannot be read"),
        (
            lambda old: (
                ((old / "tensorrt_llm").rename(old / "tensorrt_llm_a") and (old / "tensorrt_llm").mkdir())
                or (old / "tensorrt_llm" / "config.pbtxt").write_text('backend: "tensorrtllm"')
            ),
            "two models of the kind `tensorrt_llm`",
        ),
    ],
)
def test_what_is_not_such_a_repository_is_refused(tmp_path: Path, spoil: Any, words: str) -> None:
    old = old_repository(tmp_path, engine=ENGINE)
    spoil(old)
    result = run("convert", old, tmp_path / "new", "--model", DEMO_DIRECTORY)
    assert result.exit_code == 2
    assert words in f"{result.output} {result.exception}"
    assert not (tmp_path / "new").exists()


def test_a_repository_of_inflight_is_not_converted(tmp_path: Path) -> None:
    assert run("create", DEMO_DIRECTORY, "--output", tmp_path / "ours").exit_code == 0
    result = run("convert", tmp_path / "ours", tmp_path / "new", "--model", DEMO_DIRECTORY)
    assert result.exit_code == 2
    assert "runs Inflight's executor already" in f"{result.output} {result.exception}"


def test_templates_filled_as_in_the_guides_are_converted(tmp_path: Path) -> None:
    old = templates.write(tmp_path / "old")
    for model, substitutions in GUIDE.items():
        filled = substitutions.format(model=DEMO_DIRECTORY, engine=tmp_path / "nowhere")
        assert run("fill", "--in_place", old / model / "config.pbtxt", filled).exit_code == 0
    decided = ("max_batch_size=4", "max_num_tokens=512", "max_seq_len=256", "tensor_parallel_size=1")
    arguments = ["convert", old, tmp_path / "new", "--model", DEMO_DIRECTORY]
    result = run(*arguments, *(f"--set={one}" for one in decided))
    assert result.exit_code == 0, result.output
    said = lines(result)
    assert said["tensorrt_llm: enable_kv_cache_reuse"] == "kept: `False`"
    assert said["tensorrt_llm: decoupled"] == "kept: `false`"
    assert run("check", tmp_path / "new").exit_code == 0
