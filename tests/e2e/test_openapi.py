"""`/openapi.json` of `inflight serve`: valid by its specification, and true of answers."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from support import http
from support.servers import MODEL_NAME, Server


@pytest.fixture(scope="module")
def document(server: Server) -> Any:
    return http.get(server.http, "/openapi.json").json()


def check(document: Any, path: str, method: str, answer: Any, status: str = "200") -> None:
    """Holds an answer to the schema that the document has for it."""
    content = document["paths"][path][method]["responses"][status]["content"]
    schema = {**content["application/json"]["schema"], "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer.json())


def test_the_document_is_valid(document: Any) -> None:
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []
    assert document["info"]["version"]


def schemas_of(schema: Any, path: str = "") -> list[tuple[str, Any]]:
    """A schema and all in it, each with its path."""
    found = [(path, schema)]
    if isinstance(schema, dict):
        for name in ("items", "not"):
            if name in schema:
                found += schemas_of(schema[name], f"{path}/{name}")
        for name in ("properties", "$defs"):
            for key, inner in schema.get(name, {}).items():
                found += schemas_of(inner, f"{path}/{name}/{key}")
        for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for place, inner in enumerate(schema.get(name, [])):
                found += schemas_of(inner, f"{path}/{name}/{place}")
    return found


def test_no_schema_is_a_boolean(document: Any) -> None:
    """`true` and `{}` mean the same, and openapi-python-client gives up at the former."""
    named = document["components"]["schemas"].items()
    found = [part for name, schema in named for part in schemas_of(schema, name)]
    assert len(found) > 300
    assert [path for path, schema in found if isinstance(schema, bool)] == []


def test_answers_have_the_schemas_of_the_document(document: Any, server: Server) -> None:
    hi: list[Any] = [{"role": "user", "content": "Hi"}]
    asked: dict[str, Any] = {"model": MODEL_NAME, "max_tokens": 4}
    tool: Any = {"type": "function", "name": "f", "strict": True}
    response: dict[str, Any] = {"model": MODEL_NAME, "input": "Hi", "max_output_tokens": 32}
    for path, body in [
        ("/v1/chat/completions", {**asked, "messages": hi, "logprobs": True, "top_logprobs": 2}),
        ("/v1/chat/completions", {**asked, "messages": hi, "prompt_logprobs": 1, "return_token_ids": True}),
        ("/v1/completions", {**asked, "prompt": "Hi", "logprobs": 2, "echo": True}),
        ("/v1/embeddings", {"model": MODEL_NAME, "input": ["a", "b"]}),
        ("/v1/embeddings", {"model": MODEL_NAME, "input": "a", "encoding_format": "base64"}),
        ("/v1/rerank", {"model": MODEL_NAME, "query": "a", "documents": ["b", {"text": "c"}]}),
        ("/v1/rerank", {"model": MODEL_NAME, "query": "a", "documents": ["b"], "return_documents": False}),
        ("/v1/responses", response),
        ("/v1/responses", {**response, "tools": [tool], "tool_choice": "required"}),
        ("/v1/messages", {**asked, "messages": hi}),
        ("/v1/messages/count_tokens", {"model": MODEL_NAME, "messages": hi}),
        ("/tokenize", {"prompt": "Hi", "return_token_strs": True}),
        ("/detokenize", {"tokens": [5]}),
    ]:
        answer = http.post(server.http, path, body)
        assert answer.status == 200, answer
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.Draft202012Validator(schema).validate(body)
        check(document, path, "post", answer)
        refused = http.post(server.http, path, {**body, "model": 5})
        assert refused.status == 400
        check(document, path, "post", refused, "default")
    for path in ("/v1/models", "/tokenizer_info", "/health/ready", "/health/live", "/version"):
        check(document, path, "get", http.get(server.http, path))
    check(document, "/v1/models/{model}", "get", http.get(server.http, f"/v1/models/{MODEL_NAME}"))


def test_kserves_answers_have_the_forms_of_the_document(document: Any, server: Server) -> None:
    """What is one server's own is refused: loading, settings, shared memory."""
    one_servers_own = ("/setting", "/logging")
    asked = 0
    for path, methods in document["paths"].items():
        concrete = path.replace("{name}", "tensorrt_llm").replace("{version}", "1")
        if not path.startswith("/v2") or path.endswith(one_servers_own) or "sharedmemory" in path:
            continue
        for method in {"get", "post"} & methods.keys():
            if method == "post" and path != "/v2/repository/index":
                continue
            answer = getattr(http, method)(server.http, concrete, *([{}] if method == "post" else []))
            assert answer.status == 200, answer
            if "content" in methods[method]["responses"]["200"]:
                check(document, path, method, answer)
            else:
                assert answer.body == b"", path
            asked += 1
    assert asked == 13


def test_the_page_stands_alone(server: Server) -> None:
    page = http.get(server.http, "/docs").body.decode()
    assert "/v1/chat/completions" in page
    assert "http://" not in page
    assert "https://" not in page
