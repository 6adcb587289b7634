"""A worker whose model takes long to load: everybody who asks hears that it lives, and what it does."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from support.http import get, post
from support.processes import InflightProcess, wait_until
from support.servers import MODEL_ARGUMENTS, MODEL_NAME, Start

#: Runs `inflight` with an executor that takes its time; the rest is real.
SLOW = """
import sys, time
from inflight import executors
from inflight.__main__ import main
create = executors.create
_, seconds, *sys.argv = sys.argv
executors.create = lambda *arguments: (time.sleep(float(seconds)), create(*arguments))[1]
sys.exit(main())
"""
#: The same, with weights that come slowly.
SLOW_WEIGHTS = """
import sys, time
from inflight.__main__ import main
from inflight.executors.reference.model.weights import CheckpointWeights
raw = CheckpointWeights.raw
_, seconds, *sys.argv = sys.argv
CheckpointWeights.raw = lambda self, name: (time.sleep(float(seconds)), raw(self, name))[1]
sys.exit(main())
"""
STAGE = f"the executor `reference` loads {MODEL_NAME}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def health(address: str) -> tuple[int, dict[str, Any]]:
    try:
        found = get(address, "/health/ready")
    except OSError:
        return 0, {}
    return found.status, found.json()


def start_slowly(
    start: Start, directory: Path, seconds: float, script: str = SLOW
) -> tuple[InflightProcess, str, str]:
    """A worker that loads for so long, and its addresses, which it announces only afterwards."""
    path = directory / "slow.py"
    path.write_text(script)
    grpc, metrics = free_port(), free_port()
    worker = start(
        "worker",
        *MODEL_ARGUMENTS,
        f"--served-model-name={MODEL_NAME}",
        f"--grpc-port={grpc}",
        f"--metrics-port={metrics}",
        launcher=(sys.executable, str(path), str(seconds)),
    )
    address = f"127.0.0.1:{metrics}"
    worker.wait_until("it loads", lambda: health(address)[1].get("stage") == STAGE)
    return worker, f"127.0.0.1:{grpc}", address


def test_the_stage_of_a_loading_worker_is_seen_at_the_worker_and_at_the_gateway(
    start: Start, tmp_path: Path
) -> None:
    client: Any = pytest.importorskip("tritonclient.grpc")
    from tritonclient.utils import InferenceServerException

    worker, grpc, metrics = start_slowly(start, tmp_path, 8)
    status, body = health(metrics)
    assert (status, body["status"]) == (503, "loading")
    assert 0 <= body["seconds"] <= 8
    assert (get(metrics, "/health/live").status, get(metrics, "/metrics").status) == (200, 503)
    with pytest.raises(InferenceServerException) as raised:
        client.InferenceServerClient(grpc).is_server_ready()
    assert raised.value.status() == "StatusCode.UNAVAILABLE"
    assert f"the model is loading: {STAGE}" in str(raised.value)
    gateway = start("gateway", f"--worker={grpc}", "--port=0").address("http")

    def reason() -> str:
        return str(health(gateway)[1]["workers"][0]["reason"])

    wait_until("the gateway knows", lambda: reason() == f"the model is loading: {STAGE}")
    asked = {"model": MODEL_NAME, "prompt": "Hi", "max_tokens": 2}
    assert (health(gateway)[0], post(gateway, "/v1/completions", asked).status) == (503, 503)
    assert "listening on" not in worker.log
    assert worker.address("grpc") == grpc
    wait_until("it is ready", lambda: health(metrics) == (200, {"status": "ready"}))
    wait_until("the gateway is ready", lambda: health(gateway)[0] == 200)
    assert (post(gateway, "/v1/completions", asked).status, get(metrics, "/metrics").status) == (200, 200)


def test_a_worker_says_how_much_it_has_read_and_ends_when_it_is_asked_to(
    start: Start, tmp_path: Path
) -> None:
    worker, _, metrics = start_slowly(start, tmp_path, 1.1, SLOW_WEIGHTS)
    progress = re.compile(rf"{STAGE}: (\d+) % of \d+\.\d MiB read")
    worker.wait_until(
        "it tells", lambda: progress.fullmatch(str(health(metrics)[1].get("stage"))) is not None
    )
    found = progress.fullmatch(health(metrics)[1]["stage"])
    assert found is not None
    assert 5 <= int(found[1]) < 100
    assert worker.stop() != 0
    assert health(metrics) == (0, {})
