"""Which parameters of the core model reach an executor, and which are named because it would ignore them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inflight.cli.app import inflight
from inflight.executors.tensorrt_llm.options import parse
from inflight.triton.repository.create import render
from inflight.triton.repository.executor_options import choose, instance_number, parameters
from inflight.triton.repository.options import settings
from inflight.triton.repository.parameters import PARAMETERS


@pytest.mark.parametrize(
    ("executor", "runtime", "given", "values", "problems"),
    [
        (
            "reference",
            None,
            {"max_tokens_in_paged_kv_cache": "640"},
            {"max_tokens_in_paged_kv_cache": 640},
            [],
        ),
        ("reference", None, {"max_batch_size": "many"}, {}, ["`max_batch_size`"]),
        # What happens anyway.
        (
            "reference",
            None,
            {"normalize_log_probs": "true", "kv_cache_free_gpu_mem_fraction": "0.90"},
            {},
            [],
        ),
        ("reference", None, {"gpt_model_type": "inflight_batching", "normalize_log_probs": "True"}, {}, []),
        ("reference", None, {"gpt_model_type": "V1"}, {}, ["`gpt_model_type`"]),
        (
            "reference",
            None,
            {"recv_poll_period_ms": "2", "unknown": "1"},
            {},
            ["`recv_poll_period_ms`", "`unknown`"],
        ),
        # Not set.
        ("reference", None, {"max_beam_width": "${max_beam_width}", "recv_poll_period_ms": ""}, {}, []),
        # The model's own.
        ("reference", None, {"gpt_model_path": "/m", "exclude_input_in_output": "true"}, {}, []),
        ("scripted", None, {"step_us": "2.5"}, {"step_us": 2.5}, []),
        ("tensorrt_llm", "engines", {"sink_token_length": "4"}, {"sink_token_length": "4"}, []),
        ("tensorrt_llm", "engines", {"dtype": "float16"}, {}, ["`dtype`"]),
        ("tensorrt_llm", "pytorch", {"dtype": "float16"}, {"dtype": "float16"}, []),
        ("tensorrt_llm", "pytorch", {"decoding_mode": "medusa"}, {}, ["`decoding_mode`"]),
        ("tensorrt_llm", "pytorch", {"gpt_model_type": "inflight_fused_batching"}, {}, []),
        ("tensorrt_llm", "engines", {"stats_check_period_ms": "50"}, {}, []),
    ],
)
def test_each_parameter_reaches_the_executor_or_is_named(
    executor: str, runtime: str | None, given: dict[str, str], values: dict[str, Any], problems: list[str]
) -> None:
    chosen = choose(executor, given, runtime=runtime)
    assert chosen.values == values
    assert len(chosen.problems) == len(problems)
    for found, name in zip(chosen.problems, problems, strict=True):
        assert name in found


def test_tritons_queue_bounds_the_executors() -> None:
    assert choose("reference", {}, max_queue_size=7).values == {"max_queue_size": 7}
    assert choose("reference", {"max_queue_size": "9"}, max_queue_size=7).values == {"max_queue_size": 9}
    # PyTorch's has no such bound; Triton's own holds.
    assert choose("tensorrt_llm", {}, max_queue_size=7, runtime="pytorch").values == {}


@pytest.mark.parametrize("runtime", ["engines", "pytorch"])
def test_the_tensorrt_llm_executor_takes_nvidias_defaults(runtime: str) -> None:
    """A template filled with the defaults that NVIDIA documents loads: the executor parses them."""
    given = {one.key: one.default for one in PARAMETERS["tensorrt_llm"] if one.default is not None}
    chosen = choose("tensorrt_llm", given, runtime=runtime)
    assert chosen.problems == []
    parsed = parse(chosen.values, runtime, {})
    assert parsed.kv_cache_free_gpu_mem_fraction == 0.9
    assert (parsed.gpt_model_type is None) == (runtime == "pytorch")


def test_only_what_was_asked_for_is_written_for_executors() -> None:
    written = render(
        "tensorrt_llm", "python", settings({"engine_dir": "/m", "max_num_tokens": "128"}, "python")
    )
    lines = [line for line in written.splitlines() if line.startswith("parameters")]
    assert any('"max_num_tokens"' in line and '"128"' in line for line in lines)
    assert not any("kv_cache_free_gpu_mem_fraction" in line for line in lines)
    nvidias = render("tensorrt_llm", "tensorrtllm", settings({"engine_dir": "/m"}, "tensorrtllm"))
    assert '"kv_cache_free_gpu_mem_fraction" value { string_value: "0.9" }' in nvidias
    for own in ("executor", "max_num_tokens"):
        assert f'"{own}"' not in nvidias


@pytest.mark.parametrize(
    ("backend", "option", "text"),
    [
        (
            "python",
            "recv_poll_period_ms=4",
            "`recv_poll_period_ms` is `4`, which the executor `reference` does not support",
        ),
        ("python", "dtype=int4", "`dtype` is `int4`"),
        ("tensorrtllm", "executor=reference", "`executor` is not an option of the C++ backend"),
        ("tensorrtllm", "max_num_tokens=8", "`max_num_tokens` is not an option of the C++ backend"),
    ],
)
def test_create_refuses_what_nobody_would_honour(
    tmp_path: Path, model_directory: Path, backend: str, option: str, text: str
) -> None:
    arguments = ["repository", "create", str(model_directory), "--output", str(tmp_path / "r")]
    refused = CliRunner().invoke(inflight, [*arguments, "--backend", backend, "--set", option])
    assert getattr(refused.exception, "exit_code", refused.exit_code) == 2
    assert text in refused.output + str(refused.exception)
    assert not (tmp_path / "r").exists()


def test_check_names_a_parameter_that_the_executor_would_ignore(
    tmp_path: Path, model_directory: Path
) -> None:
    output = tmp_path / "r"
    run = CliRunner().invoke
    assert (
        run(inflight, ["repository", "create", str(model_directory), "--output", str(output)]).exit_code == 0
    )
    with (output / "tensorrt_llm" / "config.pbtxt").open("a") as file:
        file.write('parameters { key: "recv_poll_period_ms" value { string_value: "4" } }\n')
    answer = run(inflight, ["repository", "check", str(output)])
    assert answer.exit_code == 2
    assert "`recv_poll_period_ms` is `4`, which the executor `reference` does not support" in answer.output


def test_every_executor_option_is_an_option_of_create() -> None:
    keys = [one.key for one in parameters()]
    assert len(keys) == len(set(keys))
    assert not set(keys) & {one.key for one in PARAMETERS["tensorrt_llm"]}


def test_an_instance_gets_its_own_gpus() -> None:
    given = {"gpu_device_ids": "0,1;2,3"}
    for instance, devices in enumerate(([0, 1], [2, 3])):
        chosen = choose("tensorrt_llm", given, runtime="engines", instance=instance)
        assert chosen.problems == []
        assert parse(chosen.values, "engines", {}).gpu_device_ids == devices
    assert "nothing for the instance `2`" in choose("tensorrt_llm", given, instance=2).problems[0]


@pytest.mark.parametrize(
    ("name", "number"),
    [("tensorrt_llm_0", 0), ("tensorrt_llm_0_0", 0), ("tensorrt_llm_0_1", 1), ("other", 2), ("other_1", 3)],
)
def test_an_instance_knows_its_place(name: str, number: int) -> None:
    groups = [{"name": "tensorrt_llm_0", "count": 2}, {"name": "other", "count": 2}]
    assert instance_number(name, groups) == number
