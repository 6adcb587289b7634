"""LlamaIndex: OpenAILike on chat and OpenAIResponses; function agents and structured prediction."""

from __future__ import annotations

import logging
from typing import Any, Literal

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
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel, Field


class Weather(BaseModel):
    """The weather in a city"""

    city: str = Field(max_length=24)
    unit: Literal["celsius", "fahrenheit"]


def row(make: Any) -> Row:
    model = make()

    def text() -> None:
        check_text(model.complete(PLAIN).text)

    def stream() -> None:
        check_pieces([piece.delta or "" for piece in model.stream_complete(PLAIN)])

    async def agent(streaming: bool) -> None:
        calls = Calls()
        tools = [FunctionTool.from_defaults(calls.get_weather)]
        answer = await FunctionAgent(tools=tools, llm=make(), streaming=streaming).run(TOOL)
        calls.check()
        check_told(str(answer))

    async def tools() -> None:
        await agent(False)

    async def tools_streamed() -> None:
        await agent(True)

    def structured() -> None:
        check_form(model.structured_predict(Weather, PromptTemplate(FORM)))

    def structured_streamed() -> None:
        *_, last = model.stream_structured_predict(Weather, PromptTemplate(FORM))
        check_form(last)

    return {
        "text": text,
        "stream": stream,
        "tools": tools,
        "tools streamed": tools_streamed,
        "structured": structured,
        "structured streamed": structured_streamed,
    }


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    settings: Any = {
        "model": MODEL,
        "api_base": OPENAI,
        "api_key": KEY,
        "temperature": 0,
        "max_retries": 0,
        "context_window": 2048,
        "is_chat_model": True,
        "is_function_calling_model": True,
    }
    # Its other way streams a call that it does not demand.
    settings["should_use_structured_outputs"] = True
    run(
        {
            "LlamaIndex, OpenAILike": row(lambda: OpenAILike(**settings, max_tokens=LIMIT)),
            "LlamaIndex, OpenAILikeResponses": row(
                lambda: OpenAILikeResponses(**settings, max_output_tokens=LIMIT)
            ),
        }
    )
