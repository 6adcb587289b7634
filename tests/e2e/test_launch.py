"""`inflight launch` with a real topology file: what it describes runs, answers, and ends together."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.http import get, post
from support.metrics import total
from support.processes import INFLIGHT, START_S, exists
from support.servers import Start

TWO_MODELS = """
models:
  - {executor: simulated, replicas: 2, grpc_port: 0, metrics_port: 0}
  - {name: other, executor: simulated, grpc_port: 0, metrics_port: 0, worker_options: {step_us: 1000}}
gateways: {replicas: 2, port: 0}
drain: {gateway_s: 3, worker_s: 3}
"""


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(INFLIGHT), *arguments], capture_output=True, text=True)


def has_all_workers(gateway: str) -> bool:
    return total(gateway, "inflight_gateway_worker_up") == 3


def test_two_models_three_workers_and_two_gateways(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(TWO_MODELS)
    launched = start("launch", str(path))
    launched.wait_until("all are ready", lambda: "Press Ctrl-C" in launched.log, START_S)
    gateways = re.findall(r"gateway-\d .*listening on http://(\S+)", launched.log)
    assert len(gateways) == 2
    for gateway in gateways:
        launched.wait_until("it has all workers", partial(has_all_workers, gateway))
        models = get(gateway, "/v1/models").json()["data"]
        assert sorted(model["id"] for model in models) == ["inflight-demo", "other"]
        body = {"model": "other", "prompt": "Hi", "max_tokens": 2}
        assert post(gateway, "/v1/completions", body).status == 200
    second = command("launch", str(path))
    assert (second.returncode, "running already" in second.stderr) == (2, True), second.stderr
    path.write_text(TWO_MODELS.replace("step_us", "steps_us"))
    assert command("launch", str(path), "--reload").returncode == 2
    assert all(has_all_workers(gateway) for gateway in gateways)
    children = launched.descendants()
    launched.send(signal.SIGTERM)
    assert launched.wait() == 0, launched.log
    assert not any(exists(pid) for pid in children)


@pytest.mark.parametrize(
    ("gateways", "message"),
    [("{options: {max_body_bytes: many}}", "max-body-bytes"), ("{options: {max_bodies: 1}}", "did you mean")],
)
def test_what_a_gateway_would_refuse_is_refused_at_once(tmp_path: Path, gateways: str, message: str) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(f"models: [{{}}]\ngateways: {gateways}")
    done = subprocess.run([str(INFLIGHT), "launch", str(path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert message in done.stderr


WITH_KEYS = """
models: [{executor: simulated, grpc_port: 0, metrics_port: 0}]
gateways: {port: 0, api_key_file: keys}
reload: {order: stop-first}
drain: {gateway_s: 3, worker_s: 3}
"""


def test_a_reload_asks_gateways_with_a_key_that_they_accept_now(start: Start, tmp_path: Path) -> None:
    path, keys = tmp_path / "topology.yaml", tmp_path / "keys"
    path.write_text(WITH_KEYS)
    keys.write_text("first\n")
    launched = start("launch", str(path))
    launched.wait_until("all are ready", lambda: "Press Ctrl-C" in launched.log, START_S)
    gateway = re.findall(r"gateway .*listening on http://(\S+)", launched.log)[0]
    keys.write_text("second\n")
    done = command("launch", str(path), "--reload")
    assert (done.returncode, done.stdout) == (0, "worker.2 replaced worker\nall were replaced\n"), done
    body = {"model": "inflight-demo", "prompt": "Hi", "max_tokens": 2}
    for key, status in (("first", 401), ("second", 200)):
        headers = {"authorization": f"Bearer {key}"}
        assert post(gateway, "/v1/completions", body, headers).status == status


WITH_GRPC = """
models: [{executor: simulated, grpc_port: 0, metrics_port: 0}]
gateways: {port: 0, options: {grpc_port: 0}}
reload: {gateways: always}
drain: {gateway_s: 5, worker_s: 3}
"""


def test_a_reload_fails_no_call_over_grpc(start: Start, tmp_path: Path) -> None:
    client: Any = pytest.importorskip("tritonclient.grpc")
    numpy: Any = pytest.importorskip("numpy")
    path = tmp_path / "topology.yaml"
    path.write_text(WITH_GRPC)
    launched = start("launch", str(path))
    launched.wait_until("all are ready", lambda: "Press Ctrl-C" in launched.log, START_S)
    address = re.findall(r"gateway .*listening on grpc://(\S+)", launched.log)[0]
    given = {"input_ids": [1, 2], "input_lengths": [2], "request_output_len": [5]}
    inputs = []
    for name, values in given.items():
        inputs.append(client.InferInput(name, [1, len(values)], "INT32"))
        inputs[-1].set_data_from_numpy(numpy.array([values], numpy.int32))
    over = threading.Event()

    def ask(keeps: bool) -> int:
        """Raises what the first call that fails raises."""
        kept, calls = client.InferenceServerClient(address), 0
        while not over.is_set():
            one = kept if keeps else client.InferenceServerClient(address)
            calls += one.infer("tensorrt_llm", inputs) is not None
        return calls

    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(ask, keeps) for keeps in (True, True, False)]
        try:
            done = command("launch", str(path), "--reload")
        finally:
            over.set()
        assert all(one.result() > 0 for one in asked)
    assert done.stdout == "worker.2 replaced worker\ngateway.2 replaced gateway\nall were replaced\n", done


def test_a_reload_changes_the_number_of_workers_and_leaves_the_others(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    text = (
        "models: [{executor: simulated, name: m, replicas: 1, grpc_port: 0, metrics_port: 0}]\n"
        "gateways: {port: 0}\ndrain: {worker_s: 3}\n"
    )
    path.write_text(text)
    launched = start("launch", str(path))
    launched.wait_until("all are ready", lambda: "Press Ctrl-C" in launched.log, START_S)
    gateway = launched.address("http")
    first = launched.descendants()
    for replicas, said in (
        (2, "worker-1 joined"),
        (3, "worker-2 joined"),
        (1, "worker-1 ended\nworker-2 ended"),
    ):
        path.write_text(text.replace("replicas: 1", f"replicas: {replicas}"))
        done = command("launch", str(path), "--reload")
        assert done.stdout.startswith(f"{said}\n"), done
        assert total(gateway, "inflight_gateway_worker_up") == replicas
        assert set(first) <= set(launched.descendants()), "what did not change was replaced"


def test_a_reload_needs_a_launch_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(TWO_MODELS)
    done = command("launch", str(path), "--reload")
    assert (done.returncode, "no `inflight launch` of this topology is running" in done.stderr) == (2, True)
    assert command("launch", str(path), "--reload", "--plan").returncode == 2


def test_the_plan_is_printed_and_nothing_is_started(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text(TWO_MODELS)
    done = subprocess.run(
        [str(INFLIGHT), "launch", str(path), "--plan", "--json"], capture_output=True, text=True, check=True
    )
    plan = json.loads(done.stdout)
    assert [process["name"] for process in plan] == [
        "worker-inflight-demo-0",
        "worker-inflight-demo-1",
        "worker-other",
        "gateway-0",
        "gateway-1",
    ]
    assert plan[3]["after"] == [process["name"] for process in plan[:3]]
    assert "--step-us=1000" in plan[2]["command"]
