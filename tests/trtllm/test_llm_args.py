"""The file of `llm_args`: what may be in it, who wins, what an unknown name is answered with; builds and
workers with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoints import checkpoint_of
from engine.shell import Shell
from inflight.build.arguments_file import read_values
from inflight.errors import UserMistake
from inflight.executors.tensorrt_llm import pytorch_start
from inflight.executors.tensorrt_llm.options import parse
from inflight.executors.tensorrt_llm.pytorch_config import llm_arguments
from inflight.model.llm_args import merge, read_arguments
from inflight.model.speculation import LATER_CLASSES
from support import double
from support.double.package import write_double
from trtllm.pytorch_setup import start, write_checkpoint

BOTH_LINES = True

#: What DeepSeek's deployments need, and none of our options gives.
WIDE = """
enable_attention_dp: true
moe_config:
  backend: WIDEEP
  load_balancer: {num_slots: 288}
kv_cache_config:
  free_gpu_memory_fraction: 0.7
  event_buffer_max_size: 1024
attention_dp_config: {enable_balance: true}
cuda_graph_config: null
max_batch_size: 8
backend: pytorch
"""


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(text: str) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_a_worker_passes_every_argument_and_its_options_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, file: Any
) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    model = write_checkpoint(tmp_path / "model")
    written = {"max_batch_size": 16, "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": 0.9}}
    (model / "llm_args.json").write_text(json.dumps(written))
    with double.installed():
        made = start(tmp_path, llm_args=file(WIDE), kv_cache_free_gpu_mem_fraction=0.5)
        held = double.ENGINES[-1].dump()
        info = made.info()
        made.shutdown()
    assert held["enable_attention_dp"] is True
    assert held["moe_config"] == {"backend": "WIDEEP", "load_balancer": {"num_slots": 288}}
    assert held["attention_dp_config"] == {"enable_balance": True}
    assert held["cuda_graph_config"] is None
    assert held["kv_cache_config"] == {
        "dtype": "fp8",
        "free_gpu_memory_fraction": 0.5,
        "event_buffer_max_size": 1024,
        "enable_block_reuse": False,
    }
    assert "backend" not in held
    assert info.max_batch_size == 8
    assert "sets `max_batch_size` to `8`, in place of `16`" in caplog.text
    assert "the option `kv_cache_free_gpu_mem_fraction` is `0.5`, in place of `0.7`" in caplog.text


def test_drafters_of_later_versions_are_recorded(line: str) -> None:
    symbols, _ = double.LINES[line]
    recorded = {name for name in LATER_CLASSES.values() if f"tensorrt_llm.llmapi.{name}" in symbols}
    assert recorded == (set() if line == "1.2.1" else set(LATER_CLASSES.values()))


def test_a_drafter_replaces_another_as_a_whole(tmp_path: Path, file: Any) -> None:
    model = write_checkpoint(tmp_path / "model")
    written = {"speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 1}}
    (model / "llm_args.json").write_text(json.dumps(written))
    path = file("speculative_config: {decoding_type: NGram, max_draft_len: 3}")
    arguments = llm_arguments(model, parse({"llm_args": path}, "pytorch", {}))
    assert arguments["speculative_config"] == {"decoding_type": "NGram", "max_draft_len": 3}


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("enable_atention_dp: true", "`enable_atention_dp`", "did you mean `enable_attention_dp`?"),
        ("moe_config: {bakend: CUTLASS}", "`moe_config.bakend`", "did you mean `moe_config.backend`?"),
        ("kv_cache_config: {zzz: 1}", "`kv_cache_config.zzz`", "leave the options for it out"),
        ("speculative_config: {decoding_type: NGran}", "decoding_type=NGran", "decoding_type=NGram`?"),
        ("moe_config: 5", "its moe_config is not an object", "write its fields below it"),
        ("model: other", "sets `model`, which cannot be given", "leave `model` out"),
        ("num_postprocess_workers: 2", "the gateway turns tokens into text", "leave"),
        ("backend: _autodeploy", "sets `backend` to `_autodeploy`", "leave `backend` out"),
        ("- a\n- b", "is not a mapping", "write `name: value`"),
        ("a: [", "cannot be read", "pass a YAML file"),
        ("a: 2026-11-24", "cannot be read", "pass a YAML file"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Any, text: str, what: str, remedy: str
) -> None:
    monkeypatch.setenv(pytorch_start.N_GREEDY, "1")
    with double.installed(), pytest.raises(UserMistake) as raised:
        start(tmp_path, llm_args=file(text), sampler_type="TorchSampler")
    assert what in raised.value.what
    assert remedy in str(raised.value.remedy)


def test_a_file_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=r"absent.yaml`, which cannot be read"):
        read_arguments(tmp_path / "absent.yaml")


def test_merging_goes_into_configurations_and_says_what_it_replaced() -> None:
    heard: list[tuple[str, Any, Any]] = []
    below = {"a": 1, "b": {"c": 1, "d": {"e": 1}}, "f": [1]}
    above = {"a": 1, "b": {"d": {"e": 2, "g": 3}}, "f": [2]}
    merged = merge(below, above, lambda *given: heard.append(given))
    assert merged == {"a": 1, "b": {"c": 1, "d": {"e": 2, "g": 3}}, "f": [2]}
    assert heard == [("b.d.e", 1, 2), ("f", [1], [2])]
    assert below["b"] == {"c": 1, "d": {"e": 1}}


def test_a_build_takes_its_own_options_out_of_the_file(file: Any) -> None:
    text = WIDE + "tensor_parallel_size: 8\ndtype: bfloat16\nspeculative_config: {decoding_type: SA}\n"
    values = read_values({"llm_args": file(text), "dtype": "float16", "max_batch_size": None})
    # What is given on the command line wins.
    assert (values["tp_size"], values["dtype"], values["max_batch_size"]) == (8, "float16", 8)
    assert values.arguments == {
        "enable_attention_dp": True,
        "moe_config": {"backend": "WIDEEP", "load_balancer": {"num_slots": 288}},
        "kv_cache_config": {"free_gpu_memory_fraction": 0.7, "event_buffer_max_size": 1024},
        "attention_dp_config": {"enable_balance": True},
        "cuda_graph_config": None,
        "speculative_config": {"decoding_type": "SA"},
    }


@pytest.mark.parametrize(
    ("drafter", "mode", "rest"),
    [
        (
            "{decoding_type: NGram, max_draft_len: 3, max_matching_ngram_size: 2, is_keep_all: false}",
            "ngram",
            {"speculative_config": {"is_keep_all": False}},
        ),
        ("{decoding_type: MTP, num_nextn_predict_layers: 2}", "mtp", {}),
    ],
)
def test_a_drafter_of_ours_becomes_its_options(
    file: Any, drafter: str, mode: str, rest: dict[str, Any]
) -> None:
    values = read_values({"llm_args": file(f"speculative_config: {drafter}")})
    assert values["speculative_decoding_mode"] == mode
    assert values.arguments == rest


def test_a_build_keeps_the_arguments_and_inspect_shows_them(line: str, tmp_path: Path, file: Any) -> None:
    environment = write_double(tmp_path / "double", version=line, gpus=8)
    checkpoint_of("codellama-13b", tmp_path / "model")
    shell = Shell(tmp_path, environment)
    command = ("build", "model", "--output", "served", "--runtime", "pytorch", "--llm-args")
    told = shell(*command, file(WIDE))
    assert told.code == 0, told
    manifest = json.loads((tmp_path / "served" / "inflight.json").read_text())
    assert manifest["options"]["llm_args"]["moe_config"]["backend"] == "WIDEEP"
    assert str(tmp_path) not in json.dumps(manifest)
    written = json.loads((tmp_path / "served" / "llm_args.json").read_text())
    assert (written["enable_attention_dp"], written["max_batch_size"]) == (True, 8)
    told = shell("inspect", "served", "--json")
    assert json.loads(told.output)["llm_args"] == written
    # A changed file is another build.
    told = shell(*command, file(WIDE.replace("0.7", "0.6")))
    assert told.code != 0
    assert "contains a build of other inputs" in str(told)
    told = shell(*command, file("enable_atention_dp: true"), "--force")
    assert told.code != 0
    assert "did you mean `enable_attention_dp`?" in str(told)
