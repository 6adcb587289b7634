"""`tensorrt_llm` of a created repository on a real Triton: answers, what it refuses, and how work ends."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from support import real_triton
from support.asking import (
    TIMEOUT_S,
    Asking,
    curl,
    generate,
    generate_stream,
    listed,
    log_lines,
    one,
    wait_for_log,
)
from support.metrics import total
from support.triton import inputs, is_final, tensor, tokens

PROMPT = [40, 41, 42]
BODY = {"input_ids": PROMPT, "input_lengths": len(PROMPT), "request_output_len": 8}
#: Steps of a real generation that no test waits for.
LONG = 8000


@pytest.fixture(scope="module")
def expected(triton: real_triton.Triton) -> list[int]:
    """What the prompt is continued with, greedily."""
    ids = listed(generate(triton, "tensorrt_llm", {**BODY, "exclude_input_in_output": True})["output_ids"])
    assert len(ids) == BODY["request_output_len"]
    return [int(id) for id in ids]


def test_generate_repeats_the_prompt_unless_told_not_to(
    triton: real_triton.Triton, expected: list[int]
) -> None:
    answer = generate(triton, "tensorrt_llm", BODY)
    assert answer["output_ids"] == PROMPT + expected
    assert answer["sequence_length"] == len(PROMPT) + len(expected)


def test_generate_stream_has_a_step_an_event(triton: real_triton.Triton, expected: list[int]) -> None:
    events = generate_stream(triton, "tensorrt_llm", {**BODY, "streaming": True})
    assert [id for event in events for id in listed(event["output_ids"])] == expected
    assert len(events) == len(expected)


def test_generate_takes_one_response_only(triton: real_triton.Triton) -> None:
    _, text = curl(triton, "models/tensorrt_llm/generate", {**BODY, "streaming": True})
    assert "exactly 1 response" in text


@pytest.mark.parametrize("streaming", [False, True])
def test_a_batch_of_several_sequences(
    triton: real_triton.Triton, expected: list[int], streaming: bool
) -> None:
    rows, sequences = 2, 3
    stream = Asking(triton, "tensorrt_llm")
    try:
        stream.ask(
            "batch",
            [
                tensor("input_ids", [PROMPT, [50, 51, 0]], "INT32"),
                tensor("input_lengths", [[3], [2]], "INT32"),
                tensor("request_output_len", [[8], [4]], "INT32"),
                tensor("num_return_sequences", [[sequences]] * rows, "INT32"),
                tensor("streaming", [[streaming]] * rows, "BOOL"),
                tensor("exclude_input_in_output", [[True]] * rows, "BOOL"),
            ],
        )
        results = stream.answers()["batch"]
    finally:
        stream.close()
    found: dict[tuple[int, int], list[int]] = {}
    for result in results:
        key = (one(result, "batch_index"), one(result, "sequence_index"))
        found.setdefault(key, []).extend(tokens(result))
    assert sorted(found) == [(row, index) for row in range(rows) for index in range(sequences)]
    for (row, _), ids in found.items():
        assert len(ids) <= (8, 4)[row]
        if row == 0:
            assert ids == expected
    assert [is_final(result) for result in results] == [False] * (len(results) - 1) + [True]


def test_outputs_are_sent_when_they_are_asked_for(triton: real_triton.Triton) -> None:
    wanted = {
        "return_log_probs": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "inflight_num_top_log_probs": 2,
        "inflight_num_prompt_log_probs": 1,
        "exclude_input_in_output": True,
    }
    made = [
        *inputs(PROMPT, 4),
        *(
            tensor(name, [[value]], "BOOL" if isinstance(value, bool) else "INT32")
            for name, value in wanted.items()
        ),
    ]
    stream = Asking(triton, "tensorrt_llm")
    try:
        stream.ask("all", made)
        (result,) = stream.answers()["all"]
        stream.ask("few", made, ["output_ids", "inflight_finish_reason"])
        (few,) = stream.answers()["few"]
    finally:
        stream.close()
    log_probs, top = result.as_numpy("output_log_probs"), result.as_numpy("inflight_top_log_probs")
    assert log_probs.shape == (1, 1, 4)
    assert top.shape == (1, 1, 4, 2)
    np.testing.assert_allclose(result.as_numpy("cum_log_probs"), [[log_probs.sum()]], rtol=1e-5)
    # Greedy: what was taken is the likeliest.
    np.testing.assert_allclose(top[..., 0], log_probs, rtol=1e-5)
    assert result.as_numpy("inflight_top_log_prob_ids")[0, 0, :, 0].tolist() == tokens(result)
    prompt = result.as_numpy("inflight_prompt_log_probs")
    assert prompt.shape == (1, len(PROMPT))
    assert np.isnan(prompt[0, 0])
    assert (prompt[0, 1:] < 0).all()
    assert result.as_numpy("inflight_prompt_top_log_prob_ids").shape == (1, len(PROMPT), 1)
    assert (one(result, "num_input_tokens"), one(result, "num_output_tokens")) == (len(PROMPT), 4)
    assert one(result, "inflight_finish_reason") == 3
    assert {output.name for output in few.get_response().outputs} == {"output_ids", "inflight_finish_reason"}


#: Inputs besides a good request's -> what the refusal says.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"decoder_input_ids": [1, 2]}, "`decoder_input_ids` needs `encoder`"),
    ({"beam_width": 5}, "`beam_width` has value `5`, expected `1` to `4`"),
    ({"lora_task_id": 1}, "LoRA task 1 not found in cache"),
    ({"request_type": "context_only"}, "`request_type` needs `context_phase`"),
    ({"temperature": -1.0}, "`temperature` has value `-1`, expected a number from `0` on"),
    ({"runtime_top_p": 1.5}, "`runtime_top_p` has value `1.5`, expected at most 1"),
    ({"repetition_penalty": 0.0}, "`repetition_penalty` has value `0`, expected a number above 0"),
    ({"num_return_sequences": 999}, "`num_return_sequences` has value `999`, expected `1` to `128`"),
    ({"end_id": 10**6}, "`end_id` has value `1000000`, expected a token id below"),
    ({"embedding_bias": [1.0, 2.0]}, "`embedding_bias` has `2` values"),
    ({"bad_words_list": [5, 6, 2, 1]}, "offset `1` after `2`"),
    ({"input_lengths": 4}, "`input_lengths` is `4`, but `input_ids` has `3` tokens"),
    ({"input_ids": [40, -41, 42]}, "`input_ids` has value `-41`"),
    ({"input_lengths": 0}, "the prompt in `input_ids` is empty"),
    ({"request_output_len": 0}, "`request_output_len` has value `0`, expected at least 1"),
    ({"request_output_len": 10**6}, "(`1000000`) exceed the model's"),
    ({"request_output_len": None}, "`request_output_len` is required by the model and missing"),
    ({"stop": True}, "needs the request id"),
    # Triton's own checks.
    ({"request_output_len": "many"}, "Unable to parse"),
    ({"stop_words_list": [1, 2, 3]}, "can not convert input 'stop_words_list'"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=[str(changes) for changes, _ in REFUSED])
def test_what_cannot_be_honoured_is_refused_by_name(
    triton: real_triton.Triton, changes: dict[str, Any], reason: str
) -> None:
    body = {name: value for name, value in {**BODY, **changes}.items() if value is not None}
    status, text = curl(triton, "models/tensorrt_llm/generate", body)
    assert status in (400, 500), text
    assert reason in text


def test_values_that_ask_for_nothing_are_taken(triton: real_triton.Triton, expected: list[int]) -> None:
    neutral = {
        "beam_width": 1,
        "len_penalty": 1.0,
        "return_context_logits": False,
        "return_perf_metrics": False,
        "runtime_top_p_decay": 1.0,
        "prompt_vocab_size": 0,
        "request_type": "context_and_generation",
        "priority": 0,
    }
    assert generate(triton, "tensorrt_llm", {**BODY, **neutral})["output_ids"] == PROMPT + expected


def test_unknown_and_mistyped_tensors_are_refused_on_a_stream(triton: real_triton.Triton) -> None:
    stream = Asking(triton, "tensorrt_llm")
    try:
        for bad, reason in (
            (tensor("no_such_input", [[1]], "INT32"), "no_such_input"),
            (tensor("temperature", [[1]], "INT32"), "temperature"),
            (tensor("end_id", [[1], [1]], "INT32"), "batch size does not match"),
        ):
            stream.ask("bad", [*inputs(PROMPT, 2), bad])
            assert reason in stream.refusal()
    finally:
        stream.close()


def test_a_refusal_of_the_executor_leaves_the_others(triton: real_triton.Triton) -> None:
    """The executor of `narrow` queues four sequences and refuses the request with more."""
    stream = Asking(triton, "narrow")
    try:
        stream.ask("good", inputs(PROMPT, 64, streaming=True))
        first, _ = stream.next()
        stream.ask("bad", inputs(PROMPT, 4, num_return_sequences=16))
        results = [first]
        errors: list[str] = []
        # Either may come last.
        while not (errors and is_final(results[-1])):
            result, error = stream.next()
            if error is None:
                results.append(result)
            else:
                errors.append(str(error))
    finally:
        stream.close()
    assert len(errors) == 1
    assert "the queue holds 4" in errors[0]
    assert sum(len(tokens(result)) for result in results) == 64


def test_a_stop_request_ends_the_work(triton: real_triton.Triton) -> None:
    stream = Asking(triton, "tensorrt_llm")
    try:
        # No end id: only the length or a cancel ends it.
        stream.ask("long", inputs(PROMPT, LONG, streaming=True))
        first, error = stream.next()
        assert error is None
        stream.ask("long", inputs([0], 0, stop=True))
        last, generated = None, len(tokens(first))
        finals = 0
        while finals < 2:
            result, error = stream.next()
            assert error is None
            finals += is_final(result)
            generated += len(tokens(result))
            if one(result, "inflight_finish_reason"):
                last = result
    finally:
        stream.close()
    assert last is not None
    # TensorRT-LLM's number of a cancelled sequence, which only the executor gives.
    assert one(last, "inflight_finish_reason") == 5
    assert generated < LONG


def test_closing_the_stream_ends_the_work(triton: real_triton.Triton) -> None:
    """`narrow` runs one sequence at a time: the second is answered because the first has ended."""
    leaving, staying = Asking(triton, "narrow"), Asking(triton, "narrow")
    try:
        leaving.ask("leaving", inputs(PROMPT, LONG, streaming=True))
        _, error = leaving.next()
        assert error is None
        staying.ask("staying", inputs(PROMPT, 4, exclude_input_in_output=True))
        leaving.close(cancel=True)
        (result,) = staying.answers()["staying"]
        assert len(tokens(result)) == 4
    finally:
        staying.close()
    # Written once the executor's final row of it is there, and only for a client that left.
    wait_for_log(triton, "request `leaving` is cancelled")


def test_metrics_follow_the_executor(triton: real_triton.Triton) -> None:
    """Under NVIDIA's names: one request of `narrow` runs, another waits, and cancelling frees the cache."""
    stream = Asking(triton, "narrow")
    try:
        for name in ("running", "waiting"):
            stream.ask(name, inputs(PROMPT, LONG, streaming=True))
        _, error = stream.next()
        assert error is None
        wait_for_gauges(triton, active=2, scheduled=1, waiting=1, max=1, used=None, tokens_per=32)
    finally:
        stream.close(cancel=True)
    wait_for_gauges(triton, active=0, scheduled=0, waiting=0, max=1, used=0, tokens_per=32)


