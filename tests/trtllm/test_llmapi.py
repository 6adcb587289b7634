"""The folder of Triton's llmapi model as MODEL: what of its `model.yaml` reaches TensorRT-LLM, played by the
double, and what is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inflight.cli.app import inflight
from inflight.errors import UserMistake
from inflight.executors.tensorrt_llm.options import parse
from inflight.executors.tensorrt_llm.pytorch_config import llm_arguments
from inflight.launch import run
from inflight.launch.model import executor_for, find_model
from inflight.launch.plan import LaunchPlan
from inflight.model import llmapi
from support import double
from support.double.package import write_double
from support.http import post
from support.processes import InflightProcess
from support.servers import Start, wait_ready
from support.triton import inputs, tokens
from trtllm.test_worker import Served, checkpoint_with_tokenizer

yaml: Any = import_module("yaml")

TRITON = {"max_batch_size": 0, "decoupled": True}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A repository with the model, whose checkpoint is there."""
    checkpoint = checkpoint_with_tokenizer(tmp_path / "small")

    def made(name: str = "tensorrt_llm", **arguments: Any) -> Path:
        held = {"model": str(checkpoint), "backend": "pytorch", **arguments, "triton_config": TRITON}
        folder = tmp_path / "repository" / name / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.yaml").write_text(yaml.safe_dump(held))
        return tmp_path / "repository"

    return made


@pytest.mark.parametrize("version", double.LINES)
def test_a_worker_serves_the_folder_with_its_arguments(
    start: Start, tmp_path: Path, write: Write, version: str
) -> None:
    repository = write(
        max_seq_len=64,
        moe_config={"backend": "CUTLASS"},
        tokenizer=str(tmp_path / "small"),
        enable_lora=False,
    )
    environment = write_double(tmp_path / "double", version=version)
    process = start(
        "worker", str(repository), "--grpc-port=0", "--metrics-port=0",
        "--executor-option=max_batch_size=4", environment=environment,
    )  # fmt: skip
    served = Served(process, Path(environment["DOUBLE_REQUESTS"]))
    assert tokens(served.client.infer("tensorrt_llm", inputs([8, 16], 2)))[-2:] == [17, 18]
    served.client.close()
    held = json.loads(Path(environment["DOUBLE_ENGINES"]).read_text().splitlines()[-1])
    assert held["model"] == str(tmp_path / "small")
    assert (held["max_seq_len"], held["max_batch_size"]) == (64, 4)
    assert held["moe_config"] == {"backend": "CUTLASS"}
    assert "tokenizer" not in held


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "`launch_triton_server.py --model_repo=llmapi_repo`, for the llmapi model",
    "`inflight serve llmapi_repo`, or its `model.yaml`",
)
def test_serve_answers_openai_clients_from_what_create_writes(start: Start, tmp_path: Path) -> None:
    checkpoint = checkpoint_with_tokenizer(tmp_path / "small")
    command = ["create", str(checkpoint), "--output", str(tmp_path / "out"), "--backend=llmapi"]
    made = CliRunner().invoke(inflight, ["repository", *command, "--set=max_seq_len=64"])
    assert made.exit_code == 0, made.output
    environment = write_double(tmp_path / "double")
    process = start(
        "serve", str(tmp_path / "out" / "tensorrt_llm" / "1" / "model.yaml"),
        "--port=0", "--grpc-port=0", "--metrics-port=0", environment=environment,
    )  # fmt: skip
    http = wait_ready(process)
    answer = post(http, "/v1/completions", {"model": "small", "prompt": [8, 16], "max_tokens": 2})
    assert answer.status == 200, answer.body
    assert answer.json()["usage"]["completion_tokens"] == 2
    held = json.loads(Path(environment["DOUBLE_ENGINES"]).read_text().splitlines()[-1])
    assert (held["model"], held["max_seq_len"]) == (str(checkpoint), 64)


