"""Reasoning from a real worker to real clients: the simulated executor thinks, answers and calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from support import http
from support.servers import MODEL, MODEL_NAME, NO_KEY, Server, Start, start_gateway, start_worker, wait_ready

pytestmark = pytest.mark.skipif(MODEL is not None, reason="the text is in the embedded model's form of calls")

THOUGHT = "Paris? I should look at its weather; 2 < 3."
ANSWER = "Let me see, für Sie."
CALL = '\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
#: Ends what the executor would repeat.
END = "\n==end=="
TOOL: Any = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}},
}
QUESTION: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
SERVE = ("--port=0", "--grpc-port=0", "--metrics-port=0")
#: Until the call, which is text for whoever sent no tools.
UNTIL_CALL = "\n<tool_call>"


@pytest.fixture(scope="module")
def reasoning(start_for_session: Start, tmp_path_factory: pytest.TempPathFactory) -> Server:
    file = tmp_path_factory.mktemp("reasoning") / "answer.txt"
    file.write_text(f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}{CALL}{END}")
    worker = start_worker(start_for_session, f"--answer={file}", "--step-us=500")
    gateway = start_gateway(start_for_session, [worker], "--reasoning-parser=think")
    return Server(wait_ready(gateway), worker.address("grpc"), worker.address("metrics"), MODEL_NAME)


def tokens(server: Server, text: str) -> int:
    """How many tokens the embedded model's tokenizer makes of a text."""
    told = http.post(server.http, "/tokenize", {"prompt": text, "add_special_tokens": False})
    return int(told.json()["count"])


def test_chat_tells_reasoning_apart_whole_and_streamed(reasoning: Server) -> None:
    asked: dict[str, Any] = {"model": MODEL_NAME, "messages": QUESTION, "stop": UNTIL_CALL, "max_tokens": 400}
    with reasoning.client() as client:
        whole: Any = client.chat.completions.create(**asked)
        [choice] = whole.choices
        assert choice.message.reasoning_content.strip() == THOUGHT
        assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
        counted = whole.usage.completion_tokens_details.reasoning_tokens
        assert abs(counted - tokens(reasoning, THOUGHT)) <= 16
        assert counted < whole.usage.completion_tokens

        deltas: list[Any] = [
            chunk.choices[0].delta for chunk in client.chat.completions.create(stream=True, **asked)
        ]
        thoughts = [delta.reasoning_content for delta in deltas if getattr(delta, "reasoning_content", None)]
        texts = [delta.content for delta in deltas if delta.content]
        assert len(thoughts) > 5
        assert "".join(thoughts) == choice.message.reasoning_content
        assert "".join(texts) == ANSWER
        kinds = ["thought" if getattr(delta, "reasoning_content", None) else "text" for delta in deltas]
        assert "thought" not in kinds[kinds.index("thought") + len(thoughts) :], "thoughts come first"

        hidden: Any = client.chat.completions.create(**asked, extra_body={"include_reasoning": False})
        assert not hasattr(hidden.choices[0].message, "reasoning_content")
        assert hidden.choices[0].message.content == ANSWER


def test_a_call_follows_the_thought_and_the_text(reasoning: Server) -> None:
    asked: dict[str, Any] = {"model": MODEL_NAME, "messages": QUESTION, "tools": [TOOL], "stop": END}
    with reasoning.client() as client:
        whole: Any = client.chat.completions.create(**asked, max_tokens=400)
        message = whole.choices[0].message
        [call] = message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        assert (message.reasoning_content.strip(), message.content.strip()) == (THOUGHT, ANSWER)
        assert whole.choices[0].finish_reason == "tool_calls"


def test_a_response_has_an_item_for_its_reasoning(reasoning: Server) -> None:
    stops = {"stop": UNTIL_CALL}
    asked: dict[str, Any] = {"model": MODEL_NAME, "input": "Paris?", "max_output_tokens": 400}
    with reasoning.client() as client:
        whole: Any = client.responses.create(**asked, extra_body=stops)
        thought, text = whole.output
        assert (thought.type, thought.content[0].text.strip()) == ("reasoning", THOUGHT)
        assert (text.type, whole.output_text) == ("message", ANSWER)
        assert whole.usage.output_tokens_details.reasoning_tokens > 5

        with client.responses.stream(**asked, extra_body=stops) as stream:
            events: list[Any] = list(stream)
            final: Any = stream.get_final_response()
        deltas = [one.delta for one in events if one.type == "response.reasoning_text.delta"]
        [done] = [one.text for one in events if one.type == "response.reasoning_text.done"]
        assert len(deltas) > 5
        assert "".join(deltas) == done == final.output[0].content[0].text
        assert final.output_text == ANSWER
        sealed: Any = client.responses.create(
            **asked, include=["reasoning.encrypted_content"], store=False, extra_body=stops
        )
        assert sealed.output[0].encrypted_content


