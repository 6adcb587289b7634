"""`/v1/messages` with Anthropic's own client on `inflight serve`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from support.servers import MODEL_NAME, NO_KEY, Server

#: The client has no argument for what newer models of Anthropic's do without.
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0.0}}
QUESTION: list[Any] = [{"role": "user", "content": "What is machine learning?"}]


@pytest.fixture(scope="module")
def claude(server: Server) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client, which never retries: a test wants the first answer."""
    address = f"http://{server.http}"
    with anthropic.Anthropic(base_url=address, api_key=NO_KEY, max_retries=0, timeout=60.0) as client:
        yield client


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL_NAME, "messages": QUESTION, "max_tokens": 12, **fields}


def test_an_answer_is_the_one_that_a_chat_gets(claude: Any, client: openai.OpenAI) -> None:
    answer = claude.messages.create(**asked(**GREEDY))
    chat = client.chat.completions.create(model=MODEL_NAME, messages=QUESTION, max_tokens=12, temperature=0.0)
    [block] = answer.content
    assert block.type == "text"
    assert block.text == chat.choices[0].message.content
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL_NAME)
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert chat.usage is not None
    read = answer.usage.cache_read_input_tokens or 0
    assert answer.usage.input_tokens + read == chat.usage.prompt_tokens
    assert answer.usage.output_tokens == chat.usage.completion_tokens == 12
    count = claude.messages.count_tokens(model=MODEL_NAME, messages=QUESTION)
    assert count.input_tokens == chat.usage.prompt_tokens


def test_a_stream_accumulates_to_the_whole_answer(claude: Any) -> None:
    whole = claude.messages.create(**asked(**GREEDY))
    with claude.messages.stream(**asked(**GREEDY)) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 2
    [block] = whole.content
    assert block.type == "text"
    assert "".join(pieces) == block.text == final.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", whole.usage.output_tokens)
    events = [event.type for event in claude.messages.create(**asked(stream=True))]
    assert events[:2] == ["message_start", "content_block_start"]
    assert events[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_models_are_listed_in_anthropics_form(claude: Any) -> None:
    page = claude.models.list(limit=1)
    [model] = list(page)
    assert (model.type, model.id, model.display_name) == ("model", MODEL_NAME, MODEL_NAME)
    assert model.created_at.year >= 2026
    assert model.max_tokens == model.max_input_tokens > 0
    assert claude.models.retrieve(MODEL_NAME) == model
    assert (page.has_more, page.first_id, page.last_id) == (False, MODEL_NAME, MODEL_NAME)
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("no/such")


def test_a_stop_sequence_is_named(claude: Any) -> None:
    [block] = claude.messages.create(**asked(**GREEDY)).content
    assert block.type == "text"
    word = block.text.split()[2]
    answer = claude.messages.create(**asked(stop_sequences=[word], **GREEDY))
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)


def test_an_answer_continues_what_it_begins_with(claude: Any, client: openai.OpenAI) -> None:
    turns = [*QUESTION, {"role": "assistant", "content": "It is"}]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    [block] = claude.messages.create(**asked(messages=turns, system=system, **GREEDY)).content
    chat = client.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "system", "content": "Be brief."}, *turns],
        max_tokens=12,
        temperature=0.0,
        extra_body={"continue_final_message": True},
    )
    assert block.type == "text"
    assert block.text == chat.choices[0].message.content


def test_more_tokens_than_the_context_has_are_no_error(claude: Any) -> None:
    turns = [{"role": "user", "content": "Say hello."}]
    asking = asked(messages=turns, max_tokens=32_000)
    with claude.messages.stream(**asking) as stream:
        assert next(iter(stream.text_stream))


def test_a_schema_is_followed(claude: Any) -> None:
    properties = {"a": {"enum": [1, 2]}}
    schema = {"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False}
    config: Any = {"format": {"type": "json_schema", "schema": schema}}
    [block] = claude.messages.create(**asked(output_config=config, max_tokens=40)).content
    assert block.type == "text"
    assert json.loads(block.text) in ({"a": 1}, {"a": 2})


def test_errors_are_the_clients_own_classes(server: Server, claude: Any) -> None:
    wrong: list[tuple[dict[str, Any], type[anthropic.APIStatusError], str]] = [
        ({"extra_body": {"temperature": 3}}, anthropic.BadRequestError, "temperature"),
        ({"max_tokens": -1}, anthropic.BadRequestError, "max_tokens"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, anthropic.BadRequestError, "wizard"),
        ({"model": "other"}, anthropic.NotFoundError, "other"),
    ]
    for fields, kind, tells in wrong:
        for stream in (False, True):
            with pytest.raises(kind) as raised:
                claude.messages.create(**{**asked(stream=stream), **fields})
            body: Any = raised.value.body
            assert body["type"] == "error"
            assert tells in body["error"]["message"]
            assert raised.value.request_id == body["request_id"]


WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 40}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def test_a_tool_is_called_and_its_result_read(claude: Any) -> None:
    question: Any = {"role": "user", "content": "What is the weather in Paris?"}
    choice: Any = {"type": "tool", "name": "get_weather"}
    asking = asked(messages=[question], tools=[WEATHER], tool_choice=choice, max_tokens=200)
    answer = claude.messages.create(**asking)
    with claude.messages.stream(**asking) as stream:
        streamed = stream.get_final_message()
    for message in (answer, streamed):
        assert message.stop_reason == "tool_use"
        [call] = [block for block in message.content if block.type == "tool_use"]
        assert call.name == "get_weather"
        assert isinstance(call.input["city"], str)
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 20 degrees."}
        called = {"role": "assistant", "content": message.content}
        turns: Any = [question, called, {"role": "user", "content": [result]}]
        count = claude.messages.count_tokens(model=MODEL_NAME, messages=turns, tools=[WEATHER])
        again = claude.messages.create(**asked(messages=turns, tools=[WEATHER]))
        read = again.usage.cache_read_input_tokens or 0
        assert again.usage.input_tokens + read == count.input_tokens
        assert again.stop_reason in ("end_turn", "max_tokens", "tool_use")


@anthropic.beta_tool
def temperature(city: str) -> str:
    """Returns the temperature in a city.

    Args:
        city: The city's name.
    """
    return f"It has {len(city)} letters and 20 degrees."


def test_a_tool_runner_goes_on_without_a_thread(server: Server) -> None:
    """It asks for a thread first. Told that there are none, it sends whole conversations."""
    bodies: list[dict[str, Any]] = []
    address = f"http://{server.http}"
    with anthropic.Anthropic(base_url=address, api_key=NO_KEY, max_retries=0, timeout=60.0) as client:
        client._client.event_hooks["request"].append(lambda sent: bodies.append(json.loads(sent.content)))
        choice: Any = {"type": "any"}
        asking = asked(tools=[temperature], tool_choice=choice, max_tokens=200)
        answers = list(client.beta.messages.tool_runner(max_iterations=2, **asking))
    assert [answer.stop_reason for answer in answers] == ["tool_use", "tool_use"]
    assert ["thread" in body for body in bodies] == [True, False, False]
    assert [message["role"] for message in bodies[-1]["messages"]] == ["user", "assistant", "user"]


def test_a_thread_is_refused_with_what_the_clients_act_on(claude: Any) -> None:
    body = {"thread": {"type": "create"}}
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.messages.create(**asked(extra_body=body))
    details = refused.value.body["error"]["details"]  # type: ignore[index]
    assert details == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
