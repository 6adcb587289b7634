"""Configurations against protobuf's own text format; `check` and `fill` on what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from inflight._native import Generation, TextModels
from inflight.cli.app import inflight
from inflight.launch.model import DEMO_DIRECTORY
from inflight.model.tokenizer import read_assets
from inflight.triton.repository.create import NEEDED_EMPTY, tensors
from inflight.triton.repository.parameters import FORMER, REFUSED
from inflight.triton.repository.pbtxt import PbtxtError, parse
from inflight.triton.repository.tables import MODELS, REPEATED_FIELDS, SINGLE_FIELDS


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


@pytest.mark.parametrize(
    ("older", "data_type", "value", "core"),
    [
        ("random_seed", "UINT64", (7).to_bytes(8, "little"), "seed"),
        ("min_length", "INT32", (2).to_bytes(4, "little"), "min_tokens"),
    ],
)
def test_bls_takes_the_names_of_earlier_releases(
    older: str, data_type: str, value: bytes, core: str, tmp_path: Path
) -> None:
    output = tmp_path / "repository"
    assert run("create", DEMO_DIRECTORY, "--output", output).exit_code == 0
    config = text_format.Parse(
        (output / "tensorrt_llm_bls" / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
    )
    # Triton refuses inputs that the config does not declare.
    [declared] = [one for one in config.input if one.name == older]
    assert declared == model_config_pb2.ModelInput(
        name=older, data_type=f"TYPE_{data_type}", dims=[1], optional=True
    )
    models = TextModels(read_assets(DEMO_DIRECTORY))
    asked = models.generation(
        [
            ("text_input", "BYTES", (1, 1), (2).to_bytes(4, "little") + b"Hi"),
            ("max_tokens", "INT32", (1, 1), (4).to_bytes(4, "little")),
            (older, data_type, (1, 1), value),
        ],
        ["text_output"],
    )
    assert isinstance(asked, Generation)
    assert (core, data_type, (1, 1), value) in asked.inputs


def test_check_names_every_problem_at_once(tmp_path: Path, model_directory: Path) -> None:
    output = tmp_path / "repository"
    run("create", model_directory, "--output", output, "--set", "max_tokens_in_paged_kv_cache=4096")
    core = output / "tensorrt_llm" / "config.pbtxt"
    spoiled = core.read_text().replace("decoupled: true", "decoupled: false").replace("count: 1", "count: 3")
    spoiled = spoiled.replace(str(model_directory), "/no\x1b[2Jwhere").replace('"4096"', '"${tokens}"')
    core.write_text(spoiled.replace('"end_id" data_type: TYPE_INT32', '"end_id" data_type: TYPE_INT64'))
    answer = run("check", output)
    assert answer.exit_code == 2
    for part in ("`${tokens}`", "instance count is `3`", r"`/no\x1b[2Jwhere`", "`decoupled`", "`end_id`"):
        assert part in answer.output


def test_check_names_models_that_import_from_where_earlier_releases_had_the_code(
    tmp_path: Path, model_directory: Path
) -> None:
    output = tmp_path / "repository"
    run("create", model_directory, "--output", output)
    file = output / "tensorrt_llm" / "1" / "model.py"
    text = file.read_text()
    assert "inflight.triton.models.core" in text
    file.write_text(text.replace("inflight.triton.models", "inflight.repository.backend"))
    answer = run("check", output)
    assert answer.exit_code == 2
    assert "`inflight.repository.backend`, which is now `inflight.triton.models`" in " ".join(
        answer.output.split()
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [("a: ", 1), ("a {\n b: 1", 2), ('\n\na: "x', 3), ("}", 1), ("a: [1 2]", 1), ("a {" * 99, 1)],
)
def test_malformed_text_is_an_error_with_its_line(text: str, line: int) -> None:
    with pytest.raises(PbtxtError) as caught:
        parse(text)
    assert caught.value.line == line


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "python3 tools/fill_template.py -i config.pbtxt key:value,key:value",
    "inflight repository fill -i config.pbtxt key:value,key:value",
)
def test_fill_warns_of_unknown_keys_and_refuses_missing_ones(tmp_path: Path) -> None:
    file = tmp_path / "config.pbtxt"
    file.write_text('a: "${one}" b: "${two}" c: ${four}\n')
    refused = run("fill", file, "one:1,three:3")
    assert refused.exit_code == 2
    assert "`four` has no value" in refused.output
    # As NVIDIA's, which ignores what a release does not have.
    taken = run("fill", file, "one:1,three:3,four:4")
    assert taken.exit_code == 0
    assert taken.stdout == 'a: "1" b: "${two}" c: 4\n'
    assert "warning: " in taken.stderr
    assert "has no placeholder `three`" in taken.stderr
    strict = run("fill", "--strict", file, "one:1,three:3,four:4")
    assert strict.exit_code == 2
    assert "`three` is not a placeholder" in strict.output
    file.write_text('a: "${one}" b: "${two}"\n')
    assert run("fill", file, r"one:x\,y\:z,two:2").output == 'a: "x,y:z" b: "2"\n'
    assert run("fill", "-i", file, "one:1,two:2").exit_code == 0
    assert file.read_text() == 'a: "1" b: "2"\n'


def test_fill_keeps_the_modes_of_a_file_and_needs_nothing_for_comments(tmp_path: Path) -> None:
    file, link = tmp_path / "config.pbtxt", tmp_path / "link"
    file.write_text('a: ${one} # of ${two}\nb: "${three}"\n')
    file.chmod(0o640)
    link.symlink_to(file)
    assert run("fill", "-i", link, "one:1").exit_code == 0
    assert file.read_text() == 'a: 1 # of ${two}\nb: "${three}"\n'
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [file, link]


def test_every_field_of_a_configuration_is_known() -> None:
    fields = model_config_pb2.ModelConfig.DESCRIPTOR.fields
    # Protobuf's maps and repeated fields look alike here.
    single = {one.name for one in fields if one.label != one.LABEL_REPEATED}
    assert single == SINGLE_FIELDS
    assert {one.name for one in fields} - single == REPEATED_FIELDS


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("max_batch_size: 8", "max_batch_size: -5", "tensorrt_llm: `max_batch_size` is `-5`"),
        (
            "max_batch_size: 8",
            'max_batch_size: "8"',
            "tensorrt_llm: `max_batch_size` is `8`; it must be a whole",
        ),
        ("max_batch_size: 8", "max_batch_size: 4", "ensemble: `max_batch_size` is `8`, but `4` in its step"),
        (
            "max_batch_size: 8",
            "max_batch_sise: 8",
            "unknown field `max_batch_sise` in the model configuration",
        ),
        (
            "max_batch_size: 8",
            "max_batch_size: 8 max_batch_size: 8",
            "`max_batch_size` appears `2` times; it may appear once",
        ),
    ],
)
def test_check_names_fields_that_triton_refuses(
    before: str, after: str, problem: str, tmp_path: Path, model_directory: Path
) -> None:
    output = tmp_path / "repository"
    run("create", model_directory, "--output", output)
    core = output / "tensorrt_llm" / "config.pbtxt"
    core.write_text(core.read_text().replace(before, after))
    answer = run("check", output)
    assert answer.exit_code == 2
    assert problem in answer.output


@pytest.mark.parametrize(
    ("output", "options", "said"),
    [
        ("file/below", [], "cannot be written: "),
        ("link", [], "cannot be written: "),
        ("long" * 100, [], "cannot be written: File name too long"),
        ("out", ["--max-batch-size", "0"], "must be a whole number from 1 to 2147483647"),
        ("out", ["--max-batch-size", "2147483648"], "must be a whole number from 1 to 2147483647"),
        ("out", ["--set", "bls_instance_count=0"], "must be a whole number from 1 to 2147483647"),
        ("out", ["--set", "tokenizer_dir="], "must be a non-empty text"),
    ],
)
def test_what_cannot_be_created_is_refused_whole(
    output: str, options: list[str], said: str, tmp_path: Path, model_directory: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    answer = run("create", model_directory, "--output", tmp_path / output, *options)
    assert answer.exit_code == 2, answer.output
    assert said in answer.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.parametrize(("model", "key"), [(model, key) for model, keys in REFUSED.items() for key in keys])
def test_what_our_models_refuse_at_load_is_refused_before(
    model: str, key: str, tmp_path: Path, model_directory: Path
) -> None:
    output = tmp_path / "out"
    # A whole number and a text.
    answer = run("create", model_directory, "--output", output, "--set", f"{key}=4")
    assert answer.exit_code == 2
    assert f"Inflight's model `{model}` does not support `{key}`; leave it out" in answer.output
    assert not output.exists()
    assert run("create", model_directory, "--output", output).exit_code == 0
    config = output / model / "config.pbtxt"
    written = config.read_text()
    for value, code in (("4", 2), ("", 0), (f"${{{key}}}", 0)):
        line = f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        config.write_text(written + line)
        answer = run("check", output)
        assert answer.exit_code == code, answer.output
        assert (f"does not support the parameter `{key}`" in answer.output) == (code == 2)
    # NVIDIA's code reads it.
    config.write_text(written + f'parameters {{ key: "{key}" value {{ string_value: "4" }} }}\n')
    (output / model / "1" / "model.py").write_text("class TritonPythonModel: ...\n")
    assert "does not support the parameter" not in run("check", output).output


def test_a_repository_takes_no_place_in_the_model(tmp_path: Path, model_directory: Path) -> None:
    (tmp_path / "model").symlink_to(model_directory)
    answer = run("create", model_directory, "--output", tmp_path / "model", "--force")
    assert answer.exit_code == 2
    assert "is the model's own directory" in answer.output
    assert not (model_directory / "ensemble").exists()


@pytest.mark.parametrize("text", [b"\xff", b"a: [1", b"when: 2020-99-99", b"[" * 1000, b"- 1", b""])
def test_options_that_are_no_yaml_are_told_on_one_line(
    text: bytes, tmp_path: Path, model_directory: Path
) -> None:
    file = tmp_path / "options.yaml"
    file.write_bytes(text)
    answer = run("create", model_directory, "--output", tmp_path / "out", "--options", file)
    assert answer.exit_code == 2, answer.output
    assert answer.output.count("\n") == 2
    assert f"`{file}`" in answer.output


@pytest.mark.parametrize("parameter", NEEDED_EMPTY)
def test_what_the_c_backend_reads_when_it_loads_is_always_written(
    tmp_path: Path, model_directory: Path, parameter: str
) -> None:
    output = tmp_path / "repository"
    run("create", model_directory, "--output", output, "--backend", "tensorrtllm")
    core = output / "tensorrt_llm" / "config.pbtxt"
    lines = core.read_text().splitlines(keepends=True)
    others = [line for line in lines if not line.startswith(f'parameters {{ key: "{parameter}" ')]
    assert len(others) == len(lines) - 1
    assert run("check", output).exit_code == 0
    core.write_text("".join(others))
    answer = run("check", output)
    assert answer.exit_code == 2
    assert f"the parameter `{parameter}` is missing" in answer.output


def test_an_encoder_decoder_has_its_share_of_the_cache(tmp_path: Path, model_directory: Path) -> None:
    output = tmp_path / "repository"
    encoder = ("--set", f"encoder_engine_dir={model_directory}")
    run("create", model_directory, "--output", output, "--backend", "tensorrtllm", *encoder)
    core = output / "tensorrt_llm" / "config.pbtxt"
    written = '"cross_kv_cache_fraction" value { string_value: "0.5" }'
    assert written in core.read_text()
    core.write_text(core.read_text().replace(written, '"cross_kv_cache_fraction"'))
    assert "`cross_kv_cache_fraction` is not set" in run("check", output).output


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "`gpu_device_ids` of `0,1;2,3` and an instance count of 2 in `config.pbtxt`",
    "inflight repository create ENGINE --output REPO --backend tensorrtllm --set 'gpu_device_ids=0,1;2,3'",
)
@pytest.mark.parametrize(("devices", "instances"), [("0,1;2,3", 2), ("0,1", 1)])
def test_a_core_model_has_an_instance_for_each_list_of_gpus(
    tmp_path: Path, model_directory: Path, devices: str, instances: int
) -> None:
    output = tmp_path / "repository"
    given = ("--backend", "tensorrtllm", "--set", f"gpu_device_ids={devices}")
    assert run("create", model_directory, "--output", output, *given).exit_code == 0
    core = output / "tensorrt_llm" / "config.pbtxt"
    config = text_format.Parse(core.read_text(), model_config_pb2.ModelConfig())
    assert [group.count for group in config.instance_group] == [instances]
    assert run("check", output).exit_code == 0
    core.write_text(core.read_text().replace(f"count: {instances}", "count: 3"))
    answer = run("check", output)
    assert answer.exit_code == 2
    assert f"instance count is `3`, but `gpu_device_ids` names GPUs for `{instances}`" in answer.output


@pytest.mark.parametrize("devices", ["0;", "0,x", "0,-1"])
def test_gpus_that_are_no_numbers_are_refused(tmp_path: Path, model_directory: Path, devices: str) -> None:
    given = ("--backend", "tensorrtllm", "--set", f"gpu_device_ids={devices}")
    answer = run("create", model_directory, "--output", tmp_path / "repository", *given)
    assert "with `;` between instances" in answer.output + str(answer.exception)


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "a second set of models in one repository, under other names, as `llama_tensorrt_llm`",
    "inflight repository create MODEL --output REPO --prefix llama",
)
@pytest.mark.parametrize("backend", ["python", "tensorrtllm"])
def test_a_repository_has_several_sets_of_models(tmp_path: Path, model_directory: Path, backend: str) -> None:
    output = tmp_path / "repository"
    arguments = ("create", model_directory, "--output", output, "--backend", backend)
    assert run(*arguments).exit_code == 0
    assert run(*arguments, "--prefix", "llama").exit_code == 0
    assert sorted(path.name for path in output.iterdir()) == sorted(
        [*MODELS, *(f"llama_{model}" for model in MODELS)]
    )
    refused = run(*arguments, "--prefix", "llama")
    assert refused.exit_code == 2
    assert "already has `llama_preprocessing`" in refused.output
    assert run(*arguments, "--prefix", "llama", "--force").exit_code == 0
    assert run(*arguments, "--prefix", "../x").exit_code == 2
    ensemble = text_format.Parse(
        (output / "llama_ensemble" / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
    )
    steps = [step.model_name for step in ensemble.ensemble_scheduling.step]
    assert steps == ["llama_preprocessing", "llama_tensorrt_llm", "llama_postprocessing"]
    bls = (output / "llama_tensorrt_llm_bls" / "config.pbtxt").read_text()
    assert 'key: "tensorrt_llm_model_name" value { string_value: "llama_tensorrt_llm" }' in bls
    checked = run("check", output)
    assert checked.exit_code == 0, checked.output
    # Each set is checked as the first is.
    (output / "llama_tensorrt_llm" / "config.pbtxt").unlink()
    said = run("check", output).output
    assert "llama_ensemble: the step `llama_tensorrt_llm` names a model that is missing" in said
    assert "llama_tensorrt_llm_bls: the core model `llama_tensorrt_llm` is missing" in said


@pytest.mark.parametrize(
    ("model", "key", "releases"),
    [(model, key, releases) for model, keys in FORMER.items() for key, releases in keys.items()],
)
def test_parameters_of_earlier_releases_are_notes(
    tmp_path: Path, model_directory: Path, model: str, key: str, releases: str
) -> None:
    output = tmp_path / "repository"
    run("create", model_directory, "--output", output, "--backend", "tensorrtllm")
    with (output / model / "config.pbtxt").open("a") as file:
        file.write(f'parameters {{ key: "{key}" value {{ string_value: "auto" }} }}\n')
    checked = run("check", output)
    assert checked.exit_code == 0
    assert f"{model}: note: the parameter `{key}` is of releases {releases}" in checked.output


def test_what_guided_decoding_needs_is_not_asked_of_earlier_releases(
    tmp_path: Path, model_directory: Path
) -> None:
    output = tmp_path / "repository"
    run("create", model_directory, "--output", output, "--backend", "tensorrtllm")
    core = output / "tensorrt_llm" / "config.pbtxt"
    text = core.read_text().replace("guided_decoding_guide", "another_input")
    core.write_text(re.sub(rf'parameters {{ key: "({"|".join(NEEDED_EMPTY)})".*\n', "", text))
    ensemble = output / "ensemble" / "config.pbtxt"
    ensemble.write_text(ensemble.read_text().replace('key: "guided_decoding_guide', 'key: "another_input'))
    assert run("check", output).exit_code == 0
