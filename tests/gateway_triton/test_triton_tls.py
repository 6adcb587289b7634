"""A Triton that speaks gRPC over TLS alone, and only with clients that have a certificate."""

from __future__ import annotations

from pathlib import Path

from support import real_triton
from support.authority import make_authority
from support.fronted import CREATED, NEIGHBOURS, ask, create
from support.servers import Server, Start, wait_ready


def test_the_gateway_shows_its_certificate_and_checks_tritons(
    start: Start, tmp_path: Path, model_directory: Path
) -> None:
    servers, clients = make_authority(tmp_path / "servers"), make_authority(tmp_path / "clients")
    certificate, key = servers.issue("triton")
    own, own_key = clients.issue("gateway", "gateway.example")
    repository = create(model_directory, tmp_path / "repository")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    triton = real_triton.start(
        repository,
        scratch,
        [*CREATED, *NEIGHBOURS],
        options=[
            "--grpc-use-ssl=true",
            "--grpc-use-ssl-mutual=true",
            f"--grpc-server-cert={certificate}",
            f"--grpc-server-key={key}",
            f"--grpc-root-cert={clients.ca}",
        ],
    )
    try:
        process = start(
            "gateway",
            "--port=0",
            f"--worker=https://{triton.grpc}",
            f"--upstream-ca={servers.ca}",
            f"--upstream-certificate={own}",
            f"--upstream-key={own_key}",
            "--upstream-server-name=localhost",
            f"--tokenizer={model_directory}",
        )
        server = Server(wait_ready(process), triton.grpc, triton.metrics, "")
        told = ask(server, "tensorrt_llm", True, prompt="Once upon a time", max_tokens=4)
        assert told.usage is not None
        assert told.usage[1] == 4
    finally:
        triton.stop()
