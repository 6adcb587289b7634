"""Compressed bodies under `/v2`: tritonclient's, at a gateway and at a worker, and what is refused."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from support.http import post
from support.servers import Start, start_gateway, start_worker, wait_ready
from support.triton import MODEL

#: Long enough for an answer that is worth compressing.
TOKENS = 200
INFER = f"/v2/models/{MODEL}/infer"
#: What a body may have at the gateway and at the worker.
LIMIT = 1 << 20


@pytest.fixture(scope="module", params=["gateway", "worker"])
def address(request: pytest.FixtureRequest, start_for_session: Start) -> str:
    """The HTTP port of either, with a limit that compressed bodies can pass."""
    worker = start_worker(start_for_session, "--http-port=0", f"--max-message-bytes={LIMIT}")
    gateway = start_gateway(start_for_session, [worker], f"--max-body-bytes={LIMIT}")
    http = wait_ready(gateway)
    return http if request.param == "gateway" else worker.address("http")


def body(**more: Any) -> bytes:
    tensors: list[tuple[str, str, list[Any]]] = [
        ("input_ids", "INT32", [40, 41, 42]),
        ("input_lengths", "INT32", [3]),
        ("request_output_len", "INT32", [TOKENS]),
    ]
    made = [
        {"name": name, "datatype": kind, "shape": [1, len(data)], "data": data}
        for name, kind, data in tensors
    ]
    return json.dumps({"inputs": made, **more}).encode()


@pytest.mark.migrates(
    "Triton",
    "`infer` of tritonclient.http with `request_compression_algorithm`, `response_compression_algorithm`",
    "`infer` of tritonclient.http with `request_compression_algorithm`, `response_compression_algorithm`",
)
@pytest.mark.parametrize("binary", [True, False], ids=["packed", "JSON"])
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_tritonclient_compresses_both_ways(address: str, algorithm: str, binary: bool) -> None:
    made = []
    for name, values in [
        ("input_ids", [40, 41, 42]),
        ("input_lengths", [3]),
        ("request_output_len", [TOKENS]),
    ]:
        one = tritonclient.http.InferInput(name, [1, len(values)], "INT32")
        one.set_data_from_numpy(np.array([values], np.int32), binary_data=binary)
        made.append(one)
    wanted = [tritonclient.http.InferRequestedOutput("output_ids", binary_data=binary)]
    with tritonclient.http.InferenceServerClient(address) as client:
        plain = client.infer(MODEL, made, outputs=wanted).as_numpy("output_ids")
        both = client.infer(
            MODEL,
            made,
            outputs=wanted,
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
    assert plain.size == 3 + TOKENS
    assert both.as_numpy("output_ids").tolist() == plain.tolist()


@pytest.mark.parametrize(("coding", "expand"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)])
def test_an_answer_is_compressed_if_its_client_takes_that(address: str, coding: str, expand: Any) -> None:
    plain = post(address, INFER, body())
    assert "content-encoding" not in plain.headers
    told = post(address, INFER, body(), {"accept-encoding": f"br, {coding};q=0.5"})
    assert (told.status, told.headers["content-encoding"]) == (200, coding)
    assert told.headers["vary"] == "accept-encoding"
    assert len(told.body) < len(plain.body)
    assert json.loads(expand(told.body)) == plain.json()
    # A failure is told as it is.
    wrong = post(address, INFER, b"{", {"accept-encoding": coding})
    assert (wrong.status, "content-encoding" in wrong.headers) == (400, False)


def test_what_a_body_expands_to_has_a_limit(address: str) -> None:
    large = gzip.compress(body(id="x" * LIMIT))
    assert len(large) < LIMIT // 100
    refused = post(address, INFER, large, {"content-encoding": "gzip"})
    assert (refused.status, "larger than the limit" in refused.json()["error"]) == (413, True)
    for content, coding, status in [
        (b"nothing", "gzip", 400),
        (gzip.compress(body())[:-9], "gzip", 400),
        (body(), "br", 415),
        (gzip.compress(gzip.compress(body())), "gzip, gzip", 415),
    ]:
        answer = post(address, INFER, content, {"content-encoding": coding})
        assert answer.status == status, (coding, answer.body)
        assert answer.json()["error"]
    assert post(address, INFER, gzip.compress(body()), {"content-encoding": "gzip"}).status == 200
