"""What a worker publishes of its cache, heard as listeners of vLLM do it, and by a gateway of ours."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import tritonclient.grpc as triton
import zmq

from support.adapters import save
from support.engine_server import BLOCK_TOKENS, EngineServer
from support.http import get, post
from support.processes import ADDRESS, START_S, InflightProcess, wait_until
from support.servers import MODEL_NAME, Start, start_gateway, wait_ready
from support.triton import MODEL, inputs, tensor

TOPIC = "kv@worker-0@inflight-demo"
PATIENCE_MS = 30_000
PROMPT = list(range(1, 14))
#: Of 1 to 12 in blocks of four, as Dynamo's tests have them.
KEYS = [14643705804678351452, 4945711292740353085, 12583592247330656132]
SIMULATED = ("--executor=simulated", "--enable-kv-cache-reuse", "--step-us=1000")


class Listener:
    """A SUB socket, and a DEALER or REQ that asks for the past, as vLLM's consumers have them."""

    def __init__(
        self,
        process: InflightProcess,
        topic: str = "kv@",
        *,
        addresses: tuple[str, str] | None = None,
        named: str = TOPIC,
    ) -> None:
        """`addresses` are those of events and of the past; by default, those that the process announced."""
        self._context = zmq.Context()
        self._process = process
        self._named = named
        events, self._past = addresses or (process.address("kv_events"), process.address("kv_events_replay"))
        self._sub = self._context.socket(zmq.SUB)
        self._sub.connect(f"tcp://{events}")
        self._sub.setsockopt_string(zmq.SUBSCRIBE, topic)
        #: Hashes that are held at the device.
        self.held: set[int] = set()
        self.last = -1

    def events(self) -> list[dict[str, Any]]:
        """Those of the next batch."""
        assert self._sub.poll(PATIENCE_MS), f"nothing was published\n{self._process.log}"
        topic, number, payload = self._sub.recv_multipart()
        assert topic == self._named.encode()
        return self._take(number, payload)

    def hears(self) -> bool:
        """Whether something comes soon."""
        return bool(self._sub.poll(100))

    def past(self, start: int, kind: int = zmq.DEALER) -> list[list[dict[str, Any]]]:
        """The events of each batch from `start` on."""
        self.last = start - 1
        return [self._take(number, payload) for number, payload in self.ask(start, kind)]

    def ask(self, start: int, kind: int = zmq.DEALER) -> list[tuple[bytes, bytes]]:
        """The batches from `start` on, by what a REQ sends: an empty frame, and the number."""
        asking = self._context.socket(kind)
        asking.linger = 0
        asking.connect(f"tcp://{self._past}")
        question = start.to_bytes(8, "big")
        asking.send_multipart([question] if kind == zmq.REQ else [b"", question])
        answers = []
        while True:
            assert asking.poll(PATIENCE_MS), f"no answer\n{self._process.log}"
            number, payload = asking.recv_multipart()[-2:]
            if not payload:
                assert number == (-1).to_bytes(8, "big", signed=True)
                break
            answers.append((number, payload))
            if kind == zmq.REQ:
                # It takes one answer to a question.
                break
        asking.close()
        return answers

    def _take(self, number: bytes, payload: bytes) -> list[dict[str, Any]]:
        found = int.from_bytes(number, "big")
        assert found == self.last + 1 or self.last < 0, "batches are numbered one by one"
        self.last = found
        timestamp, events, rank = msgpack.unpackb(payload)
        assert abs(timestamp - time.time()) < 600
        assert rank is None
        for event in events:
            match event["type"]:
                case "BlockStored":
                    self.held |= set(event["block_hashes"])
                    assert len(event["token_ids"]) == len(event["block_hashes"]) * event["block_size"]
                case "BlockRemoved":
                    self.held -= set(event["block_hashes"])
        assert events
        return list(events)

    def close(self) -> None:
        """Ends the sockets."""
        self._sub.close(linger=0)
        self._context.term()


