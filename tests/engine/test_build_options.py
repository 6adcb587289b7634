"""The declaration of options against the recorded names of TensorRT-LLM, and the command made from it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

from inflight.build.options import BY_NAME, OPTIONS, Values
from inflight.cli.app import inflight
from inflight.model.runtimes import RUNTIMES
from inflight.model.speculation import CLASSES, DECODING_TYPES, ENGINE_DRAFTERS, PYTORCH_DRAFTERS
from support.double.classes import RECORD

from .checkpoints import checkpoint_of
from .shell import Shell

#: What the planner itself decides.
PLANNED = {"checkpoint_dir", "output_dir", "dry_run"}
#: `trtllm-build` ignores every size beside the one, and the other beside a checkpoint's directory.
MISLEADING = {"build_config", "model_config"}
#: `trtllm-build` refuses it at 1.2.1 whatever its value.
REFUSED = {"streamingllm"}
#: Fields of `PluginConfig` that trtllm-build sets by itself and gives no flag for.
NO_FLAG = {
    "dtype",
    "qserve_gemm_plugin",
    "identity_plugin",
    "weight_only_groupwise_quant_matmul_plugin",
    "weight_only_quant_matmul_plugin",
    "smooth_quant_plugins",
    "smooth_quant_gemm_plugin",
    "layernorm_quantization_plugin",
    "rmsnorm_quantization_plugin",
    "quantize_per_token_plugin",
    "quantize_tensor_plugin",
    "manage_weights",
}


def fields(name: str) -> dict[str, str]:
    """Field -> default of a recorded class, inherited ones included."""
    symbol = RECORD["symbols"][name]
    inherited = symbol.get("inherits")
    found = fields(inherited) if inherited in RECORD["symbols"] else {}
    return {**found, **{entry["name"]: entry.get("default") for entry in symbol["params"]}}


BUILD = {
    name.lstrip("-"): option
    for option in RECORD["cli"]["trtllm-build"]["options"]
    for name in option["names"]
}
PLUGINS = fields("tensorrt_llm.plugin.PluginConfig")


def test_every_flag_of_trtllm_build_has_its_place() -> None:
    ours = {name for option in OPTIONS for name in (option.name, *option.aliases)}
    assert set(BUILD) - PLANNED - MISLEADING <= ours
    assert not MISLEADING & ours
    assert set(PLUGINS) - NO_FLAG - REFUSED <= ours


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.build_flag], ids=lambda o: o.name)
def test_every_flag_that_is_passed_on_is_one_of_trtllm_build(option: Any) -> None:
    name = option.build_flag.lstrip("-")
    assert name in BUILD or name in PLUGINS
    if name in BUILD and BUILD[name].get("choices"):
        ours = ENGINE_DRAFTERS if option.name == "speculative_decoding_mode" else option.choices
        assert set(ours) == set(BUILD[name]["choices"])
    if name in BUILD:
        assert (option.kind == "bool") == bool(BUILD[name].get("is_flag"))
        assert (option.kind == "texts") == (BUILD[name].get("nargs") == "+")


@pytest.mark.parametrize(
    ("attribute", "symbol"),
    [
        ("build_config", "tensorrt_llm.llmapi.BuildConfig"),
        ("plugin_config", "tensorrt_llm.plugin.PluginConfig"),
        ("llm_args", "tensorrt_llm.llmapi.TorchLlmArgs"),
    ],
)
def test_every_field_is_a_recorded_one(attribute: str, symbol: str) -> None:
    known = fields(symbol)
    # `build_config` is also the name of a flag that takes a file.
    named = [option for option in OPTIONS if getattr(option, attribute)]
    assert named
    for option in named:
        first, *rest = getattr(option, attribute).split(".")
        assert first in known, option.name
        if first == "kv_cache_config":
            assert rest[0] in fields("tensorrt_llm.llmapi.KvCacheConfig")


def test_every_drafter_of_the_pytorch_runtime_is_a_recorded_class() -> None:
    served = {
        symbol["decoding_type"]: name.rpartition(".")[2]
        for name, symbol in RECORD["symbols"].items()
        if "pytorch" in symbol.get("backends", ()) and "decoding_type" in symbol
    }
    # The user's own drafter is an object, and SaveState drafts nothing.
    assert {kind: name for kind, name in served.items() if kind in CLASSES} == CLASSES
    assert set(DECODING_TYPES.values()) == set(CLASSES)
    assert set(served) - set(CLASSES) == {"User_Provided", "SaveState"}
    assert set(DECODING_TYPES) == set(PYTORCH_DRAFTERS)
    taken = {field for name in CLASSES.values() for field in fields(f"tensorrt_llm.llmapi.{name}")}
    for option in OPTIONS:
        outer, _, field = (option.llm_args or "").partition(".")
        if outer == "speculative_config" and field != "decoding_type":
            assert field in taken


@pytest.mark.parametrize(
    "name", ["max_batch_size", "max_num_tokens", "max_beam_width", "max_encoder_input_len", "max_lora_rank"]
)
def test_a_default_that_is_said_to_be_tensorrt_llms_is_that(name: str) -> None:
    assert BY_NAME[name].default == BUILD[name]["default"]


def test_formats_are_those_of_quantize() -> None:
    options = {
        option["names"][0]: option for option in RECORD["cli"]["examples/quantization/quantize.py"]["options"]
    }
    assert set(BY_NAME["quantization"].choices) - {"none"} <= set(options["--qformat"]["choices"])
    assert set(BY_NAME["kv_cache_dtype"].choices) - {"auto"} <= set(options["--kv_cache_dtype"]["choices"])
    assert BY_NAME["calib_dataset"].default == options["--calib_dataset"]["default"]
    assert BY_NAME["calib_size"].default == options["--calib_size"]["default"]
    assert BY_NAME["awq_block_size"].default == options["--awq_block_size"]["default"]


def test_conversion_options_are_those_of_convert_checkpoint() -> None:
    names = {
        name.lstrip("-")
        for option in RECORD["cli"]["examples/models/core/llama/convert_checkpoint.py"]["options"]
        for name in option["names"]
    }
    for name in (
        *("dtype", "tp_size", "pp_size", "cp_size", "moe_tp_size", "moe_ep_size", "workers"),
        *("use_parallel_embedding", "embedding_sharding_dim", "load_by_shard", "load_model_on_cpu"),
    ):
        assert name in names
        assert name in BY_NAME


def test_options_are_declared_once_and_for_somebody() -> None:
    names = [name for option in OPTIONS for name in (option.name, *option.aliases)]
    assert len(names) == len(set(names))
    for option in OPTIONS:
        assert option.runtimes, option.name
        assert set(option.runtimes) <= set(RUNTIMES)
        assert option.meaning, option.name
        assert not option.meaning.endswith("."), option.name
        assert (option.kind == "choice") == bool(option.choices), option.name
        assert option.default is None or option.kind != "choice" or option.default in option.choices


def test_values_keep_what_was_given_apart_from_defaults() -> None:
    values = Values({"tp_size": 2, "dtype": None, "fast_build": None, "lora_dir": (), "output": "x"})
    assert values["tp_size"] == 2
    assert values["dtype"] == "auto"
    assert values["fast_build"] is False
    assert not values.is_given("lora_dir")
    assert values.record() == {"tp_size": 2}
    with pytest.raises(KeyError):
        Values({"no_such_option": 1})


def test_the_help_shows_every_option_with_its_default() -> None:
    result = CliRunner(catch_exceptions=False).invoke(inflight, ["build", "--help"])
    assert result.exit_code == 0
    words = " ".join(result.output.split())
    for option in OPTIONS:
        assert option.flag in words
        if option.default not in (None, False):
            assert re.search(rf"\[default: {re.escape(str(option.default))}[];]", words), option.name


def test_both_spellings_are_taken_and_unknown_ones_are_not(tmp_path: Any) -> None:
    runner = CliRunner(catch_exceptions=False)
    missing = str(tmp_path / "nowhere")
    for flag in ("--tp-size", "--tp_size"):
        result = runner.invoke(inflight, ["build", missing, "--output", "x", flag, "2"])
        assert "does not exist" in result.output
    result = runner.invoke(inflight, ["build", missing, "--output", "x", "--no-such-size", "2"])
    assert result.exit_code == 2
    assert "No such option" in result.output


@pytest.mark.parametrize("runtime", ["tensorrt", "pytorch"])
@pytest.mark.parametrize(
    "arguments",
    [
        # As the documentation of Triton's backend has it.
        "llama --output l --lora_target_modules attn_q attn_k attn_v --max_lora_rank 8",
        "--lora_target_modules attn_q attn_k attn_v llama --output l",
        "llama --output l --lora-target-modules attn_q,attn_k,attn_v",
        "llama --output l --lora-target-modules=attn_q,attn-k attn_v",
        "llama --output l --lora-target-modules attn_q --lora-target-modules attn_k attn_v",
    ],
)
def test_a_list_of_modules_is_read_as_people_write_it(shell: Shell, runtime: str, arguments: str) -> None:
    checkpoint_of("llama-2-70b", shell.folder / "llama")
    told = shell("build", *arguments.split(), "--runtime", runtime, "--dry-run", "--json")
    assert told.code == 0, told
    plan = json.dumps(told.json())
    if runtime == "tensorrt":
        assert '"--lora_target_modules", "attn_q", "attn_k", "attn_v"' in plan
    else:
        assert '"lora_target_modules": ["attn_q", "attn_k", "attn_v"]' in plan


@pytest.mark.parametrize("given", ["attn_x", "attn_q,attn_x", "attn_q, ", "--max-lora-rank"])
def test_an_unknown_module_is_refused(shell: Shell, given: str) -> None:
    checkpoint_of("llama-2-70b", shell.folder / "llama")
    told = shell(
        "build", "llama", "--output=l", "--runtime=tensorrt", "--dry-run", "--lora-target-modules", given
    )
    assert told.code == 2
    assert "is not one of 'attn_qkv', 'attn_q'" in " ".join(told.errors.split())
