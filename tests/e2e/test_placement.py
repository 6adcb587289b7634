"""Requests go to the worker that holds their prompt, and to the other one when that is busy."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from support.http import get, post
from support.metrics import total
from support.processes import InflightProcess
from support.servers import MODEL_NAME, Start, start_gateway, start_worker, wait_ready

#: A prompt that takes 0.2 s and more where it is not cached.
TIMING = ("--step-us=2000", "--prefill-us-per-token=500", "--enable-kv-cache-reuse=true")
LENGTH = 400


@dataclass
class Fleet:
    workers: list[InflightProcess]
    gateway: InflightProcess
    http: str

    def ask(self, prompt: list[int]) -> int:
        """How many tokens of the prompt were cached."""
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 2, "ignore_eos": True}
        answer = post(self.http, "/v1/completions", body)
        assert answer.status == 200, answer.body
        usage = answer.json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    def placed(self, by: str) -> float:
        return total(self.http, "inflight_gateway_placed_requests_total", f'by="{by}"')


def front(start: Start, workers: list[InflightProcess]) -> Fleet:
    """A gateway that knows all of them."""
    gateway = start_gateway(start, workers)
    made = Fleet(workers, gateway, wait_ready(gateway))
    up = "inflight_gateway_worker_up"
    gateway.wait_until("all are up", lambda: total(made.http, up) == len(workers))
    return made


@pytest.fixture
def fleet(start: Start) -> Fleet:
    return front(start, [start_worker(start, *TIMING) for _ in range(3)])


def prompt(number: int) -> list[int]:
    """Tokens that no other prompt begins with."""
    return [100 + number, *range(100, 99 + LENGTH)]


def test_prompts_that_begin_alike_share_a_worker(fleet: Fleet) -> None:
    # Different prompts are spread; each comes back to where it was.
    assert [fleet.ask(prompt(number)) for number in range(6)] == [0] * 6
    for _ in range(2):
        for number in range(6):
            assert fleet.ask(prompt(number)) > LENGTH // 2
            # As a chat goes on.
            assert fleet.ask(prompt(number) + [number] * 40) > LENGTH // 2
    assert fleet.placed("cache") >= 24
    expected = total(fleet.http, "inflight_gateway_expected_cached_tokens_total")
    found = total(fleet.http, "inflight_gateway_found_cached_tokens_total")
    assert 0.8 * expected <= found <= 1.2 * expected
    assert total(fleet.http, "inflight_gateway_cache_report_faults_total") == 0


def test_a_prompt_that_everybody_sends_is_computed_by_others_too(fleet: Fleet) -> None:
    fleet.ask(prompt(1))
    with ThreadPoolExecutor(24) as pool:
        # The answers after it differ, so that one worker alone would take long.
        asked = [prompt(1) + [number] * 300 for number in range(24)]
        cached = list(pool.map(fleet.ask, asked))
    assert sum(count > LENGTH // 2 for count in cached) >= 12
    counts = [total(worker.address("metrics"), "nv_inference_request_success") for worker in fleet.workers]
    assert sum(count > 1 for count in counts) >= 2, counts


def test_a_prompt_that_another_gateway_sent_is_waited_for(start: Start) -> None:
    workers = [start_worker(start, *TIMING, "--max-num-tokens=256") for _ in range(3)]
    one, other = (front(start, workers) for _ in range(2))
    # Three seconds.
    long = [7, *(100 + place % 300 for place in range(5_800))]

    def used() -> int:
        """Blocks that requests have, as the other gateway has heard."""
        status = get(other.http, "/console/status").json()
        return sum(model["cache"]["used"] for worker in status["workers"] for model in worker["models"])

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(one.ask, long)
        other.gateway.wait_until("it hears of the prompt", lambda: used() > 0)
        assert not first.done()
        assert other.ask([*long, 8]) > len(long) // 2
        assert first.result() == 0


def test_workers_that_come_back_are_known_to_hold_nothing(fleet: Fleet, start: Start) -> None:
    assert fleet.ask(prompt(1)) == 0
    assert fleet.ask(prompt(1)) > 0
    for place, worker in enumerate(fleet.workers):
        worker.send(signal.SIGKILL)
        worker.wait()
        port = worker.address("grpc").rpartition(":")[2]
        fleet.workers[place] = start_worker(start, *TIMING, f"--grpc-port={port}")
    up = "inflight_gateway_worker_up"
    fleet.gateway.wait_until("all are up", lambda: total(fleet.http, up) == len(fleet.workers))
    before = fleet.placed("cache")
    assert fleet.ask(prompt(1)) == 0
    assert fleet.placed("cache") == before
    assert fleet.ask(prompt(1)) > 0


def test_prompts_of_kserve_s_models_go_where_they_are_cached(fleet: Fleet) -> None:
    def ids(number: int) -> dict[str, object]:
        def tensor(name: str, values: list[int]) -> dict[str, object]:
            return {"name": name, "datatype": "INT32", "shape": [1, len(values)], "data": values}

        tokens = prompt(number)
        inputs = [tensor("input_ids", tokens), tensor("input_lengths", [len(tokens)])]
        return {"inputs": [*inputs, tensor("request_output_len", [2])]}

    def text(number: int) -> dict[str, object]:
        return {"text_input": f"{number} {'and so on ' * 60}", "max_tokens": 2}

    def streamed(number: int) -> dict[str, object]:
        return {**text(number + 100), "stream": True}

    for path, body in (
        ("tensorrt_llm/infer", ids),
        ("ensemble/generate", text),
        ("tensorrt_llm_bls/generate_stream", streamed),
    ):
        before = fleet.placed("cache")
        for turn in range(3):
            for number in range(6):
                answer = post(fleet.http, f"/v2/models/{path}", body(number))
                assert answer.status == 200, answer.body
            # Each comes back to where it was.
            assert fleet.placed("cache") - before >= 6 * turn, path
    assert total(fleet.http, "inflight_gateway_cache_report_faults_total") == 0
    # Whoever takes part in a conversation over both APIs finds the same worker.
    assert fleet.ask(prompt(0)) > LENGTH // 2
