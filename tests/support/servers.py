"""Servers and workers for tests: how each is started and when it is ready. Fixtures are `conftest`'s.

Ports are the system's choice. `INFLIGHT_TEST_MODEL` names a checkpoint directory to run the tests on in
place of the embedded model.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import openai

from support.http import get
from support.processes import START_S, InflightProcess

#: Never sent to a server that asks for none; the OpenAI client wants one.
NO_KEY = "unused"
#: The directory of the model under test, `None` for the embedded one.
MODEL = os.environ.get("INFLIGHT_TEST_MODEL")
MODEL_ARGUMENTS = () if MODEL is None else (MODEL,)
MODEL_NAME = "inflight-demo"


def openai_client(address: str, **options: object) -> openai.OpenAI:
    """An OpenAI client that never retries, since a test wants the first answer. It is closed when it goes.

    By itself it closes its connections in `__del__`. The garbage collector may get to their sockets before
    that, and then whichever test runs at that moment fails for a socket that was left open.
    """
    settings = {"api_key": NO_KEY, "max_retries": 0, "timeout": 60.0, **options}
    client = openai.OpenAI(base_url=f"http://{address}/v1", **settings)  # type: ignore[arg-type]
    weakref.finalize(client, client._client.close)
    return client


@dataclass(frozen=True)
class Server:
    """A gateway that is ready, and the worker behind it."""

    http: str
    grpc: str
    metrics: str
    model: str

    def client(self, **options: object) -> openai.OpenAI:
        """An `openai_client` of its gateway."""
        return openai_client(self.http, **options)


#: Starts `inflight ARGUMENTS` for as long as the test or session lasts.
Start = Callable[..., InflightProcess]


def wait_ready(process: InflightProcess) -> str:
    """The HTTP address of a gateway or server once it is ready."""
    address = process.address("http")

    def is_ready() -> bool:
        try:
            return get(address, "/health/ready").status == 200
        except OSError:
            return False

    process.wait_until("it is ready", is_ready, START_S)
    return address


def start_worker(start: Start, *arguments: str) -> InflightProcess:
    """A simulated worker under the model's tokenizer."""
    return start(
        "worker",
        *MODEL_ARGUMENTS,
        f"--served-model-name={MODEL_NAME}",
        "--executor=simulated",
        "--grpc-port=0",
        "--metrics-port=0",
        *arguments,
    )


def start_gateway(start: Start, workers: list[InflightProcess], *arguments: str) -> InflightProcess:
    """A gateway in front of `workers`; not waited for."""
    addresses = [f"--worker={worker.address('grpc')}" for worker in workers]
    return start("gateway", "--port=0", *addresses, *arguments)


def serve_simulated(start: Start, *worker_arguments: str) -> Server:
    """A simulated worker with a gateway in front."""
    worker = start_worker(start, *worker_arguments)
    gateway = start_gateway(start, [worker])
    return Server(wait_ready(gateway), worker.address("grpc"), worker.address("metrics"), MODEL_NAME)
