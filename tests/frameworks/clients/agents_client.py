"""OpenAI Agents SDK: function tools and output types, on chat and on responses."""

from __future__ import annotations

from typing import Any, Literal

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from asked import (
    FORM,
    KEY,
    LIMIT,
    MODEL,
    OPENAI,
    PLAIN,
    TOOL,
    Calls,
    Row,
    check_form,
    check_pieces,
    check_text,
    check_told,
    run,
)
from pydantic import BaseModel, Field


class Weather(BaseModel):
    city: str = Field(max_length=24)
    unit: Literal["celsius", "fahrenheit"]


def row(kind: Any) -> Row:
    def agent(**options: Any) -> Any:
        client = openai.AsyncOpenAI(base_url=OPENAI, api_key=KEY, max_retries=0)
        settings = ModelSettings(temperature=0, max_tokens=LIMIT)
        model = kind(model=MODEL, openai_client=client)
        return Agent(name="assistant", model=model, model_settings=settings, **options)

    async def text() -> None:
        check_text((await Runner.run(agent(), PLAIN)).final_output)

    async def streamed(agent: Any, asked: str) -> tuple[Any, list[str]]:
        answer = Runner.run_streamed(agent, asked)
        pieces = [
            event.data.delta
            async for event in answer.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        return answer.final_output, pieces

    async def stream() -> None:
        _, pieces = await streamed(agent(), PLAIN)
        check_pieces(pieces)

    async def tools() -> None:
        calls = Calls()
        answer = await Runner.run(agent(tools=[function_tool(calls.get_weather)]), TOOL)
        calls.check()
        check_told(answer.final_output)

    async def tools_streamed() -> None:
        calls = Calls()
        told, _ = await streamed(agent(tools=[function_tool(calls.get_weather)]), TOOL)
        calls.check()
        check_told(told)

    async def structured() -> None:
        check_form((await Runner.run(agent(output_type=Weather), FORM)).final_output)

    async def structured_streamed() -> None:
        answer, _ = await streamed(agent(output_type=Weather), FORM)
        check_form(answer)

    return {
        "text": text,
        "stream": stream,
        "tools": tools,
        "tools streamed": tools_streamed,
        "structured": structured,
        "structured streamed": structured_streamed,
    }


if __name__ == "__main__":
    set_tracing_disabled(True)
    run(
        {
            "OpenAI Agents SDK, responses": row(OpenAIResponsesModel),
            "OpenAI Agents SDK, chat": row(OpenAIChatCompletionsModel),
        }
    )
