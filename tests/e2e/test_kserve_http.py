"""KServe over HTTP under tritonclient and curl, and the gateway as one gRPC address of two workers."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from support.http import get, post, stream
from support.metrics import active_requests, total
from support.processes import InflightProcess, wait_until
from support.servers import Server, Start, start_gateway, start_worker, wait_ready
from support.triton import MODEL, TritonStream, inputs, is_final, tokens

PROMPT = [40, 41, 42, 43]
GENERATE = f"/v2/models/{MODEL}/generate"
#: A token every 20 ms, so that there is time to leave, or to lose a worker, in the middle of an answer.
TIMING = ("--step-us=20000", "--prefill-us-per-token=0")


def question(max_tokens: int = 6, **more: Any) -> dict[str, Any]:
    return {
        "input_ids": PROMPT,
        "input_lengths": len(PROMPT),
        "request_output_len": max_tokens,
        "exclude_input_in_output": True,
        "runtime_top_k": 1,
        **more,
    }


@pytest.fixture(scope="module")
def expected(server: Server) -> list[int]:
    """What the worker itself says."""
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        made = inputs(PROMPT, 6, exclude_input_in_output=True, runtime_top_k=1)
        return tokens(client.infer(MODEL, made))


@pytest.fixture(scope="module")
def http_client(server: Server) -> Iterator[tritonclient.http.InferenceServerClient]:
    client = tritonclient.http.InferenceServerClient(server.http)
    yield client
    client.close()


def http_inputs(binary: bool) -> list[tritonclient.http.InferInput]:
    made = []
    for name, values, datatype in [
        ("input_ids", np.array([PROMPT], np.int32), "INT32"),
        ("input_lengths", np.array([[len(PROMPT)]], np.int32), "INT32"),
        ("request_output_len", np.array([[6]], np.int32), "INT32"),
        ("exclude_input_in_output", np.array([[True]]), "BOOL"),
        ("runtime_top_k", np.array([[1]], np.int32), "INT32"),
    ]:
        one = tritonclient.http.InferInput(name, list(values.shape), datatype)
        one.set_data_from_numpy(values, binary_data=binary)
        made.append(one)
    return made


@pytest.mark.migrates(
    "Triton",
    "tritonclient.http.InferenceServerClient('localhost:8000')",
    "tritonclient.http.InferenceServerClient('localhost:8000')",
)
def test_tritonclient_finds_its_way(http_client: tritonclient.http.InferenceServerClient) -> None:
    assert http_client.is_server_live()
    assert http_client.is_server_ready()
    assert http_client.is_model_ready(MODEL)
    assert not http_client.is_model_ready("nothing")
    assert http_client.get_server_metadata()["name"] == "inflight"
    metadata = http_client.get_model_metadata(MODEL)
    assert {"name": "input_ids", "datatype": "INT32", "shape": [-1, -1]} in metadata["inputs"]
    config = http_client.get_model_config(MODEL)
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert {"name": MODEL, "version": "1", "state": "READY"} in http_client.get_model_repository_index()
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'nothing' is not found"):
        http_client.get_model_metadata("nothing")


@pytest.mark.parametrize("binary", [True, False])
def test_infer_says_what_the_worker_says(
    http_client: tritonclient.http.InferenceServerClient, expected: list[int], binary: bool
) -> None:
    wanted = [tritonclient.http.InferRequestedOutput("output_ids", binary_data=binary)]
    before = http_client.get_inference_statistics(MODEL)["model_stats"][0]["inference_count"]
    result = http_client.infer(MODEL, http_inputs(binary), request_id="r1", outputs=wanted)
    assert result.as_numpy("output_ids").reshape(-1).tolist() == expected
    assert result.get_response()["id"] == "r1"
    after = http_client.get_inference_statistics(MODEL)["model_stats"][0]["inference_count"]
    assert after == before + 1


def test_curl_generates(server: Server, expected: list[int]) -> None:
    url = f"http://{server.http}{GENERATE}"
    # As the guides of Triton's TensorRT-LLM backend write it: without a content type.
    command = ["curl", "-s", "-X", "POST", url, "-d", json.dumps(question())]
    done = subprocess.run(command, capture_output=True, check=True, timeout=30)
    answer = json.loads(done.stdout)
    assert answer["output_ids"] == expected
    assert answer["sequence_length"] == len(expected)
    assert (answer["model_name"], answer["model_version"]) == (MODEL, "1")
    assert list(answer) == sorted(answer)


#: As the guides of Triton's TensorRT-LLM backend write them.
QUESTION = '{"text_input": "What is machine learning?", "max_tokens": 20, '
GUIDES = (
    QUESTION + '"bad_words": "", "stop_words": ""}',
    QUESTION + '"bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2}',
    QUESTION
    + '"bad_words": ["intelligence","model"], "stop_words": ["focuses","learn"], "pad_id": 2, "end_id": 2}',
)


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "curl -X POST localhost:8000/v2/models/ensemble/generate -d '{\"text_input\": …}'",
    "curl -X POST localhost:8000/v2/models/ensemble/generate -d '{\"text_input\": …}'",
)
@pytest.mark.migrates(
    "tensorrtllm_backend",
    "curl -X POST localhost:8000/v2/models/tensorrt_llm_bls/generate -d '{\"text_input\": …}'",
    "curl -X POST localhost:8000/v2/models/tensorrt_llm_bls/generate -d '{\"text_input\": …}'",
)
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
@pytest.mark.parametrize("body", GUIDES)
def test_the_guides_curl_lines_are_answered(server: Server, model: str, body: str) -> None:
    url = f"{server.http}/v2/models/{model}/generate"
    command = ["curl", "-s", "-X", "POST", url, "-d", body]
    done = subprocess.run(command, capture_output=True, check=True, timeout=30)
    answer = json.loads(done.stdout)
    assert (answer["model_name"], answer["model_version"]) == (model, "1"), answer
    assert isinstance(answer["text_output"], str)
    assert answer["text_output"]


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "curl -X POST localhost:8000/v2/models/ensemble/generate_stream -d '{\"text_input\": …}'",
    "curl -X POST localhost:8000/v2/models/ensemble/generate_stream -d '{\"text_input\": …}'",
)
def test_text_streams_piece_by_piece(server: Server) -> None:
    # Tokens that are ready together are written together, so only a long answer surely has several events.
    body = {
        "text_input": "Once upon a time",
        "max_tokens": 300,
        "min_tokens": 300,
        "exclude_input_in_output": True,
    }
    whole = post(server.http, "/v2/models/ensemble/generate", body).json()["text_output"]
    opened = stream(server.http, "/v2/models/ensemble/generate_stream", body)
    pieces = [json.loads(event)["text_output"] for event in opened.events()]
    opened.close()
    assert len(pieces) > 1
    assert "".join(pieces) == whole


def test_generate_stream_has_an_event_for_each_response(server: Server, expected: list[int]) -> None:
    opened = stream(server.http, f"{GENERATE}_stream", question(streaming=True))
    assert opened.headers["content-type"] == "text/event-stream; charset=utf-8"
    said: list[int] = []
    for event in opened.events():
        ids = json.loads(event)["output_ids"]
        said += ids if isinstance(ids, list) else [ids]
    opened.close()
    assert said == expected


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "cannot be read"),
        (question(input_ids="five"), 400, "`input_ids`"),
        (question(streaming=True), 400, "exactly 1 response"),
    ],
)
def test_what_is_wrong_is_said(server: Server, body: Any, status: int, words: str) -> None:
    answer = post(server.http, GENERATE, body)
    assert answer.status == status, answer.body
    assert words in answer.json()["error"]


@dataclass
class Pair:
    """Two workers behind one gateway."""

    workers: list[InflightProcess]
    gateway: InflightProcess
    http: str

    @property
    def grpc(self) -> str:
        return self.gateway.address("grpc")

    def loads(self) -> list[float]:
        return [active_requests(worker.address("metrics")) for worker in self.workers]


@pytest.fixture
def pair(start: Start) -> Pair:
    workers = [start_worker(start, *TIMING) for _ in range(2)]
    gateway = start_gateway(start, workers, "--grpc-port=0")
    pair = Pair(workers, gateway, wait_ready(gateway))
    gateway.wait_until("both workers are up", lambda: total(pair.http, "inflight_gateway_worker_up") == 2)
    return pair


def test_many_streams_are_whole(start: Start) -> None:
    """Kept-alive connections with many tokens at once: Triton 2.51 loses the end of some of these."""
    gateway = start_gateway(start, [start_worker(start, "--step-us=0", "--prefill-us-per-token=0")])
    address = wait_ready(gateway)
    short: list[int] = []

    def ask(index: int) -> None:
        for _ in range(5):
            opened = stream(address, f"{GENERATE}_stream", question(200, streaming=True))
            events = [json.loads(event) for event in opened.events()]
            opened.close()
            count = sum(np.size(event["output_ids"]) for event in events)
            if count != 200:
                short.append(count)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not short


def test_requests_are_spread_and_stop_when_their_clients_leave(pair: Pair) -> None:
    streams = []
    for count in range(1, 5):
        opened = stream(pair.http, f"{GENERATE}_stream", question(1000, streaming=True))
        next(opened.events())
        streams.append(opened)
        loads = pair.loads()
        assert sum(loads) == count
        assert max(loads) - min(loads) <= 1, loads
    for opened in streams:
        opened.close()
    wait_until("nothing is left", lambda: sum(pair.loads()) == 0)


def test_a_lost_worker_s_unanswered_requests_go_to_the_other(pair: Pair) -> None:
    answers: queue.Queue[tuple[int, int]] = queue.Queue()

    def ask() -> None:
        answer = post(pair.http, GENERATE, question(40))
        answers.put((answer.status, len(answer.json().get("output_ids", []))))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until("all are at work", lambda: sum(pair.loads()) == 4)
    pair.workers[0].send(signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert [answers.get() for _ in threads] == [(200, 40)] * 4
    assert get(pair.http, "/v2/health/ready").status == 200


def test_a_begun_stream_of_a_lost_worker_continues_at_the_other(pair: Pair) -> None:
    asked = question(60, streaming=True)
    opened = stream(pair.http, f"{GENERATE}_stream", asked)
    undisturbed = generated(opened.events())
    opened.close()
    opened = stream(pair.http, f"{GENERATE}_stream", asked)
    events = opened.events()
    first = generated([next(events)])
    pair.workers[pair.loads().index(1)].send(signal.SIGKILL)
    assert first + generated(events) == undisturbed
    opened.close()
    assert total(pair.http, "inflight_gateway_resumes_total") == 1


def generated(events: Iterable[str]) -> list[int]:
    """The tokens of a stream's events, each of which has one token or several."""
    columns = (np.atleast_1d(json.loads(event)["output_ids"]) for event in events)
    return [int(token) for column in columns for token in column]


@pytest.mark.migrates(
    "Triton",
    "`tritonclient.grpc` through a balancer in front of several servers",
    "inflight gateway --grpc-port 8001 --worker HOST:PORT --worker HOST:PORT",
)
def test_one_grpc_address_for_tritonclient(pair: Pair, expected: list[int]) -> None:
    with tritonclient.grpc.InferenceServerClient(pair.grpc) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready(MODEL)
        assert client.get_model_metadata(MODEL).name == MODEL
        assert client.get_model_config(MODEL).config.model_transaction_policy.decoupled
        made = inputs(PROMPT, 6, exclude_input_in_output=True)
        result = client.infer(MODEL, made, request_id="mine")
        assert len(tokens(result)) == 6
        assert result.get_response().id == "mine"
        with pytest.raises(InferenceServerException, match="unknown model: 'nothing'"):
            client.infer("nothing", made)
        with pytest.raises(InferenceServerException, match="own port"):
            client.load_model(MODEL)


def test_the_requests_of_one_grpc_stream_are_spread_and_can_be_stopped(pair: Pair) -> None:
    opened = TritonStream(pair.grpc)
    for name in ("a", "b"):
        opened.send(name, inputs(PROMPT, 1000, streaming=True))
    seen: set[str] = set()
    while seen != {"a", "b"}:
        result, error = opened.next()
        assert error is None, error
        seen.add(result.get_response().id)
    assert pair.loads() == [1, 1]
    opened.send("a", inputs([0], 1, stop=True))
    wait_until("one has stopped", lambda: sorted(pair.loads()) == [0, 1])
    ended = None
    while ended != "a":
        result, error = opened.next()
        assert error is None, error
        ended = result.get_response().id if is_final(result) else None
    opened.close(cancel=True)
    wait_until("nothing is left", lambda: sum(pair.loads()) == 0)


