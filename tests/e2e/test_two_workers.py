"""Two workers behind one gateway: spread, loss of one, and its return."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import openai
import pytest

from support.http import Response, Stream, get, post, stream
from support.metrics import active_requests, total
from support.processes import InflightProcess, wait_until
from support.servers import MODEL_NAME, Server, Start, start_gateway, start_worker, wait_ready

#: A token every 20 ms, so that a worker can be lost in the middle of a stream.
TIMING = ("--step-us=20000", "--prefill-us-per-token=0", "--http-port=0")


@dataclass
class Pair:
    """Two workers and their gateway."""

    workers: list[InflightProcess]
    gateway: InflightProcess
    server: Server

    def loads(self) -> list[float]:
        return [active_requests(worker.address("metrics")) for worker in self.workers]

    def stream(self, prompt: str = "Hi", max_tokens: int = 1000) -> Stream:
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
        return stream(self.server.http, "/v1/completions", body)

    def up(self) -> float:
        return total(self.server.http, "inflight_gateway_worker_up")


@pytest.fixture
def pair(start: Start) -> Pair:
    workers = [start_worker(start, *TIMING) for _ in range(2)]
    gateway = start_gateway(start, workers)
    pair = Pair(workers, gateway, Server(wait_ready(gateway), "", "", MODEL_NAME))
    gateway.wait_until("both workers are up", lambda: pair.up() == 2)
    return pair


def test_the_least_loaded_worker_is_chosen(pair: Pair) -> None:
    streams = []
    for count in range(1, 7):
        opened = pair.stream()
        next(opened.events())
        streams.append(opened)
        loads = pair.loads()
        assert sum(loads) == count
        assert max(loads) - min(loads) <= 1, loads
    for opened in streams:
        opened.close()
    wait_until("both are idle", lambda: pair.loads() == [0, 0])
    # One model, however many workers serve it.
    assert len(get(pair.server.http, "/v1/models").json()["data"]) == 1


def test_a_lost_workers_streams_go_on_at_the_other(pair: Pair, start: Start) -> None:
    streams = [pair.stream(max_tokens=150) for _ in range(4)]
    readers = [opened.events() for opened in streams]
    for reader in readers:
        next(reader)
    lost, kept = pair.workers
    port = lost.address("grpc").rpartition(":")[2]
    lost.kill()
    texts = set()
    for opened, reader in zip(streams, readers, strict=True):
        *events, done = list(reader)
        opened.close()
        assert done == "[DONE]"
        choices = [json.loads(event)["choices"][0] for event in events]
        assert choices[-1]["finish_reason"] == "length"
        texts.add("".join(choice["text"] for choice in choices))
    assert len(texts) == 1, texts
    assert total(pair.server.http, "inflight_gateway_resumes_total") == 2
    # The other serves everything meanwhile.
    assert pair.up() == 1
    for _ in range(3):
        body = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 2}
        assert post(pair.server.http, "/v1/completions", body).status == 200
    # And the lost one comes back when it does.
    pair.workers[0] = start_worker(start, *TIMING, f"--grpc-port={port}")
    pair.gateway.wait_until("the worker is back", lambda: pair.up() == 2)
    streams = [pair.stream() for _ in range(2)]
    for opened in streams:
        next(opened.events())
    assert sorted(pair.loads()) == [1, 1]
    for opened in streams:
        opened.close()
    wait_until("the kept worker is idle", lambda: active_requests(kept.address("metrics")) == 0)


def test_a_stream_of_texts_so_far_goes_on_as_well(pair: Pair) -> None:
    path = "/v2/models/tensorrt_llm/generate_stream"
    body = {"text_input": "Hi", "sampling_param_max_tokens": 60, "streaming": True}
    opened = stream(pair.server.http, path, body)
    reader = opened.events()
    events = [next(reader) for _ in range(3)]
    busy, idle = sorted(pair.workers, key=lambda worker: -active_requests(worker.address("metrics")))
    busy.kill()
    events.extend(reader)
    opened.close()
    texts = [json.loads(event)["text_output"] for event in events]
    assert all(after.startswith(before) for before, after in pairwise(texts))
    # Nothing is shown twice, and all that one worker alone says.
    assert len(texts) == len(set(texts))
    opened = stream(idle.address("http"), path, body)
    assert json.loads(list(opened.events())[-1])["text_output"] == texts[-1]
    opened.close()
    assert total(pair.server.http, "inflight_gateway_resumes_total") == 1


def answers_while(pair: Pair, happens: Callable[[InflightProcess], None]) -> list[Response]:
    """Eight answers in one piece, of 0.8 s each, while something happens to the first worker."""
    body = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 40, "ignore_eos": True, "seed": 7}
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(post, pair.server.http, "/v1/completions", body) for _ in range(8)]
        wait_until("both work", lambda: pair.loads() == [4, 4])
        happens(pair.workers[0])
        return [answer.result(60) for answer in answers]


def moved(pair: Pair) -> float:
    """Requests that began anew at the other worker, and answers that continued there."""
    counts = ("inflight_gateway_retries_total", "inflight_gateway_resumes_total")
    return sum(total(pair.server.http, name) for name in counts)


def check_same(answers: list[Response]) -> None:
    assert [answer.status for answer in answers] == [200] * 8
    texts = {answer.json()["choices"][0]["text"] for answer in answers}
    assert len(texts) == 1, texts


def test_requests_of_a_killed_worker_are_answered_by_the_other(pair: Pair) -> None:
    check_same(answers_while(pair, lambda worker: worker.kill()))
    assert moved(pair) == 4


def test_a_stopped_worker_is_not_ready_within_two_seconds_and_loses_nothing(pair: Pair) -> None:
    noticed: list[float] = []

    def stop(worker: InflightProcess) -> None:
        worker.send(signal.SIGSTOP)
        begun = time.monotonic()
        wait_until("it is noticed", lambda: pair.up() == 1)
        noticed.append(time.monotonic() - begun)

    try:
        check_same(answers_while(pair, stop))
        assert noticed[0] < 2.0
        assert moved(pair) == 4
        health = get(pair.server.http, "/health/ready").json()
        assert [worker["ready"] for worker in health["workers"]] == [False, True]
    finally:
        pair.workers[0].send(signal.SIGCONT)
    pair.gateway.wait_until("it is back", lambda: pair.up() == 2)
    wait_until("what it was asked before is stopped", lambda: pair.loads() == [0, 0])


def test_the_openai_client_raises_when_a_stream_is_cut(start: Start) -> None:
    workers = [start_worker(start, *TIMING) for _ in range(2)]
    gateway = start_gateway(start, workers, "--resume-wait-s=0")
    server = Server(wait_ready(gateway), "", "", MODEL_NAME)
    with server.client() as client:
        answer = client.completions.create(
            model=MODEL_NAME, prompt="Hi", max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
        )
        iterator = iter(answer)
        next(iterator)
        for worker in workers:
            worker.kill()
        with pytest.raises(openai.APIError) as raised:
            for _ in iterator:
                pass
    assert raised.value.type == "server_error"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_worker_lost_before_the_first_token_is_503_with_retry_after(start: Start, streamed: bool) -> None:
    # 200 ms a prompt token: the proof of readiness is short, this prompt takes 20 s.
    worker = start_worker(start, "--prefill-us-per-token=200000")
    address = wait_ready(start_gateway(start, [worker], "--resume-wait-s=0"))
    body = {"model": MODEL_NAME, "prompt": [40] * 100, "max_tokens": 5, "stream": streamed}
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(post, address, "/v1/completions", body)
        wait_until("the request runs", lambda: active_requests(worker.address("metrics")) == 1)
        worker.kill()
        response = answer.result(30)
    assert response.status == 503, response
    assert response.error["type"] == "server_error"
    assert 0 < float(response.headers["retry-after"]) <= 120


def test_no_worker_at_all_is_503_with_retry_after(pair: Pair) -> None:
    for worker in pair.workers:
        worker.kill()
    pair.gateway.wait_until("both are gone", lambda: pair.up() == 0)
    for streamed in (False, True):
        body = {"model": MODEL_NAME, "prompt": "Hi", "stream": streamed}
        response = post(pair.server.http, "/v1/completions", body)
        assert response.status == 503
        assert response.error["type"] == "server_error"
        assert 0 < float(response.headers["retry-after"]) <= 120
    ready = post(pair.server.http, "/v1/completions", b"{")
    assert ready.status == 400
    assert get(pair.server.http, "/health/ready").status == 503
    assert get(pair.server.http, "/health/live").status == 200


def test_one_gateway_serves_several_models(start: Start) -> None:
    # The later option holds: a name with a slash, as checkpoints on hubs have.
    other = "org/other-model"
    workers = [start_worker(start), start_worker(start, f"--served-model-name={other}")]
    gateway = start_gateway(start, workers)
    address = wait_ready(gateway)
    gateway.wait_until("both are up", lambda: total(address, "inflight_gateway_worker_up") == 2)
    with Server(address, "", "", MODEL_NAME).client() as client:
        assert {model.id for model in client.models.list().data} == {MODEL_NAME, other}
        assert client.models.retrieve(other).id == other
        for name in (MODEL_NAME, other, other):
            answer = client.completions.create(model=name, prompt="Hi", max_tokens=2)
            assert answer.model == name
    served = [total(worker.address("metrics"), "nv_inference_request_success") for worker in workers]
    # Each worker has also served its own proof of readiness, or neither has.
    assert served[1] == served[0] + 1
    assert get(address, f"/v1/models/{other}").json()["id"] == other
    # Without the other's worker its name is known and unavailable, and this one goes on.
    workers[1].kill()
    gateway.wait_until("it is gone", lambda: total(address, "inflight_gateway_worker_up") == 1)
    body = {"prompt": "Hi", "max_tokens": 1}
    assert post(address, "/v1/completions", {**body, "model": other}).status == 503
    assert post(address, "/v1/completions", {**body, "model": MODEL_NAME}).status == 200
