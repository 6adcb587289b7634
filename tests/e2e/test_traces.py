"""Traces of requests, as a collector gets them: one tree a request, under the client's own trace."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import tritonclient.grpc

from support.collector import CLIENT, INTERNAL, SERVER, Collector, Span, collector
from support.http import post, stream
from support.metrics import active_requests, total
from support.processes import InflightProcess, wait_until
from support.servers import MODEL_NAME, Server, Start, start_gateway, start_worker, wait_ready
from support.triton import MODEL, inputs, tensor

GATEWAY, WORKER = "inflight-gateway", "inflight-worker"
COMPLETION = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 5, "ignore_eos": True}
GENERATE = {
    "input_ids": [40, 41, 42],
    "input_lengths": 3,
    "request_output_len": 5,
    "exclude_input_in_output": True,
}


@dataclass(frozen=True)
class Sender:
    """The client's own span, which the request's are below."""

    trace: str
    span: str
    flags: str = "01"

    @classmethod
    def make(cls, flags: str = "01") -> Sender:
        return cls(secrets.token_hex(16), secrets.token_hex(8), flags)

    @property
    def headers(self) -> dict[str, str]:
        return {"traceparent": f"00-{self.trace}-{self.span}-{self.flags}", "tracestate": "vendor=7"}


@dataclass
class Traced:
    """Two workers, their gateway and a collector that all of them export to."""

    collector: Collector
    workers: list[InflightProcess]
    gateway: InflightProcess
    http: str


def start_traced(start: Start, kept: Collector, *timing: str, options: tuple[str, ...] = ()) -> Traced:
    endpoint = f"--otlp-endpoint=http://{kept.address}"
    workers = [start_worker(start, endpoint, *timing) for _ in range(2)]
    gateway = start_gateway(start, workers, endpoint, "--grpc-port=0", *options)
    http = wait_ready(gateway)
    gateway.wait_until(
        "both workers are up", lambda: total(http, "inflight_gateway_worker_up") == len(workers)
    )
    return Traced(kept, workers, gateway, http)


@pytest.fixture(scope="module")
def kept() -> Iterator[Collector]:
    with collector() as made:
        yield made


@pytest.fixture(scope="module")
def traced(start_for_session: Start, kept: Collector) -> Traced:
    return start_traced(start_for_session, kept)


def one(spans: list[Span], service: str, kind: int) -> Span:
    """The only span of a kind."""
    found = [it for it in spans if (it.service, it.kind) == (service, kind)]
    assert len(found) == 1, spans
    return found[0]


def check_tree(spans: list[Span], sender: Sender, name: str, call: str) -> tuple[Span, Span]:
    """That the spans of a request are one tree; returns the gateway's own and the worker's own."""
    ids = {span.id for span in spans}
    assert len(ids) == len(spans)
    roots = [span for span in spans if span.parent not in ids]
    entry, served = one(spans, GATEWAY, SERVER), one(spans, WORKER, SERVER)
    assert [(root.id, root.parent) for root in roots] == [(entry.id, sender.span)]
    assert (entry.name, entry.state) == (name, "vendor=7")
    sent = one(spans, GATEWAY, CLIENT)
    assert (sent.parent, served.parent) == (entry.id, sent.id)
    assert sent.name == served.name == f"inference.GRPCInferenceService/{call}"
    assert served.state == "vendor=7"
    assert {span.name for span in spans if span.parent == served.id} >= {"queue", "prefill", "decode"}
    by_id = {span.id: span for span in spans}
    for span in spans:
        assert span.start <= span.end
        assert not span.failed, span
        if span.parent in by_id:
            above = by_id[span.parent]
            # Two processes read the clock.
            assert above.start - 0.01 <= span.start <= span.end <= above.end + 0.01, (span, above)
    return entry, served


@pytest.mark.migrates(
    "openai_trtllm",
    "openai_trtllm --otlp-endpoint http://localhost:4317",
    "inflight gateway --otlp-endpoint http://localhost:4317",
)
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_a_completion_is_one_tree_under_the_clients_trace(traced: Traced, streams: bool) -> None:
    sender = Sender.make()
    body = {**COMPLETION, "stream": streams}
    headers = {**sender.headers, "x-request-id": f"traced-{streams}"}
    if streams:
        with closing(stream(traced.http, "/v1/completions", body, headers=headers)) as opened:
            assert list(opened.events())[-1] == "[DONE]"
    else:
        assert post(traced.http, "/v1/completions", body, headers=headers).status == 200
    spans = traced.collector.wait_for(sender.trace, GATEWAY, WORKER)
    entry, served = check_tree(spans, sender, "POST /v1/completions", "ModelStreamInfer")
    told = {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": MODEL_NAME,
        "gen_ai.request.id": f"traced-{streams}",
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert told.items() <= entry.attributes.items(), entry
    assert 0 < entry.attributes["gen_ai.latency.time_to_first_token"] < entry.end - entry.start
    of_worker = {
        "gen_ai.request.model": MODEL,
        "gen_ai.request.id": f"traced-{streams}",
        "gen_ai.usage.input_tokens": entry.attributes["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
    }
    assert of_worker.items() <= served.attributes.items(), served
    parts = {span.name for span in spans if span.kind == INTERNAL and span.service == GATEWAY}
    assert parts == {"receive", "prepare"}


@pytest.mark.parametrize("call", ["infer", "generate", "generate_stream"])
def test_a_call_of_kserve_is_one_tree_under_the_clients_trace(traced: Traced, call: str) -> None:
    sender = Sender.make()
    path = f"/v2/models/{MODEL}/{call}"
    if call == "generate_stream":
        body = {**GENERATE, "streaming": True}
        with closing(stream(traced.http, path, body, headers=sender.headers)) as opened:
            assert len(list(opened.events())) == 5
    elif call == "generate":
        assert post(traced.http, path, GENERATE, headers=sender.headers).status == 200
    else:
        tensors: list[tuple[str, str, Any]] = [
            ("input_ids", "INT32", [40, 41, 42]),
            ("input_lengths", "INT32", [3]),
            ("request_output_len", "INT32", [5]),
        ]
        made = [
            {"name": name, "datatype": kind, "shape": [1, len(data)], "data": data}
            for name, kind, data in tensors
        ]
        assert post(traced.http, path, {"inputs": made}, headers=sender.headers).status == 200
    spans = traced.collector.wait_for(sender.trace, GATEWAY, WORKER)
    rpc = "ModelInfer" if call == "infer" else "ModelStreamInfer"
    name = f"POST /v2/models/{{model}}/{call}"
    entry, served = check_tree(spans, sender, name, rpc)
    assert entry.attributes["http.response.status_code"] == 200
    assert served.attributes["gen_ai.usage.output_tokens"] == 5


def test_a_call_of_tritonclient_is_one_tree_under_its_trace(traced: Traced) -> None:
    sender = Sender.make()
    address = traced.gateway.address("grpc")
    with tritonclient.grpc.InferenceServerClient(address) as client:
        made = inputs([40, 41, 42], 5, runtime_top_k=1)
        client.infer(MODEL, made, headers=sender.headers)
    spans = traced.collector.wait_for(sender.trace, GATEWAY, WORKER)
    name = "inference.GRPCInferenceService/ModelInfer"
    entry, _ = check_tree(spans, sender, name, "ModelInfer")
    assert entry.attributes["rpc.grpc.status_code"] == 0


def test_a_worker_traces_the_text_models_by_itself(traced: Traced) -> None:
    sender = Sender.make()
    worker = traced.workers[0]
    with tritonclient.grpc.InferenceServerClient(worker.address("grpc")) as client:
        made = [tensor("text_input", [[b"Hi"]], "BYTES"), tensor("max_tokens", [[5]], "INT32")]
        client.infer("ensemble", made, request_id="own", headers=sender.headers)
    spans = traced.collector.wait_for(sender.trace, WORKER)
    served = one(spans, WORKER, SERVER)
    assert served.parent == sender.span
    assert served.attributes["gen_ai.request.model"] == "ensemble"
    assert served.attributes["gen_ai.request.id"] == "own"
    parts = {span.name for span in spans if span.parent == served.id}
    assert parts == {"tokenize", "queue", "prefill", "decode"}


def test_whose_sender_does_not_record_leaves_nothing(traced: Traced) -> None:
    unsampled, sampled = Sender.make("00"), Sender.make()
    for sender in (unsampled, sampled):
        assert post(traced.http, "/v1/completions", COMPLETION, headers=sender.headers).status == 200
    # What came before it would have been sent before it.
    traced.collector.wait_for(sampled.trace, GATEWAY, WORKER)
    assert traced.collector.of(unsampled.trace) == []


def test_a_request_that_is_refused_says_so_and_is_no_failure(traced: Traced) -> None:
    sender = Sender.make()
    wrong = {**COMPLETION, "max_tokens": -1}
    assert post(traced.http, "/v1/completions", wrong, headers=sender.headers).status == 400
    (entry, *parts) = sorted(
        traced.collector.wait_for(sender.trace, GATEWAY), key=lambda span: span.kind != SERVER
    )
    assert (entry.attributes["http.response.status_code"], entry.failed) == (400, False)
    assert {part.name for part in parts} <= {"receive", "prepare"}


def test_a_lost_worker_shows_as_two_attempts_and_no_worker_as_a_failure(
    start: Start, kept: Collector
) -> None:
    # The first token takes half a second.
    traced = start_traced(start, kept, "--step-us=500000", "--prefill-us-per-token=0")
    sender, nowhere = Sender.make(), Sender.make()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(post, traced.http, "/v1/completions", COMPLETION, headers=sender.headers)

        def load(worker: InflightProcess) -> float:
            return active_requests(worker.address("metrics"))

        traced.gateway.wait_until("a worker has it", lambda: sum(map(load, traced.workers)) == 1)
        left, lost = sorted(traced.workers, key=load)
        lost.kill()
        assert asked.result().status == 200
    spans = kept.wait_for(sender.trace, GATEWAY, WORKER)
    entry = one(spans, GATEWAY, SERVER)
    first, second = sorted((it for it in spans if it.kind == CLIENT), key=lambda it: it.start)
    assert first.parent == second.parent == entry.id
    assert first.end <= second.end
    assert (first.failed, first.attributes["error.type"]) == (True, "unavailable")
    assert (second.failed, entry.failed) == (False, False)
    ports = [span.attributes["server.port"] for span in (first, second)]
    assert ports == [int(it.address("grpc").rpartition(":")[2]) for it in (lost, left)]
    assert one(spans, WORKER, SERVER).parent == second.id
    assert entry.attributes["inflight.retries"] == 1
    left.kill()
    traced.gateway.wait_until(
        "no worker is up", lambda: total(traced.http, "inflight_gateway_worker_up") == 0
    )
    assert post(traced.http, "/v1/completions", COMPLETION, headers=nowhere.headers).status == 503
    entry = one(kept.wait_for(nowhere.trace, GATEWAY), GATEWAY, SERVER)
    assert (entry.failed, entry.attributes["error.type"]) == (True, "503")


def test_a_stream_of_kserve_that_moves_is_below_its_second_attempt(start: Start, kept: Collector) -> None:
    traced = start_traced(start, kept, "--step-us=100000", "--prefill-us-per-token=0")
    sender = Sender.make()
    asked = {**GENERATE, "request_output_len": 12, "streaming": True}
    path = f"/v2/models/{MODEL}/generate_stream"
    with closing(stream(traced.http, path, asked, headers=sender.headers)) as opened:
        events = opened.events()
        next(events)
        lost = max(traced.workers, key=lambda it: active_requests(it.address("metrics")))
        lost.kill()
        assert "error" not in list(events)[-1]
    spans = kept.wait_for(sender.trace, GATEWAY, WORKER)
    first, second = sorted((it for it in spans if it.kind == CLIENT), key=lambda it: it.start)
    assert first.parent == second.parent == one(spans, GATEWAY, SERVER).id
    assert (first.failed, first.attributes["error.type"]) == (True, "unavailable")
    assert one(spans, WORKER, SERVER).parent == second.id


def test_a_collector_that_is_not_there_disturbs_nobody(start: Start) -> None:
    with socket.socket() as taken:
        # Bound and not listening: nobody else gets the port, and nobody answers.
        taken.bind(("127.0.0.1", 0))
        endpoint = f"--otlp-endpoint=http://127.0.0.1:{taken.getsockname()[1]}"
        worker = start_worker(start, endpoint)
        gateway = start_gateway(start, [worker], endpoint)
        http = wait_ready(gateway)
        for _ in range(20):
            assert post(http, "/v1/completions", COMPLETION).status == 200
        pages = ((http, "gateway"), (worker.address("metrics"), "worker"))
        for address, name in pages:
            family = f"inflight_{name}_dropped_spans_total"
            wait_until("spans are dropped", lambda a=address, f=family: total(a, f) > 0)  # type: ignore[misc]
        assert post(http, "/v1/completions", COMPLETION).status == 200
        begun = time.monotonic()
        assert (gateway.stop(), worker.stop()) == (0, 0)
        assert time.monotonic() - begun < 15
    for process in (gateway, worker):
        assert process.log.count("traces cannot be exported") == 1, process.log


def test_what_ends_before_a_clean_end_is_exported(start: Start, kept: Collector) -> None:
    traced = start_traced(start, kept, options=("--trace-sampling-ratio=0",))
    senders = [Sender.make() for _ in range(20)]
    for sender in senders:
        assert post(traced.http, "/v1/completions", COMPLETION, headers=sender.headers).status == 200
        # Nobody says that it is traced, and none is by chance; the worker heeds that.
        assert post(traced.http, "/v1/completions", COMPLETION).status == 200
    known = {span.trace for span in kept.all()} - {sender.trace for sender in senders}
    for process in (traced.gateway, *traced.workers):
        assert process.stop() == 0
    for sender in senders:
        served = {span.service for span in kept.of(sender.trace) if span.kind == SERVER}
        assert served == {GATEWAY, WORKER}
    assert {span.trace for span in kept.all()} - {sender.trace for sender in senders} == known


def test_serve_gives_the_endpoint_to_its_worker_as_well(start: Start, kept: Collector) -> None:
    process = start(
        "serve",
        "--executor=simulated",
        "--port=0",
        "--grpc-port=0",
        "--metrics-port=0",
        f"--otlp-endpoint={kept.address}",
        environment={"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test"},
    )
    http = wait_ready(process)
    sender = Sender.make()
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    assert post(http, "/v1/chat/completions", body, headers=sender.headers).status == 200
    spans = kept.wait_for(sender.trace, GATEWAY, WORKER)
    check_tree(spans, sender, "POST /v1/chat/completions", "ModelStreamInfer")


def test_variables_of_other_exporters_are_warnings(start: Start, kept: Collector) -> None:
    endpoint, sampler = f"{kept.address}/v1/traces", "endpoint=http://localhost:14250,initialSamplingRate=0"
    process = start(
        "serve",
        "--executor=simulated",
        "--port=0",
        "--grpc-port=0",
        "--metrics-port=0",
        environment={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_TRACES_SAMPLER_ARG": sampler},
    )
    http = wait_ready(process)
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    sender = Sender.make()
    assert post(http, "/v1/chat/completions", body, headers=sender.headers).status == 200
    spans = kept.wait_for(sender.trace, GATEWAY, WORKER)
    check_tree(spans, sender, "POST /v1/chat/completions", "ModelStreamInfer")
    for warning in (
        f"`OTEL_EXPORTER_OTLP_ENDPOINT` is `{endpoint}`, which has a path, and gRPC has none; traces go to",
        f"`OTEL_TRACES_SAMPLER_ARG` is `{sampler}`, expected a share from 0 to 1; the default `1` is used",
    ):
        assert process.log.count(warning) == 1


def test_an_endpoint_that_is_none_is_told_at_once(start: Start, server: Server) -> None:
    process = start("gateway", "--port=0", f"--worker={server.grpc}", "--otlp-endpoint=grpc://x:1")
    assert process.wait() == 2
    assert "`grpc://x:1` is not the address of an OTLP collector" in process.log
