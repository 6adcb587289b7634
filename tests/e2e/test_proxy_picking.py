"""A real Envoy asks the gateway's endpoint picker where requests go.

Two "pods", each with a worker and a gateway in front of it, have one address each. The picker follows both
workers.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc as triton
from openai.types.chat import ChatCompletionMessageParam
from tritonclient.utils import InferenceServerException

from support.engine_server import engine_server
from support.envoy import Envoy, configuration
from support.http import get, post
from support.metrics import total
from support.processes import InflightProcess
from support.servers import MODEL_NAME, Start, openai_client, start_worker, wait_ready
from support.triton import TritonStream, inputs

#: A prompt that takes 0.2 s and more where it is not cached.
TIMING = ("--step-us=2000", "--prefill-us-per-token=500", "--enable-kv-cache-reuse=true")
HOSTS = ("127.0.0.2", "127.0.0.3")
LENGTH = 400


def free_port(hosts: tuple[str, ...]) -> int:
    """A port that is free on all of them."""
    with socket.socket() as first:
        first.bind((hosts[0], 0))
        port = int(first.getsockname()[1])
        for host in hosts[1:]:
            with socket.socket() as other:
                other.bind((host, port))
    return port


@dataclass
class Pool:
    """Pods and the gateway that picks among them."""

    pods: dict[str, tuple[InflightProcess, InflightProcess]]
    port: int
    picker: InflightProcess
    http: str

    @property
    def address(self) -> str:
        return self.picker.address("picker")

    def picks(self, by: str) -> float:
        return total(self.http, "inflight_gateway_endpoint_picks_total", f'by="{by}"')


@pytest.fixture(scope="module")
def pool(start_for_session: Start) -> Pool:
    start = start_for_session
    port = free_port(HOSTS)
    pods = {}
    for host in HOSTS:
        worker = start_worker(start, f"--host={host}", *TIMING)
        gateway = start("gateway", f"--host={host}", f"--port={port}", f"--worker={worker.address('grpc')}")
        pods[host] = (worker, gateway)
    workers = [f"--worker={worker.address('grpc')}" for worker, _ in pods.values()]
    ports = ("--port=0", "--endpoint-picker-port=0", f"--endpoint-port={port}")
    picker = start("gateway", *ports, *workers)
    http = wait_ready(picker)
    for _, gateway in pods.values():
        wait_ready(gateway)
    picker.wait_until("both are up", lambda: total(http, "inflight_gateway_worker_up") == 2)
    return Pool(pods, port, picker, http)


@pytest.fixture(scope="module")
def envoy(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    envoy = Envoy(tmp_path_factory.mktemp("envoy"), configuration(pool.address))
    try:
        yield envoy
    finally:
        envoy.stop()


def prompt(number: int) -> list[int]:
    """Tokens that no other prompt begins with."""
    return [100 + number, *range(100, 99 + LENGTH)]


def ask(http: str, tokens: list[int]) -> int:
    """How many tokens of the prompt were cached."""
    body = {"model": MODEL_NAME, "prompt": tokens, "max_tokens": 2, "ignore_eos": True}
    answer = post(http, "/v1/completions", body)
    assert answer.status == 200, answer.body
    usage = answer.json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_prompts_that_begin_alike_go_to_one_pod(pool: Pool, envoy: Envoy) -> None:
    before = pool.picks("prompt")
    assert [ask(envoy.http, prompt(number)) for number in range(6)] == [0] * 6
    for _ in range(2):
        for number in range(6):
            assert ask(envoy.http, prompt(number)) > LENGTH // 2
            # As a chat continues.
            assert ask(envoy.http, prompt(number) + [number] * 40) > LENGTH // 2
    assert pool.picks("prompt") - before == 30
    # Both have had some: they were spread.
    for _, gateway in pool.pods.values():
        answered = 'route="/v1/completions",status="200"'
        assert total(gateway.address("http"), "inflight_gateway_requests_total", answered) > 0


def test_openai_clients_see_no_difference(pool: Pool, envoy: Envoy) -> None:
    client = openai_client(envoy.http)
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say something. " * 40}]
    whole = client.chat.completions.create(model=MODEL_NAME, messages=messages, max_tokens=20)
    stream = client.chat.completions.create(
        model=MODEL_NAME, messages=messages, max_tokens=20, stream=True, seed=1
    )
    parts = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert whole.choices[0].message.content
    assert len(parts) > 3
    assert client.models.list().data[0].id == MODEL_NAME
    response = client.responses.create(model=MODEL_NAME, input="Hello. " * 40, max_output_tokens=5)
    assert response.output_text


@pytest.mark.parametrize("size", [1_000, 200_000, 3_000_000])
def test_bodies_of_all_sizes_arrive_whole(envoy: Envoy, size: int) -> None:
    """The pod's answer names what it was sent."""
    body = {"model": MODEL_NAME, "prompt": "x", "user": "u" * size, "max_tokens": 1, "echo": True}
    answer = post(envoy.http, "/v1/completions", body)
    assert answer.status == 200, answer.body
    assert answer.json()["choices"][0]["text"].startswith("x")


