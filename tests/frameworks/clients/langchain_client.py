"""LangChain: ChatOpenAI on chat and on responses, ChatAnthropic; `bind_tools`, `with_structured_output`."""

from __future__ import annotations

import json
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
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class Weather(BaseModel):
    """The weather in a city"""

    city: str = Field(max_length=24)
    unit: Literal["celsius", "fahrenheit"]


def row(model: Any, methods: list[str]) -> Row:
    def text() -> None:
        check_text(model.invoke(PLAIN).text)

    def stream() -> None:
        check_pieces([chunk.text for chunk in model.stream(PLAIN)])

    def tools() -> None:
        calls = Calls()
        agent: Any = create_agent(model, [tool(calls.get_weather)])
        answer = agent.invoke({"messages": [HumanMessage(TOOL)]})
        calls.check()
        check_told(answer["messages"][-1].text)

    def tools_streamed() -> None:
        calls = Calls()
        bound = model.bind_tools([tool(calls.get_weather)])
        messages: list[Any] = [HumanMessage(TOOL)]
        for _ in range(2):
            whole: Any = None
            for chunk in bound.stream(messages):
                whole = chunk if whole is None else whole + chunk
            messages.append(whole)
            for call in whole.tool_calls:
                messages.append(ToolMessage(calls.get_weather(**call["args"]), tool_call_id=call["id"]))
        calls.check()
        check_told(messages[-1].text)

    def structured() -> None:
        for method in methods:
            question = FORM + ("" if method != "json_mode" else " Use JSON.")
            answer = model.with_structured_output(Weather, method=method, include_raw=True).invoke(question)
            if method == "json_mode":
                # The model chooses the fields.
                json.loads(answer["raw"].text)
            else:
                if answer["parsing_error"]:
                    raise answer["parsing_error"]
                check_form(answer["parsed"])

    def structured_streamed() -> None:
        for method in methods:
            if method != "json_mode":
                *_, last = model.with_structured_output(Weather, method=method).stream(FORM)
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
    settings: Any = {"model": MODEL, "api_key": KEY, "temperature": 0, "max_retries": 0}
    openai = {**settings, "base_url": OPENAI, "max_completion_tokens": LIMIT}
    every = ["json_schema", "function_calling", "json_mode"]
    run(
        {
            "LangChain, ChatOpenAI": row(ChatOpenAI(**openai), every),
            "LangChain, ChatOpenAI on responses": row(ChatOpenAI(**openai, use_responses_api=True), every),
            "LangChain, ChatAnthropic": row(
                ChatAnthropic(**settings, base_url=URL, max_tokens=LIMIT), every[:2]
            ),
        }
    )