@pytest.fixture(scope="module")
def alone(start_for_session: Start) -> InflightProcess:
    """A worker that serves HTTP itself."""
    worker = start_worker(start_for_session, "--http-port=0", *TIMING)
    http = worker.address("http")
    worker.wait_until("it is ready", lambda: get(http, "/v2/health/ready").status == 200)
    return worker


def test_a_worker_serves_http_itself(alone: InflightProcess) -> None:
    http = alone.address("http")
    assert get(http, "/v2/health/live").status == 200
    with tritonclient.http.InferenceServerClient(http) as client:
        assert client.is_model_ready(MODEL)
        assert "inflight_step_batching_v1" in client.get_server_metadata()["extensions"]
        ids = client.infer(MODEL, http_inputs(binary=True)).as_numpy("output_ids")
        assert ids.size == 6
    body = {"text_input": "Hi", "max_tokens": 5}
    for model in ("ensemble", "tensorrt_llm_bls"):
        answer = post(http, f"/v2/models/{model}/generate", body)
        assert answer.status == 200, answer.body
        assert answer.json()["text_output"]
    for path, status in (("/v2/models/nothing", 404), ("/v2/nothing", 404), ("/v1/models", 404)):
        assert get(http, path).status == status
    refused = post(http, GENERATE, question(max_tokens=-1))
    assert refused.status == 400, refused.body
    assert "request_output_len" in refused.json()["error"]
    assert post(http, GENERATE, question(), {"origin": "http://evil.example"}).status == 403


