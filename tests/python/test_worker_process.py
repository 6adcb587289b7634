"""Workers as processes over Python executors: what crosses the seam, and how a worker ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from inflight._native import EXIT_EXECUTOR_FAILED

#: An executor that answers every request at once with its max_tokens tokens, and prints it.
EXECUTOR = """
import queue, struct, sys, time
from inflight import _native
from inflight.executors.base import ModelInfo, ResponseBatch

class Executor:
    def __init__(self):
        self.requests = queue.SimpleQueue()
    def info(self):
        return ModelInfo("test", 300, 128, 127, 8, 128, 1, 32, {capabilities!r})
    def enqueue(self, requests):
        for request in requests:
            print(request, flush=True)
            self.requests.put(request)
    def cancel(self, client_ids):
        pass
    def await_responses(self, timeout_s):
        try:
            request = self.requests.get(timeout=timeout_s)
        except queue.Empty:
            return ResponseBatch()
        count = request.max_tokens
        return ResponseBatch(
            client_ids=struct.pack("<Q", request.client_id),
            sequence_index=struct.pack("<i", 0),
            token_offsets=struct.pack("<2I", 0, count),
            token_ids=struct.pack("<i", 65) * count,
            finish_reasons=b"\\3",
            finals=b"\\1",
        )
    def stats(self):
        return [{{"iter": 5, "maxNumActiveRequests": 8, "cpuMemUsage": 4096, "unknownKey": 1}}]
    def shutdown(self):
        print("shut down", flush=True)

