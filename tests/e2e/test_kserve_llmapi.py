"""The tensors of TensorRT-LLM's `llmapi` model under the core model's name: tritonclient and `generate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from support.http import get, post
from support.servers import Server, Start, start_worker, wait_ready
from support.triton import MODEL, TritonStream

PROMPT = "Hello"
#: Where Python's own type does not say.
DATATYPES = {"sampling_param_seed": "UINT64", "lora_id": "UINT64"}
#: Upstream's `SamplingParams` generates so many where a request says nothing.
MAX_TOKENS = 32


def made(batched: bool = False, **values: Any) -> list[triton.InferInput]:
    """Inputs by name; a list is several strings."""
    asked = []
    for name, value in values.items():
        listed = value if isinstance(value, list) else [value]
        kind = {str: "BYTES", bool: "BOOL", int: "INT32", float: "FP32"}[type(listed[0])]
        kind = DATATYPES.get(name, kind)
        encoded = [each.encode() if isinstance(each, str) else each for each in listed]
        numpy = {"BYTES": object, "BOOL": bool, "INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64}
        array = np.array([encoded] if batched else encoded, dtype=numpy[kind])
        given = triton.InferInput(name, list(array.shape), kind)
        given.set_data_from_numpy(array)
        asked.append(given)
    return asked


def text(result: triton.InferResult, name: str = "text_output") -> str:
    [found] = np.ravel(result.as_numpy(name))
    return str(found.decode())


@pytest.fixture(scope="module", params=["worker", "gateway"])
def address(request: pytest.FixtureRequest, server: Server, start_for_session: Start) -> str:
    if request.param == "worker":
        return server.grpc
    gateway = start_for_session("gateway", "--port=0", "--grpc-port=0", f"--worker={server.grpc}")
    wait_ready(gateway)
    return gateway.address("grpc")


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(address)
    yield made
    made.close()


@pytest.fixture(scope="module", params=["worker", "gateway"])
def http(request: pytest.FixtureRequest, server: Server, start_for_session: Start) -> str:
    if request.param == "gateway":
        return server.http
    worker = start_worker(start_for_session, "--http-port=0")
    address = worker.address("http")
    worker.wait_until("it is ready", lambda: get(address, "/v2/health/ready").status == 200)
    return address


def bls(client: triton.InferenceServerClient, tokens: int) -> str:
    """What BLS says of the prompt, without it."""
    asked = made(True, text_input=PROMPT, max_tokens=tokens, exclude_input_in_output=True, top_k=1)
    return text(client.infer("tensorrt_llm_bls", asked))


def test_an_answer_begins_with_the_prompt_unless_it_is_excluded(client: triton.InferenceServerClient) -> None:
    expected = bls(client, MAX_TOKENS)
    for batched in (False, True):
        answer = client.infer(MODEL, made(batched, text_input=PROMPT))
        assert text(answer) == PROMPT + expected
        assert answer.as_numpy("text_output").shape == ((1, 1) if batched else (1,))
        assert [output.name for output in answer.get_response().outputs] == ["text_output"]
    asked = made(text_input=PROMPT, sampling_param_exclude_input_from_output=True)
    assert text(client.infer(MODEL, asked)) == expected


def test_reasons_are_python_s_words(client: triton.InferenceServerClient) -> None:
    asked: dict[str, Any] = {
        "text_input": PROMPT,
        "sampling_param_max_tokens": 12,
        "sampling_param_exclude_input_from_output": True,
        "return_finish_reason": True,
        "return_stop_reason": True,
        "return_cumulative_logprob": True,
    }
    whole = client.infer(MODEL, made(**asked))
    assert (text(whole, "finish_reason"), text(whole, "stop_reason")) == ("length", "None")
    assert whole.as_numpy("cumulative_logprob").shape == (1,)
    assert whole.as_numpy("cumulative_logprob")[0] < 0
    stop = text(whole)[4:6]
    begun, _, _ = text(whole).partition(stop)
    stopped = client.infer(MODEL, made(**asked, sampling_param_stop=["no such text", stop]))
    assert text(stopped) == begun
    assert (text(stopped, "finish_reason"), text(stopped, "stop_reason")) == ("stop", stop)


def test_performance_metrics_come_where_they_are_asked_for(client: triton.InferenceServerClient) -> None:
    def outputs(model: str, asked: list[triton.InferInput]) -> dict[str, tuple[int, ...]]:
        answer = client.infer(model, asked)
        return {each.name: tuple(each.shape) for each in answer.get_response().outputs}

    asked = made(text_input=PROMPT, sampling_param_return_perf_metrics=True, sampling_param_max_tokens=2)
    found = outputs(MODEL, asked)
    assert set(found.values()) == {(1,)}
    asked = made(True, text_input=PROMPT, return_perf_metrics=True, max_tokens=2)
    metrics = {name for name in outputs("tensorrt_llm_bls", asked) if name.endswith(("_ns", "_blocks"))}
    assert len(metrics) > 4
    assert {name.replace("reused_block", "reused_blocks") for name in found} >= metrics


def test_what_is_sampled_follows_its_seed(client: triton.InferenceServerClient) -> None:
    def drawn(seed: int, **more: Any) -> str:
        asked = made(text_input=PROMPT, sampling_param_seed=seed, **more)
        return text(client.infer(MODEL, asked))

    greedy = PROMPT + bls(client, MAX_TOKENS)
    temperature, top_k, top_p = (f"sampling_param_{name}" for name in ("temperature", "top_k", "top_p"))
    hot = {temperature: 2.0}
    assert drawn(7, **hot) == drawn(7, **hot)
    assert len({drawn(seed, **hot) for seed in range(4)}) > 1
    for cold in ({temperature: 0.0}, {top_k: 1}, {top_p: 0.0}):
        assert drawn(7, **{**hot, **cold}) == greedy, cold


def test_a_stream_has_the_text_so_far(address: str, client: triton.InferenceServerClient) -> None:
    asked = made(text_input=PROMPT, streaming=True, sampling_param_max_tokens=100, return_finish_reason=True)
    with closing(TritonStream(address)) as stream:
        stream.client.async_stream_infer(MODEL, asked, enable_empty_final_response=True)
        answers = [each for each in stream.until_final() if each.as_numpy("text_output") is not None]
    texts = [text(answer) for answer in answers]
    assert len(texts) > 2
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert texts[-1] == bls(client, 100)
    reasons = [text(answer, "finish_reason") for answer in answers]
    assert set(reasons[:-1]) == {"None"}
    assert reasons[-1] == "length"


def test_generate_takes_upstream_s_documented_body(http: str) -> None:
    body = {"text_input": PROMPT, "sampling_param_max_tokens": 5, "sampling_param_stop": ["\n\n\n"]}
    answer = post(http, f"/v2/models/{MODEL}/generate", body)
    assert answer.status == 200, answer.body
    assert answer.json()["text_output"].startswith(PROMPT)
    streamed = post(http, f"/v2/models/{MODEL}/generate_stream", {**body, "streaming": True})
    events = [json.loads(line[6:]) for line in streamed.body.decode().split("\n\n") if line]
    assert PROMPT + events[-1]["text_output"] == answer.json()["text_output"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"sampling_param_best_of": 2}, "`sampling_param_best_of` is `2`, and only 1 is supported"),
        ({"lora_name": "x"}, "`lora_id` is missing: send all three, or none"),
        ({"image_url": "http://x"}, "`image_url` is not supported by this model"),
        ({"text_input": ["a", "b"]}, "`text_input` has `2` texts: send one"),
        ({"sampling_param_top_k": 0.5}, "tensor `sampling_param_top_k` is FP32, expected INT32"),
        ({"request_output_len": 5}, "unknown input tensor `request_output_len`"),
        ({"sampling_param_max_tokens": 0}, "`0`"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    client: triton.InferenceServerClient, more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InferenceServerException) as refused:
        client.infer(MODEL, made(**{"text_input": PROMPT, **more}))
    assert reason in str(refused.value)
    assert text(client.infer(MODEL, made(text_input=PROMPT)))


def test_an_adapter_s_files_are_read_by_none_that_was_not_started_for_it(
    client: triton.InferenceServerClient,
) -> None:
    asked = made(text_input=PROMPT, lora_id=7, lora_name="support", lora_path="support")
    # The worker's own option, or the gateway's.
    with pytest.raises(InferenceServerException, match=r"`--adapter-dir`|`--allow-lora-loading`"):
        client.infer(MODEL, asked)


def test_metadata_names_both_forms(client: triton.InferenceServerClient) -> None:
    known = client.get_model_metadata(MODEL)
    inputs = [tensor.name for tensor in known.inputs]
    assert {"input_ids", "text_input", "sampling_param_max_tokens", "lora_path"} <= set(inputs)
    assert len(inputs) == len(set(inputs))
    assert {"output_ids", "text_output", "cumulative_logprob"} <= {tensor.name for tensor in known.outputs}
