"""pydantic-ai: the OpenAI models of chat and responses and the Anthropic model; output by tool and native."""

from __future__ import annotations

from typing import Any, Literal

from asked import (
    FORM,
    KEY,
    LIMIT,
    MODEL,
    OPENAI,
    PLAIN,
    TOOL,
    URL,
    Calls,
    Row,
    check_form,
    check_pieces,
    check_text,
    check_told,
    run,
)
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Weather(BaseModel):
    """The weather in a city"""

    city: str = Field(max_length=24)
    unit: Literal["celsius", "fahrenheit"]


#: The provider knows what models of Anthropic's own can do, by their names.
JSON: Any = {"supports_json_schema_output": True}
SETTINGS: Any = {"temperature": 0, "max_tokens": LIMIT}


def row(make: Any) -> Row:
    def agent(**options: Any) -> Any:
        return Agent(make(), model_settings=SETTINGS, retries=0, **options)

    async def text() -> None:
        check_text((await agent().run(PLAIN)).output)

    async def stream() -> None:
        async with agent().run_stream(PLAIN) as answer:
            check_pieces([piece async for piece in answer.stream_text(delta=True, debounce_by=None)])

    async def tools() -> None:
        calls = Calls()
        answer = await agent(tools=[calls.get_weather]).run(TOOL)
        calls.check()
        check_told(answer.output)

    async def tools_streamed() -> None:
        calls = Calls()
        async with agent(tools=[calls.get_weather]).run_stream(TOOL) as answer:
            told = await answer.get_output()
        calls.check()
        check_told(told)

    async def structured() -> None:
        for form in (ToolOutput, NativeOutput):
            check_form((await agent(output_type=form(Weather)).run(FORM)).output)

    async def structured_streamed() -> None:
        for form in (ToolOutput, NativeOutput):
            async with agent(output_type=form(Weather)).run_stream(FORM) as answer:
                check_form(await answer.get_output())

    return {
        "text": text,
        "stream": stream,
        "tools": tools,
        "tools streamed": tools_streamed,
        "structured": structured,
        "structured streamed": structured_streamed,
    }


if __name__ == "__main__":
    openai = lambda: OpenAIProvider(base_url=OPENAI, api_key=KEY)  # noqa: E731
    anthropic = lambda: AnthropicProvider(base_url=URL, api_key=KEY)  # noqa: E731
    run(
        {
            "pydantic-ai, OpenAIChatModel": row(lambda: OpenAIChatModel(MODEL, provider=openai())),
            "pydantic-ai, OpenAIResponsesModel": row(lambda: OpenAIResponsesModel(MODEL, provider=openai())),
            "pydantic-ai, AnthropicModel": row(
                lambda: AnthropicModel(MODEL, provider=anthropic(), profile=JSON)
            ),
        }
    )