@pytest.mark.parametrize("form", ["text", "JSON", None])
def test_an_answer_tells_the_load_where_it_is_asked(alone: InflightProcess, form: str | None) -> None:
    asked = {} if form is None else {"endpoint-load-metrics-format": form}
    answer = post(alone.address("http"), GENERATE, question(2), asked)
    report = answer.headers.get("endpoint-load-metrics", "")
    assert answer.status == 200
    if form is None:
        assert report == ""
        return
    kind, _, text = report.partition(" ")
    assert kind == form.upper()
    if form == "JSON":
        named = json.loads(text)["named_metrics"]
    else:
        pairs = (part.split("=") for part in text.split(", "))
        named = {name.removeprefix("named_metrics."): float(value) for name, value in pairs}
    assert set(named) == {
        "kv_cache_utilization",
        "max_token_capacity",
        "kv_cache_usage_perc",
        "num_requests_waiting",
    }
    assert named["max_token_capacity"] > 0
    assert 0 <= named["kv_cache_utilization"] <= 1


def test_a_worker_s_own_streams_are_whole_and_stop_when_their_clients_leave(alone: InflightProcess) -> None:
    http, metrics = alone.address("http"), alone.address("metrics")
    opened = stream(http, f"{GENERATE}_stream", question(20, streaming=True))
    events = [json.loads(event) for event in opened.events()]
    opened.close()
    assert sum(np.size(event["output_ids"]) for event in events) == 20
    opened = stream(http, f"{GENERATE}_stream", question(1000, streaming=True))
    next(opened.events())
    assert active_requests(metrics) == 1
    opened.close()
    wait_until("its request has stopped", lambda: active_requests(metrics) == 0)


@pytest.fixture
def region() -> Iterator[tuple[str, Any]]:
    """A shared memory object of 4 KiB."""
    name = f"inflight-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(name, f"/{name}", 4096)
    yield name, handle
    shm.destroy_shared_memory_region(handle)


