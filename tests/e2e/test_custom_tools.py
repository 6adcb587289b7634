"""Custom tools on the embedded model, through the OpenAI client: their texts, and what these must match."""

from __future__ import annotations

import re
from typing import Any

import openai
import pytest

from support.servers import MODEL, Server

pytestmark = pytest.mark.skipif(MODEL is not None, reason="only the embedded model is known to call tools")

QUESTION: Any = [{"role": "user", "content": "Hello"}]
WORDS = "[a-z]{2,8}( [a-z]{2,8}){0,2}"


def in_chat(name: str, definition: str, syntax: str = "regex") -> Any:
    grammar = {"syntax": syntax, "definition": definition}
    return {"type": "custom", "custom": {"name": name, "format": {"type": "grammar", "grammar": grammar}}}


def in_response(name: str, definition: str, syntax: str = "regex") -> Any:
    format = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": name, "format": format}


@pytest.mark.parametrize("stream", [False, True])
def test_a_demanded_text_matches_its_expression_in_chat(
    client: openai.OpenAI, server: Server, stream: bool
) -> None:
    answer: Any = client.chat.completions.create(
        model=server.model,
        messages=QUESTION,
        tools=[in_chat("note", WORDS), in_chat("other", "[0-9]+")],
        tool_choice={"type": "custom", "custom": {"name": "note"}},
        max_tokens=64,
        stream=stream,
    )
    if stream:
        chunks = [chunk.choices[0] for chunk in answer]
        assert chunks[-1].finish_reason == "tool_calls"
        deltas = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
        # The client's type of a delta has no field for it, and keeps it.
        assert (deltas[0].type, deltas[0].custom["name"]) == ("custom", "note")
        text = "".join(delta.custom["input"] for delta in deltas)
    else:
        [choice] = answer.choices
        assert choice.finish_reason == "tool_calls"
        [call] = choice.message.tool_calls
        assert (call.type, call.custom.name) == ("custom", "note")
        text = call.custom.input
        told = {"role": "tool", "tool_call_id": call.id, "content": "noted"}
        again: Any = [*QUESTION, choice.message, told]
        final = client.chat.completions.create(model=server.model, messages=again, max_tokens=4)
        assert final.choices[0].message.content
    assert re.fullmatch(WORDS, text)


def test_a_demanded_text_is_an_item_of_a_response(client: openai.OpenAI, server: Server) -> None:
    fields: dict[str, Any] = {
        "model": server.model,
        "input": "Hello",
        "tools": [
            {"type": "namespace", "name": "book", "description": "", "tools": [in_response("note", WORDS)]}
        ],
        "tool_choice": "required",
        "max_output_tokens": 64,
    }
    answer = client.responses.create(**fields)
    [call] = answer.output
    assert call.type == "custom_tool_call"
    assert (call.namespace, call.name) == ("book", "note")
    assert re.fullmatch(WORDS, call.input)
    told: Any = [{"type": "custom_tool_call_output", "call_id": call.call_id, "output": "noted"}]
    after = client.responses.create(
        model=server.model, previous_response_id=answer.id, input=told, max_output_tokens=8
    )
    assert after.output_text
    kinds = [item.type for item in client.responses.input_items.list(after.id, order="asc")]
    assert kinds[-1] == "custom_tool_call_output"

    with client.responses.stream(**fields) as stream:
        events = list(stream)
        [final] = stream.get_final_response().output
    assert final.type == "custom_tool_call"
    deltas = [one.delta for one in events if one.type == "response.custom_tool_call_input.delta"]
    [done] = [one.input for one in events if one.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done == final.input
    assert re.fullmatch(WORDS, done)


def test_a_lark_grammar_is_checked(client: openai.OpenAI, server: Server) -> None:
    fields: dict[str, Any] = {"model": server.model, "input": "Hello", "tool_choice": "required"}
    anything = in_response("note", "start: /(.|\\n)*/", "lark")
    [call] = client.responses.create(tools=[anything], max_output_tokens=64, **fields).output
    assert call.type == "custom_tool_call"
    assert '"input"' not in call.input
    never = in_response("note", 'start: "\\u0001\\u0002"', "lark")
    with pytest.raises(openai.InternalServerError) as wrong:
        client.with_options(max_retries=0).responses.create(tools=[never], max_output_tokens=64, **fields)
    assert (wrong.value.status_code, wrong.value.code) == (502, "invalid_answer")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(tools=[in_response("note", "start: x", "lark")], **fields)
    assert refused.value.param == "tools[0].format.definition"