def test_a_message_begins_with_a_block_of_thinking(reasoning: Server) -> None:
    asked: dict[str, Any] = {
        "model": MODEL_NAME,
        "messages": QUESTION,
        "max_tokens": 1100,
        "stop_sequences": [UNTIL_CALL],
    }
    thinks: Any = {"type": "enabled", "budget_tokens": 1024}
    with anthropic.Anthropic(base_url=f"http://{reasoning.http}", api_key=NO_KEY, max_retries=0) as claude:
        whole: Any = claude.messages.create(**asked, thinking=thinks)
        thought, text = whole.content
        assert (thought.type, thought.thinking.strip()) == ("thinking", THOUGHT)
        assert thought.signature
        assert (text.type, text.text, whole.stop_reason) == ("text", ANSWER, "stop_sequence")

        with claude.messages.stream(**asked, thinking=thinks) as stream:
            events: list[Any] = list(stream)
            final: Any = stream.get_final_message()
        deltas = [one.thinking for one in events if one.type == "thinking"]
        assert len(deltas) > 5
        assert "".join(deltas) == final.content[0].thinking == thought.thinking
        assert final.content[1].text == ANSWER

        bare: Any = claude.messages.create(**asked, thinking={"type": "disabled"})
        assert [block.type for block in bare.content] == ["text"]


def test_another_parser_leaves_the_thought_in_the_text(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "answer.txt"
    file.write_text(f"<think>{THOUGHT}</think>{ANSWER}{END}")
    worker = start_worker(start, f"--answer={file}", "--step-us=500")
    gateway = start_gateway(start, [worker], "--reasoning-parser=none")
    with openai.OpenAI(base_url=f"http://{wait_ready(gateway)}/v1", api_key=NO_KEY) as client:
        answer = client.chat.completions.create(model=MODEL_NAME, messages=QUESTION, stop=END, max_tokens=400)
    assert answer.choices[0].message.content == f"<think>{THOUGHT}</think>{ANSWER}"


@pytest.fixture(scope="module")
def thinker(start_for_session: Start) -> Server:
    """The embedded model, which says nothing of tags by itself."""
    process = start_for_session(
        "serve", *SERVE, f"--served-model-name={MODEL_NAME}", "--reasoning-parser=think"
    )
    return Server(wait_ready(process), process.address("grpc"), process.address("metrics"), MODEL_NAME)


@pytest.mark.parametrize("budget", [0, 4])
def test_a_budget_ends_the_reasoning(thinker: Server, budget: int) -> None:
    with thinker.client() as client:
        asked: dict[str, Any] = {"model": MODEL_NAME, "prompt": "Hi<think>", "temperature": 0}
        free = client.completions.create(max_tokens=budget or 1, **asked)
        extra = {"thinking_token_budget": budget, "ignore_eos": True}
        bounded = client.completions.create(max_tokens=40, extra_body=extra, **asked)
    text = bounded.choices[0].text
    assert text.count("</think>") == 1
    assert text.startswith((free.choices[0].text if budget else "") + "</think>")
    assert len(text) > len("</think>")


def test_a_budget_is_refused_by_name_where_none_can_be(thinker: Server, reasoning: Server) -> None:
    body = {"model": MODEL_NAME, "messages": QUESTION, "thinking_token_budget": 4}
    with_schema = {**body, "response_format": {"type": "json_object"}}
    # The simulated executor forces no token.
    for server, sent, words in (
        (reasoning, body, "thinking_budget"),
        (thinker, with_schema, "response_format"),
    ):
        answer = http.post(server.http, "/v1/chat/completions", sent)
        assert (answer.status, answer.error["param"]) == (400, "thinking_token_budget")
        assert words in answer.error["message"]