def test_what_is_not_understood_goes_to_a_pod_that_says_so(pool: Pool, envoy: Envoy) -> None:
    for path, body, status, by in [
        ("/v1/completions", {"model": MODEL_NAME, "prompt": "x", "n": -1}, 400, "model"),
        ("/v1/embeddings", {"model": MODEL_NAME, "input": "x"}, 404, "model"),
        ("/v1/completions", ["no object"], 400, "load"),
    ]:
        before = pool.picks(by)
        assert post(envoy.http, path, body).status == status, path
        assert pool.picks(by) - before == 1, path
    before = pool.picks("load")
    assert get(envoy.http, "/v1/models").status == 200
    assert pool.picks("load") - before == 1


def test_a_model_that_no_pod_has_is_refused(pool: Pool, envoy: Envoy) -> None:
    before = pool.picks("refused")
    answer = post(envoy.http, "/v1/completions", {"model": "no-such", "prompt": "x"})
    assert answer.status == 404
    assert "no-such" in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "model_not_found"
    assert pool.picks("refused") - before == 1


@pytest.mark.parametrize("host", HOSTS)
def test_only_endpoints_that_the_proxy_names_are_picked(pool: Pool, tmp_path: Path, host: str) -> None:
    envoy = Envoy(tmp_path, configuration(pool.address, subset=[f"{host}:{pool.port}"]))
    _, gateway = pool.pods[host]
    try:
        before = total(gateway.address("http"), "inflight_gateway_requests_total", 'route="/v1/completions"')
        for number in range(20, 26):
            ask(envoy.http, prompt(number))
        after = total(gateway.address("http"), "inflight_gateway_requests_total", 'route="/v1/completions"')
        assert after - before == 6
    finally:
        envoy.stop()


@pytest.mark.parametrize("subset", [["127.0.0.9:1"], []])
def test_without_an_endpoint_the_answer_is_503(pool: Pool, tmp_path: Path, subset: list[str]) -> None:
    envoy = Envoy(tmp_path, configuration(pool.address, subset=subset))
    try:
        answer = post(envoy.http, "/v1/completions", {"model": MODEL_NAME, "prompt": "x"})
        assert answer.status == 503
        assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
        assert answer.headers["retry-after"]
    finally:
        envoy.stop()


def test_beyond_its_limit_of_requests_the_answer_is_429(pool: Pool, start: Start, tmp_path: Path) -> None:
    workers = [f"--worker={worker.address('grpc')}" for worker, _ in pool.pods.values()]
    ports = ("--port=0", "--endpoint-picker-port=0", f"--endpoint-port={pool.port}")
    picker = start("gateway", *ports, "--max-concurrent-requests=1", *workers)
    wait_ready(picker)
    envoy = Envoy(tmp_path, configuration(picker.address("picker")))
    client = openai_client(envoy.http)
    try:
        with client.completions.create(
            model=MODEL_NAME, prompt=prompt(70), max_tokens=5000, stream=True, extra_body={"ignore_eos": True}
        ) as stream:
            next(iter(stream))
            answer = post(envoy.http, "/v1/completions", {"model": MODEL_NAME, "prompt": "x"})
            assert answer.status == 429
            assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
            assert answer.headers["retry-after"]
    finally:
        envoy.stop()