def start_publishing(start: Start, *arguments: str, size: int = 4) -> InflightProcess:
    """A ready worker that publishes."""
    worker = start(
        "worker",
        f"--served-model-name={MODEL_NAME}",
        "--grpc-port=0",
        "--metrics-port=0",
        "--kv-events-port=0",
        "--kv-events-replay-port=0",
        f"--kv-events-topic={TOPIC}",
        f"--tokens-per-block={size}",
        *arguments,
    )
    with triton.InferenceServerClient(worker.address("grpc")) as client:

        def is_ready() -> bool:
            try:
                return bool(client.is_server_ready())
            except triton.InferenceServerException:
                return False

        worker.wait_until("it is ready", is_ready, START_S)
    return worker


@pytest.fixture(scope="module", params=["reference", "simulated"])
def worker(request: pytest.FixtureRequest, start_for_session: Start) -> InflightProcess:
    arguments = SIMULATED if request.param == "simulated" else ("--executor=reference",)
    return start_publishing(start_for_session, *arguments)


@pytest.fixture
def listener(worker: InflightProcess) -> Iterator[Listener]:
    one = Listener(worker)
    yield one
    one.close()


def infer(worker: InflightProcess, *more: triton.InferInput, prompt: list[int] = PROMPT) -> None:
    with triton.InferenceServerClient(worker.address("grpc")) as client:
        client.infer(MODEL, [*inputs(prompt, 2), *more])


def test_a_block_is_told_with_its_tokens_and_who_missed_it_asks(
    worker: InflightProcess, listener: Listener
) -> None:
    infer(worker)
    # It may have subscribed too late: then the past has them.
    wait_until("the blocks are published", lambda: bool(listener.past(0)))
    first = next(event for batch in listener.past(0) for event in batch if KEYS[0] in event["block_hashes"])
    assert first == {
        "type": "BlockStored",
        "block_hashes": KEYS,
        "parent_block_hash": None,
        "token_ids": PROMPT[:12],
        "block_size": 4,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": None,
        "group_idx": None,
        "kv_cache_spec_kind": "full_attention",
    }
    assert listener.past(listener.last + 1) == []
    assert len(listener.past(0, zmq.REQ)) == 1


def test_listeners_of_earlier_releases_get_arrays(start: Start) -> None:
    worker = start_publishing(start, *SIMULATED, "--kv-events-form=arrays")
    listener = Listener(worker)
    infer(worker)
    wait_until("the blocks are published", lambda: bool(listener.ask(0)))
    events = [event for _, payload in listener.ask(0) for event in msgpack.unpackb(payload)[1]]
    stored = next(event for event in events if event[0] == "BlockStored" and KEYS[0] in event[1])
    assert stored[1:] == [KEYS, None, PROMPT[:12], 4, None, "GPU", None, None, None, "full_attention"]
    listener.close()


def test_what_follows_has_its_parent_and_a_salt_is_told(worker: InflightProcess, listener: Listener) -> None:
    infer(worker)
    infer(worker, prompt=[*PROMPT[:12], *[40] * 5])
    salt = "tenant \u00e9"
    infer(worker, tensor("inflight_cache_salt", [[salt]], "BYTES"))

    def stored() -> list[dict[str, Any]]:
        return [event for batch in listener.past(0) for event in batch if event["type"] == "BlockStored"]

    wait_until("the salted blocks are published", lambda: any(event["extra_keys"] for event in stored()))
    events = stored()
    follows = next(event for event in events if event["token_ids"][:4] == [40] * 4)
    assert follows["parent_block_hash"] == KEYS[2]
    salted = next(event for event in events if event["extra_keys"])
    assert salted["extra_keys"] == [[salt], None, None]
    assert salted["cache_salt"] == salt
    assert "cache_salt" not in follows
    assert salted["token_ids"] == PROMPT[:12]
    assert not set(salted["block_hashes"]) & set(KEYS)


