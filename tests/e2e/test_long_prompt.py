"""The embedded model behind a prompt of an agent's length: the same answers, computed once.

The text in front is the license, several times over: it says nothing about the questions, was no part of the
model's training, and does not change with the repository.
"""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from support.servers import MODEL, Server

pytestmark = pytest.mark.skipif(MODEL is not None, reason="about what the embedded model has learned")

LICENSE = (Path(__file__).resolve().parents[2] / "LICENSE").read_text(encoding="utf-8")
#: Some 20,000 tokens.
LONG = LICENSE * 5
QUESTIONS = (
    "What is machine learning?",
    "What is the capital of France?",
    "What is in-flight batching?",
    "What is Inflight?",
    "Reverse the word hello",
    "What is 2+2?",
    "hi",
    "What is the opposite of hot?",
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a location",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    },
}


def test_answers_after_20_000_tokens_are_those_without_them(client: openai.OpenAI, server: Server) -> None:
    cached = []
    for question in QUESTIONS:
        asked = {"role": "user", "content": question}
        plain = client.chat.completions.create(model=server.model, messages=[asked])  # type: ignore[list-item]
        late = client.chat.completions.create(
            model=server.model,
            messages=[{"role": "system", "content": LONG}, asked],  # type: ignore[list-item]
        )
        assert late.choices[0].message.content == plain.choices[0].message.content, question
        assert late.usage is not None
        assert 20_000 < late.usage.prompt_tokens < 32_000
        assert late.usage.prompt_tokens_details is not None
        cached.append(late.usage.prompt_tokens_details.cached_tokens or 0)
    # The long beginning is computed for the first question alone.
    assert all(tokens > 20_000 for tokens in cached[1:])


def test_a_tool_is_called_and_its_result_told_after_20_000_tokens(
    client: openai.OpenAI, server: Server
) -> None:
    messages: list[dict[str, object]] = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": "What is the weather in Paris?"},
    ]
    first = client.chat.completions.create(model=server.model, messages=messages, tools=[WEATHER])  # type: ignore[arg-type,list-item]
    message = first.choices[0].message
    assert message.tool_calls is not None
    [call] = message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert call.function.arguments == '{"location": "Paris"}'
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "condition": "sunny"}'},
    ]
    second = client.chat.completions.create(model=server.model, messages=messages, tools=[WEATHER])  # type: ignore[arg-type,list-item]
    assert second.choices[0].message.content == "The weather in Paris is sunny at 21 degrees."
