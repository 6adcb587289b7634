"""TLS under real clients: on the ports of gateway and worker, between the two, with files that change."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import openai
import pytest
import tritonclient.grpc
from openai.types.chat import ChatCompletionUserMessageParam
from tritonclient.utils import InferenceServerException

from support.authority import Authority, make_authority
from support.http import get
from support.processes import InflightProcess, wait_until
from support.servers import MODEL_NAME, Start, start_gateway, start_worker
from support.triton import MODEL, inputs, tokens

PROMPT = [40, 41, 42, 43]
QUESTION: ChatCompletionUserMessageParam = {"role": "user", "content": "What is machine learning?"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return make_authority(tmp_path)


def of_port(files: tuple[Path, Path]) -> list[str]:
    certificate, key = files
    return [f"--tls-certificate={certificate}", f"--tls-key={key}"]


def port_of(process: InflightProcess, kind: str) -> int:
    return int(process.address(kind).rpartition(":")[2])


def curl(authority: Authority, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["curl", "-sS", "--max-time", "20", "--cacert", str(authority.ca), *options, url]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def openai_client(authority: Authority, port: int) -> openai.OpenAI:
    trusted = ssl.create_default_context(cafile=str(authority.ca))
    return openai.OpenAI(
        base_url=f"https://localhost:{port}/v1",
        api_key="unused",
        max_retries=0,
        http_client=openai.DefaultHttpxClient(verify=trusted),
    )


def says(process: InflightProcess, words: str) -> bool:
    return words in process.log


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    def ask() -> bool:
        try:
            return is_so()
        except (OSError, InferenceServerException):
            return False

    wait_until(what, ask)


def test_clients_use_a_gateway_over_tls(start: Start, authority: Authority) -> None:
    worker = start_worker(start)
    gateway = start_gateway(start, [worker], "--grpc-port=0", *of_port(authority.issue("gateway")))
    port = port_of(gateway, "http")
    base = f"https://localhost:{port}"
    wait_for("it is ready", lambda: curl(authority, f"{base}/health/ready", "-f").returncode == 0)
    with openai_client(authority, port) as client:
        whole = client.chat.completions.create(
            model=MODEL_NAME, messages=[QUESTION], max_tokens=8, temperature=0
        )
        stream = client.chat.completions.create(
            model=MODEL_NAME, messages=[QUESTION], max_tokens=8, temperature=0, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert whole.choices[0].message.content
    assert "".join(pieces) == whole.choices[0].message.content
    # Both versions of HTTP, as the client chooses.
    for version, name in (("--http1.1", "1.1"), ("--http2", "2")):
        asked = curl(authority, f"{base}/v1/models", version, "-o", "/dev/null", "-w", "%{http_version}")
        assert (asked.returncode, asked.stdout) == (0, name), asked
    # Who does not know the authority, or forgets the `s`, is told.
    stranger = subprocess.run(["curl", "-sS", f"{base}/v1/models"], capture_output=True, check=False)
    assert stranger.returncode == 60
    refused = get(f"localhost:{port}", "/v1/models")
    assert (refused.status, b"HTTPS" in refused.body) == (400, True)
    # KServe's port speaks it, too.
    grpc = f"localhost:{port_of(gateway, 'grpc')}"
    with tritonclient.grpc.InferenceServerClient(
        grpc, ssl=True, root_certificates=str(authority.ca)
    ) as triton:
        made = inputs(PROMPT, 6, exclude_input_in_output=True, runtime_top_k=1)
        assert len(tokens(triton.infer(MODEL, made))) == 6


def test_a_worker_takes_only_who_has_a_certificate(
    start: Start, authority: Authority, tmp_path: Path
) -> None:
    clients = make_authority(tmp_path / "clients")
    worker = start_worker(
        start, "--http-port=0", *of_port(authority.issue("worker")), f"--tls-client-ca={clients.ca}"
    )
    address = f"localhost:{port_of(worker, 'grpc')}"
    certificate, key = clients.issue("gateway", "gateway.example")
    own = [f"--upstream-certificate={certificate}", f"--upstream-key={key}"]
    trust = f"--upstream-ca={authority.ca}"
    common = ["gateway", "--port=0", f"--worker=https://{address}"]
    good = start(*common, trust, *own)
    wait_for("it is ready", lambda: get(good.address("http"), "/health/ready").status == 200)
    client = openai.OpenAI(base_url=f"http://{good.address('http')}/v1", api_key="unused", max_retries=0)
    with client:
        answer = client.completions.create(model=MODEL_NAME, prompt="One", max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    # The server's metrics stay plain, for probes.
    assert get(worker.address("metrics"), "/health/ready").status == 200
    for options, said in (
        (own, "`--upstream-ca`"),
        ([trust], "ertificate"),
        ([trust, *own, "--upstream-server-name=other.example"], "`--upstream-server-name`"),
    ):
        gateway = start(*common, *options)
        gateway.wait_until("it says why", partial(says, gateway, said))
        assert get(gateway.address("http"), "/health/ready").status == 503
    with (
        pytest.raises(InferenceServerException),
        tritonclient.grpc.InferenceServerClient(
            address, ssl=True, root_certificates=str(authority.ca)
        ) as stranger,
    ):
        stranger.is_server_live()


def test_certificates_are_read_again(start: Start, authority: Authority, tmp_path: Path) -> None:
    worker = start_worker(start)
    files = authority.issue("gateway")
    gateway = start_gateway(start, [worker], *of_port(files))
    url = f"https://localhost:{port_of(gateway, 'http')}/health/live"
    assert curl(authority, url, "-f").returncode == 0
    new = make_authority(tmp_path / "new")
    for old_file, new_file in zip(files, new.issue("gateway"), strict=True):
        new_file.rename(old_file)
    wait_for("the new certificate is used", lambda: curl(new, url, "-f").returncode == 0)
    assert curl(authority, url, "-f").returncode == 60
    # A key of another: what was there stays.
    files[1].write_bytes(new.own.issue_cert("localhost").private_key_pem.bytes())

    def is_told() -> bool:
        assert curl(new, url, "-f").returncode == 0
        return "does not belong to the certificate" in gateway.log

    wait_for("the mistake is told", is_told)


def test_serve_speaks_tls_in_front_of_its_own_worker(start: Start, authority: Authority) -> None:
    process = start(
        "serve",
        "--executor=simulated",
        "--port=0",
        "--grpc-port=0",
        "--metrics-port=0",
        *of_port(authority.issue("gateway")),
    )
    process.wait_until("it is ready", lambda: "Inflight serves" in process.log)
    url = f"https://localhost:{port_of(process, 'http')}/v1/models"
    assert f"https://127.0.0.1:{port_of(process, 'http')}/v1" in process.log
    assert MODEL_NAME in curl(authority, url, "-f").stdout


@pytest.mark.parametrize("command", ["gateway", "worker"])
def test_files_that_do_not_fit_are_named(start: Start, authority: Authority, command: str) -> None:
    certificate, _ = authority.issue("one")
    _, key = authority.issue("two")
    options = ["--port=0", "--worker=127.0.0.1:1"]
    if command == "worker":
        options = ["--executor=simulated", "--grpc-port=0", "--metrics-port=0"]
    process = start(command, *options, *of_port((certificate, key)))
    assert process.wait() != 0
    assert f"the key in `{key}` does not belong to the certificate in `{certificate}`" in process.log