def test_subscribers_hear_what_comes(worker: InflightProcess, listener: Listener) -> None:
    other = Listener(worker, topic="other")
    # A subscription has arrived once something is heard.
    prompts = ([number, *[50] * 4] for number in range(100, 10_000))

    def is_heard() -> bool:
        infer(worker, prompt=next(prompts))
        return listener.hears()

    wait_until("it is heard", is_heard)
    listener.events()
    prompt = [60, 61, 62, 63, 64]
    infer(worker, prompt=prompt)
    while not any(event.get("token_ids", [])[:4] == prompt[:4] for event in listener.events()):
        pass
    assert not other.hears()
    other.close()


def test_what_needs_room_removes_blocks(start: Start) -> None:
    worker = start_publishing(start, *SIMULATED, "--num-blocks=6")
    listener = Listener(worker)
    try:
        infer(worker)
        infer(worker, prompt=list(range(70, 87)))
        wait_until("all is published", lambda: bool(listener.past(0)) and KEYS[2] not in listener.held)
        removed = [event for batch in listener.past(0) for event in batch if event["type"] == "BlockRemoved"]
        assert removed[0] == {
            "type": "BlockRemoved",
            "block_hashes": removed[0]["block_hashes"],
            "medium": "GPU",
            "group_idx": None,
        }
    finally:
        listener.close()


def test_what_moves_to_the_hosts_memory_is_there_before_it_is_gone_here(start: Start) -> None:
    small = ("max_tokens_in_paged_kv_cache=40", "kv_cache_host_memory_bytes=1000000")
    options = (f"--executor-option={option}" for option in small)
    worker = start_publishing(start, "--executor=reference", *options)
    listener = Listener(worker)
    try:

        def moved() -> bool:
            events = (event for batch in listener.past(0) for event in batch)
            return any(event["type"] == "BlockStored" and event["medium"] == "CPU" for event in events)

        numbers = iter(range(100, 900, 20))

        def is_moved() -> bool:
            first = next(numbers)
            infer(worker, prompt=list(range(first, first + 20)))
            return moved()

        wait_until("blocks move", is_moved)
        places: set[tuple[str, int]] = set()
        for event in (event for batch in listener.past(0) for event in batch):
            own = {(event["medium"], key) for key in event["block_hashes"]}
            if event["type"] == "BlockStored":
                assert len(event["token_ids"]) == 4 * len(event["block_hashes"])
                places |= own
            else:
                assert own <= places
                places -= own
    finally:
        listener.close()


def test_an_adapters_blocks_have_its_name(start: Start, tmp_path: Path) -> None:
    save(tmp_path / "loud", 1)
    worker = start_publishing(start, "--executor=reference", f"--executor-option=lora_adapter_dir={tmp_path}")
    address = wait_ready(start_gateway(start, [worker]))
    listener = Listener(worker)
    try:
        ask = {"model": f"{MODEL_NAME}:loud", "prompt": PROMPT, "max_tokens": 1}
        assert post(address, "/v1/completions", ask).status == 200

        def named() -> list[dict[str, Any]]:
            return [event for batch in listener.past(0) for event in batch if event.get("lora_name")]

        wait_until("its blocks are published", lambda: bool(named()))
        assert {event["lora_name"] for event in named()} == {"loud"}
        assert named()[0]["extra_keys"] == [["loud"]] * 3
        assert named()[0]["token_ids"] == PROMPT[:12]
    finally:
        listener.close()