@pytest.mark.parametrize(
    ("body_mode", "fails_open", "post_statuses", "get_status"),
    [
        # Envoy may have given the body away before it finds out.
        ("FULL_DUPLEX_STREAMED", True, {200, 500}, 200),
        ("BUFFERED", True, {200}, 200),
        ("FULL_DUPLEX_STREAMED", False, {500}, 500),
    ],
)
def test_while_no_picker_answers_the_proxy_does_as_it_is_configured(
    pool: Pool,
    start: Start,
    tmp_path: Path,
    body_mode: str,
    fails_open: bool,
    post_statuses: set[int],
    get_status: int,
) -> None:
    workers = [f"--worker={worker.address('grpc')}" for worker, _ in pool.pods.values()]
    ports = ("--port=0", "--endpoint-picker-port=0", f"--endpoint-port={pool.port}")
    picker = start("gateway", *ports, *workers)
    wait_ready(picker)
    hosts = [f"{host}:{pool.port}" for host in HOSTS]
    configured = configuration(picker.address("picker"), body_mode, hosts=hosts, fails_open=fails_open)
    envoy = Envoy(tmp_path, configured)
    try:
        ask(envoy.http, prompt(75))
        picker.kill()
        body = {"model": MODEL_NAME, "prompt": prompt(76), "max_tokens": 2}
        assert post(envoy.http, "/v1/completions", body).status in post_statuses
        assert get(envoy.http, "/v1/models").status == get_status
    finally:
        envoy.stop()


def test_what_a_picker_of_llm_d_would_read_is_reported_as_ignored(envoy: Envoy) -> None:
    body = {"model": MODEL_NAME, "prompt": "x", "max_tokens": 2}
    headers = {"x-gateway-inference-objective": "batch", "x-llm-d-slo-ttft-ms": "200"}
    answer = post(envoy.http, "/v1/completions", body, headers)
    assert answer.status == 200
    ignored = answer.headers["x-inflight-ignored-fields"]
    assert ignored == "x-gateway-inference-objective,x-llm-d-slo-ttft-ms"
    assert "x-inflight-ignored-fields" not in post(envoy.http, "/v1/completions", body).headers


def test_a_proxy_that_buffers_bodies_gets_the_endpoint_as_well(pool: Pool, tmp_path: Path) -> None:
    envoy = Envoy(tmp_path, configuration(pool.address, body_mode="BUFFERED"))
    try:
        # By turns: a worker reports its blocks some milliseconds after it has answered.
        numbers = range(40, 44)
        assert [ask(envoy.http, prompt(number)) for number in numbers] == [0] * 4
        assert min(ask(envoy.http, prompt(number)) for number in numbers) > LENGTH // 2
        assert get(envoy.http, "/v1/models").status == 200
    finally:
        envoy.stop()


def test_kserve_over_http_goes_where_its_prompt_is_cached(pool: Pool, envoy: Envoy) -> None:
    def placed() -> float:
        return total(pool.http, "inflight_gateway_placed_requests_total", 'by="cache"')

    def generate(number: int) -> None:
        body = {"text_input": f"{number} {'and so on ' * 60}", "max_tokens": 2}
        answer = post(envoy.http, "/v2/models/ensemble/generate", body)
        assert answer.status == 200, answer.body

    before = placed()
    for _ in range(2):
        for number in range(4):
            generate(number)
    assert placed() - before >= 4
    assert get(envoy.http, "/v2/models/ensemble").status == 200
    answer = post(envoy.http, "/v2/models/no-such/generate", {"text_input": "x"})
    assert answer.status == 400
    assert "no-such" in answer.json()["error"]


def test_kserve_over_grpc_goes_to_workers_themselves(pool: Pool, start: Start, tmp_path: Path) -> None:
    workers = [f"--worker={worker.address('grpc')}" for worker, _ in pool.pods.values()]
    picker = start("gateway", "--port=0", "--endpoint-picker-port=0", *workers)
    http = wait_ready(picker)
    picker.wait_until("both are up", lambda: total(http, "inflight_gateway_worker_up") == 2)
    envoy = Envoy(tmp_path, configuration(picker.address("picker"), http2=True))
    try:
        for turn in range(2):
            for number in range(4):
                stream = TritonStream(envoy.http)
                # The stream stays open while it is answered: its endpoint is chosen by the first message.
                stream.send("r", inputs(prompt(60 + number), 2, streaming=True))
                assert list(stream.until_final())
                stream.close()
            by_cache = total(http, "inflight_gateway_placed_requests_total", 'by="cache"')
            assert by_cache == 4 * turn
        client = triton.InferenceServerClient(envoy.http)
        assert client.is_model_ready("tensorrt_llm")
        with pytest.raises(InferenceServerException) as unknown:
            client.infer("no-such", inputs([1, 2, 3], 1))
        assert "no-such" in str(unknown.value)
        client.close()
    finally:
        envoy.stop()


