"""`inflight.v1.CacheState` with a client in Python: what a worker's cache holds, and how loaded it is."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton

from support.cache_messages import cache_messages
from support.processes import START_S, InflightProcess
from support.servers import Start
from support.triton import MODEL, inputs, tensor

PROMPT = list(range(1, 14))
#: Of 1 to 12 in blocks of four, as Dynamo's tests have them.
KEYS = [14643705804678351452, 4945711292740353085, 12583592247330656132]
REUSING = ("--tokens-per-block=4",)


@pytest.fixture(scope="module")
def messages() -> Any:
    return cache_messages()


class Watcher:
    """One stream of updates, and what it has said so far."""

    def __init__(self, messages: Any, address: str, model: str = MODEL) -> None:
        self._channel = grpc.insecure_channel(address)
        watch = self._channel.unary_stream(
            "/inflight.v1.CacheState/Watch",
            request_serializer=messages.WatchCacheRequest.SerializeToString,
            response_deserializer=messages.CacheUpdate.FromString,
        )
        self._updates = watch(messages.WatchCacheRequest(model=model), timeout=60)
        self.held: set[int] = set()
        self.shape: Any = None
        self.load: Any = None

    def read(self) -> Any:
        """The next update."""
        update = next(self._updates)
        if update.snapshot_begin:
            self.held, self.shape = set(), update.shape
        self.held |= set(update.device.stored)
        self.held -= set(update.device.removed)
        self.load = update.load
        return update

    def read_until_held(self, keys: list[int]) -> None:
        """Reads until these blocks are known."""
        while not self.held >= set(keys):
            self.read()

    def close(self) -> None:
        """Ends the stream."""
        self._updates.cancel()
        self._channel.close()


def start(start: Start, *arguments: str) -> tuple[InflightProcess, str]:
    """A ready worker."""
    worker = start("worker", "--grpc-port=0", "--metrics-port=0", *REUSING, *arguments)
    address = worker.address("grpc")
    with triton.InferenceServerClient(address) as client:
        worker.wait_until("it is ready", lambda: _is_ready(client), START_S)
    return worker, address


def _is_ready(client: triton.InferenceServerClient) -> bool:
    try:
        return bool(client.is_server_ready())
    except triton.InferenceServerException:
        return False


def salted(salt: str) -> triton.InferInput:
    return tensor("inflight_cache_salt", [[salt]], "BYTES")


@pytest.fixture(scope="module")
def reference(start_for_session: Start) -> str:
    return start(start_for_session, "--executor=reference")[1]


@pytest.fixture(scope="module")
def simulated(start_for_session: Start) -> str:
    return start(start_for_session, "--executor=simulated", "--enable-kv-cache-reuse", "--step-us=1000")[1]


@pytest.fixture(params=["reference", "simulated"])
def worker(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(request.param)
    return address


def test_a_router_learns_which_blocks_a_worker_holds(messages: Any, worker: str) -> None:
    watcher, second = Watcher(messages, worker), Watcher(messages, worker, "")
    first = watcher.read()
    assert first.snapshot_begin
    assert first.sequence == 1
    assert watcher.shape.reports_blocks
    assert watcher.shape.tokens_per_block == 4
    assert watcher.shape.device_blocks > 0
    with triton.InferenceServerClient(worker) as client:
        client.infer(MODEL, inputs(PROMPT, 2))
        watcher.read_until_held(KEYS)
        second.read_until_held(KEYS)
        known = len(watcher.held)
        # With a salt it is another prompt.
        client.infer(MODEL, [*inputs(PROMPT, 2), salted("tenant")])
        while len(watcher.held) < known + len(KEYS):
            watcher.read()
    # Totals come with a later message at most.
    for _ in range(10):
        if watcher.load.prefill_tokens_total > 2 * len(PROMPT):
            break
        watcher.read()
    load = watcher.load
    assert load.prefill_tokens_total >= 2 * len(PROMPT)
    assert load.prefill_seconds_total > 0
    assert load.iteration_seconds_total > 0
    assert load.generated_tokens_total >= 4
    assert load.iterations_total >= 4
    assert load.free_blocks > 0
    assert load.running_requests == 0
    watcher.close()
    second.close()


def test_what_is_left_of_a_long_prompt_is_reported_before_its_first_token(
    messages: Any, start_for_session: Start
) -> None:
    address = start(start_for_session, "--executor=reference", "--max-num-tokens=256")[1]
    long = [place % 97 + 40 for place in range(12_000)]
    watcher = Watcher(messages, address)
    watcher.read()
    left = []
    with triton.InferenceServerClient(address) as client:
        answer = client.async_infer(MODEL, inputs(long, 1), callback=lambda **_: None)
        while not watcher.load.queued_prompt_tokens:
            watcher.read()
        while watcher.load.queued_prompt_tokens:
            left.append(watcher.load.queued_prompt_tokens)
            watcher.read()
        answer.cancel()
    watcher.close()
    # It falls, and not only where the prompt is complete.
    assert left[0] <= len(long)
    assert sorted(left, reverse=True) == left
    assert len(set(left)) > 2


def test_both_executors_name_salted_blocks_alike(messages: Any, reference: str, simulated: str) -> None:
    held = []
    for address in (reference, simulated):
        watcher = Watcher(messages, address)
        watcher.read()
        before = set(watcher.held)
        with triton.InferenceServerClient(address) as client:
            client.infer(MODEL, [*inputs(list(range(20, 33)), 1), salted("équipe")])
        while len(watcher.held - before) < 3:
            watcher.read()
        held.append(watcher.held - before)
        watcher.close()
    assert held[0] == held[1]


def test_a_worker_without_reuse_reports_its_load_alone(messages: Any, start_for_session: Start) -> None:
    _, address = start(
        start_for_session, "--executor=reference", "--executor-option=enable_kv_cache_reuse=false"
    )
    watcher = Watcher(messages, address)
    watcher.read()
    assert not watcher.shape.reports_blocks
    with triton.InferenceServerClient(address) as client:
        client.infer(MODEL, inputs(PROMPT, 2))
    while watcher.load.generated_tokens_total < 3:
        watcher.read()
    assert not watcher.held
    watcher.close()
    unknown = Watcher(messages, address, "nothing")
    with pytest.raises(grpc.RpcError, match="nothing") as raised:
        unknown.read()
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND
