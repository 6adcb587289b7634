"""The conversations that every chat template renders. As OpenAI's clients send them."""

from __future__ import annotations

from typing import Any

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

_SYSTEM = {"role": "system", "content": "Be brief. "}
_QUESTION = {"role": "user", "content": "Hello <there> & \"you\"\n  indented 'text'"}
_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather at a place,\nas it is <now> & "today"',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Größe & <名前>"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": ["integer", "null"], "minimum": 1},
                "more": {"type": "object", "properties": {"wind": {"type": "boolean"}}},
                "hours": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["city"],
        },
    },
}
_CLOCK = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time",
        "parameters": {"type": "object", "properties": {}},
    },
}


def _call(name: str, arguments: str, call_id: str = "abcdef123") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


_CALLED = [
    _SYSTEM,
    {"role": "user", "content": "Weather in Köln?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [_call("get_weather", '{"city": "Köln", "days": 3, "exact": true, "x": 1.5}')],
    },
    {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": '{"sky": "<gray>"}'},
]

#: What each template is asked for: `messages`, and where they differ from nothing, `tools`, the start of the
#: answer and further variables.
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one question": {"messages": [_QUESTION]},
    "no start of the answer": {"messages": [_SYSTEM, _QUESTION], "add_generation_prompt": False},
    "several turns": {
        "messages": [
            _SYSTEM,
            {"role": "user", "content": " a "},
            {"role": "assistant", "content": "b\n"},
            {"role": "user", "content": "c 🎉 <|im_end|>"},
        ]
    },
    "reasoning": {
        "messages": [
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "4", "reasoning_content": "It is\n\n4."},
            {"role": "user", "content": "Sure?"},
            {"role": "assistant", "content": "<think>\nYes.\n</think>\n\nYes"},
            {"role": "user", "content": "Thanks"},
        ]
    },
    "thinking off": {"messages": [_SYSTEM, _QUESTION], "extra": {"enable_thinking": False}},
    "tools": {"messages": [_SYSTEM, _QUESTION], "tools": [_WEATHER, _CLOCK]},
    "tool call and answer": {"messages": _CALLED, "tools": [_WEATHER]},
    "two calls, then an answer": {
        "messages": [
            {"role": "user", "content": "Time and weather?"},
            {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [
                    _call("clock", "{}", "aaaaaaaa1"),
                    _call("get_weather", '{"city": "a\\"b\\n", "more": {"wind": false}}', "aaaaaaaa2"),
                ],
            },
            {"role": "tool", "tool_call_id": "aaaaaaaa1", "name": "clock", "content": "12:00"},
            {"role": "tool", "tool_call_id": "aaaaaaaa2", "name": "get_weather", "content": "rain"},
            {"role": "assistant", "content": "Noon, rain."},
            {"role": "user", "content": "Ok"},
        ],
        "tools": [_WEATHER, _CLOCK],
    },
    "wrong order": {
        "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, _SYSTEM]
    },
}
