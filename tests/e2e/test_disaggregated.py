"""Prefill and decode apart: two real workers of the reference executor, and a KServe client that asks one for
the context and the other for the rest. The tokens are those of one worker.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest

from support.metrics import total
from support.processes import InflightProcess, wait_until
from support.servers import MODEL_ARGUMENTS, Start
from support.triton import TritonStream, inputs, tensor, tokens

#: Several blocks and a part of one.
PROMPT = [40 + place % 200 for place in range(300)]
#: Chunks of a prompt are the same on both, and so is every bit.
OPTIONS = ("--tokens-per-block=16", "--executor-option", "batch_invariant=true")
LENGTH = 40
TRANSCEIVER = "--executor-option=cache_transceiver_backend="


class Context(NamedTuple):
    """What a context worker answered."""

    token: int
    params: Any


def start_worker(start: Start, *options: str) -> InflightProcess:
    return start("worker", *MODEL_ARGUMENTS, "--grpc-port=0", "--metrics-port=0", *OPTIONS, *options)


@pytest.fixture(params=["default", "tcp"])
def transceiver(request: pytest.FixtureRequest) -> str:
    """The option: blocks are copied in place, or come through a connection."""
    return f"{TRANSCEIVER}{request.param}"


def start_pair(start: Start, *options: str) -> tuple[InflightProcess, InflightProcess]:
    first, second = (start_worker(start, *options) for _ in range(2))
    return first, second


@contextmanager
def streams(*workers: InflightProcess) -> Iterator[list[TritonStream]]:
    """A stream to each worker that is ready."""
    with ExitStack() as stack:
        opened = []
        for worker in workers:
            stream = TritonStream(worker.address("grpc"))
            stack.callback(stream.close, cancel=True)
            worker.wait_until("it is ready", stream.client.is_server_ready)
            opened.append(stream)
        yield opened


def ask_context(stream: TritonStream, **scalars: Any) -> Context:
    stream.send("context", inputs(PROMPT, LENGTH, **scalars), parameters={"request_type": "context_only"})
    [answer] = stream.until_final()
    *_, token = tokens(answer)
    return Context(token, answer.as_numpy("context_phase_params"))


def generate(stream: TritonStream, params: Any = None, **scalars: Any) -> list[int]:
    send_generation(stream, params, **scalars)
    return received(stream)


def received(stream: TritonStream) -> list[int]:
    return [token for answer in stream.until_final() for token in tokens(answer)]


def send_generation(stream: TritonStream, params: Any = None, **scalars: Any) -> None:
    asked = inputs(PROMPT, LENGTH, streaming=True, **scalars)
    parameters = {}
    if params is not None:
        asked.append(tensor("context_phase_params", params.reshape(1, -1), "UINT8"))
        parameters = {"request_type": "generation_only"}
    stream.send("generation", asked, parameters=parameters)


def blocks_used(worker: InflightProcess) -> float:
    return total(worker.address("metrics"), "nv_trt_llm_kv_cache_block_metrics", 'kv_cache_block_type="used"')


def transferred(worker: InflightProcess, kind: str) -> float:
    family = "nv_trt_llm_disaggregated_serving_metrics"
    return total(worker.address("metrics"), family, f'disaggregated_serving_type="{kind}"')


def fallbacks(worker: InflightProcess) -> float:
    return total(worker.address("metrics"), "inflight_worker_kv_transfer_fallbacks_total")


@pytest.fixture(scope="module")
def whole(start_for_session: Start) -> Iterator[TritonStream]:
    """One worker for everything."""
    with streams(start_worker(start_for_session)) as [stream]:
        yield stream


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.9, "runtime_top_p": 0.95, "seed": 11}, {"repetition_penalty": 1.3}],
    ids=["greedy", "seeded", "penalized"],
)
def test_two_workers_answer_as_one(
    start: Start, whole: TritonStream, transceiver: str, sampling: dict[str, Any]
) -> None:
    workers = start_pair(start, transceiver)
    with streams(*workers) as [context, generation]:
        told = ask_context(context, **sampling)
        assert blocks_used(workers[0]) > 0
        generated = generate(generation, told.params, **sampling)
    assert generated == generate(whole, **sampling)
    assert generated[0] == told.token
    # Figures of an iteration are counted a moment after its tokens.
    wait_until("it is counted", lambda: transferred(workers[1], "request_count") == 1)
    assert transferred(workers[1], "kv_cache_transfer_ms") > 0
    # They were fetched: nobody waits for the others of the second that they may be held.
    wait_until("the blocks are free", lambda: blocks_used(workers[0]) == 0, 0.5)


def test_the_context_worker_is_killed_after_its_answer(
    start: Start, whole: TritonStream, transceiver: str
) -> None:
    first, second = start_pair(start, transceiver)
    with streams(second) as [generation]:
        with streams(first) as [context]:
            told = ask_context(context)
            first.send(signal.SIGKILL)
        assert generate(generation, told.params) == generate(whole)
        # For one reason or another: its port may outlive it for a moment.
        wait_until("it is counted", lambda: fallbacks(second) == 1)
    assert "kv blocks fetched in part" in second.log


def test_the_context_worker_is_killed_while_its_blocks_are_fetched(
    start: Start, whole: TritonStream, transceiver: str
) -> None:
    first, second = start_pair(start, transceiver)
    with streams(second) as [generation]:
        with streams(first) as [context]:
            told = ask_context(context)
            # The connection is made by the kernel, and then nothing comes.
            first.send(signal.SIGSTOP)
            send_generation(generation, told.params)
            time.sleep(0.3)
            first.send(signal.SIGKILL)
        assert received(generation) == generate(whole)
    assert "kv blocks fetched in part" in second.log


def test_the_generation_worker_is_killed_while_it_fetches(
    start: Start, whole: TritonStream, transceiver: str
) -> None:
    """The context worker's blocks are free soon, and another worker continues from the same bytes or, later,
    computes them."""
    first, second = start_pair(start, transceiver)
    third = start_worker(start, transceiver)
    with streams(first, third) as [context, other]:
        told = ask_context(context)
        with streams(second) as [generation]:
            second.send(signal.SIGSTOP)
            send_generation(generation, told.params)
            time.sleep(0.1)
            second.send(signal.SIGKILL)
        assert generate(other, told.params) == generate(whole)
        wait_until("the blocks are free", lambda: blocks_used(first) == 0, 2)
