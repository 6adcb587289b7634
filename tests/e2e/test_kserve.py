"""The worker under tritonclient: what it says of itself, whole and streamed answers, stop and cancel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from support.metrics import active_requests
from support.processes import wait_until
from support.servers import Server
from support.triton import MODEL, TritonStream, inputs, is_final, tensor, tokens

PROMPT = [40, 41, 42, 43]


@pytest.fixture(scope="module")
def triton_client(server: Server) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(server.grpc)
    yield client
    client.close()


def whole(client: triton.InferenceServerClient, max_tokens: int = 6, **scalars: object) -> list[int]:
    made = inputs(PROMPT, max_tokens, exclude_input_in_output=True, runtime_top_k=1, **scalars)
    return tokens(client.infer(MODEL, made))


def test_it_is_live_and_ready(triton_client: triton.InferenceServerClient) -> None:
    assert triton_client.is_server_live()
    assert triton_client.is_server_ready()
    assert triton_client.is_model_ready(MODEL)
    assert triton_client.is_model_ready(MODEL, "1")
    assert not triton_client.is_model_ready("nothing")


def test_it_says_what_it_is(triton_client: triton.InferenceServerClient) -> None:
    server = triton_client.get_server_metadata()
    assert "inflight_step_batching_v1" in server.extensions
    model = triton_client.get_model_metadata(MODEL)
    assert model.name == MODEL
    named = {made.name: (made.datatype, list(made.shape)) for made in model.inputs}
    assert named["input_ids"] == ("INT32", [-1, -1])
    assert named["input_lengths"] == ("INT32", [-1, 1])
    assert named["stop_words_list"] == ("INT32", [-1, 2, -1])
    assert named["seed"] == ("UINT64", [-1, 1])
    outputs = {made.name: made.datatype for made in model.outputs}
    assert outputs["output_ids"] == "INT32"
    assert outputs["output_log_probs"] == "FP32"
    assert outputs["inflight_finish_reason"] == "INT32"
    with pytest.raises(InferenceServerException, match="nothing"):
        triton_client.get_model_metadata("nothing")


def test_its_configuration_is_triton_s(triton_client: triton.InferenceServerClient) -> None:
    config = triton_client.get_model_config(MODEL).config
    assert config.name == MODEL
    assert config.max_batch_size >= 1
    assert config.model_transaction_policy.decoupled
    optional = {made.name: made.optional for made in config.input}
    assert not optional["input_lengths"]
    assert optional["temperature"]


def test_statistics_count(triton_client: triton.InferenceServerClient) -> None:
    def successes() -> int:
        [model] = triton_client.get_inference_statistics(MODEL).model_stats
        return int(model.inference_stats.success.count)

    before = successes()
    whole(triton_client, 2)
    assert successes() == before + 1


def test_what_is_not_there_is_refused_by_name(triton_client: triton.InferenceServerClient) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: triton_client.load_model(MODEL),
        lambda: triton_client.unload_model(MODEL),
        lambda: triton_client.get_cuda_shared_memory_status(),
    ]
    for call in calls:
        with pytest.raises(InferenceServerException, match=r"not supported|not allowed") as raised:
            call()
        assert raised.value.status() == "StatusCode.UNIMPLEMENTED"


def test_a_whole_answer_repeats_the_prompt_unless_told_otherwise(
    triton_client: triton.InferenceServerClient,
) -> None:
    repeated = triton_client.infer(MODEL, inputs(PROMPT, 5, runtime_top_k=1), request_id="r1")
    assert repeated.get_response().id == "r1"
    ids = tokens(repeated)
    assert ids[: len(PROMPT)] == PROMPT
    assert ids[len(PROMPT) :] == whole(triton_client, 5)
    assert repeated.as_numpy("output_ids").shape == (1, 1, len(ids))
    assert repeated.as_numpy("sequence_length").tolist() == [[len(ids)]]


def test_log_probabilities_come_when_asked_for(triton_client: triton.InferenceServerClient) -> None:
    made = inputs(PROMPT, 5, runtime_top_k=1, return_log_probs=True, exclude_input_in_output=True)
    result = triton_client.infer(MODEL, made)
    values = result.as_numpy("output_log_probs")
    assert values.shape == (1, 1, len(tokens(result)))
    assert (values <= 0).all()
    assert result.as_numpy("cum_log_probs").tolist()[0][0] == pytest.approx(values.sum(), abs=1e-4)


def test_only_the_named_outputs_come(triton_client: triton.InferenceServerClient) -> None:
    wanted = [
        triton.InferRequestedOutput("output_ids"),
        triton.InferRequestedOutput("inflight_finish_reason"),
    ]
    result = triton_client.infer(MODEL, inputs(PROMPT, 3, runtime_top_k=1, end_id=-1), outputs=wanted)
    assert {made.name for made in result.get_response().outputs} == {
        "output_ids",
        "inflight_finish_reason",
    }
    assert result.as_numpy("inflight_finish_reason").tolist() == [[3]]  # LENGTH


def test_a_stream_adds_up_to_the_whole(server: Server, triton_client: triton.InferenceServerClient) -> None:
    stream = TritonStream(server.grpc)
    stream.send("s", inputs(PROMPT, 8, runtime_top_k=1, streaming=True))
    results = list(stream.until_final())
    stream.close()
    assert [id for result in results for id in tokens(result)] == whole(triton_client, 8)
    assert [is_final(result) for result in results].count(True) == 1
    assert all(result.get_response().id == "s" for result in results)


def test_many_requests_share_one_stream(server: Server, triton_client: triton.InferenceServerClient) -> None:
    prompts = {str(index): [40 + index % 7] * (1 + index % 5) for index in range(24)}

    def alone(prompt: list[int]) -> list[int]:
        made = inputs(prompt, 6, runtime_top_k=1, exclude_input_in_output=True)
        return tokens(triton_client.infer(MODEL, made))

    stream = TritonStream(server.grpc)
    for request_id, prompt in prompts.items():
        stream.send(request_id, inputs(prompt, 6, runtime_top_k=1, streaming=True))
    collected: dict[str, list[int]] = {request_id: [] for request_id in prompts}
    open_requests = set(prompts)
    while open_requests:
        result, error = stream.next()
        assert error is None
        assert result is not None
        request_id = result.get_response().id
        assert request_id in open_requests
        collected[request_id] += tokens(result)
        if is_final(result):
            open_requests.remove(request_id)
    stream.close()
    for request_id, prompt in prompts.items():
        assert collected[request_id] == alone(prompt), request_id


def test_stop_ends_one_request_of_a_stream(paced: Server) -> None:
    stream = TritonStream(paced.grpc)
    for request_id in ("ends", "goes on"):
        stream.send(request_id, inputs(PROMPT, 100, streaming=True))
    seen = {"ends": 0, "goes on": 0}
    while min(seen.values()) < 2:
        result, error = stream.next()
        assert error is None
        seen[result.get_response().id] += 1
    stream.send("ends", [*inputs(PROMPT, 1, stop=True)])
    ended: list[str] = []
    counts = dict.fromkeys(seen, 0)
    while len(ended) < 2:
        result, error = stream.next()
        assert error is None
        request_id = result.get_response().id
        counts[request_id] += len(tokens(result))
        if is_final(result) and request_id not in ended:
            ended.append(request_id)
    stream.close()
    assert ended == ["ends", "goes on"]
    assert counts["ends"] < 80 < counts["goes on"]
    wait_until("the executor is idle", lambda: active_requests(paced.metrics) == 0, 5)


def test_cancelling_a_stream_frees_its_requests(paced: Server) -> None:
    stream = TritonStream(paced.grpc)
    for index in range(5):
        stream.send(str(index), inputs(PROMPT, 1500, streaming=True))
    wait_until("all run", lambda: active_requests(paced.metrics) == 5)
    stream.next()
    stream.close(cancel=True)
    wait_until("the executor is idle", lambda: active_requests(paced.metrics) == 0, 5)


def test_cancelling_a_call_frees_its_request(paced: Server) -> None:
    client = triton.InferenceServerClient(paced.grpc)
    call = client.async_infer(MODEL, inputs(PROMPT, 1500), lambda **_: None)
    wait_until("it runs", lambda: active_requests(paced.metrics) == 1)
    call.cancel()
    wait_until("the executor is idle", lambda: active_requests(paced.metrics) == 0, 5)
    client.close()


def test_a_client_timeout_frees_its_request(paced: Server) -> None:
    client = triton.InferenceServerClient(paced.grpc)
    with pytest.raises(InferenceServerException, match=r"Timeout|Deadline"):
        client.infer(MODEL, inputs(PROMPT, 1500), client_timeout=0.3)
    wait_until("the executor is idle", lambda: active_requests(paced.metrics) == 0, 5)
    client.close()


def test_a_batch_is_answered_row_by_row(server: Server, triton_client: triton.InferenceServerClient) -> None:
    stream = TritonStream(server.grpc)
    rows = [[40, 41, 42], [50, 51, 52]]
    made = [
        tensor("input_ids", rows, "INT32"),
        tensor("input_lengths", [[3], [3]], "INT32"),
        tensor("request_output_len", [[4], [4]], "INT32"),
        tensor("runtime_top_k", [[1], [1]], "INT32"),
        tensor("exclude_input_in_output", [[True], [True]], "BOOL"),
    ]
    stream.send("batch", made)
    got = {}
    for result in stream.until_final():
        if tokens(result):
            got[int(result.as_numpy("batch_index").reshape(-1)[0])] = tokens(result)
    stream.close()
    for index, row in enumerate(rows):
        alone = inputs(row, 4, runtime_top_k=1, exclude_input_in_output=True)
        assert got[index] == tokens(triton_client.infer(MODEL, alone))
