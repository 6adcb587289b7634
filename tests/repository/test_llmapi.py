"""The repository of TensorRT-LLM's llmapi model: written, checked, and made of one for an engine."""

from __future__ import annotations

import re
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from inflight.cli.app import inflight
from inflight.executors.tensorrt_llm.options import OPTIONS
from inflight.launch.model import DEMO_DIRECTORY
from inflight.model import llm_names
from inflight.triton.repository.llmapi_convert import _RENAMED
from inflight.triton.repository.llmapi_options import OWN, meaningless
from inflight.triton.repository.llmapi_tables import INPUTS, LATER_INPUTS, OUTPUTS, read_sources
from inflight.triton.repository.options import options
from repository.test_convert import ENGINE, lines, old_repository
from support import double
from support.fronted import LLMAPI

yaml: Any = import_module("yaml")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(inflight, ["repository", *map(str, arguments)])


def create(output: Path, *options: object) -> Path:
    """The model's folder."""
    made = run("create", DEMO_DIRECTORY, "--output", output, "--backend=llmapi", *options)
    assert made.exit_code == 0, made.output
    return output / "tensorrt_llm"


def said(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "`cp -r triton_backend/all_models/llmapi/* REPO`, then edit `1/model.yaml`",
    "`inflight repository create CHECKPOINT --output REPO --backend llmapi --sources TENSORRT_LLM`",
)
def test_the_model_is_written_as_triton_and_nvidias_code_read_it(tmp_path: Path) -> None:
    model = create(
        tmp_path / "out",
        f"--sources={LLMAPI}",
        "--kv-cache-free-gpu-mem-fraction=0.8",
        "--set=tensor_parallel_size=2",
        "--set=max_batch_size=16",
        "--set=cancellation_check_period_ms=50",
        "--set=lora_target_modules=attn_q,attn_v",
    )
    assert yaml.safe_load((model / "1" / "model.yaml").read_text()) == {
        "model": str(DEMO_DIRECTORY),
        "backend": "pytorch",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "max_batch_size": 16,
        "kv_cache_config": {"free_gpu_memory_fraction": 0.8},
        "lora_config": {"lora_target_modules": ["attn_q", "attn_v"]},
        "enable_lora": True,
        "triton_config": {"max_batch_size": 0, "decoupled": True, "cancellation_check_period_ms": 50},
    }
    config = text_format.Parse((model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert (config.name, config.backend, config.max_batch_size) == ("tensorrt_llm", "python", 0)
    assert config.model_transaction_policy.decoupled
    # Those of the sources, whose code reads them.
    assert [one.name for one in config.input] == [one.name for one in read_sources(LLMAPI).inputs]
    assert [one.optional for one in config.input] == [one.name != "text_input" for one in config.input]
    assert (model / "1" / "model.py").read_text() == (LLMAPI / "1" / "model.py").read_text()
    checked = run("check", tmp_path / "out")
    assert checked.exit_code == 0, checked.output


def test_without_sources_the_tensors_are_those_of_1_2_1_and_the_code_is_asked_for(tmp_path: Path) -> None:
    made = run(
        "create", DEMO_DIRECTORY, "--output", tmp_path / "out", "--backend=llmapi", "--decoupled=false"
    )
    assert "copy model.py and helpers.py from triton_backend/all_models/llmapi/tensorrt_llm/1" in said(made)
    model = tmp_path / "out" / "tensorrt_llm"
    config = text_format.Parse((model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert [one.name for one in config.input] == [one.name for one in INPUTS]
    assert [one.name for one in config.output] == [one.name for one in OUTPUTS]
    assert not config.model_transaction_policy.decoupled
    checked = run("check", tmp_path / "out")
    assert checked.exit_code == 2
    assert checked.output.count("tensorrt_llm: ") == 1
    assert "`1/model.py` is missing, without which Triton does not load the model" in said(checked)


def test_the_tensors_are_the_recorded_ones() -> None:
    recorded = read_sources(LLMAPI)
    assert {one.name: one for one in recorded.inputs} == {one.name: one for one in (*INPUTS, *LATER_INPUTS)}
    assert recorded.outputs == OUTPUTS
    known = {one.name for one in (*INPUTS, *LATER_INPUTS, *OUTPUTS)}
    assert {other for other, _ in _RENAMED.values()} <= known


def test_every_instance_has_gpus_of_its_own(tmp_path: Path) -> None:
    model = create(tmp_path / "out", "--set=gpu_device_ids=0,1;2,3", "--set=tensor_parallel_size=2")
    config = (model / "config.pbtxt").read_text()
    assert 'key: "gpu_device_ids" value { string_value: "0,1;2,3" }' in config
    assert "count: 2 kind: KIND_CPU" in config


def test_a_name_on_the_hub_and_a_prefix_are_written_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = run("create", "org/small@v2", "--output", "out", "--backend=llmapi", "--prefix=small")
    assert made.exit_code == 0, made.output
    model = tmp_path / "out" / "small_tensorrt_llm"
    held = yaml.safe_load((model / "1" / "model.yaml").read_text())
    assert (held["model"], held["revision"]) == ("org/small", "v2")
    assert 'name: "small_tensorrt_llm"' in (model / "config.pbtxt").read_text()
    assert "must be a directory" not in run("check", "out").output


def test_what_a_build_wrote_is_taken_over_and_another_tokenizer_is_written(tmp_path: Path) -> None:
    build = tmp_path / "build"
    shutil.copytree(DEMO_DIRECTORY, build)
    (build / "llm_args.json").write_text('{"max_batch_size": 16, "kv_cache_config": {"dtype": "fp8"}}')
    command = ("create", build, "--output", tmp_path / "out", "--backend=llmapi")
    assert run(*command, "--set=max_batch_size=8", f"--tokenizer-dir={DEMO_DIRECTORY}").exit_code == 0
    held = yaml.safe_load((tmp_path / "out" / "tensorrt_llm" / "1" / "model.yaml").read_text())
    assert (held["max_batch_size"], held["kv_cache_config"]) == (8, {"dtype": "fp8"})
    assert (held["model"], held["tokenizer"]) == (str(build), str(DEMO_DIRECTORY))


def test_a_file_of_arguments_is_merged_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "extra.yaml"
    file.write_text(
        "moe_config: {backend: WIDEEP}\nkv_cache_config: {tokens_per_block: 64}\nbackend: pytorch\n"
    )
    model = create(tmp_path / "out", f"--set=llm_args={file}", "--set=enable_kv_cache_reuse=false")
    held = yaml.safe_load((model / "1" / "model.yaml").read_text())
    assert held["moe_config"] == {"backend": "WIDEEP"}
    assert held["kv_cache_config"] == {"tokens_per_block": 64, "enable_block_reuse": False}
    file.write_text("kv_cache_config: {token_per_block: 64}\n")
    refused = run(
        "create", DEMO_DIRECTORY, "--output", tmp_path / "b", "--backend=llmapi", f"--set=llm_args={file}"
    )
    assert "did you mean `kv_cache_config.tokens_per_block`?" in said(refused)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--max-batch-size=8"],
            "`triton_max_batch_size` has no meaning for the llmapi model: a request has one",
        ),
        (
            ["--logits-datatype=TYPE_FP16"],
            "`logits_datatype` has no meaning for the llmapi model: it returns no",
        ),
        (["--executor=reference"], "Inflight's executors need `--backend python`"),
        (["--exclude-input-in-output=true"], "with `sampling_param_exclude_input_from_output`"),
        (["--set=preprocessing_instance_count=2"], "the llmapi model is alone"),
        (["--set=accumulate_tokens=true"], "each streamed response has all text so far"),
        (["--set=lora_adapter_dir=/a"], "each request names its adapter with `lora_id`"),
        (["--set=decoding_mode=medusa"], "it needs an engine"),
        (["--set=gpu_weights_percent=0.5"], "there is no engine any more"),
        (["--set=num_blocks=7"], "unknown option `num_blocks`"),
        (["--set=tensor_paralel_size=2"], "did you mean `tensor_parallel_size`?"),
        (["--set=gpu_device_ids=0,1"], "set `CUDA_VISIBLE_DEVICES`"),
        (["--decoupled=perhaps"], "`decoupled_mode` is `perhaps`, but must be true or false"),
        (["--set=tensor_parallel_size=none"], "`tensor_parallel_size` must be"),
        (
            ["--tokenizer-dir=/nowhere"],
            "`/nowhere` is not a directory",
        ),
        (
            ["--sources=/nowhere"],
            "`--sources /nowhere` has no `triton_backend/all_models/llmapi/tensorrt_llm",
        ),
    ],
)
def test_what_has_no_meaning_there_is_refused_by_name(tmp_path: Path, options: list[str], words: str) -> None:
    made = run("create", DEMO_DIRECTORY, "--output", tmp_path / "out", "--backend=llmapi", *options)
    assert made.exit_code == 2, made.output
    assert words in said(made)
    assert not (tmp_path / "out").exists()


def test_every_option_has_a_place_or_a_reason() -> None:
    for name in {*options(), *OPTIONS} - {"num_blocks"}:
        placed = name in OWN or (name in OPTIONS and "pytorch" in OPTIONS[name].runtimes)
        assert placed or meaningless(name), name


def test_an_engine_and_models_that_need_the_core_are_refused(tmp_path: Path) -> None:
    old = old_repository(tmp_path, engine=ENGINE)
    made = run("create", tmp_path / "engine", "--output", tmp_path / "new", "--backend=llmapi")
    assert "is an engine, which the llmapi model does not run" in said(made)
    made = run("create", DEMO_DIRECTORY, "--output", old, "--backend=llmapi", "--force")
    assert "which needs a core model that takes token ids" in said(made)
    made = run("create", DEMO_DIRECTORY, "--output", tmp_path / "five", f"--sources={LLMAPI}")
    assert "`--sources` has no effect without `--backend llmapi`" in said(made)
    assert not (tmp_path / "five").exists()


YAML = "1/model.yaml"
CONFIG = "config.pbtxt"


@pytest.mark.parametrize(
    ("file", "before", "after", "words"),
    [
        (
            YAML,
            "backend: pytorch",
            "backend: pytorh",
            "`backend` in `1/model.yaml` is `pytorh`; did you mean",
        ),
        (YAML, "backend: pytorch", "max_batchsize: 4", "did you mean `max_batch_size`?"),
        (
            YAML,
            "backend: pytorch",
            "kv_cache_config: {free_gpu_mem_fraction: 1}",
            "`kv_cache_config.free_gpu_me",
        ),
        (YAML, "backend: pytorch", "speculative_config: {decoding_type: NGran}", "decoding_type=NGram`?"),
        (
            YAML,
            "backend: pytorch",
            "logits_post_processors: {ban: nothing}",
            "`logits_post_processors.ban` is",
        ),
        (YAML, f"model: {DEMO_DIRECTORY}", "# none", "`model` in `1/model.yaml` is missing; set it to"),
        (
            YAML,
            f"model: {DEMO_DIRECTORY}",
            "model: /nowhere/x",
            "a directory or a name on the Hub (ORG/NAME), got",
        ),
        (YAML, f"model: {DEMO_DIRECTORY}", "model: ENGINE", "an engine; set it to the engine's checkpoint"),
        (
            YAML,
            "backend: pytorch",
            "tokenizer: /nowhere/x",
            "`tokenizer` in `1/model.yaml` must be a directory",
        ),
        (YAML, "decoupled: true", "decoupled: false", "`decoupled` is `true`, but `false` in `1/model.yaml`"),
        (
            YAML,
            "decoupled: true",
            "decuopled: true",
            "`triton_config.decuopled` in `1/model.yaml` is unknown; did",
        ),
        (YAML, "  decoupled: true", "", "`triton_config.decoupled` in `1/model.yaml` is missing; set it to"),
        (YAML, "decoupled: true", 'decoupled: "no"', "`triton_config.decoupled` in `1/model.yaml` is `no`"),
        (
            YAML,
            "max_batch_size: 0",
            "max_batch_size: 8",
            "`triton_config.max_batch_size` is `8`, but must be `0`",
        ),
        (YAML, "triton_config:", "triton_confg:", "`1/model.yaml` has no `triton_config`"),
        (YAML, "triton_config:", "triton_config: [", "`1/model.yaml` cannot be read"),
        (
            YAML,
            "tensor_parallel_size: 1",
            "tensor_parallel_size: 0",
            "`tensor_parallel_size` in `1/model.yaml` is",
        ),
        (YAML, "period_ms: 100", "period_ms: 0", "`triton_config.cancellation_check_period_ms` is `0`"),
        (CONFIG, "max_batch_size: 0", "max_batch_size: 4", "`max_batch_size` is `4`, but must be `0`"),
        (CONFIG, "model_transaction_policy { decoupled: true }", "", "with `--disable-auto-complete-config`"),
        (CONFIG, 'backend: "python"', 'backend: "tensorrtllm"', "`backend` is `tensorrtllm`, not `python`"),
        (CONFIG, '"sampling_param_top_k"', '"sampling_param_topk"', "did you mean `sampling_param_top_k`?"),
        (CONFIG, '"text_output"', '"text"', "the output `text_output` is missing"),
        (CONFIG, '"streaming" data_type: TYPE_BOOL', '"streaming" data_type: TYPE_INT32', "not `TYPE_BOOL`"),
        (CONFIG, "count: 1", "count: 2", "the instance count is `2`, and `gpu_device_ids` names no GPUs"),
        (
            CONFIG,
            "instance_group",
            'parameters { key: "max_seq_len" } instance_group',
            "arguments of `LLM` are in",
        ),
    ],
)
def test_check_names_what_is_wrong(tmp_path: Path, file: str, before: str, after: str, words: str) -> None:
    old_repository(tmp_path, engine=ENGINE)
    model = create(tmp_path / "out", f"--sources={LLMAPI}")
    path = model / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after.replace("ENGINE", str(tmp_path / "engine"))))
    checked = run("check", tmp_path / "out")
    assert checked.exit_code == 2, checked.output
    assert words in said(checked)


