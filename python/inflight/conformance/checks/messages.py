"""`/v1/messages`, through Anthropic's SDK."""

from __future__ import annotations

from typing import Any

from inflight.conformance import weather
from inflight.conformance.check import check, expect, expect_equal
from inflight.conformance.target import Target

TOPIC = "Messages"

WEATHER: dict[str, Any] = {**weather.TOOL, "input_schema": weather.INPUT}


def _asked(target: Target, **fields: Any) -> dict[str, Any]:
    question = [{"role": "user", "content": "What is machine learning?"}]
    return {"model": target.model, "messages": question, "max_tokens": 24, **fields}


def ask(target: Target, **fields: Any) -> Any:
    """A short answer, unless `fields` say otherwise."""
    return target.anthropic.messages.create(**_asked(target, **fields))


@check(TOPIC, "answers with text, a reason and a usage", optional=True)
def whole(target: Target) -> None:
    answer = ask(target)
    expect_equal("`type` and `role`", (answer.type, answer.role), ("message", "assistant"))
    texts = [block.text for block in answer.content if block.type == "text"]
    expect(any(texts), "there is no text")
    expect(answer.stop_reason in ("end_turn", "max_tokens"), f"`stop_reason` is {answer.stop_reason!r}")
    expect(answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0, "`usage` is empty")


@check(TOPIC, "says `max_tokens` and `stop_sequence`", optional=True)
def reasons(target: Target) -> None:
    answer = ask(target, max_tokens=2)
    expect_equal("`stop_reason`", answer.stop_reason, "max_tokens")
    # The SDK has no argument for it any more; servers of other models have the field.
    greedy: Any = {"extra_body": {"temperature": 0}}
    text = ask(target, **greedy).content[0].text
    word = text.split()[2]
    answer = ask(target, **greedy, stop_sequences=[word])
    expect_equal("`stop_reason`", answer.stop_reason, "stop_sequence")
    expect_equal("`stop_sequence`", answer.stop_sequence, word)


@check(TOPIC, "reads system prompts and blocks", optional=True)
def blocks(target: Target) -> None:
    system = [{"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}]
    question = [{"role": "user", "content": [{"type": "text", "text": "What is machine learning?"}]}]
    answer = ask(target, system=system, messages=question)
    expect(answer.content, "`content` is empty")


@check(TOPIC, "streams its events in order", optional=True)
def streams(target: Target) -> None:
    with target.anthropic.messages.stream(**_asked(target)) as stream:
        types = [event.type for event in stream]
        text = stream.get_final_text()
    expect(text, "the text is empty")
    # Those of the protocol; the helper adds its own.
    raw = [one for one in types if one.startswith(("message_", "content_block_"))]
    expect_equal("the first events", raw[:2], ["message_start", "content_block_start"])
    expect_equal("the last events", raw[-3:], ["content_block_stop", "message_delta", "message_stop"])


@check(TOPIC, "calls a tool and reads its result", optional=True)
def tools(target: Target) -> None:
    question = {"role": "user", "content": "What is the weather in Paris?"}
    choice = {"type": "tool", "name": "get_weather"}
    answer = ask(target, messages=[question], tools=[WEATHER], tool_choice=choice, max_tokens=200)
    expect_equal("`stop_reason`", answer.stop_reason, "tool_use")
    [call] = [block for block in answer.content if block.type == "tool_use"]
    expect("city" in call.input, f"`input` is {call.input!r}")
    again = ask(
        target,
        tools=[WEATHER],
        messages=[
            question,
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_none=True) for block in answer.content],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}],
            },
        ],
    )
    expect(again.content, "the answer to the result is empty")


@check(TOPIC, "streams a tool call", optional=True)
def streams_tools(target: Target) -> None:
    choice = {"type": "tool", "name": "get_weather"}
    asked = _asked(target, tools=[WEATHER], tool_choice=choice, max_tokens=200)
    with target.anthropic.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    calls = [block for block in final.content if block.type == "tool_use"]
    expect(calls and "city" in calls[0].input, "the streamed call has no `city`")


@check(TOPIC, "counts tokens", optional=True)
def counts(target: Target) -> None:
    asked = _asked(target)
    del asked["max_tokens"]
    count = target.anthropic.messages.count_tokens(**asked).input_tokens
    usage = ask(target).usage
    # Those of the cache are counted separately.
    told = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    expect_equal("`input_tokens`", count, told + (usage.cache_creation_input_tokens or 0))


@check(TOPIC, "wraps errors as Anthropic does", optional=True)
def errors(target: Target) -> None:
    import anthropic

    try:
        ask(target, messages=[{"role": "wizard", "content": "a"}])
    except anthropic.BadRequestError as error:
        body: Any = error.body
        expect_equal("`type`", body["type"], "error")
        expect_equal("`error.type`", body["error"]["type"], "invalid_request_error")
        return
    raise AssertionError("an unknown role was accepted")
