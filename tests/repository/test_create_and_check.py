"""Configurations against protobuf's own text format; `check` and `fill` on what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from inflight.cli.app import inflight
from inflight.repository.create import tensors
from inflight.repository.pbtxt import PbtxtError, parse
from inflight.repository.tables import MODELS


def run(*arguments: object) -> Result:
    return CliRunner().invoke(inflight, ["repository", *map(str, arguments)])


@pytest.mark.parametrize("backend", ["python", "tensorrtllm"])
def test_triton_reads_what_is_written(tmp_path: Path, model_directory: Path, backend: str) -> None:
    output = tmp_path / "repository"
    assert run("create", model_directory, "--output", output, "--backend", backend).exit_code == 0
    for model in MODELS:
        text = (output / model / "config.pbtxt").read_text()
        assert "${" not in text
        config = text_format.Parse(text, model_config_pb2.ModelConfig())
        declared, made = tensors(model, backend)
        assert [one.name for one in config.input] == [one.name for one in declared]
        assert [one.name for one in config.output] == [one.name for one in made]
        assert len(parse(text)["input"]) == len(config.input)
    assert run("check", output).exit_code == 0


def test_check_names_every_problem_at_once(tmp_path: Path, model_directory: Path) -> None:
    output = tmp_path / "repository"
    run("create", model_directory, "--output", output, "--set", "max_tokens_in_paged_kv_cache=4096")
    core = output / "tensorrt_llm" / "config.pbtxt"
    spoiled = core.read_text().replace("decoupled: true", "decoupled: false").replace("count: 1", "count: 3")
    spoiled = spoiled.replace(str(model_directory), "/nowhere").replace('"4096"', '"${tokens}"')
    core.write_text(spoiled.replace('"end_id" data_type: TYPE_INT32', '"end_id" data_type: TYPE_INT64'))
    answer = run("check", output)
    assert answer.exit_code == 2
    for part in ("`${tokens}`", "instance count is `3`", "`/nowhere`", "`decoupled`", "`end_id`"):
        assert part in answer.output


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: ", 1), ("a {\n b: 1", 2), ('\n\na: "x', 3), ("}", 1), ("a: [1 2]", 1), ("a {" * 99, 1)],
)
def test_malformed_text_is_an_error_with_its_line(text: str, line: int) -> None:
    with pytest.raises(PbtxtError) as caught:
        parse(text)
    assert caught.value.line == line


def test_fill_refuses_unknown_and_missing_keys(tmp_path: Path) -> None:
    file = tmp_path / "config.pbtxt"
    file.write_text('a: "${one}" b: "${two}"\n')
    refused = run("fill", file, "one:1,three:3")
    assert refused.exit_code == 2
    assert "`three`" in refused.output
    assert "`two`" in refused.output
    assert run("fill", file, r"one:x\,y\:z,two:2").output == 'a: "x,y:z" b: "2"\n'
    assert run("fill", "-i", file, "one:1,two:2").exit_code == 0
    assert file.read_text() == 'a: "1" b: "2"\n'
