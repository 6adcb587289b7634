"""`/v1/rerank` on `inflight serve`, compared with the cosines of `/v1/embeddings`."""

from __future__ import annotations

from typing import Any

import numpy as np
import openai
import pytest

from support.http import post
from support.metrics import total
from support.servers import MODEL_NAME, Server

QUERY = "Which city is the capital of France?"
DOCUMENTS = ["Paris is the capital of France.", "Grüße, 🦀!", "Rivers flow to the sea.", "Which city?"]


def ranked(server: Server, path: str = "/v1/rerank", **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL_NAME, "query": QUERY, "documents": DOCUMENTS, **fields}
    answer: dict[str, Any] = post(server.http, path, body).json()
    return answer


@pytest.mark.parametrize("pooling", [None, "last", "mean"])
def test_documents_are_ordered_by_the_cosine_of_their_embeddings(
    server: Server, client: openai.OpenAI, pooling: str | None
) -> None:
    extra = {} if pooling is None else {"pooling": pooling}
    texts = [QUERY, *DOCUMENTS]
    embedded = client.embeddings.create(model=MODEL_NAME, input=texts, extra_body=extra)
    query, *documents = (np.array(one.embedding) for one in embedded.data)
    scores = [float(query @ document) for document in documents]
    before = total(server.http, "inflight_gateway_prompt_tokens_total")
    answer = ranked(server, **extra)
    spent = total(server.http, "inflight_gateway_prompt_tokens_total") - before
    results = answer["results"]
    assert [one["index"] for one in results] == sorted(range(4), key=lambda index: -scores[index])
    for one in results:
        assert one["relevance_score"] == pytest.approx(scores[one["index"]], abs=1e-5)
        assert one["document"] == {"text": DOCUMENTS[one["index"]]}
    tokens = embedded.usage.prompt_tokens
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert spent == tokens
    assert answer["model"] == MODEL_NAME
    assert answer["id"].startswith("rerank-")


def split(answer: dict[str, Any]) -> tuple[list[tuple[int, str | None]], list[float]]:
    """Which documents there are with what texts, and their scores."""
    results = answer["results"]
    documents = [(one["index"], one.get("document", {}).get("text")) for one in results]
    return documents, [one["relevance_score"] for one in results]


def test_the_forms_of_other_servers_are_the_same(server: Server) -> None:
    documents, scores = split(ranked(server))
    bare = [(index, None) for index, _ in documents]
    objects = [{"text": text, "title": "t"} for text in DOCUMENTS]
    of_cohere = {"return_documents": False, "rank_fields": ["text"], "max_chunks_per_doc": None}
    for path, fields, expected in (
        ("/rerank", {"top_n": 2}, documents[:2]),
        ("/v1/rerank", {"documents": objects, **of_cohere}, bare),
        ("/v2/rerank", {"top_n": 100, "max_tokens_per_doc": None, "relevant_spans": None}, documents),
    ):
        found, own_scores = split(ranked(server, path, **fields))
        assert found == expected
        assert own_scores == pytest.approx(scores[: len(expected)], abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"query": None}, "query", "missing_required_parameter"),
        ({"query": ""}, "query", None),
        ({"documents": []}, "documents", "empty_array"),
        ({"documents": ["a", 5]}, "documents[1]", "invalid_type"),
        ({"documents": ["a", {"title": "b"}]}, "documents[1].text", "missing_required_parameter"),
        ({"documents": ["a", "word " * 60_000]}, "documents[1]", "context_length_exceeded"),
        ({"top_n": -1}, "top_n", None),
        ({"truncate_prompt_tokens": 64}, "truncate_prompt_tokens", "unsupported_parameter"),
        ({"instruction": "find"}, "instruction", "unsupported_parameter"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_a_bad_field_is_400_with_its_name(
    server: Server, path: str, fields: dict[str, Any], param: str, code: str | None
) -> None:
    body = {"model": MODEL_NAME, "query": "q", "documents": ["a"], "add_special_tokens": False, **fields}
    refused = post(server.http, path, body)
    assert refused.status == 400, refused
    assert refused.error["param"] == param
    if code is not None:
        assert refused.error["code"] == code


def test_only_so_many_tokens_count_where_the_request_says_so(server: Server) -> None:
    long = "word " * 60_000
    tokens = post(server.http, "/tokenize", {"prompt": long, "add_special_tokens": False}).json()["tokens"]
    begin = post(server.http, "/detokenize", {"tokens": tokens[:7]}).json()["prompt"]
    bare: dict[str, Any] = {"add_special_tokens": False}
    cut = ranked(server, query=long, documents=[long], max_tokens_per_query=3, max_tokens_per_doc=7, **bare)
    assert cut["usage"]["total_tokens"] == 10
    assert cut["results"][0]["document"]["text"] == long
    short = ranked(server, query=long, documents=[begin], max_tokens_per_query=3, **bare)
    scores = [answer["results"][0]["relevance_score"] for answer in (cut, short)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_a_model_without_embeddings_says_so(fast: Server) -> None:
    body = {"model": fast.model, "query": "q", "documents": ["a"]}
    refused = post(fast.http, "/v1/rerank", body)
    assert refused.status == 404
    assert "offers no embeddings: it " in refused.error["message"]