def test_check_counts_the_gpus_of_instances(tmp_path: Path) -> None:
    model = create(tmp_path / "out", f"--sources={LLMAPI}", "--set=gpu_device_ids=0;1,2")
    checked = run("check", tmp_path / "out")
    assert "instance `1` has `2` GPUs, and `1/model.yaml` needs `1`" in said(checked)
    config = model / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 2", "count: 3"))
    assert "`3`, but `gpu_device_ids` names GPUs for `2`" in said(run("check", tmp_path / "out"))


def test_check_knows_nvidias_own_files(tmp_path: Path) -> None:
    """As in the sources: batch size and policy in `model.yaml` alone, code that imports `helpers`."""
    model = tmp_path / "out" / "tensorrt_llm"
    shutil.copytree(LLMAPI, model)
    held = {"model": "org/small", "backend": "pytorch", "an_argument_of_a_later_release": 1}
    triton = {"max_batch_size": 0, "decoupled": False}
    (model / "1" / "model.yaml").write_text(yaml.safe_dump({**held, "triton_config": triton}))
    (model / "1" / "model.py").write_text("from helpers import x\n")
    checked = run("check", tmp_path / "out")
    assert "`1/helpers.py` is missing, which `model.py` imports" in said(checked)
    (model / "1" / "helpers.py").touch()
    checked = run("check", tmp_path / "out")
    assert checked.exit_code == 0, checked.output
    assert "note: TensorRT-LLM 1.2.1 or 1.3 has no argument `an_argument_of_a_later_release`" in said(checked)
    (model / "1" / "model.yaml").unlink()
    assert "`1/model.yaml` is missing" in said(run("check", tmp_path / "out"))