def test_servers_of_other_makers_get_what_they_probably_have(start: Start, tmp_path: Path) -> None:
    with ExitStack() as doubles:
        servers = [doubles.enter_context(engine_server()) for _ in range(2)]
        for server in servers:
            # Each has room for all prompts: what a full one forgets comes back to another one.
            server.blocks = 1000
        endpoints = [f"--endpoint={server.address}" for server in servers]
        picker = start("gateway", "--port=0", "--endpoint-picker-port=0", *endpoints)
        http = wait_ready(picker)
        picker.wait_until("both are up", lambda: total(http, "inflight_gateway_worker_up") == 2)
        envoy = Envoy(tmp_path, configuration(picker.address("picker")))
        try:
            for _ in range(3):
                for number in range(6):
                    body = {"model": servers[0].model, "prompt": prompt(number), "foreign": True}
                    assert post(envoy.http, "/v1/completions", body).status == 200
                    # Its client has the answer before the picker knows of its end.
                    picker.wait_until(
                        "nothing runs", lambda: total(http, "inflight_gateway_worker_active") == 0
                    )
            got = [[one["prompt"][0] for one in server.posted] for server in servers]
            # Each prompt came back to where it was, and they were spread.
            assert set(got[0]) & set(got[1]) == set()
            assert sorted(got[0] + got[1]) == sorted([100 + number for number in range(6)] * 3)
            assert min(len(set(numbers)) for numbers in got) >= 1
            assert all(one["foreign"] for server in servers for one in server.posted)
            by_prompt = total(http, "inflight_gateway_endpoint_picks_total", 'by="prompt"')
            assert by_prompt == 18
            # Whoever asks the gateway itself is refused.
            body = {"model": servers[0].model, "prompt": "x"}
            assert post(http, "/v1/completions", body).status == 404
            # Away is not unknown: the proxy's client may try again.
            doubles.close()
            picker.wait_until("both are down", lambda: total(http, "inflight_gateway_worker_up") == 0)
            assert post(envoy.http, "/v1/completions", body).status == 503
        finally:
            envoy.stop()


@dataclass
class Refusing:
    """Hosts with a worker and nothing that takes requests of proxies."""

    pool: Pool
    workers: dict[str, InflightProcess]

    def endpoints(self, hosts: Iterable[str]) -> list[str]:
        return [f"{host}:{self.pool.port}" for host in hosts]

    def picker(self, start: Start, fallbacks: int) -> tuple[InflightProcess, str]:
        taking = [worker for worker, _ in self.pool.pods.values()]
        workers = [f"--worker={worker.address('grpc')}" for worker in [*taking, *self.workers.values()]]
        ports = ("--port=0", "--endpoint-picker-port=0", f"--endpoint-port={self.pool.port}")
        picker = start("gateway", *ports, f"--endpoint-fallbacks={fallbacks}", *workers)
        http = wait_ready(picker)
        picker.wait_until("all are up", lambda: total(http, "inflight_gateway_worker_up") == len(workers))
        return picker, http

    def cache(self, start: Start, host: str, tokens: list[int]) -> None:
        """Has the worker of the host compute a prompt."""
        gateway = start("gateway", "--port=0", f"--worker={self.workers[host].address('grpc')}")
        ask(wait_ready(gateway), tokens)


@pytest.fixture(scope="module")
def refusing(pool: Pool, start_for_session: Start) -> Refusing:
    start, hosts = start_for_session, ("127.0.0.4", "127.0.0.5")
    return Refusing(pool, {host: start_worker(start, f"--host={host}", *TIMING) for host in hosts})


def requests_at(pool: Pool, host: str) -> float:
    _, gateway = pool.pods[host]
    return total(gateway.address("http"), "inflight_gateway_requests_total", 'route="/v1/completions"')


