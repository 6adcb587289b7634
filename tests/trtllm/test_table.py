"""Every input's place in the runtimes, against the core model and the recorded signatures; options; docs."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import pytest

from inflight._native import core_model
from inflight.errors import UserMistake
from inflight.executors.base import Request
from inflight.executors.tensorrt_llm import (
    document,
    engine_config,
    fields,
    options,
    promises,
    pytorch_config,
    ranks,
)
from inflight.executors.tensorrt_llm.fields import RUNTIMES, Runtime
from inflight.executors.tensorrt_llm.verify import parameters, verify
from support import double

ROOT = Path(__file__).resolve().parents[2]


#: Inputs under the names of older releases: the worker reads them as the newer ones.
OLDER_NAMES = {
    "random_seed": "seed",
    "min_length": "min_tokens",
    "output_log_probs": "return_log_probs",
    "return_kv_cache_reuse_stats": "return_perf_metrics",
}


def test_every_input_and_parameter_of_the_core_model_has_its_place() -> None:
    core = core_model()
    known = [row.name for row in core.inputs] + [row.name for row in core.parameters]
    placed = [field.tensor for field in fields.FIELDS]
    assert placed == [name for name in known if name not in OLDER_NAMES]
    paths = {row.name: row.path for row in core.inputs}
    for older, newer in OLDER_NAMES.items():
        assert paths[older] == paths[newer]


def test_a_place_without_an_input_is_an_error() -> None:
    with pytest.raises(KeyError):
        fields.Field("no_such_input", None, None)


def test_every_path_is_a_field_of_a_request() -> None:
    request = Request(1, [], 1)
    for row in core_model().inputs:
        if row.path is not None:
            operator.attrgetter(row.path)(request)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_keyword_of_the_table_is_recorded(runtime: Runtime) -> None:
    prefixes = {
        "engines": (double.BINDINGS,),
        "pytorch": ("tensorrt_llm.llmapi.", double.BINDINGS),
    }[runtime]
    for owner, keyword, _ in promises.keywords(runtime):
        found = set()
        # One line or the other has it; which, the check at start says.
        for symbols, _ in double.LINES.values():
            if owner == "generate_async":
                params = symbols["tensorrt_llm.llmapi.LLM"]["methods"][owner]["params"]
            else:
                full = next(prefix + owner for prefix in prefixes if prefix + owner in symbols)
                params = symbols[full]["params"]
            found |= {param["name"] for param in params}
        assert keyword in found, f"{owner}({keyword})"


def test_every_knob_of_the_configuration_is_recorded() -> None:
    for knob in engine_config.KNOBS:
        symbol = double.SYMBOLS[double.BINDINGS + knob.owner]
        members = symbol["attributes"] if knob.how == "attribute" else symbol["params"]
        assert knob.keyword in {member["name"] for member in members}, knob
        assert knob.option in options.Options.__dataclass_fields__


def test_every_argument_of_the_pytorch_runtime_is_recorded() -> None:
    def fields_of(name: str) -> set[str]:
        symbol = double.SYMBOLS[name]
        own = {param["name"] for param in symbol["params"]}
        inherited = symbol.get("inherits")
        return own | fields_of(inherited) if inherited in double.SYMBOLS else own

    arguments = fields_of("tensorrt_llm.llmapi.TorchLlmArgs")
    prefixes = ("tensorrt_llm.llmapi.", "tensorrt_llm.llmapi.llm_args.")
    for option, path in pytorch_config.ARGUMENTS.items():
        assert "pytorch" in options.OPTIONS[option].runtimes
        outer, _, leaf = path.rpartition(".")
        assert (outer or leaf) in arguments or option in pytorch_config.ADDED, option
        # LoraConfig is in no record.
        if outer and outer != "lora_config":
            short = pytorch_config.CLASSES[outer]
            names = [prefix + short for prefix in prefixes if prefix + short in double.SYMBOLS]
            assert leaf in fields_of(names[0]), option


EVERY = {
    "max_beam_width": "2",
    "max_batch_size": "4",
    "max_num_tokens": "64",
    "max_queue_size": "7",
    "gpt_model_type": "inflight_fused_batching",
    "enable_chunked_context": "true",
    "enable_trt_overlap": "False",
    "recv_poll_period_ms": "1",
    "normalize_log_probs": "0",
    "gather_generation_logits": "1",
    "gpu_weights_percent": "0.5",
    "batch_scheduler_policy": "max_utilization",
    "context_chunking_policy": "equal_progress",
    "enable_batch_size_tuning": "true",
    "enable_max_num_tokens_tuning": "true",
    "dynamic_batch_moving_average_window": "16",
    "enable_kv_cache_reuse": "true",
    "max_tokens_in_paged_kv_cache": "1000",
    "max_attention_window_size": "512,1024",
    "sink_token_length": "4",
    "kv_cache_free_gpu_mem_fraction": "0.8",
    "kv_cache_host_memory_bytes": "1024",
    "gpu_device_ids": "0,1",
    "participant_ids": "1,2",
    "num_nodes": "1",
    "communication_mode": "orchestrator",
    "spawn_processes": "false",
    "executor_worker_path": "worker",
    "lora_cache_max_adapter_size": "32",
    "decoding_mode": "medusa",
    "medusa_choices": "{{0}, {0, 1}}",
    "eagle_choices": "{{0}}",
    "speculative_decoding_fast_logits": "true",
    "guided_decoding_backend": "xgrammar",
    "multi_block_mode": "false",
    "cuda_graph_mode": "true",
    "cuda_graph_cache_size": "3",
    "cache_transceiver_backend": "UCX",
    "max_seq_idle_microseconds": "5",
    "iter_stats_max_iterations": "6",
    "cross_kv_cache_fraction": "0.25",
    "kv_cache_onboard_blocks": "false",
    "enable_partial_reuse": "false",
    "lora_cache_optimal_adapter_size": "16",
    "lora_cache_gpu_memory_fraction": "0.125",
    "lora_cache_host_memory_bytes": "2048",
    "lora_prefetch_dir": "adapters",
    "lookahead_window_size": "4",
    "lookahead_ngram_size": "5",
    "lookahead_verification_set_size": "6",
    "enable_context_fmha_fp32_acc": "true",
    "xgrammar_tokenizer_info_path": "info.json",
}


def objects(value: double.Double) -> dict[str, dict[str, Any]]:
    """What each class of a configuration holds."""
    found = {type(value).__name__: value.values}
    for held in value.values.values():
        if isinstance(held, double.Double):
            found |= objects(held)
    return found


def test_every_knob_arrives_in_its_object() -> None:
    assert {knob.option for knob in engine_config.KNOBS} == set(EVERY)
    parsed = options.parse(EVERY, "engines", {})
    info = {"encoded_vocab": ["a"], "tokenizer_str": "{}", "stop_token_ids": [0]}
    with double.installed() as api:
        made = objects(engine_config.build_config(api, parsed, info, "1.2.1"))
    for knob in engine_config.KNOBS:
        held = made[knob.owner][knob.keyword]
        if knob.how in ("same", "attribute"):
            assert held == getattr(parsed, knob.option), knob
        else:
            assert held is not None, knob


def test_options_reach_the_executors_configuration() -> None:
    info = {"encoded_vocab": ["a"], "tokenizer_str": "{}", "stop_token_ids": [0]}
    with double.installed() as api:
        config = engine_config.build_config(api, options.parse(EVERY, "engines", {}), info, "1.2.1")
        held = config.dump()
        knobs = config.values["extended_runtime_perf_knob_config"].values
    assert (held["max_beam_width"], held["max_queue_size"], held["batching_type"]) == (2, 7, "INFLIGHT")
    assert held["scheduler_config"]["capacity_scheduler_policy"] == "MAX_UTILIZATION"
    assert held["scheduler_config"]["dynamic_batch_config"]["dynamic_batch_moving_average_window"] == 16
    assert held["kv_cache_config"] == {
        "class": "KvCacheConfig",
        "enable_block_reuse": True,
        "max_tokens": 1000,
        "max_attention_window": [512, 1024],
        "sink_token_length": 4,
        "free_gpu_memory_fraction": 0.8,
        "host_cache_size": 1024,
        "cross_kv_cache_fraction": 0.25,
        "onboard_blocks": False,
        "enable_partial_reuse": False,
    }
    assert held["parallel_config"] == {
        "class": "ParallelConfig",
        "communication_mode": "ORCHESTRATOR",
        "device_ids": [0, 1],
        "participant_ids": [1, 2],
        "num_nodes": 1,
        "orchestrator_config": {
            "class": "OrchestratorConfig",
            "worker_executable_path": "worker",
            "spawn_processes": False,
            "is_orchestrator": True,
        },
    }
    assert held["peft_cache_config"]["num_put_workers"] == 4
    assert held["decoding_config"]["decoding_mode"] == "DecodingMode.Medusa"
    assert held["decoding_config"]["medusa_choices"] == [[0], [0, 1]]
    assert held["guided_decoding_config"]["backend"] == "XGRAMMAR"
    assert held["guided_decoding_config"]["stop_token_ids"] == [0]
    assert (knobs["cuda_graph_mode"], knobs["multi_block_mode"]) == (True, False)


def test_an_option_whose_keyword_is_missing_is_refused() -> None:
    with (
        double.installed({"ExecutorConfig(enable_trt_overlap)"}) as api,
        pytest.raises(UserMistake) as raised,
    ):
        engine_config.build_config(
            api, options.parse({"enable_trt_overlap": True}, "engines", {}), None, "1.2.1"
        )
    assert "`enable_trt_overlap`" in raised.value.what


@pytest.mark.parametrize(
    ("missing", "values", "words"),
    [
        ("ExecutorConfig(parallel_config)", {"gpu_device_ids": "0"}, "`ExecutorConfig(parallel_config)`"),
        ("DecodingConfig", {"eagle_choices": "{{0}}"}, "`DecodingConfig`"),
        ("PeftCacheConfig(num_put_workers)", {"lora_cache_max_adapter_size": "8"}, "`PeftCacheConfig(num"),
    ],
)
def test_what_options_need_beside_their_own_keyword_is_told(
    missing: str, values: dict[str, Any], words: str
) -> None:
    with double.installed({missing}) as api, pytest.raises(UserMistake) as raised:
        engine_config.build_config(api, options.parse(values, "engines", {}), None, "1.2.1")
    assert words in raised.value.what


@pytest.mark.parametrize(
    ("values", "runtime", "words"),
    [
        ({"no_such": 1}, "engines", "`no_such` is not an option"),
        (
            {"max_beam_width": "${max_beam_width}"},
            "engines",
            "`max_beam_width` must be an integer of at least 1, got",
        ),
        ({"max_beam_width": 0}, "engines", "`max_beam_width` must be an integer of at least 1, got `0`"),
        ({"decoding_mode": "greedy"}, "engines", "`decoding_mode` must be one of auto, "),
        ({"decoding_mode": "lookahead"}, "engines", "needs three sizes"),
        ({"enable_batch_size_tuning": True}, "engines", "needs three options"),
        ({"medusa_choices": "{{0"}, "engines", "`medusa_choices`"),
        ({"speculative_decoding_fast_logits": "true"}, "engines", "do not share their ranks"),
        ({"gpu_device_ids": "0,1;2,3"}, "engines", "`gpu_device_ids` is `0,1;2,3`"),
        ({"gpu_device_ids": "0,-1"}, "engines", "got `0,-1`"),
        (
            {"communication_mode": "orchestrator", "participant_ids": "1"},
            "engines",
            "starts the ranks of its engine",
        ),
        ({"communication_mode": "orchestrator", "spawn_processes": "0"}, "engines", "`participant_ids` does"),
        (
            {"communication_mode": "orchestrator", "spawn_processes": "0", "participant_ids": "0,1"},
            "engines",
            "`participant_ids` does not say",
        ),
        ({"load_format": "dummy"}, "pytorch", "`load_format` is not an option"),
        ({"request_stats_max_iterations": 8}, "engines", "`request_stats_max_iterations` is not an option"),
        ({"guided_decoding_backend": "llguidance"}, "engines", "which engines do not have"),
        ({"cuda_graph_mode": "false", "cuda_graph_batch_sizes": "1,2"}, "pytorch", "`cuda_graph_mode`"),
        ({"sampler_type": "auto"}, "engines", "has no effect with engines"),
        ({"gpu_weights_percent": 1}, "pytorch", "has no effect with the PyTorch runtime"),
    ],
)
def test_options_that_cannot_be_are_refused(values: dict[str, Any], runtime: str, words: str) -> None:
    with pytest.raises(UserMistake) as raised:
        options.parse(values, runtime, {})
    assert words in raised.value.what


def test_tritons_environment_asks_for_the_orchestrator() -> None:
    environment = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "0"}
    parsed = options.parse({"participant_ids": "1"}, "engines", environment)
    assert (parsed.communication_mode, parsed.spawn_processes) == ("orchestrator", False)


def test_ranks_come_from_the_launcher() -> None:
    assert ranks.check(1, False, {}) == 0
    assert ranks.check(4, False, {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}) == 3
    assert ranks.check(4, True, {}) == 0
    with pytest.raises(UserMistake):
        ranks.check(4, False, {"PMI_RANK": "0", "PMI_SIZE": "2"})


def test_an_orchestrator_is_rank_0_and_its_participants_are_ranks_of_the_job() -> None:
    job = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}
    assert ranks.check(2, True, job, [1, 2]) == 1
    assert ranks.check(2, True, {}, None) == 0
    for environment, participants, words in (
        (job, None, "this job has `3` ranks"),
        (job, [1], "`participant_ids` names `1`"),
        ({}, [1, 2], "names the rank `2`"),
    ):
        with pytest.raises(UserMistake) as raised:
            ranks.check(2, True, environment, participants)
        assert words in raised.value.what


@pytest.mark.parametrize(("rank", "orchestrates"), [(0, True), (1, False)])
def test_only_rank_0_is_the_orchestrator(rank: int, orchestrates: bool) -> None:
    given = {"communication_mode": "orchestrator", "spawn_processes": False, "participant_ids": "1,2"}
    with double.installed() as api:
        config = engine_config.build_config(api, options.parse(given, "engines", {}), None, "1.2.1", rank)
    assert objects(config)["OrchestratorConfig"]["is_orchestrator"] is orchestrates


def test_the_pytorch_runtime_is_started_once() -> None:
    ranks.require_leader({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"})
    with pytest.raises(UserMistake) as raised:
        ranks.require_leader({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    assert "`1`" in raised.value.what
    assert "trtllm-llmapi-launch" in str(raised.value.remedy)


class Native:
    """As a nanobind class shows its constructors."""

    def __init__(self) -> None: ...


def test_signatures_of_nanobind_and_of_python_are_read() -> None:
    text = "def __init__(self, a: dict[str, int], /, *, b: int | None = None, c: tuple[int, str] = (1, 'x'))"
    Native.__init__.__nb_signature__ = ((text, None), ("def __init__(self, d: int) -> None", None))  # type: ignore[attr-defined]
    assert parameters(Native) == {"a", "b", "c", "d"}
    Native.__init__.__nb_signature__ = (("def __init__(self, arg0: int, arg1: str, /) -> None", None),)  # type: ignore[attr-defined]
    assert parameters(Native) is None
    del Native.__init__.__nb_signature__  # type: ignore[attr-defined]
    Native.__init__.__doc__ = (
        "__init__(*args, **kwargs)\nOverloaded function.\n\n"
        "1. __init__(self: m.Config, a: List[Tuple[int, str]], *, b: Optional[int] = None, "
        "c: m.Kind = <Kind.ONE: 1>) -> None\n\n2. __init__(self: m.Config, d: bytes) -> None\n"
    )
    assert parameters(Native) == {"a", "b", "c", "d"}
    assert parameters(lambda x, *, y=1: (x, y)) == {"x", "y"}
    assert parameters(lambda **anything: anything) is None


def test_all_that_is_missing_is_named_at_once() -> None:
    nothing: dict[str, Any] = {}
    with pytest.raises(UserMistake) as raised:
        verify("engines", "9.9", lambda name: nothing.get(name))
    assert "`Request`" in raised.value.what
    assert "`Executor`" in raised.value.what


def test_the_documentation_is_what_the_table_says() -> None:
    text = (ROOT / "docs" / "reference" / "tensorrt-llm.md").read_text(encoding="utf-8")
    assert document.insert(text) == text, (
        "run `python -m inflight.executors.tensorrt_llm.document docs/reference/tensorrt-llm.md`"
    )


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("{{0}, {0, 1}}", [[0], [0, 1]]),
        # As the examples of Triton's backend have it.
        ("{0, 0, 0}, {0, 1}", [[0, 0, 0], [0, 1]]),
        ("{0, 1}", [[0, 1]]),
        ("[[0], [0, 1]]", [[0], [0, 1]]),
    ],
)
def test_a_tree_is_read_with_and_without_its_outer_braces(text: str, tree: list[list[int]]) -> None:
    assert options.parse({"medusa_choices": text}, "engines", {}).medusa_choices == tree


@pytest.mark.parametrize("text", ["{0}, {0", "{0}}, {{1}", "0, 1", "{0}, 1", "{0}, {a}", ""])
def test_half_a_tree_is_refused(text: str) -> None:
    with pytest.raises(UserMistake, match="paths like"):
        options.parse({"medusa_choices": text}, "engines", {})