def test_the_names_of_arguments_are_those_of_both_lines() -> None:
    def fields(symbols: Any, name: str) -> set[str]:
        held = symbols.get(name, {})
        own = {one["name"] for one in held.get("params", [])}
        return own | fields(symbols, held["inherits"]) if "inherits" in held else own

    from inflight.executors.tensorrt_llm.pytorch_config import CLASSES

    arguments: set[str] = set()
    held: dict[str, set[str]] = {name: set() for name in CLASSES}
    for symbols, _ in double.LINES.values():
        arguments |= fields(symbols, "tensorrt_llm.llmapi.TorchLlmArgs")
        for name, short in CLASSES.items():
            for module in ("tensorrt_llm.llmapi", "tensorrt_llm.llmapi.llm_args"):
                held[name] |= fields(symbols, f"{module}.{short}")
    # A session is an object.
    assert arguments - {"mpi_session", "_mpi_session"} == llm_names.ARGUMENTS
    assert {name: found for name, found in held.items() if found} == llm_names.FIELDS


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "a repository for an engine, in place of which NVIDIA keeps the llmapi model",
    "`inflight repository convert OLD NEW --model CHECKPOINT --backend llmapi`",
)
def test_a_repository_for_an_engine_becomes_the_one_model(tmp_path: Path) -> None:
    old = old_repository(
        tmp_path,
        "--max-batch-size=32",
        "--set=preprocessing_instance_count=3",
        "--set=skip_special_tokens=false",
        "--set=gpu_device_ids=0,1;2,3",
        "--set=enable_chunked_context=true",
        "--set=lora_prefetch_dir=/a",
        engine=ENGINE,
    )
    new = tmp_path / "new"
    result = run("convert", old, new, "--model", DEMO_DIRECTORY, "--backend=llmapi", f"--sources={LLMAPI}")
    assert result.exit_code == 0, result.output
    about = lines(result)
    for setting, words in {
        "tensorrt_llm: max_queue_size": "left out: `0`: Triton hands each request on at once",
        "preprocessing: instance count": "left out: `3`: the llmapi model is alone",
        "postprocessing: skip_special_tokens": "lost: `false`: `LLM` decides it",
        "preprocessing: tokenizer_dir": f"left out: `{DEMO_DIRECTORY}`: the checkpoint has its own tokenizer",
        "tensorrt_llm: gpu_device_ids": "kept: `0,1;2,3`",
        "tensorrt_llm: enable_chunked_context": "kept: `true`",
        "tensorrt_llm: lora_prefetch_dir": "lost: `/a`: each request names its adapter",
        "engine: gather_context_logits": "lost: `true`: the llmapi model returns no logits",
        "ensemble: the model": "changed: clients call `tensorrt_llm`",
        "ensemble: input text_input": "kept: `text_input`",
        "ensemble: input max_tokens": "changed: `sampling_param_max_tokens`",
        "ensemble: input beam_width": "lost: the llmapi model has no such input",
        "ensemble: output cum_log_probs": "changed: `cumulative_logprob`",
    }.items():
        assert about[setting].startswith(words), (setting, about[setting])
    assert [path.name for path in new.iterdir()] == ["tensorrt_llm"]
    held = yaml.safe_load((new / "tensorrt_llm" / "1" / "model.yaml").read_text())
    assert held["tensor_parallel_size"] == 2
    assert held["enable_chunked_prefill"] is True
    assert held["kv_cache_config"] == {"dtype": "fp8"}
    assert not held.keys() & {"gather_generation_logits", "tokenizer"}
    checked = run("check", new)
    assert checked.exit_code == 0, checked.output
    again = run("convert", new, tmp_path / "again", "--model", DEMO_DIRECTORY)
    assert again.exit_code == 2
    assert "is TensorRT-LLM's llmapi model" in said(again)


