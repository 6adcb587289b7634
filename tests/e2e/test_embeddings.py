"""`/v1/embeddings` with OpenAI's client on `inflight serve`, compared with the model's own hidden states."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt
import openai
import pytest
import tritonclient.grpc as grpc

from inflight.executors.reference.numpy.batch import Span, build_batch
from inflight.executors.reference.numpy.cache import PagedCache
from inflight.executors.reference.numpy.model import load_model
from inflight.launch.model import find_model
from support.http import post
from support.metrics import total
from support.servers import MODEL_NAME, Server

TEXTS = ["Machine learning is fun.", "Grüße, 🦀!", "a"]
Vectors = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def hidden() -> Any:
    """The final hidden states of a prompt, from one pass through the model."""
    model = load_model(find_model(None, None, weights=True).directory)
    config = model.config

    def hidden(tokens: list[int]) -> npt.NDArray[np.float32]:
        cache = PagedCache(config.num_layers, 32, 16, config.num_kv_heads, config.head_dim)
        spans = [Span(tokens, 0, list(range(32)))]
        batch = build_batch([], spans, 16, windowed=False, sink_tokens=0, vocab_size=config.vocab_size)
        return model.forward(batch, cache, np.arange(len(tokens)))

    return hidden


def tokens_of(server: Server, text: str) -> list[int]:
    tokens: list[int] = post(server.http, "/tokenize", {"prompt": text}).json()["tokens"]
    return tokens


def unit(vector: Any) -> Vectors:
    values: Vectors = np.asarray(vector, dtype=np.float64)
    length = float(np.linalg.norm(values))
    return values / length


def test_texts_become_the_pooled_hidden_states_of_the_model(
    server: Server, client: openai.OpenAI, hidden: Any
) -> None:
    states = [hidden(tokens_of(server, text)) for text in TEXTS]
    counts = [len(tokens_of(server, text)) for text in TEXTS]
    for pooling in (None, "last", "mean"):
        extra = {} if pooling is None else {"pooling": pooling}
        # The client asks for base64 of its own accord, and decodes it.
        answer = client.embeddings.create(model=MODEL_NAME, input=TEXTS, user="someone", extra_body=extra)
        assert [one.index for one in answer.data] == [0, 1, 2]
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(counts)
        for one, state in zip(answer.data, states, strict=True):
            expected = unit(state.mean(axis=0) if pooling == "mean" else state[-1])
            np.testing.assert_allclose(one.embedding, expected, atol=1e-4)


def test_the_forms_of_input_and_of_numbers_agree(server: Server, client: openai.OpenAI) -> None:
    ids = tokens_of(server, TEXTS[0])

    def first(**fields: Any) -> Any:
        fields = {"model": MODEL_NAME, "encoding_format": "float", **fields}
        return client.embeddings.create(**fields).data[0].embedding

    as_text = first(input=TEXTS[0])
    for same in ([TEXTS[0]], ids, [ids]):
        np.testing.assert_allclose(first(input=same), as_text, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(as_text), 1.0, rtol=1e-5)
    assert first(input=TEXTS[0], dimensions=len(as_text)) == as_text
    body = {"model": MODEL_NAME, "input": TEXTS[0], "encoding_format": "base64"}
    raw = post(server.http, "/v1/embeddings", body).json()["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(raw), "<f4"), as_text, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "empty_array"),
        ({"input": ["a", ""], "add_special_tokens": False}, "input[1]", None),
        ({"input": [[1], [10**6]]}, "input[1]", None),
        ({"input": ["a", "word " * 60_000]}, "input[1]", "context_length_exceeded"),
        ({"dimensions": 3}, "dimensions", "unsupported_parameter"),
        ({"dimensions": "many"}, "dimensions", "invalid_type"),
        ({"encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"pooling": "max"}, "pooling", "invalid_value"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "unsupported_parameter"),
        ({"model": ""}, "model", "invalid_value"),
    ],
)
def test_a_bad_field_is_400_with_its_name(
    server: Server, fields: dict[str, Any], param: str, code: str | None
) -> None:
    refused = post(server.http, "/v1/embeddings", {"model": MODEL_NAME, "input": "a", **fields})
    assert refused.status == 400, refused
    assert refused.error["param"] == param
    if code is not None:
        assert refused.error["code"] == code


def test_a_model_without_embeddings_says_so(fast: Server) -> None:
    with (
        fast.client() as client,
        pytest.raises(openai.NotFoundError, match="offers no embeddings") as refused,
    ):
        client.embeddings.create(model=fast.model, input="a")
    assert refused.value.param == "model"
    with fast.client() as client, pytest.raises(openai.NotFoundError) as refused:
        client.embeddings.create(model="no-such-model", input="a")
    assert refused.value.code == "model_not_found"


def test_many_texts_are_embedded_in_their_order(server: Server, client: openai.OpenAI) -> None:
    texts = [f"text {number}" for number in range(100)]
    before = total(server.http, "inflight_gateway_prompt_tokens_total")
    many = client.embeddings.create(model=MODEL_NAME, input=texts)
    after = total(server.http, "inflight_gateway_prompt_tokens_total")
    assert after - before == many.usage.prompt_tokens
    for number in (0, 57, 99):
        alone = client.embeddings.create(model=MODEL_NAME, input=texts[number]).data[0].embedding
        np.testing.assert_allclose(many.data[number].embedding, alone, atol=1e-5)


def test_triton_s_client_gets_them_from_the_worker(server: Server, hidden: Any) -> None:
    tokens = tokens_of(server, TEXTS[0])
    inputs = []
    for name, values, datatype in (
        ("input_ids", np.array([tokens], np.int32), "INT32"),
        ("input_lengths", np.array([[len(tokens)]], np.int32), "INT32"),
        ("request_output_len", np.array([[1]], np.int32), "INT32"),
        ("inflight_pooling", np.array([[b"mean"]], np.object_), "BYTES"),
    ):
        tensor = grpc.InferInput(name, list(values.shape), datatype)
        tensor.set_data_from_numpy(values)
        inputs.append(tensor)
    with grpc.InferenceServerClient(server.grpc) as client:
        wanted = [grpc.InferRequestedOutput("inflight_embedding")]
        answer = client.infer("tensorrt_llm", inputs, outputs=wanted)
        vector = answer.as_numpy("inflight_embedding")
        assert client.infer("tensorrt_llm", inputs).as_numpy("inflight_embedding") is None
    np.testing.assert_allclose(vector[0], unit(hidden(tokens).mean(axis=0)), atol=1e-4)