@pytest.mark.migrates(
    "Triton",
    "tritonclient.http: register_system_shared_memory('r', '/r', 4096)",
    "tritonclient.http: register_system_shared_memory('r', '/r', 4096), at the port of"
    " `inflight worker --http-port 8000`",
)
@pytest.mark.parametrize("binary", [True, False])
def test_tensors_may_lie_in_shared_memory_over_http(
    alone: InflightProcess, region: tuple[str, Any], binary: bool
) -> None:
    name, handle = region
    made = http_inputs(binary)
    shm.set_shared_memory_region(handle, [np.array([PROMPT], np.int32)])
    made[0].set_shared_memory(name, 16)
    ids, length = (
        tritonclient.http.InferRequestedOutput(one, binary) for one in ("output_ids", "sequence_length")
    )
    ids.set_shared_memory(name, 2048, offset=1024)
    with tritonclient.http.InferenceServerClient(alone.address("http")) as client:
        expected = client.infer(MODEL, http_inputs(binary)).as_numpy("output_ids").reshape(-1).tolist()
        client.register_system_shared_memory(name, f"/{name}", 4096)
        result = client.infer(MODEL, made, outputs=[ids, length])
        described = result.get_output("output_ids")
        assert described["parameters"] == {
            "shared_memory_region": name,
            "shared_memory_byte_size": 4 * len(expected),
            "shared_memory_offset": 1024,
        }
        found = shm.get_contents_as_numpy(handle, np.int32, described["shape"], offset=1024)
        assert found.reshape(-1).tolist() == expected
        # The others are in the message.
        assert result.as_numpy("sequence_length").reshape(-1).tolist() == [len(expected)]
        ids.set_shared_memory(name, 4)
        with pytest.raises(InferenceServerException, match="should be at least"):
            client.infer(MODEL, made, outputs=[ids])
        client.unregister_system_shared_memory(name)
        with pytest.raises(InferenceServerException, match=f"Unable to find shared memory region: '{name}'"):
            client.infer(MODEL, made)


def test_regions_are_registered_listed_and_given_up_over_http(
    alone: InflightProcess, region: tuple[str, Any]
) -> None:
    name, _ = region
    with tritonclient.http.InferenceServerClient(alone.address("http")) as client:
        client.register_system_shared_memory(name, f"/{name}", 64, offset=32)
        client.register_system_shared_memory("another one", f"/{name}", 16)
        told = {"name": name, "key": f"/{name}", "offset": 32, "byte_size": 64}
        assert client.get_system_shared_memory_status(name) == [told]
        assert len(client.get_system_shared_memory_status()) == 2
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: client.register_system_shared_memory(name, f"/{name}", 16), "already in manager"),
            (lambda: client.register_system_shared_memory("x", f"/{name}", 8192), "invalid args"),
            (lambda: client.register_system_shared_memory("x", "/nothing-there", 16), "Unable to open"),
            (lambda: client.get_system_shared_memory_status("x"), "Unable to find shared memory region: 'x'"),
            (lambda: client.get_cuda_shared_memory_status(), "CudaSharedMemoryStatus"),
            (lambda: client.register_cuda_shared_memory("x", b"", 0, 16), "CudaSharedMemoryRegister"),
            (lambda: client.unregister_cuda_shared_memory(), "CudaSharedMemoryUnregister"),
        ]
        for call, reason in calls:
            with pytest.raises(InferenceServerException, match=reason):
                call()
        client.unregister_system_shared_memory("another one")
        assert client.get_system_shared_memory_status() == [told]
        client.unregister_system_shared_memory()
        assert client.get_system_shared_memory_status() == []


def test_a_gateway_says_whose_shared_memory_it_is(
    http_client: tritonclient.http.InferenceServerClient,
) -> None:
    calls: tuple[Callable[[], Any], ...] = (
        lambda: http_client.register_system_shared_memory("r", "/r", 16),
        http_client.get_system_shared_memory_status,
        http_client.unregister_system_shared_memory,
        http_client.get_cuda_shared_memory_status,
    )
    for call in calls:
        with pytest.raises(
            InferenceServerException, match="is about one server; send it to a worker's"
        ) as told:
            call()
        assert told.value.status() == "501"


def test_a_draining_worker_finishes_its_own_streams(start: Start) -> None:
    worker = start_worker(start, "--http-port=0", *TIMING)
    http = worker.address("http")
    worker.wait_until("it is ready", lambda: get(http, "/v2/health/ready").status == 200)
    opened = stream(http, f"{GENERATE}_stream", question(60, streaming=True))
    events = opened.events()
    first = json.loads(next(events))
    worker.send(signal.SIGTERM)
    count = np.size(first["output_ids"]) + sum(np.size(json.loads(event)["output_ids"]) for event in events)
    opened.close()
    assert count == 60
    assert worker.wait() == 0
