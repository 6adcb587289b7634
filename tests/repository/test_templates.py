"""`check` and `fill` on templates like NVIDIA's, filled as its guides do it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from inflight.cli.app import inflight
from inflight.triton.repository.parameters import PARAMETERS
from inflight.triton.repository.tables import MODELS
from support import templates

#: What NVIDIA's guides give each template, beside what a newer release needs for its data types.
GUIDE = {
    "ensemble": (
        "triton_max_batch_size:8,logits_datatype:TYPE_FP32,prompt_embedding_table_data_type:TYPE_FP16"
    ),
    "preprocessing": "tokenizer_dir:{model},triton_max_batch_size:8,preprocessing_instance_count:1",
    "postprocessing": (
        "tokenizer_dir:{model},triton_max_batch_size:8,postprocessing_instance_count:1,max_queue_size:0"
    ),
    "tensorrt_llm_bls": (
        "triton_max_batch_size:8,decoupled_mode:False,bls_instance_count:1,accumulate_tokens:False,"
        "logits_datatype:TYPE_FP32,prompt_embedding_table_data_type:TYPE_FP16"
    ),
    "tensorrt_llm": (
        "triton_backend:tensorrtllm,triton_max_batch_size:8,decoupled_mode:False,max_beam_width:1,"
        "engine_dir:{engine},max_tokens_in_paged_kv_cache:2560,max_attention_window_size:2560,"
        "kv_cache_free_gpu_mem_fraction:0.5,exclude_input_in_output:True,enable_kv_cache_reuse:False,"
        "batching_strategy:inflight_batching,max_queue_delay_microseconds:600,max_queue_size:0,"
        "encoder_input_features_data_type:TYPE_FP16,logits_datatype:TYPE_FP32,"
        "prompt_embedding_table_data_type:TYPE_FP16"
    ),
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(inflight, ["repository", *map(str, arguments)])


def mistake(result: Result) -> str:
    """What a refused command says."""
    assert getattr(result.exception, "exit_code", result.exit_code) == 2, result.output
    return f"{result.output}{result.exception}"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return templates.write(tmp_path / "repository")


def fill(repository: Path, model: str, substitutions: str) -> Result:
    return run("fill", "--in_place", repository / model / "config.pbtxt", substitutions)


def test_check_names_every_placeholder_of_unfilled_templates(repository: Path) -> None:
    answer = run("check", repository)
    assert answer.exit_code == 2
    for model in MODELS:
        text = (repository / model / "config.pbtxt").read_text()
        for key in set(re.findall(r"\$\{\w+\}", text)):
            assert re.search(rf"{model}: .*`{re.escape(key)}`", answer.output), (model, key)
    for model, key in (("preprocessing", "tokenizer_dir"), ("tensorrt_llm", "gpt_model_path")):
        assert f"{model}: the parameter `{key}` is not set" in answer.output


def test_templates_filled_as_in_the_guides_lack_only_the_engine(
    repository: Path, model_directory: Path
) -> None:
    engine = repository / "nowhere"
    for model, substitutions in GUIDE.items():
        filled = fill(repository, model, substitutions.format(model=model_directory, engine=engine))
        assert filled.exit_code == 0, filled.output
        text = (repository / model / "config.pbtxt").read_text()
        # Triton's own parser takes it; what stayed is the value of a parameter.
        text_format.Parse(text, model_config_pb2.ModelConfig())
    answer = run("check", repository)
    assert answer.exit_code == 2
    wrong = [line for line in answer.output.splitlines() if "note: " not in line]
    assert wrong == [
        f"tensorrt_llm: the parameter `gpt_model_path` must be a directory, got `{engine}`",
        "1 problem",
    ]
    engine.mkdir()
    assert run("check", repository).exit_code == 0


def test_fill_says_what_stays_and_what_has_no_placeholder(repository: Path, model_directory: Path) -> None:
    core = fill(repository, "tensorrt_llm", GUIDE["tensorrt_llm"].format(model="", engine="e"))
    (note,) = [line for line in core.output.splitlines() if "not set" in line]
    unset = [
        one.option
        for one in PARAMETERS["tensorrt_llm"]
        if f'"${{{one.option}}}"' in templates.template("tensorrt_llm")
        and f"{one.option}:" not in GUIDE["tensorrt_llm"]
    ]
    assert len(unset) > 20
    assert note.endswith(": " + ", ".join(f"`{key}`" for key in unset))
    post = fill(repository, "postprocessing", GUIDE["postprocessing"].format(model=model_directory))
    assert "has no placeholder `max_queue_size`" in post.output


@pytest.mark.parametrize(
    ("model", "substitutions", "text"),
    [
        # As in the guides of an older release: Triton could not read the file.
        ("ensemble", "triton_max_batch_size:8", "`logits_datatype` has no value"),
        ("preprocessing", "tokenizer_type:auto,tokenizer_dir:x", "`triton_max_batch_size` has no value"),
        (
            "tensorrt_llm_bls",
            "triton_max_batch_size:8,decoupled_mode:True",
            "`bls_instance_count` has no value",
        ),
    ],
)
def test_fill_refuses_what_triton_could_not_read(
    repository: Path, model: str, substitutions: str, text: str
) -> None:
    before = (repository / model / "config.pbtxt").read_text()
    assert text in mistake(fill(repository, model, substitutions))
    assert (repository / model / "config.pbtxt").read_text() == before
