"""`ensemble` and `tensorrt_llm_bls` of a created repository on a real Triton, beyond the gateway's text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from support import real_triton
from support.asking import Asking, curl, generate, generate_stream, listed, one, wait_for_log
from support.triton import inputs, is_final, tensor

PROMPT = "Hello"
BODY = {"text_input": PROMPT, "max_tokens": 12, "exclude_input_in_output": True}
TEXT_MODELS = ["ensemble", "tensorrt_llm_bls"]
#: More than is generated before a client hears the first of it, which took nine seconds of a busy machine.
LONG = 20_000


def ask(prompts: list[str], max_tokens: int, **flags: Any) -> list[Any]:
    """A batch for a text model; end tokens do not end it."""
    rows = len(prompts)
    made = [
        tensor("text_input", [[prompt.encode()] for prompt in prompts], "BYTES"),
        tensor("max_tokens", [[max_tokens]] * rows, "INT32"),
        tensor("end_id", [[-1]] * rows, "INT32"),
    ]
    for name, value in flags.items():
        made.append(tensor(name, [[value]] * rows, "BOOL" if isinstance(value, bool) else "INT32"))
    return made


@pytest.fixture(scope="module")
def expected(triton: real_triton.Triton) -> str:
    """What the prompt is continued with, greedily."""
    text = str(generate(triton, "tensorrt_llm_bls", BODY)["text_output"])
    assert len(text) > len("Hello")
    return text


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_generate_stream_is_the_whole_text_in_pieces(
    triton: real_triton.Triton, expected: str, model: str
) -> None:
    events = generate_stream(triton, model, {**BODY, "stream": True})
    assert len(events) > 2
    assert "".join(event["text_output"] for event in events) == expected


def test_accumulated_responses_hold_all_text_so_far(triton: real_triton.Triton, expected: str) -> None:
    texts = [
        event["text_output"] for event in generate_stream(triton, "accumulating", {**BODY, "stream": True})
    ]
    assert len(texts) > 2
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert texts[-1] == expected


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_words_can_be_banned_and_wanted(triton: real_triton.Triton, expected: str, model: str) -> None:
    word = " " + expected.split()[1]
    assert word in expected
    assert word not in generate(triton, model, {**BODY, "bad_words": [word]})["text_output"]
    wanted = {**BODY, "embedding_bias_words": [" the"], "embedding_bias_weights": [1000.0]}
    assert generate(triton, model, wanted)["text_output"] == " the" * 12
    status, text = curl(
        triton,
        f"models/{model}/generate",
        {**BODY, "embedding_bias_words": [" the", " a"], "embedding_bias_weights": [1.0]},
    )
    assert status == 400
    assert "`2` embedding bias words and `1` weights" in text


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_log_probabilities_come_with_the_text(triton: real_triton.Triton, model: str) -> None:
    answer = generate(triton, model, {**BODY, "return_log_probs": True, "return_num_output_tokens": True})
    log_probs = listed(answer["output_log_probs"])
    assert len(log_probs) == answer["num_output_tokens"]
    assert answer["cum_log_probs"] == pytest.approx(sum(log_probs), rel=1e-4)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_a_batch_of_several_sequences(triton: real_triton.Triton, model: str, stream: bool) -> None:
    prompts, sequences = [PROMPT, "One two"], 2
    alone = [
        generate(triton, model, {**BODY, "text_input": prompt, "max_tokens": 6, "end_id": -1})["text_output"]
        for prompt in prompts
    ]
    asking = Asking(triton, model)
    try:
        flags = {"num_return_sequences": sequences, "stream": stream, "exclude_input_in_output": True}
        asking.ask("batch", ask(prompts, 6, **flags))
        found: dict[tuple[int, int], str] = {}
        for result in asking.answers()["batch"]:
            text = result.as_numpy("text_output")
            if text is not None:
                key = (one(result, "batch_index"), one(result, "sequence_index"))
                found[key] = found.get(key, "") + np.ravel(text)[0].decode()
    finally:
        asking.close()
    assert found == {(row, index): alone[row] for row in range(len(prompts)) for index in range(sequences)}


@pytest.mark.parametrize(
    ("model", "changes", "reason"),
    [
        ("tensorrt_llm_bls", {"num_draft_tokens": 3}, "`num_draft_tokens` is not supported"),
        ("tensorrt_llm_bls", {"use_draft_logits": True}, "`use_draft_logits` is not supported"),
        ("tensorrt_llm_bls", {"image_url_input": "http://localhost/x"}, "`image_url_input` is not supported"),
        ("tensorrt_llm_bls", {"max_tokens": None}, "max_tokens"),
        (
            "tensorrt_llm_bls",
            {"text_input": None, "stream": False},
            "the required input `text_input` is missing",
        ),
        *(
            case
            for model in TEXT_MODELS
            for case in [
                (model, {"beam_width": 5}, "`beam_width` has value `5`, expected `1` to `4`"),
                (model, {"lora_task_id": 3}, "LoRA task 3 not found in cache"),
                (model, {"temperature": -1.0}, "`temperature` has value `-1`"),
                (model, {"request_type": "context_only"}, "`request_type` needs `context_phase`"),
                (model, {"max_tokens": 0}, "`request_output_len` has value `0`"),
            ]
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    triton: real_triton.Triton, model: str, changes: dict[str, Any], reason: str
) -> None:
    body = {name: value for name, value in {**BODY, **changes}.items() if value is not None}
    status, text = curl(triton, f"models/{model}/generate", body)
    assert status == 400, text
    assert reason in text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_bls_ends_the_core_models_work(triton: real_triton.Triton, stream: bool) -> None:
    asking = Asking(triton, "tensorrt_llm_bls")
    asking.ask(f"leaving-{stream}", ask([PROMPT], LONG, stream=stream))
    # A stream's requests arrive in order: once the second answers, Triton has the first. It may do so late on
    # a busy machine; the first token of an answer in parts says the same.
    asking.ask("second", ask([PROMPT], 1))
    result, error = asking.next()
    assert error is None
    assert stream or result.get_response().id == "second"
    asking.close(cancel=True)
    # Written after the core model's final response, which a stop brings early.
    wait_for_log(triton, f"request `leaving-{stream}` is cancelled")


def test_a_stop_to_the_core_model_ends_an_ensembles_work(triton: real_triton.Triton) -> None:
    """Triton tells no model of an ensemble that the client left; the ensemble hands its id on."""
    asking, stopping = Asking(triton, "ensemble"), Asking(triton, "tensorrt_llm")
    try:
        # The stop is a message on a stream that is open: opening one can take longer than the whole answer.
        stopping.ask("first", inputs([0], 1))
        stopping.answers()
        asking.ask("ensemble", ask([PROMPT], LONG, stream=True))
        _, error = asking.next()
        assert error is None
        stopping.ask("ensemble", inputs([0], 0, stop=True))
        assert is_final(stopping.answers()["ensemble"][-1])
        assert 1 + len(asking.answers()["ensemble"]) < LONG
    finally:
        asking.close()
        stopping.close()


@pytest.mark.parametrize("model", ["single_ensemble", "single_bls"])
def test_without_decoupling_one_answer_returns(triton: real_triton.Triton, expected: str, model: str) -> None:
    assert generate(triton, model, BODY)["text_output"] == expected
    # As clients without streams ask.
    client = grpc.InferenceServerClient(triton.grpc)
    try:
        result = client.infer(model, ask([PROMPT], 4, exclude_input_in_output=True))
    finally:
        client.close()
    assert expected.startswith(np.ravel(result.as_numpy("text_output"))[0].decode())
    status, text = curl(triton, f"models/{model}/generate", {**BODY, "stream": True})
    assert status == 400
    assert "need `decoupled_mode` to be true" in text


def test_a_parameter_that_bls_would_ignore_is_refused_at_load(triton: real_triton.Triton) -> None:
    status, text = curl(triton, "repository/models/drafting/load")
    assert status == 400
    assert "`tensorrt_llm_draft_model_name`" in text


def test_one_request_ends_once(triton: real_triton.Triton) -> None:
    asking = Asking(triton, "tensorrt_llm_bls")
    try:
        for number in range(8):
            asking.ask(str(number), ask([PROMPT], 4 + number, stream=True))
        answers = asking.answers(8)
    finally:
        asking.close()
    assert sorted(answers) == [str(number) for number in range(8)]
    for results in answers.values():
        assert [is_final(result) for result in results].count(True) == 1
