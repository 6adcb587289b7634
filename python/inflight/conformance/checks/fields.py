"""Every field that clients send: it is taken, or the server says that it is not; and is never a 500."""

from __future__ import annotations

from functools import partial
from typing import Any

from inflight.conformance.check import Absent, check, expect, expect_equal
from inflight.conformance.checks.chat import ASK
from inflight.conformance.target import Target

CHAT: dict[str, Any] = {
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "logit_bias": {"5": -1},
    "top_p": 0.5,
    "metadata": {"a": "b"},
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "Machine learning"},
    "prompt_cache_key": "a",
    "reasoning_effort": "low",
    "response_format": {"type": "text"},
    "safety_identifier": "a",
    "service_tier": "auto",
    "store": False,
    "user": "a",
    "verbosity": "low",
    "modalities": ["text"],
    "stream_options": None,
    "tools": [],
    # Of vLLM and TensorRT-LLM.
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "min_tokens": 2,
    "ignore_eos": True,
    "stop_token_ids": [7],
    "skip_special_tokens": True,
    "bad_words": ["the"],
    "allowed_token_ids": [65, 66, 67],
    "length_penalty": 1.0,
    "include_stop_str_in_output": True,
    "truncate_prompt_tokens": 4096,
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "chat_template_kwargs": {"enable_thinking": False},
    "add_generation_prompt": True,
    "priority": 0,
    "cache_salt": "a",
    "guided_regex": "[a-z ]{5,20}",
    "guided_choice": ["yes", "no"],
    "guided_json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "structured_outputs": {"regex": "[a-z ]{5,20}"},
}

#: Values that no server may take: the error names the field.
WRONG: dict[str, Any] = {
    "temperature": "hot",
    "top_p": 2,
    "n": 0,
    "max_tokens": -1,
    "max_completion_tokens": "many",
    "stop": {"a": 1},
    "logit_bias": {"5": "much"},
    "stream": "yes",
    "stream_options": 3,
    "seed": "a",
    "response_format": {"type": "no-such-format"},
    "messages": [{"role": "asistant", "content": "a"}],
    "tools": "a",
    "tool_choice": {"type": "function", "function": {"name": "no_such_function"}},
}


def _asked(target: Target, field: str, value: Any) -> Any:
    body = {"model": target.model, "messages": ASK, "max_tokens": 8, field: value}
    return target.request("POST", "/v1/chat/completions", body)


def _is_honoured(field: str, value: Any, target: Target) -> None:
    answer = _asked(target, field, value)
    expect(answer.status < 500, f"the status is {answer.status}: {answer.body[:100]!r}")
    if answer.status != 200:
        error = answer.json()["error"]
        named = f"{error.get('param')} {error['message']}"
        expect(field in named, f"the refusal does not name the field: {error['message']!r}")
        raise Absent(f"{answer.status}: {error['message']}")
    if field in answer.headers.get("x-inflight-ignored-fields", "").split(", "):
        raise Absent("ignored, and named in `x-inflight-ignored-fields`")


def _is_refused(field: str, value: Any, target: Target) -> None:
    answer = _asked(target, field, value)
    expect_equal("the status", answer.status, 400)
    error = answer.json()["error"]
    expect(field in (error.get("param") or ""), f"`param` is {error.get('param')!r}")


for _field, _value in CHAT.items():
    check("Fields", f"takes `{_field}`, or says that it does not", optional=True)(
        partial(_is_honoured, _field, _value)
    )
for _field, _value in WRONG.items():
    check("Fields", f"names `{_field}` where its value is wrong")(partial(_is_refused, _field, _value))