{override}
options = _native.WorkerOptions(**{options!r})
sys.exit(_native.serve_worker(Executor(), options))
"""

CAPABILITIES = ("penalties", "min_tokens", "bad_words", "embedding_bias", "min_p", "log_probs")


class Worker:
    """A worker process and where it listens."""

    def __init__(self, override: str = "", **options: object) -> None:
        ports = {"grpc_port": 0, "metrics_port": 0}
        script = EXECUTOR.format(override=override, options={**ports, **options}, capabilities=CAPABILITIES)
        self.process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def read_until(self, pattern: str) -> re.Match[str]:
        """Reads standard output up to the line that holds `pattern`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.search(pattern, line)
            if found:
                return found
        raise AssertionError(f"no line with `{pattern}`; standard error: {self.finish()[2]}")

    def finish(self) -> tuple[int, str, str]:
        """Waits for its end: exit code, rest of standard output, standard error."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@contextmanager
def running(override: str = "", **options: object) -> Iterator[Worker]:
    worker = Worker(override, **options)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.finish()


def tensor(name: str, kind: str, *values: float) -> triton.InferInput:
    numpy_kind = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "BOOL": np.bool_}[kind]
    data: Any = np.array([values], dtype=numpy_kind)
    given = triton.InferInput(name, list(data.shape), kind)
    given.set_data_from_numpy(data)
    return given


def test_a_request_arrives_with_every_field_under_its_name() -> None:
    with running() as worker:
        address = worker.read_until(r"listening on grpc://(\S+)")[1]
        # The first request is the worker's own: one token that proves readiness.
        worker.read_until(r"Request\(client_id=\d+, .*max_tokens=1,")
        client = triton.InferenceServerClient(address)
        wait_until_ready(client)
        answer = client.infer(
            "tensorrt_llm",
            [
                tensor("input_ids", "INT32", 11, 12, 13),
                tensor("input_lengths", "INT32", 3),
                tensor("request_output_len", "INT32", 2),
                tensor("end_id", "INT32", 2),
                tensor("pad_id", "INT32", 0),
                tensor("runtime_top_k", "INT32", 4),
                tensor("runtime_top_p", "FP32", 0.5),
                tensor("temperature", "FP32", 0.25),
                tensor("repetition_penalty", "FP32", 1.5),
                tensor("min_tokens", "INT32", 1),
                tensor("seed", "UINT64", 2**63 + 1),
                tensor("return_log_probs", "BOOL", 0),
            ],
        )
        line = worker.read_until(r"Request\(client_id=\d+, .*")[0]
        client.close()
    for field in (
        "input_token_ids=[11, 12, 13]",
        "max_tokens=2",
        "streaming=False",
        "end_id=2",
        "pad_id=0",
        "top_k=4",
        "top_p=0.5",
        "temperature=0.25",
        "repetition_penalty=1.5",
        "min_tokens=1",
        f"seed={2**63 + 1}",
        "beam_width=1",
        "num_return_sequences=1",
        "presence_penalty=None",
        "return_log_probs=False",
        "stop_words=[]",
        "embedding_bias=b''",
    ):
        assert field in line
    assert answer.as_numpy("output_ids").flatten().tolist()[-2:] == [65, 65]


def wait_until_ready(client: triton.InferenceServerClient) -> None:
    # The canary's row is on its way; each question is one round trip, so this ends soon or never.
    for _ in range(10_000):
        if client.is_server_ready():
            return
    raise AssertionError("the worker never became ready")


def test_iteration_statistics_reach_the_metrics() -> None:
    with running() as worker:
        url = worker.read_until(r"metrics on (\S+)")[1]
        text = urllib.request.urlopen(url, timeout=30).read().decode()
    assert re.search(r'request_type="max"\} 8\n', text)
    assert re.search(r'memory_type="cpu"\} 4096\n', text)


def test_a_signal_shuts_the_executor_down_and_ends_with_zero() -> None:
    with running() as worker:
        worker.read_until("listening on grpc://")
        worker.process.send_signal(signal.SIGTERM)
        code, out, _ = worker.finish()
    assert code == 0
    assert out.endswith("shut down\n")


@pytest.mark.parametrize("option", ["grpc_port", "metrics_port"])
def test_a_port_that_was_taken_meanwhile_still_ends_the_executor(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(host="127.0.0.1", **{option: port}) as worker:
            code, out, err = worker.finish()
    assert code == 1
    assert code != EXIT_EXECUTOR_FAILED
    assert out == "shut down\n"
    assert f"127.0.0.1:{port}" in err


def test_a_second_signal_ends_at_once() -> None:
    stuck = (
        "def stuck(self):\n    print('stuck', flush=True)\n    time.sleep(3600)\nExecutor.shutdown = stuck"
    )
    with running(stuck) as worker:
        worker.read_until("listening on grpc://")
        worker.process.send_signal(signal.SIGINT)
        worker.read_until("stuck")
        worker.process.send_signal(signal.SIGINT)
        code, _, _ = worker.finish()
    assert code == 128 + signal.SIGINT


@pytest.mark.parametrize("method", ["enqueue", "await_responses"])
def test_an_exception_ends_the_worker_and_is_logged_once(method: str) -> None:
    broken = (
        "def broken(self, argument):\n"
        "    def inner(): raise ValueError('the engine is gone')\n"
        "    inner()\n"
        f"Executor.{method} = broken"
    )
    with running(broken) as worker:
        code, _, err = worker.finish()
    assert code == EXIT_EXECUTOR_FAILED
    assert f"`{method}` raised ValueError: the engine is gone" in err
    assert err.count("in inner") == 1


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ("ResponseBatch(client_ids=b'123')", "column `client_ids` has 3 bytes"),
        ("ResponseBatch(client_ids=bytes(8))", "column `inflight_sequence_index` has 0 values, expected 1"),
        ("ResponseBatch(client_ids=[1])", "column `client_ids` is `list`, expected `bytes`"),
        ("None", "AttributeError: 'NoneType' object has no attribute 'client_ids'"),
    ],
)
def test_a_malformed_batch_ends_the_worker_by_name(batch: str, text: str) -> None:
    with running(f"Executor.await_responses = lambda self, timeout_s: {batch}") as worker:
        code, _, err = worker.finish()
    assert code == EXIT_EXECUTOR_FAILED
    assert text in err


def test_an_executor_without_info_is_an_ordinary_exception() -> None:
    with running("Executor.info = lambda self: None") as worker:
        code, _, err = worker.finish()
    assert code == 1
    assert "AttributeError: 'NoneType' object has no attribute" in err


def test_a_port_that_was_taken_meanwhile_is_told() -> None:
    with running() as first:
        port = int(first.read_until(r"listening on grpc://\S+:(\d+)")[1])
        override = (
            "chosen = _native.WorkerOptions\n"
            f"_native.WorkerOptions = lambda **o: chosen(**{{**o, 'grpc_port': {port}}})"
        )
        with running(override) as second:
            code, _, err = second.finish()
    assert code == 1
    assert f"cannot listen on `127.0.0.1:{port}`" in err


@pytest.mark.parametrize(
    "call",
    [
        "_native.gateway_main(['inflight gateway', '--help'])",
        "_native.bench_main(['inflight bench', '--help'])",
        "_native.serve_simulated_worker(_native.WorkerOptions(), _native.SimulatedOptions())",
    ],
)
def test_a_forked_child_is_told_to_start_anew(call: str) -> None:
    script = (
        "import os\n"
        "from inflight import _native\n"
        "child = os.fork()\n"
        "if child:\n"
        "    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        f"try: {call}\n"
        "except RuntimeError as error: print(error, flush=True); os._exit(7)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert "start a new process instead" in done.stdout


def test_a_child_dies_with_its_supervisor() -> None:
    # The middle process starts a child as `inflight serve` does and is killed before it can act.
    child = (
        "import os, time; from inflight.launch.process import die_with_parent; die_with_parent(); "
        "print(os.getpid(), flush=True); time.sleep(3600)"
    )
    middle = (
        "import os, subprocess, sys, time\n"
        "environment = {**os.environ, 'INFLIGHT_PARENT_PID': str(os.getpid())}\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], env=environment, start_new_session=True)\n"
        "time.sleep(3600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", middle], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    os.kill(pid, 0)
    process.kill()
    process.wait(timeout=60)
    # The child holds the other end of the pipe: it is closed when the child is gone.
    assert process.stdout.read() == ""
    process.stdout.close()
