"""`/v1/responses` on the real model, through the real OpenAI client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from support.servers import MODEL, Server

QUESTION = "What is machine learning?"


def test_an_answer_is_that_of_a_chat(client: openai.OpenAI, server: Server) -> None:
    response = client.responses.create(
        model=server.model, input=QUESTION, temperature=0, max_output_tokens=24
    )
    chat = client.chat.completions.create(
        model=server.model, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=24
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.object == "response"
    assert response._request_id
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens
    # What the client's types require is there, and of the right type.
    Response.model_validate(response.to_dict(), strict=True)


def test_an_answer_that_reaches_its_limit_is_incomplete(client: openai.OpenAI, server: Server) -> None:
    response = client.responses.create(
        model=server.model, input=QUESTION, max_output_tokens=3, extra_body={"ignore_eos": True}
    )
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_the_clients_stream_helper_builds_the_same_response(client: openai.OpenAI, server: Server) -> None:
    arguments: dict[str, Any] = {
        "model": server.model,
        "input": QUESTION,
        "temperature": 0,
        "top_logprobs": 2,
    }
    # From here on the prompt is in the cache, whichever tests ran before: both answers count it as cached.
    client.responses.create(**arguments)
    whole = client.responses.create(**arguments)
    with client.responses.stream(**arguments) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(delta.delta for delta in deltas) == final.output_text == whole.output_text
    assert deltas[-2].snapshot + deltas[-1].delta == whole.output_text
    assert len(deltas[0].logprobs) == 1
    assert final.usage == whole.usage
    # What the client's types require is there, and of the right type.
    for raw in client.responses.create(**arguments, stream=True):
        type(raw).model_validate(raw.to_dict(), strict=True)


def test_an_answer_in_the_background_is_polled_followed_and_stopped(
    client: openai.OpenAI, server: Server
) -> None:
    arguments: dict[str, Any] = {
        "model": server.model,
        "input": QUESTION,
        "temperature": 0,
        "background": True,
    }
    expected = client.responses.create(model=server.model, input=QUESTION, temperature=0).output_text
    response = client.responses.create(**arguments)
    Response.model_validate(response.to_dict(), strict=True)
    while response.status in {"queued", "in_progress"}:
        response = client.responses.retrieve(response.id)
    assert (response.status, response.output_text) == ("completed", expected)

    with client.responses.create(**arguments, stream=True) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    events = list(client.responses.retrieve(first.response.id, stream=True, starting_after=0))
    assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == expected

    endless = {"ignore_eos": True}
    long = client.responses.create(**arguments, max_output_tokens=5000, extra_body=endless)
    assert client.responses.cancel(long.id).status == "cancelled"
    assert client.responses.retrieve(long.id).status == "cancelled"
    client.responses.delete(long.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(long.id)


def test_a_parsed_answer_follows_its_schema(client: openai.OpenAI, server: Server) -> None:
    pytest.importorskip("llguidance", reason="pip install 'inflight-llm[guided]'")

    class Answer(BaseModel):
        topic: str
        is_known: bool

    whole = client.responses.parse(
        model=server.model, input=QUESTION, text_format=Answer, temperature=0, max_output_tokens=200
    )
    assert isinstance(whole.output_parsed, Answer)
    with client.responses.stream(
        model=server.model, input=QUESTION, text_format=Answer, temperature=0, max_output_tokens=200
    ) as stream:
        assert stream.get_final_response().output_parsed == whole.output_parsed


def test_a_conversation_goes_on(client: openai.OpenAI, server: Server) -> None:
    first = client.responses.create(
        model=server.model, input="Hello!", temperature=0, max_output_tokens=8, metadata={"of": "a test"}
    )
    second = client.responses.create(
        model=server.model, input=QUESTION, previous_response_id=first.id, temperature=0, max_output_tokens=8
    )
    whole = client.responses.create(
        model=server.model,
        input=[
            {"role": "user", "content": "Hello!"},
            *(item.to_dict() for item in first.output),  # type: ignore[list-item]
            {"role": "user", "content": QUESTION},
        ],
        temperature=0,
        max_output_tokens=8,
        store=False,
    )
    assert second.output_text == whole.output_text
    assert second.usage is not None
    assert whole.usage is not None
    assert second.usage.input_tokens == whole.usage.input_tokens
    assert client.responses.retrieve(first.id) == first
    items = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    texts = [item.to_dict()["content"][0]["text"] for item in items]  # type: ignore[index]
    assert texts == ["Hello!", first.output_text, QUESTION]
    client.responses.delete(first.id)
    for gone in (first.id, whole.id, "resp_0"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(gone)
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(model=server.model, input=QUESTION, previous_response_id=first.id)
    assert raised.value.code == "previous_response_not_found"
    # The rest of the conversation does not depend on it.
    client.responses.create(
        model=server.model, input="Thanks!", previous_response_id=second.id, max_output_tokens=1
    )


@pytest.mark.skipif(MODEL is not None, reason="only the embedded model is known to make sense")
def test_instructions_are_the_system_message(client: openai.OpenAI, server: Server) -> None:
    fields: dict[str, Any] = {"model": server.model, "temperature": 0, "max_output_tokens": 16}
    one = client.responses.create(input=QUESTION, instructions="Be brief.", **fields)
    other = client.responses.create(
        input=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": QUESTION}], **fields
    )
    assert one.usage.input_tokens == other.usage.input_tokens
    assert one.output_text == other.output_text