def started(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> LaunchPlan:
    """The plan with which `inflight serve ARGUMENTS` would start its processes."""
    plans: list[LaunchPlan] = []

    def supervise(plan: LaunchPlan, _report: object, **_: object) -> int:
        plans.append(plan)
        return 0

    monkeypatch.setattr(run, "supervise", supervise)
    monkeypatch.setattr("inflight.executors.require", lambda _: None)
    ports = ("--port=0", "--grpc-port=0", "--metrics-port=0")
    result = CliRunner().invoke(inflight, ["serve", *ports, *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return plans[0]


def test_serve_plans_the_gpus_of_the_file(monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    repository = write(tensor_parallel_size=2)
    worker, _ = started(monkeypatch, repository, "--gpus=0,1").processes
    assert worker.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "--executor=tensorrt_llm" in worker.arguments
    assert "--executor-option=tensor_parallel_size=2" in worker.arguments
    assert str(repository / "tensorrt_llm" / "1" / "model.yaml") in worker.arguments
    assert "--served-model-name=small" in worker.arguments
    worker, _ = started(monkeypatch, repository, "--gpus=0,1,2,3", "--tp-size=4").processes
    assert "--executor-option=tensor_parallel_size=4" in worker.arguments


def test_a_topology_plans_them_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    monkeypatch.setattr("inflight.executors.require", lambda _: None)
    file = tmp_path / "topology.yaml"
    model = {"path": str(write(tensor_parallel_size=2)), "executor": "tensorrt_llm"}
    file.write_text(yaml.safe_dump({"models": [model]}))
    result = CliRunner().invoke(inflight, ["launch", str(file)])
    assert result.exit_code == 2
    assert "`tp_size` is `1`, and `tensor_parallel_size` in" in result.output


def test_what_is_found_is_the_checkpoint(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = write()
    model = repository / "tensorrt_llm"
    file = model / "1" / "model.yaml"
    monkeypatch.setattr("inflight.executors.require", lambda _: "1.2.1")
    for path in (repository, model, model / "1", file):
        found = find_model(str(path), None, weights=True, executor="tensorrt_llm")
        assert (found.directory, found.file, found.served_name) == (tmp_path / "small", file, "small")
        assert executor_for(str(path), "reference", is_chosen=False) == "tensorrt_llm"
    assert executor_for(str(repository), "reference", is_chosen=True) == "reference"
    assert executor_for(str(tmp_path / "small"), "reference", is_chosen=False) == "reference"
    # The latest version counts, as for Triton, and the variable that its model reads.
    (model / "10").mkdir()
    (model / "10" / "model.yaml").write_text(file.read_text())
    assert llmapi.find(repository) == model / "10" / "model.yaml"
    (model / "10" / "other.yaml").write_text(file.read_text())
    monkeypatch.setenv("LLM_CONFIG_PATH", "other.yaml")
    assert llmapi.find(repository) == model / "10" / "other.yaml"


def test_without_the_package_the_checkpoint_is_named(tmp_path: Path, write: Write) -> None:
    result = CliRunner().invoke(inflight, ["serve", str(write())])
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert (
        "is for TensorRT-LLM: the executor `tensorrt_llm` needs TensorRT-LLM, which is not installed" in said
    )
    assert f"or pass the checkpoint itself, `{tmp_path / 'small'}`, as MODEL" in said


def test_another_executor_serves_only_what_has_no_arguments(write: Write) -> None:
    repository = write(tensor_parallel_size=1)
    assert find_model(str(repository), None, weights=True, executor="reference").file is None
    repository = write(max_seq_len=64, kv_cache_config={"dtype": "fp8"})
    with pytest.raises(UserMistake, match="has no `kv_cache_config`, `max_seq_len`, which") as raised:
        find_model(str(repository), None, weights=True, executor="reference")
    assert "small`, as MODEL" in str(raised.value.remedy)


@pytest.mark.parametrize(
    ("arguments", "words", "remedy"),
    [
        ({"model": "/nowhere/small"}, "`model` in `", "set it to the checkpoint's directory or its name"),
        ({"model": None}, "has no `model`", "set it to the checkpoint's directory"),
        ({"model": "REPOSITORY"}, "which is a Triton repository", "set it to a checkpoint"),
        ({"triton_config": 5}, "is not a mapping", "max_batch_size, decoupled"),
    ],
)
def test_a_file_that_names_no_model_is_refused(
    write: Write, arguments: dict[str, Any], words: str, remedy: str
) -> None:
    repository = write()
    file = repository / "tensorrt_llm" / "1" / "model.yaml"
    held = {**yaml.safe_load(file.read_text()), **arguments}
    if held["model"] == "REPOSITORY":
        held["model"] = str(repository)
    file.write_text(yaml.safe_dump(held))
    with pytest.raises(UserMistake, match=words) as raised:
        find_model(str(repository), None, weights=True, executor="tensorrt_llm")
    assert remedy in str(raised.value.remedy)


def test_what_is_ambiguous_or_no_such_file_is_refused(tmp_path: Path, write: Write) -> None:
    write("a_tensorrt_llm")
    repository = write("b_tensorrt_llm")
    with pytest.raises(UserMistake, match="`a_tensorrt_llm`, `b_tensorrt_llm`"):
        find_model(str(repository), None, weights=True, executor="tensorrt_llm")
    other = tmp_path / "config.yaml"
    other.write_text("max_seq_len: 64\n")
    with pytest.raises(UserMistake, match="has no `triton_config`") as raised:
        find_model(str(other), None, weights=True, executor="tensorrt_llm")
    assert "llm_args=FILE" in str(raised.value.remedy)


def test_two_files_of_arguments_are_refused_and_those_of_the_worker_pass(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(
        enable_iter_perf_stats=True, num_postprocess_workers=0, logits_post_processors={"ban": "mine:ban"}
    )
    found = find_model(str(file), None, weights=True, executor="tensorrt_llm")
    with pytest.raises(UserMistake, match="and the model is served with the arguments in"):
        found.executor_options({"llm_args": "x.yaml"})
    chosen = found.executor_options({"max_seq_len": "32"})
    assert chosen == {"max_seq_len": "32", "llm_args": str(found.file)}
    with caplog.at_level(logging.WARNING):
        arguments = llm_arguments(found.directory, parse(chosen, "pytorch", {}))
    assert "`ban` of `logits_post_processors`" in caplog.text
    assert arguments == {
        "model": str(found.directory),
        "max_seq_len": 32,
        "skip_tokenizer_init": True,
        "enable_iter_perf_stats": True,
    }
    file = write(tokenizer="/another")
    found = find_model(str(file), None, weights=True, executor="tensorrt_llm")
    with pytest.raises(UserMistake, match="sets `tokenizer`, which cannot be given"):
        llm_arguments(found.directory, parse(found.executor_options({}), "pytorch", {}))


def test_a_further_model_of_a_worker_has_its_own_file(start: Start, tmp_path: Path, write: Write) -> None:
    environment = write_double(tmp_path / "double")
    process: InflightProcess = start(
        "worker", str(write(max_seq_len=64)), f"--add-model=other={tmp_path / 'small'}",
        "--grpc-port=0", "--metrics-port=0", environment=environment,
    )  # fmt: skip
    served = Served(process, tmp_path)
    process.wait_until("it is ready", lambda: served.client.is_model_ready("other_tensorrt_llm"))
    lengths = [
        json.loads(line).get("max_seq_len")
        for line in Path(environment["DOUBLE_ENGINES"]).read_text().splitlines()
    ]
    assert lengths == [64, None]
    served.client.close()