def test_a_request_that_its_endpoint_refuses_goes_to_the_next_one(
    pool: Pool, refusing: Refusing, start: Start, tmp_path: Path
) -> None:
    picker, http = refusing.picker(start, 1)
    hosts = refusing.endpoints([*HOSTS, *refusing.workers])
    subset = [f"{HOSTS[0]}:{pool.port}", f"127.0.0.4:{pool.port}"]
    refusing.cache(start, "127.0.0.4", prompt(80))
    before = requests_at(pool, HOSTS[0]), requests_at(pool, HOSTS[1])
    envoy = Envoy(tmp_path, configuration(picker.address("picker"), subset=subset, hosts=hosts))

    def retries() -> float:
        return total(http, "inflight_gateway_endpoint_retries_total")

    def active(worker: InflightProcess) -> float:
        label = f'worker="{worker.address("grpc")}"'
        return total(http, "inflight_gateway_worker_active", label)

    refuses, (takes, _) = refusing.workers["127.0.0.4"], pool.pods[HOSTS[0]]
    client = openai_client(envoy.http)
    try:
        # Its prompt is cached where nothing listens.
        extra = {"ignore_eos": True}
        stream = client.completions.create(
            model=MODEL_NAME, prompt=prompt(80), max_tokens=3000, stream=True, extra_body=extra
        )
        next(iter(stream))
        assert (active(refuses), active(takes)) == (0, 1), "it counts where it is answered"
        stream.close()
        picker.wait_until("it has ended", lambda: active(takes) == 0)
        assert retries() == 1
        # For a moment, the others go first: not each request is tried there.
        for _ in range(8):
            assert ask(envoy.http, prompt(80)) > LENGTH // 2
        assert retries() < 9
        after = requests_at(pool, HOSTS[0]), requests_at(pool, HOSTS[1])
        assert (after[0] - before[0], after[1] - before[1]) == (9, 0), "only what the proxy allows is named"
        assert "worker's cache unknown" not in picker.log
    finally:
        envoy.stop()


def test_as_many_endpoints_are_named_as_are_asked_for(
    pool: Pool, refusing: Refusing, start: Start, tmp_path: Path
) -> None:
    hosts = refusing.endpoints([HOSTS[0], *refusing.workers])
    for host in refusing.workers:
        refusing.cache(start, host, prompt(90))
    for fallbacks, status in [(0, 503), (1, 503), (2, 200)]:
        picker, _ = refusing.picker(start, fallbacks)
        configured = configuration(picker.address("picker"), subset=hosts, hosts=hosts)
        # As many tries as endpoints: what the proxy chooses itself behind them is not meant here.
        listener = configured["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
        routes = listener["typed_config"]["route_config"]["virtual_hosts"][0]["routes"]
        routes[0]["route"]["retry_policy"]["num_retries"] = fallbacks
        (tmp_path / str(fallbacks)).mkdir()
        envoy = Envoy(tmp_path / str(fallbacks), configured)
        try:
            # So large that Envoy has to be configured to keep it.
            body = {"model": MODEL_NAME, "prompt": prompt(90), "max_tokens": 2, "user": "u" * 2_000_000}
            assert post(envoy.http, "/v1/completions", body).status == status, fallbacks
        finally:
            envoy.stop()


def test_health_says_whether_there_is_an_endpoint(pool: Pool, start: Start) -> None:
    def status(address: str, service: str) -> object:
        with grpc.insecure_channel(address) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            name = service.encode()
            return check(b"\n" + bytes([len(name)]) + name if name else b"", timeout=10)

    serving, not_serving = b"\x08\x01", b"\x08\x02"
    picker = "envoy.service.ext_proc.v3.ExternalProcessor"
    for service in ("", "liveness", "readiness", picker):
        assert status(pool.address, service) == serving
    with pytest.raises(grpc.RpcError) as unknown:
        status(pool.address, "no-such")
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
    lonely = start("gateway", "--port=0", "--endpoint-picker-port=0", "--worker=127.0.0.1:9")
    for service, expected in [
        ("", serving),
        ("liveness", serving),
        ("readiness", not_serving),
        (picker, not_serving),
    ]:
        assert status(lonely.address("picker"), service) == expected, service
