"""A live system for those who watch: gateways, workers, clients of every kind, and faults. Owns what runs and
what goes wrong; what monitoring makes of it is the tests'.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from support.http import Stream, post, stream
from support.metrics import total
from support.processes import InflightProcess
from support.servers import MODEL_ARGUMENTS, MODEL_NAME, Start, start_gateway, start_worker, wait_ready

#: Two simulated workers serve it, and a spare one; one worker serves each other.
PACED, NARROW = "paced", "narrow"
#: Tokens that the cache of the narrow worker holds, a little more than one request has.
ROOM = 4096
#: What a paced worker takes: four requests at once, and hardly any that wait.
FEW = ("--max-batch-size=4", "--max-queue-wait-s=0.01")
#: An answer of forty seconds.
LONG = {"model": PACED, "prompt": "Count", "max_tokens": 4000, "ignore_eos": True}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 24}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@dataclass
class Watched:
    """A system that runs."""

    #: Before all workers.
    gateway: str
    #: Before one of the paced workers: takes two requests at once, and none continues elsewhere.
    strict: str
    #: Before that paced worker and a spare one, which takes whatever the other gives up.
    moving: str
    gateways: tuple[InflightProcess, ...]
    workers: dict[str, InflightProcess]
    #: Of further workers of the gateway, of which there are none.
    file: Path
    _stopped: threading.Event = field(default_factory=threading.Event)
    _clients: list[threading.Thread] = field(default_factory=list)
    _held: list[Stream] = field(default_factory=list)

    @property
    def jobs(self) -> dict[str, list[str]]:
        """What Prometheus scrapes."""
        metrics = [worker.address("metrics") for worker in self.workers.values()]
        return {"inflight-gateway": [self.gateway, self.strict, self.moving], "inflight-worker": metrics}

    def begin(self, request: Callable[[], object], pause_s: float = 0.2) -> None:
        """A client that repeats a request, whatever becomes of it."""

        def client() -> None:
            while not self._stopped.wait(pause_s):
                # Servers are killed under it.
                with contextlib.suppress(OSError, HTTPException):
                    request()

        thread = threading.Thread(target=client, daemon=True)
        thread.start()
        self._clients.append(thread)

    def stop(self) -> None:
        """Ends everything; answers that clients wait for end with their gateways."""
        self._stopped.set()
        for process in (*self.gateways, *self.workers.values()):
            process.kill()
        for client in self._clients:
            client.join(60)
        for answer in self._held:
            answer.close()

    def read(self, address: str, body: dict[str, Any]) -> None:
        """A streamed completion, read to its end, whatever that is."""
        answer = stream(address, "/v1/completions", body)
        try:
            answer.rest()
        finally:
            answer.close()

    def begin_traffic(self) -> None:
        """Requests of every kind: streamed and whole, with calls, embeddings, over KServe, and wrong ones."""
        question = [{"role": "user", "content": "What is the weather in Paris?"}]
        call = {"model": MODEL_NAME, "messages": question, "tools": [WEATHER], "max_tokens": 64}
        paced = {"model": PACED, "prompt": "Count to ten", "ignore_eos": True}
        text = {"text_input": "hello world", "max_tokens": 8}
        lengths = random.Random(7)
        for path, body in (
            ("/v1/chat/completions", {**call, "temperature": 0}),
            ("/v1/chat/completions", {"model": MODEL_NAME, "messages": question, "max_tokens": 24}),
            ("/v1/embeddings", {"model": MODEL_NAME, "input": "hello"}),
            ("/v1/messages", {"model": MODEL_NAME, "messages": question, "max_tokens": 8}),
            ("/v1/responses", {"model": MODEL_NAME, "input": "Tell me a joke", "max_output_tokens": 16}),
            ("/v1/completions", {**paced, "max_tokens": 20}),
            ("/v1/completions", {**paced, "max_tokens": -1}),
            ("/v1/completions", {**paced, "model": "nobody"}),
            (f"/v2/models/{MODEL_NAME}:ensemble/generate", text),
            (f"/v2/models/{MODEL_NAME}:ensemble/generate_stream", text),
        ):
            self.begin(lambda path=path, body=body: post(self.gateway, path, body), 0.5)  # type: ignore[misc]
        for _ in range(3):
            self.begin(lambda: self.read(self.gateway, {**paced, "max_tokens": lengths.randint(10, 60)}), 0.1)

    def fill_the_strict_gateway(self) -> None:
        """Two long answers hold its places; the rest is refused."""
        for _ in range(2):
            self.begin(lambda: self.read(self.strict, LONG))
        for _ in range(3):
            self.begin(lambda: post(self.strict, "/v1/completions", {**LONG, "max_tokens": 1}), 0.05)

    def fill_the_narrow_worker(self) -> None:
        """Each request takes its whole cache for eleven seconds, and the next one waits."""
        body = {"model": NARROW, "prompt": [5] * (ROOM - 40), "max_tokens": 38, "ignore_eos": True}
        for _ in range(2):
            self.begin(lambda: self.read(self.gateway, body))

    def hold_an_answer(self) -> bool:
        """Begins one that takes forty seconds; whether the first worker gives one such."""
        answer = stream(self.moving, "/v1/completions", LONG)
        self._held.append(answer)
        if answer.status == 200:
            next(answer.events())
        first = self.workers["first"].address("grpc")
        return total(self.moving, "inflight_gateway_worker_active", f'worker="{first}"') >= 1

    def spoil_the_file(self) -> None:
        """The file of further workers is no such file any more."""
        self.file.write_text("no address\n")

    def cut_answers(self) -> None:
        """Answers that have begun and take longer than their clients allow."""
        body = {"model": PACED, "prompt": "Count", "max_tokens": 500, "ignore_eos": True, "stream": True}
        late = {"x-request-timeout-ms": "400"}
        for _ in range(3):
            self.begin(lambda: post(self.gateway, "/v1/completions", body, late))


@contextlib.contextmanager
def watched(start: Start) -> Iterator[Watched]:
    """Starts one, healthy and without clients; ends its clients."""
    arguments = (f"--served-model-name={PACED}", "--step-us=10000")
    paced = [start_worker(start, *arguments, *FEW) for _ in range(2)]
    spare = start_worker(start, *arguments)
    narrow = start_worker(
        start,
        f"--served-model-name={NARROW}",
        *("--step-us=300000", "--max-batch-size=1", "--max-queue-wait-s=60", f"--max-seq-len={ROOM}"),
        f"--num-blocks={ROOM // 32 + 1}",
    )
    demo = start(
        "worker",
        *MODEL_ARGUMENTS,
        f"--served-model-name={MODEL_NAME}",
        *("--grpc-port=0", "--metrics-port=0"),
    )
    workers = {"first": paced[0], "second": paced[1], NARROW: narrow, "demo": demo}
    every = {**workers, "spare": spare}
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "workers"
        file.write_text("# None.\n")
        gateway = start_gateway(start, list(workers.values()), f"--worker-file={file}")
        strict = start_gateway(start, [paced[0]], "--max-concurrent-requests=2", "--max-resumes=0")
        moving = start_gateway(start, [paced[0], spare])
        gateways = (gateway, strict, moving)
        first, second, third = map(wait_ready, gateways)
        system = Watched(first, second, third, gateways, every, file)
        try:
            yield system
        finally:
            system.stop()