def test_a_cache_that_was_not_reused_is_not_reused_either(tmp_path: Path) -> None:
    old = old_repository(tmp_path, "--set=enable_kv_cache_reuse=false", engine=ENGINE)
    result = run("convert", old, tmp_path / "new", "--model", DEMO_DIRECTORY, "--backend=llmapi")
    assert lines(result)["tensorrt_llm: enable_kv_cache_reuse"] == "kept: `false`"
    held = yaml.safe_load((tmp_path / "new" / "tensorrt_llm" / "1" / "model.yaml").read_text())
    assert held["kv_cache_config"] == {"dtype": "fp8", "enable_block_reuse": False}


def test_an_open_decision_writes_nothing(tmp_path: Path) -> None:
    old = old_repository(tmp_path)
    command = ("convert", old, tmp_path / "new", "--model", DEMO_DIRECTORY, "--backend=llmapi")
    result = run(*command)
    assert result.exit_code == 2
    assert "your decision is needed for `tensor_parallel_size`" in said(result)
    assert not (tmp_path / "new").exists()
    decided = [
        f"--set={name}=8"
        for name in ("tensor_parallel_size", "max_batch_size", "max_num_tokens", "max_seq_len")
    ]
    result = run(*command, *decided)
    assert result.exit_code == 0, result.output
    assert re.search("max_seq_len: 8", (tmp_path / "new" / "tensorrt_llm" / "1" / "model.yaml").read_text())
