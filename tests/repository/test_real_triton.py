"""The created repository on a real Triton, against our own worker and gateway on the same model."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import numpy as np
import pytest

from support import real_triton
from support.servers import Server
from support.triton import MODEL, TritonStream, inputs, tensor, tokens

PROMPT = "Hello! My favourite"
MAX_TOKENS = 16


def core_tokens(address: str, streaming: bool) -> list[int]:
    """What `tensorrt_llm` at the address generates, greedily."""
    stream = TritonStream(address)
    try:
        asked = inputs([40, 41, 42], MAX_TOKENS, streaming=streaming, exclude_input_in_output=True)
        stream.send("core", asked)
        return [id for result in stream.until_final() for id in tokens(result)]
    finally:
        stream.close()


def text(address: str, model: str, streaming: bool, **words: str) -> str:
    """What a text model at the address answers, its pieces put together."""
    stream = TritonStream(address)
    asked = [
        tensor("text_input", [[PROMPT.encode()]], "BYTES"),
        tensor("max_tokens", [[MAX_TOKENS]], "INT32"),
        tensor("exclude_input_in_output", [[True]], "BOOL"),
        tensor("stream", [[streaming]], "BOOL"),
        *(tensor(name, [[value.encode()]], "BYTES") for name, value in words.items()),
    ]
    try:
        stream.client.async_stream_infer(model, asked, request_id="text", enable_empty_final_response=True)
        pieces = [result.as_numpy("text_output") for result in stream.until_final()]
        joined: bytes = b"".join(np.ravel(piece)[0] for piece in pieces if piece is not None)
        return joined.decode()
    finally:
        stream.close()


def completion(server: Server, **options: Any) -> str:
    with server.client() as client:
        answer = client.completions.create(
            model=server.model, prompt=PROMPT, max_tokens=MAX_TOKENS, temperature=0, **options
        )
    return str(answer.choices[0].text)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_core_model_gives_our_workers_tokens(
    triton: real_triton.Triton, server: Server, streaming: bool
) -> None:
    expected = core_tokens(server.grpc, streaming)
    assert expected
    assert core_tokens(triton.grpc, streaming) == expected


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_text_is_the_gateways(
    triton: real_triton.Triton, server: Server, model: str, streaming: bool
) -> None:
    expected = completion(server)
    assert expected
    assert text(triton.grpc, model, streaming) == expected


@pytest.mark.parametrize("streaming", [False, True])
def test_bls_stops_where_the_gateway_does(
    triton: real_triton.Triton, server: Server, streaming: bool
) -> None:
    whole = completion(server)
    stop = whole[len(whole) // 2 :][:2]
    expected = completion(server, stop=[stop])
    assert expected != whole
    assert text(triton.grpc, "tensorrt_llm_bls", streaming, stop_words=stop) == expected


@pytest.mark.migrates(
    "tensorrtllm_backend",
    "cp -r all_models/inflight_batcher_llm/* REPO; fill_template.py …; tritonserver --model-repository=REPO",
    "inflight repository create MODEL --output REPO; tritonserver --model-repository=REPO",
)
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_generate_over_http(triton: real_triton.Triton, server: Server, model: str) -> None:
    body = {"text_input": PROMPT, "max_tokens": MAX_TOKENS, "exclude_input_in_output": True}
    request = urllib.request.Request(
        f"http://{triton.http}/v2/models/{model}/generate", data=json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.loads(answer.read())["text_output"] == completion(server)


def test_a_bad_request_is_refused_by_name(triton: real_triton.Triton) -> None:
    stream = TritonStream(triton.grpc)
    try:
        stream.client.async_stream_infer(MODEL, inputs([40], 0), enable_empty_final_response=True)
        _, error = stream.next()
        assert "`request_output_len` has value `0`, expected at least 1" in str(error)
    finally:
        stream.close()
