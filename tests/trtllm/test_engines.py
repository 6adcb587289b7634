"""The engines' adapter over the double: rows back, what an engine was built for, failures."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.errors import UserMistake
from inflight.executors.base import (
    FinishReason,
    OutputConfig,
    Request,
    ResponseBatch,
    SamplingConfig,
    StatusCode,
)
from inflight.executors.columns import Columns
from inflight.executors.tensorrt_llm import find_runtime
from inflight.executors.tensorrt_llm.engine_directory import EngineDirectory
from inflight.executors.tensorrt_llm.engines import create_engines
from inflight.executors.tensorrt_llm.health import EngineFailed, check_error
from inflight.executors.tensorrt_llm.options import parse
from inflight.executors.tensorrt_llm.results import Active, ResultReader
from support import double
from trtllm.harness import (
    Row,
    await_until_broken,
    collect,
    passed,
    request_of,
    start_engines,
    write_encoder_decoder,
    write_engine,
    write_tokenizer,
)


def test_streaming_rows_are_deltas_and_end_once(executor: Any) -> None:
    executor.enqueue(
        [
            Request(client_id=1, input_token_ids=[10], max_tokens=3),
            Request(client_id=2, input_token_ids=[20], max_tokens=9, end_id=23),
            Request(client_id=3, input_token_ids=[30], max_tokens=9, stop_words=[[31, 32]], streaming=False),
        ]
    )
    rows = collect(executor, 1, 2, 3)
    assert [row.tokens for row in rows[1]] == [[11], [12], [13]]
    assert rows[1][-1].reason is FinishReason.LENGTH
    assert [token for row in rows[2] for token in row.tokens] == [21, 22]
    assert rows[2][-1].reason is FinishReason.END_ID
    assert [(row.tokens, row.reason) for row in rows[3]] == [([31, 32], FinishReason.STOP_WORDS)]
    assert [sum(row.final for row in rows[at]) for at in (1, 2, 3)] == [1, 1, 1]


def test_sequences_and_beams_have_their_index(executor: Any) -> None:
    several, beams = SamplingConfig(num_return_sequences=3), SamplingConfig(beam_width=2)
    executor.enqueue(
        [
            Request(client_id=1, input_token_ids=[10], max_tokens=2, sampling_config=several),
            Request(client_id=2, input_token_ids=[20], max_tokens=2, sampling_config=beams, streaming=False),
        ]
    )
    rows = collect(executor, 1, 2)
    texts = {index: [t for row in rows[1] if row.sequence == index for t in row.tokens] for index in range(3)}
    assert texts == {0: [11, 12], 1: [12, 13], 2: [13, 14]}
    assert [(row.sequence, row.tokens, row.final) for row in rows[2]] == [
        (0, [21, 22], False),
        (1, [21, 22], True),
    ]


def test_log_probs_come_as_deltas_with_alternatives_and_the_prompts(executor: Any) -> None:
    wanted = OutputConfig(return_log_probs=True, num_top_log_probs=2, num_prompt_log_probs=1)
    executor.enqueue([Request(client_id=1, input_token_ids=[8, 16], max_tokens=2, output_config=wanted)])
    batches: list[ResponseBatch] = []
    while not batches or not batches[-1].finals[-1]:
        batch = executor.await_responses(1.0)
        if batch.finals:
            batches.append(batch)
    rows = [Row(batch, row) for batch in batches for row in range(len(batch.finals))]
    assert [row.log_probs for row in rows] == [[-17 / 64], [-18 / 64]]
    assert np.frombuffer(batches[0].top_log_prob_ids, "<i4")[:2].tolist() == [17, 18]
    assert [len(row.prompt) for row in rows] == [1, 0]
    values, width, ids, tops = rows[0].prompt[0]
    log_probs = np.frombuffer(values, "<f4")
    assert width == 1
    assert np.isnan(log_probs[0])
    assert np.frombuffer(ids, "<i4").tolist() == [-1, 16]
    assert log_probs[1] == pytest.approx(np.frombuffer(tops, "<f4")[1])


def test_alternatives_are_those_of_a_whole_answers_tokens(executor: Any) -> None:
    wanted = OutputConfig(num_top_log_probs=1)
    executor.enqueue(
        [
            Request(
                client_id=1,
                input_token_ids=[8],
                max_tokens=9,
                end_id=11,
                output_config=wanted,
                streaming=False,
            )
        ]
    )
    batch = executor.await_responses(5.0)
    assert np.frombuffer(batch.token_ids, "<i4").tolist() == [9, 10]
    assert np.frombuffer(batch.top_log_prob_ids, "<i4").tolist() == [9, 10]


def test_a_draft_that_shares_its_ranks_tells_where_its_logits_are(executor: Any) -> None:
    api = sys.modules["tensorrt_llm.bindings.executor"]
    result, rows = api.Result(), Columns()
    result.spec_dec_fast_logits_info = api.SpeculativeDecodingFastLogitsInfo()
    result.is_final, result.sequence_index = True, 0
    result.output_token_ids, result.finish_reasons = [[9]], [api.FinishReason.LENGTH]
    wanted = OutputConfig(return_generation_logits=True)
    request = Request(client_id=1, input_token_ids=[8], max_tokens=1, output_config=wanted)
    ResultReader(api.FinishReason, double.VOCAB).read(result, Active(request), rows)
    ((_, found),) = rows.pack().tensors
    assert (found.name, found.shape) == ("generation_logits", (1, 4))
    assert found.data == double.FAST_LOGITS.tobytes()


def test_large_outputs_come_under_their_triton_names(executor: Any) -> None:
    everything = OutputConfig(True, True, True, True)
    executor.enqueue(
        [
            Request(
                client_id=1, input_token_ids=[8, 16], max_tokens=2, output_config=everything, streaming=False
            )
        ]
    )
    tensors = collect(executor, 1)[1][-1].tensors
    assert tensors["context_logits"].shape == (2, double.WIDTH)
    assert tensors["generation_logits"].shape == (1, 2, double.WIDTH)
    assert np.frombuffer(tensors["cum_log_probs"].data, "<f4").tolist() == [-35 / 64]
    assert struct.unpack("<q", tensors["last_token_time_ns"].data) == (4000,)
    assert struct.unpack("<i", tensors["kv_cache_alloc_total_blocks"].data) == (5,)


def test_a_context_phase_is_handed_on(executor: Any) -> None:
    kind = passed("request_type", "BYTES", (1,), "context_only")
    executor.enqueue([Request(client_id=1, input_token_ids=[8], max_tokens=5, tensors=[kind])])
    row = collect(executor, 1)[1][-1]
    blob = row.tensors["context_phase_params"]
    executor.enqueue([Request(client_id=2, input_token_ids=[8], max_tokens=1, tensors=[blob])])
    collect(executor, 2)
    params = double.REQUESTS[-1].dump()["context_phase_params"]
    assert (params["first_gen_tokens"], params["opaque_state"]) == ([9], b"\x00state".hex())


def test_a_cancelled_request_gets_its_final_row(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=50)])
    executor.cancel([1, 777])
    last = collect(executor, 1)[1][-1]
    assert (last.reason, last.final) == (FinishReason.CANCELLED, True)
    executor.cancel([1])


def test_one_refusal_leaves_the_others_alone(executor: Any) -> None:
    guide = passed("guided_decoding_guide_type", "BYTES", (1,), "yaml")
    executor.enqueue(
        [
            Request(client_id=1, input_token_ids=[10], max_tokens=1),
            Request(client_id=2, input_token_ids=[double.REFUSE], max_tokens=1),
            Request(client_id=3, input_token_ids=[10], max_tokens=1, tensors=[guide]),
            Request(client_id=4, input_token_ids=[double.ERROR], max_tokens=1),
            Request(client_id=5, input_token_ids=[30], max_tokens=1),
        ]
    )
    rows = collect(executor, 1, 2, 3, 4, 5)
    assert [(row.tokens, row.errors) for row in rows[1]] == [([11], [])]
    assert [row.tokens for row in rows[5]] == [[31]]
    assert rows[2][0].errors == [
        (StatusCode.INVALID_ARGUMENT, "RuntimeError: Prompt length exceeds maximum input length")
    ]
    assert "`yaml`" in rows[3][0].errors[0][1]
    assert rows[4][0].errors[0][0] == StatusCode.INVALID_ARGUMENT


def test_a_broken_engine_raises_with_its_reason(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[double.CRASH], max_tokens=1)])
    with pytest.raises(EngineFailed, match=r"giving responses: RuntimeError.*illegal memory access$"):
        await_until_broken(executor)


def test_an_error_that_all_get_breaks_the_engine_and_one_of_a_request_does_not(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[double.ERROR], max_tokens=1)])
    assert collect(executor, 1)[1][-1].errors
    executor.enqueue([Request(client_id=2, input_token_ids=[double.FAULT], max_tokens=1)])
    with pytest.raises(EngineFailed, match=r"forwardAsync.*illegal memory access was encountered"):
        await_until_broken(executor)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory",
        "Encountered an error when fetching new request: Prompt length exceeds maximum input length",
    ],
)
def test_an_error_that_passes_breaks_nothing(text: str) -> None:
    check_error(text)


def test_an_error_without_a_client_id_finds_its_request(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[double.SILENCE], max_tokens=1)])
    api, sim = sys.modules["tensorrt_llm.bindings.executor"], double.ENGINES[-1]._sim
    with sim.changed:
        (identity,) = sim.jobs
        sim.ready.append(api.Response(request_id=identity, error_msg="Request is too large"))
        sim.changed.notify_all()
    assert collect(executor, 1)[1][-1].errors[0][1] == "Request is too large"


def test_the_end_does_not_wait_for_what_runs(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[double.SILENCE], max_tokens=1)])
    (job,) = double.ENGINES[-1]._sim.jobs.values()
    executor.shutdown()
    assert job.cancelled


def test_a_dead_rank_is_noticed(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[double.SILENCE], max_tokens=1)])
    double.ENGINES[-1]._sim.stop()
    with pytest.raises(EngineFailed, match="one of its ranks has died"):
        await_until_broken(executor)


def test_statistics_are_the_engines_json(executor: Any) -> None:
    executor.enqueue([Request(client_id=1, input_token_ids=[10], max_tokens=3)])
    collect(executor, 1)
    stats = list(executor.stats())
    assert [one["iter"] for one in stats[:2]] == [1, 2]
    assert stats[0]["maxNumActiveRequests"] == 8


def test_statistics_asked_while_the_engine_ends_are_none(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = executor._engine

    def tell() -> None:
        executor.shutdown()
        raise RuntimeError("Shutdown called")

    monkeypatch.setattr(type(engine), "get_latest_iteration_stats", lambda _: tell())
    assert executor.stats() == ()


def test_an_optional_name_that_is_missing_turns_its_capability_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with double.installed({"LoraConfig", "SamplingConfig(min_p)", "Result.generation_logits"}):
        made = start_engines(tmp_path)
        capabilities = made.info().capabilities
        made.shutdown()
    assert "lora" not in capabilities
    assert "min_p" not in capabilities
    assert not {"generation_logits", "top_log_probs"} & set(capabilities)
    assert "prompt_tuning" in capabilities
    assert "`LoraConfig`: `lora` is off" in caplog.text


@pytest.mark.parametrize(
    "missing",
    [
        "Request(client_id)",
        "Result.is_final",
        "OutputConfig(exclude_input_from_output)",
        "Executor.cancel_request",
    ],
)
def test_a_needed_name_that_is_missing_is_a_refusal(tmp_path: Path, missing: str) -> None:
    with double.installed({missing}), pytest.raises(UserMistake) as raised:
        start_engines(tmp_path)
    assert f"`{missing}`" in raised.value.what


def test_ranks_above_zero_stay_until_the_leader_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    directory = write_engine(tmp_path / "engine", ranks=2)
    with double.installed(), pytest.raises(SystemExit) as raised:
        create_engines(directory, parse({}, "engines", {}), "1.2.1")
    assert raised.value.code == 0
    # It was built, and left through the engine's own shutdown.
    assert double.ENGINES[-1]._sim.stopped


def test_an_encoder_decoder_is_served_from_its_one_directory(tmp_path: Path) -> None:
    directory = write_encoder_decoder(tmp_path / "t5")
    (directory / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": 5}))
    assert find_runtime(directory) == "engines"
    with double.installed():
        made = create_engines(directory, parse({}, "engines", {}), "1.2.1")
        engine = double.ENGINES[-1].dump()
        made.enqueue([request_of({"input_token_ids": list(range(30)), "max_tokens": 3})])
        rows = collect(made, 9)[9]
        held = double.REQUESTS[-1].dump()
        info = made.info()
        made.shutdown()
    assert engine["encoder_model_path"] == str(directory / "encoder")
    assert engine["decoder_model_path"] == str(directory / "decoder")
    assert engine["model_type"] == "ENCODER_DECODER"
    assert engine["executor_config"]["kv_cache_config"]["cross_kv_cache_fraction"] == 0.5
    # The prompt is the encoder's; the decoder starts with the token of its own.
    assert (held["encoder_input_token_ids"], held["input_token_ids"]) == (list(range(30)), [5])
    assert [token for row in rows for token in row.tokens] == [6, 7, 8]
    assert (info.max_input_len, info.max_seq_len) == (40, 60)
    assert {"encoder", "cross_attention"} <= set(info.capabilities)


def test_a_decoder_that_does_not_know_where_to_start_is_told(tmp_path: Path) -> None:
    directory = tmp_path / "t5"
    directory.mkdir()
    for part in ("encoder", "decoder"):
        write_engine(directory / part)
    with pytest.raises(UserMistake, match="which token its decoder starts with"):
        create_engines(directory, parse({}, "engines", {}), "1.2.1")


@pytest.mark.parametrize(
    ("build", "given"),
    [
        ({"max_draft_len": 4}, True),
        ({"max_draft_len": 4, "speculative_decoding_mode": 2}, True),
        ({"max_draft_len": 4, "speculative_decoding_mode": 4}, False),
        ({"max_draft_len": 0}, False),
    ],
)
def test_draft_tokens_are_taken_by_engines_that_do_not_draft_themselves(
    tmp_path: Path, build: dict[str, Any], given: bool
) -> None:
    with double.installed():
        made = start_engines(tmp_path, build)
        capabilities = made.info().capabilities
        made.shutdown()
    assert ("draft_tokens" in capabilities) is given


def test_draft_logits_travel_between_gpus_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    drafts = [passed("draft_input_ids", "INT32", (2,), 13, 14)]
    with double.installed():
        made = start_engines(
            tmp_path,
            speculative_decoding_fast_logits=True,
            communication_mode="orchestrator",
            spawn_processes=False,
            participant_ids="1",
        )
        made.enqueue([request_of({"tensors": drafts})])
        collect(made, 9)
        held = double.REQUESTS[-1].dump()
        made.shutdown()
    assert held["external_draft_tokens_config"] == {
        "class": "ExternalDraftTokensConfig",
        "tokens": [13, 14],
        "fast_logits": True,
    }


@pytest.mark.parametrize("given", [False, True], ids=["tokenizer", "file"])
def test_guides_know_how_tokens_are_spelled(tmp_path: Path, given: bool) -> None:
    more: dict[str, Any] = {}
    expected = {
        "encoded_vocab": ["a", "b", "", "</s>"],
        "tokenizer_str": (write_tokenizer(tmp_path) / "tokenizer.json").read_text(),
        "stop_token_ids": [3],
    }
    if given:
        expected = {"encoded_vocab": ["x"], "tokenizer_str": "{}", "stop_token_ids": [7]}
        path = tmp_path / "info.json"
        path.write_text(json.dumps(expected))
        more = {"xgrammar_tokenizer_info_path": str(path)}
    with double.installed():
        start_engines(tmp_path, **more).shutdown()
        config = double.ENGINES[-1].dump()["executor_config"]
    assert config["guided_decoding_config"] == {
        "class": "GuidedDecodingConfig",
        "backend": "XGRAMMAR",
        **expected,
    }


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        ("{}", "does not specify how tokens are spelled"),
        ('{"model": {"vocab": {}}}', "does not specify how tokens are spelled"),
        ('{"model": {"vocab": {"a": 1000000}}}', "its ids are invalid"),
        ('{"model": {"vocab": [["a", 0.5]]}}', "which token ends a text"),
    ],
)
def test_a_tokenizer_that_guides_cannot_use_is_told(tmp_path: Path, tokenizer: str, words: str) -> None:
    engine = write_engine(tmp_path / "engine")
    (engine / "tokenizer.json").write_text(tokenizer)
    options = parse({"guided_decoding_backend": "xgrammar"}, "engines", {})
    with double.installed(), pytest.raises(UserMistake) as raised:
        create_engines(engine, options, "1.2.1")
    assert words in raised.value.what


def test_an_orchestrator_starts_its_ranks_with_the_packages_program(tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine", ranks=2)
    options = parse({"communication_mode": "orchestrator"}, "engines", {})
    package = tmp_path / "package"
    with double.installed():
        sys.modules["tensorrt_llm"].__path__ = [str(package)]
        with pytest.raises(UserMistake, match="bin/executorWorker"):
            create_engines(engine, options, "1.2.1")
        (package / "bin").mkdir(parents=True)
        (package / "bin" / "executorWorker").touch()
        create_engines(engine, options, "1.2.1").shutdown()
        parallel = double.ENGINES[-1].dump()["executor_config"]["parallel_config"]
    assert parallel == {
        "class": "ParallelConfig",
        "communication_mode": "ORCHESTRATOR",
        "orchestrator_config": {
            "class": "OrchestratorConfig",
            "spawn_processes": True,
            "worker_executable_path": str(package / "bin" / "executorWorker"),
            "is_orchestrator": True,
        },
    }


@pytest.mark.parametrize(
    ("build", "options", "longest"),
    [
        ({}, {}, 100),
        ({"max_num_tokens": 64}, {}, 64),
        ({}, {"max_num_tokens": 32}, 32),
        ({"max_num_tokens": 64}, {"enable_chunked_context": True}, 100),
    ],
)
def test_without_chunks_a_prompt_fits_one_iteration(
    tmp_path: Path, build: dict[str, Any], options: dict[str, Any], longest: int
) -> None:
    with double.installed():
        executor = start_engines(tmp_path, build, **options)
        assert executor.info().max_input_len == longest
        executor.shutdown()


@pytest.mark.parametrize("option", ["enable_chunked_context", "enable_kv_cache_reuse"])
def test_what_needs_paged_context_fmha_is_refused_of_an_engine_without_it(
    tmp_path: Path, option: str
) -> None:
    build = {"plugin_config": {"use_paged_context_fmha": False}}
    with double.installed():
        with pytest.raises(UserMistake) as raised:
            start_engines(tmp_path, build, **{option: True})
        start_engines(tmp_path, build).shutdown()
    assert f"`{option}` is `true`" in raised.value.what
    assert "paged context FMHA" in raised.value.what


@pytest.mark.parametrize(
    ("build", "model", "longest"),
    [
        ({"max_draft_len": 0}, {}, 128),
        ({"max_draft_len": 4, "speculative_decoding_mode": 1}, {}, 128),
        ({"max_draft_len": 4, "speculative_decoding_mode": 2}, {}, 124),
        ({"max_draft_len": 4, "speculative_decoding_mode": 32}, {"num_eagle_layers": 3}, 121),
    ],
)
def test_positions_for_drafts_are_none_of_a_sequences(
    tmp_path: Path, build: dict[str, Any], model: dict[str, Any], longest: int
) -> None:
    engine = write_engine(tmp_path / "engine", **build)
    config = json.loads((engine / "config.json").read_text())
    config["pretrained_config"] |= model
    (engine / "config.json").write_text(json.dumps(config))
    assert EngineDirectory.read(engine).max_seq_len == longest


def test_a_request_that_is_cancelled_in_the_queue_ends_once_it_runs(executor: Any) -> None:
    slots = [
        Request(client_id=at, input_token_ids=[double.SILENCE], max_tokens=1)
        for at in range(1, double.SLOTS + 1)
    ]
    executor.enqueue([*slots, Request(client_id=99, input_token_ids=[10], max_tokens=9)])
    executor.cancel([99])
    assert not executor.await_responses(0.2).finals
    executor.cancel([1])
    assert collect(executor, 1, 99)[99][-1].reason is FinishReason.CANCELLED


TABLE = passed("prompt_embedding_table", "FP16", (1, 2), 0.5, 2.0)


@pytest.mark.parametrize(
    ("extra", "reuse", "kept"),
    [
        ([1, 2, 3], True, [1, 2, 3]),
        ([1, 2, 3, 4], True, [1, 2, 3]),
        ([1, 2], True, None),
        (None, True, None),
        ([1, 2, 3, 4], False, [1, 2, 3]),
        ([1, 2], False, []),
        (None, False, []),
    ],
)
def test_a_prompt_table_has_an_id_for_each_token_where_blocks_are_reused(
    tmp_path: Path, extra: list[int] | None, reuse: bool, kept: list[int] | None
) -> None:
    tensors = [TABLE]
    if extra is not None:
        tensors.append(passed("prompt_table_extra_ids", "UINT64", (len(extra),), *extra))
    with double.installed():
        made = start_engines(tmp_path, {"gather_context_logits": False}, enable_kv_cache_reuse=reuse)
        made.enqueue([request_of({"tensors": tensors})])
        row = collect(made, 9)[9][-1]
        made.shutdown()
    if kept is None:
        assert f"`prompt_table_extra_ids` has `{len(extra or ())}` values for `3`" in row.errors[0][1]
        return
    held = double.REQUESTS[-1].dump()["prompt_tuning_config"]
    assert (row.errors, held.get("input_token_extra_ids", [])) == ([], kept)


def test_logits_that_lack_a_part_of_the_prompt_are_an_error(executor: Any) -> None:
    (engine,) = double.ENGINES
    with engine._sim.changed:
        wanted = OutputConfig(num_prompt_log_probs=0)
        executor.enqueue([request_of({"output_config": wanted})])
        (job,) = engine._sim.jobs.values()
        job.cached = double.CACHED
    row = collect(executor, 9)[9][-1]
    assert row.errors == [
        (StatusCode.INTERNAL, "TensorRT-LLM returned the logits of `1` of the prompt's `3` tokens")
    ]


@pytest.mark.parametrize(("version", "said"), [("1.1.0", True), ("1.2.1", False)])
def test_generation_only_is_doubtful_before_1_2(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str, said: bool
) -> None:
    engine = write_engine(tmp_path / "engine")
    config = json.loads((engine / "config.json").read_text()) | {"version": version}
    (engine / "config.json").write_text(json.dumps(config))
    options = parse({"cache_transceiver_backend": "UCX"}, "engines", {})
    with double.installed():
        create_engines(engine, options, version).shutdown()
    assert ("`generation_only` requests may fail" in caplog.text) is said
