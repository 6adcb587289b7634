"""A double of another maker's server, as far as a gateway watches it: its models and metrics over HTTP, and
its KV cache's events over ZeroMQ by the library that such servers use.

Names, values and messages are those of vLLM, SGLang and trtllm-serve; it computes nothing.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgpack
import zmq

PATIENCE_MS = 30_000
#: Tokens of a block, and blocks of the cache.
BLOCK_TOKENS, BLOCKS = 16, 100

METRICS = {
    "vllm": """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} {queued}.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} 0.25
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="{size}",cache_dtype="auto",enable_prefix_caching="True",engine="0",\
num_gpu_blocks="{blocks}",num_gpu_blocks_override="None",sliding_window="None"}} 1.0
""",
    "sglang": """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{model_name="{model}"}} {running}.0
sglang:num_queue_reqs{{model_name="{model}"}} {queued}.0
sglang:token_usage{{model_name="{model}"}} 0.25
sglang:cache_config_info{{num_pages="{blocks}",page_size="{size}"}} 1.0
""",
    "trtllm-serve": """\
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{{engine_type="pytorch",model_name="{model}"}} {running}.0
trtllm_num_requests_waiting{{engine_type="pytorch",model_name="{model}"}} {queued}.0
trtllm_kv_cache_utilization{{engine_type="pytorch",model_name="{model}"}} 0.25
trtllm_kv_cache_tokens_per_block{{engine_type="pytorch",model_name="{model}"}} {size}.0
trtllm_kv_cache_max_blocks{{engine_type="pytorch",model_name="{model}"}} {blocks}.0
""",
}
#: trtllm-serve has the statistics of its latest iterations there, as JSON.
METRICS_PATH = {"trtllm-serve": "/prometheus/metrics"}


class EngineServer:
    """A server of `maker` on its own port; `close` ends it, and `open` begins it again there."""

    def __init__(self, maker: str = "vllm", model: str = "other/model") -> None:
        self.maker, self.model = maker, model
        self.running, self.queued = 1, 0
        self.blocks = BLOCKS
        self.has_metrics = True
        self.port = 0
        #: While it is set, nothing is answered.
        self.hangs = threading.Event()
        self.requests: list[str] = []
        #: The bodies that were posted.
        self.posted: list[Any] = []
        self.open()

    @property
    def address(self) -> str:
        """`http://HOST:PORT`."""
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Listens, on the port that it had."""
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                double.requests.append(self.path)
                while double.hangs.is_set() and not double.is_closed:
                    threading.Event().wait(0.02)
                status, body = double.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = double.is_closed

            def do_POST(self) -> None:
                assert self.headers["Transfer-Encoding"] == "chunked"
                body = b""
                # As Envoy sends what a picker has seen.
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                double.posted.append(json.loads(body))
                answer = json.dumps({"object": "text_completion", "model": double.model}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def handle(self) -> None:
                # Whoever asked may be gone.
                with contextlib.suppress(OSError):
                    super().handle()

            def log_message(self, *_: object) -> None:
                """Stays quiet."""

        class Http(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            allow_reuse_address = True
            #: Ended with the server, as those of a process are.
            sockets: list[Any]

            def process_request(self, request: Any, client_address: Any) -> None:
                double.sockets.append(request)
                super().process_request(request, client_address)

        self.is_closed = False
        self.sockets: list[Any] = []
        self._http = Http(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Ends the server and its connections."""
        self.is_closed = True
        self._http.shutdown()
        self._http.server_close()
        for socket in self.sockets:
            with contextlib.suppress(OSError):
                socket.shutdown(2)

    def answer(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET."""
        if path == "/v1/models":
            base = {"id": self.model, "object": "model", "root": "/m", "parent": None, "max_model_len": 4096}
            adapter = {"id": "support", "object": "model", "root": "/s", "parent": self.model}
            return 200, json.dumps({"object": "list", "data": [base, adapter]}).encode()
        if self.has_metrics and path == METRICS_PATH.get(self.maker, "/metrics"):
            text = METRICS[self.maker].format(
                model=self.model,
                running=self.running,
                queued=self.queued,
                size=BLOCK_TOKENS,
                blocks=self.blocks,
            )
            return 200, text.encode()
        if self.has_metrics and path == "/metrics":
            return 200, b'[{"iter": 1, "numActiveRequests": 0}]'
        return 404, b'{"detail": "Not Found"}'


class Publisher:
    """A server's events: a PUB socket, and a ROUTER that repeats what was published.

    A PUB drops what it publishes before it has seen a subscription. An XPUB is one that says when it has.
    """

    def __init__(self, kind: int = zmq.XPUB, topic: str = "kv@127.0.0.1@other/model") -> None:
        self.kind, self.topic = kind, topic.encode()
        #: What is repeated has its topic since vLLM 0.33 or a release before.
        self.repeats_topics = True
        self.number = 0
        self.past: list[tuple[int, bytes]] = []
        self._context = zmq.Context()
        self.port, self.replay_port = 0, 0
        self.open()

    def open(self) -> None:
        """Binds, to the ports that it had."""
        self._socket = self._context.socket(self.kind)
        self._replay = self._context.socket(zmq.ROUTER)
        for socket, port in ((self._socket, self.port), (self._replay, self.replay_port)):
            socket.linger = 0
            socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.port, self.replay_port = (
            int(bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).strip(b"\0").rpartition(b":")[2])
            for socket in (self._socket, self._replay)
        )
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the sockets and their connections."""
        self._is_closed.set()
        self._thread.join()
        self._socket.close()

    def wait_for_subscriber(self) -> None:
        """Waits until what is published now is heard."""
        assert self._socket.poll(PATIENCE_MS), "nobody subscribed"
        assert self._socket.recv()[:1] == b"\x01"

    def end(self) -> None:
        """Closes, for good."""
        if not self._socket.closed:
            self.close()
        self._context.term()

    def publish(self, *events: dict[str, Any], is_lost: bool = False, payload: bytes | None = None) -> None:
        """Publishes a batch; one that is lost can only be asked for."""
        if payload is None:
            payload = msgpack.packb([1.5, list(events), None])
        self.past.append((self.number, payload))
        if not is_lost:
            self._socket.send_multipart([self.topic, self.number.to_bytes(8, "big"), payload])
        self.number += 1

    def send(self, number: int) -> None:
        """Sends a batch of the past again, where it is next."""
        (payload,) = (payload for one, payload in self.past if one == number)
        self.send_frames(number.to_bytes(8, "big"), payload)

    def send_frames(self, *frames: bytes) -> None:
        """Sends what may be no batch, under the topic."""
        self._socket.send_multipart([self.topic, *frames])

    @property
    def is_closed(self) -> bool:
        """Whether nobody can connect."""
        return bool(self._socket.closed)

    def _answer(self) -> None:
        """Repeats the past to whoever asks, as vLLM does."""
        while not self._is_closed.is_set():
            if not self._replay.poll(20):
                continue
            client, _, start = self._replay.recv_multipart()
            asked = [
                (number.to_bytes(8, "big"), payload)
                for number, payload in list(self.past)
                if number >= int.from_bytes(start, "big")
            ]
            for number, payload in [*asked, ((-1).to_bytes(8, "big", signed=True), b"")]:
                topic = [self.topic if payload else b""] if self.repeats_topics else []
                self._replay.send_multipart([client, b"", *topic, number, payload])
        self._replay.close()


def stored(first: int, count: int, parent: int | None = None) -> dict[str, Any]:
    """Blocks that the server calls `first`, `first + 1`, …, by hashes of SHA-256's length."""
    return {
        "type": "BlockStored",
        "block_hashes": [name(first + place) for place in range(count)],
        "parent_block_hash": None if parent is None else name(parent),
        "token_ids": list(range(count * BLOCK_TOKENS)),
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


def removed(first: int, count: int) -> dict[str, Any]:
    """The same blocks, gone."""
    names = [name(first + place) for place in range(count)]
    return {"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"}


def name(number: int) -> bytes:
    """A block's hash."""
    return number.to_bytes(32, "big")


@contextlib.contextmanager
def engine_server(maker: str = "vllm") -> Iterator[EngineServer]:
    """A server for as long as the block lasts."""
    server = EngineServer(maker)
    try:
        yield server
    finally:
        server.hangs.clear()
        if not server.is_closed:
            server.close()