def test_a_gateway_hears_a_worker_as_a_server_of_another_maker(start: Start) -> None:
    worker = start_publishing(start, *SIMULATED, size=BLOCK_TOKENS)
    server = EngineServer()
    try:
        infer(worker, prompt=[80] * (4 * BLOCK_TOKENS + 1))
        gateway = start(
            "gateway",
            "--port=0",
            f"--endpoint={server.address}",
            f"--kv-events-port={worker.address('kv_events').rpartition(':')[2]}",
            f"--kv-events-replay-port={worker.address('kv_events_replay').rpartition(':')[2]}",
            "--kv-events-topic=kv@worker-0",
            "--log=info,inflight_upstream::watched=debug",
        )
        address = gateway.address("http")

        def taken() -> tuple[int, int] | None:
            found = re.findall(r"cache events taken.*named=(\d+).*unnamed=(\d+)", gateway.log)
            return (int(found[-1][0]), int(found[-1][1])) if found else None

        gateway.wait_until("the past is known", lambda: taken() == (4, 0))
        infer(worker, prompt=[*[80] * (4 * BLOCK_TOKENS), *[81] * (2 * BLOCK_TOKENS)])
        gateway.wait_until("what comes is known", lambda: taken() == (6, 0))
        workers = get(address, "/health/ready").json()["workers"]
        assert workers[0].get("cache", "") == ""
        worker.stop()
        gateway.wait_until(
            "the end is named", lambda: "ended" in str(get(address, "/health/ready").json()["workers"][0])
        )
    finally:
        server.close()


def test_serve_publishes_what_each_of_its_workers_holds(start: Start) -> None:
    serving = start(
        "serve",
        f"--served-model-name={MODEL_NAME}",
        *SIMULATED,
        "--tokens-per-block=4",
        "--replicas=2",
        "--port=0",
        "--grpc-port=0",
        "--metrics-port=0",
        "--kv-events-port=0",
        "--kv-events-replay-port=0",
        "--kv-events-topic=kv@{worker}@demo",
    )
    address = wait_ready(serving)
    names = ("worker-0", "worker-1")
    listeners = [
        Listener(
            serving,
            addresses=(announced(serving, name, "kv_events"), announced(serving, name, "kv_events_replay")),
            named=f"kv@{name}@demo",
        )
        for name in names
    ]
    try:
        prompts = ([number, *[50] * 8] for number in range(100, 10_000))
        sent: dict[int, list[int]] = {}

        def are_heard() -> bool:
            """Requests are sent until each worker got one; a subscription has arrived once one is heard."""
            prompt = next(prompts)
            sent[prompt[0]] = prompt
            body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 2}
            assert post(address, "/v1/completions", body).status == 200
            return all(one.hears() for one in listeners)

        serving.wait_until("both are heard", are_heard)
        for listener in listeners:
            assert listener.events()

        def firsts(listener: Listener) -> dict[int, list[int]]:
            """Full blocks of the prompts that the worker holds, by their first tokens."""
            events = (event for batch in listener.past(0) for event in batch)
            stored = (event for event in events if event["parent_block_hash"] is None)
            return {event["token_ids"][0]: event["token_ids"][:8] for event in stored}

        wanted = {first: prompt[:8] for first, prompt in sent.items()}
        serving.wait_until("all is published", lambda: firsts(listeners[0]) | firsts(listeners[1]) == wanted)
        assert not firsts(listeners[0]).keys() & firsts(listeners[1]).keys(), "each has what it alone holds"
    finally:
        for listener in listeners:
            listener.close()


def announced(serving: InflightProcess, name: str, kind: str) -> str:
    """What a child of `inflight serve` listens on."""
    [found] = [
        match[1]
        for line in serving.log.splitlines()
        if line.startswith(f"{name} ") and (match := ADDRESS[kind].search(line))
    ]
    return found


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--executor=simulated", "--kv-events-port=0"], "does not report its cache's blocks"),
        (["--kv-events-replay-port=0"], "needs `--kv-events-port`"),
        (["--kv-events-port=0", "--add-model=other=x"], "publishes the cache of one model"),
    ],
)
def test_what_cannot_be_published_is_refused(start: Start, arguments: list[str], says: str) -> None:
    worker = start("worker", "--grpc-port=0", "--metrics-port=0", *arguments)
    assert worker.wait() != 0
    assert says in worker.log