def test_lengths_of_prompts_and_answers_are_counted(triton: real_triton.Triton) -> None:
    """Under NVIDIA's names, once for each request that ended."""

    def counted(side: str, part: str) -> float:
        labels = ('model="narrow"', f'response_metric_type="total_{side}_tokens"')
        return total(triton.metrics, f"nv_llm_{side}_token_len_{part}", *labels)

    before = {(side, part): counted(side, part) for side in ("input", "output") for part in ("count", "sum")}
    asking = Asking(triton, "narrow")
    try:
        asking.ask("one", inputs(PROMPT, 4, exclude_input_in_output=True))
        (result,) = asking.answers()["one"]
        assert len(tokens(result)) == 4
    finally:
        asking.close()
    deadline = time.monotonic() + TIMEOUT_S
    while counted("output", "count") == before["output", "count"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found = {key: counted(*key) - value for key, value in before.items()}
    assert found == {
        ("input", "count"): 1,
        ("input", "sum"): len(PROMPT),
        ("output", "count"): 1,
        ("output", "sum"): 4,
    }


def wait_for_gauges(triton: real_triton.Triton, **expected: float | None) -> None:
    """Waits until the gauges of `narrow` have these values; `None` is any above 0."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = {
            name: total(
                triton.metrics,
                "nv_trt_llm_kv_cache_block_metrics"
                if name in ("used", "tokens_per")
                else "nv_trt_llm_request_metrics",
                'model="narrow"',
                f'="{name}"',
            )
            for name in expected
        }
        if all(
            found[name] > 0 if value is None else found[name] == value for name, value in expected.items()
        ):
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def test_parameters_reach_the_executor(triton: real_triton.Triton) -> None:
    starts = list(log_lines(triton, "the executor `reference` starts with"))
    assert sum("max_queue_size=4, max_batch_size=1" in line for line in starts) == 1
    assert sum("its own defaults" in line for line in starts) == 2


def test_a_parameter_that_the_executor_lacks_is_refused_at_load(triton: real_triton.Triton) -> None:
    status, text = curl(triton, "repository/models/ignored/load")
    assert status == 400
    for part in ("`recv_poll_period_ms` is `4`", "`normalize_log_probs` is `false`", "`unknown` is `1`"):
        assert part in text


def test_without_decoupling_one_answer_returns(triton: real_triton.Triton, expected: list[int]) -> None:
    assert generate(triton, "single", BODY)["output_ids"] == PROMPT + expected
    for changes in ({"streaming": True}, {"num_return_sequences": 2}):
        status, text = curl(triton, "models/single/generate", {**BODY, **changes})
        assert status == 400
        assert "need `decoupled_mode` to be true" in text
