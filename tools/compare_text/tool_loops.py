"""Two turns with a tool over every chat template: a call, its result, and an answer.

The model's call is what the template itself writes for one, so that each model calls as it was taught to. The
gateway must read it, whole and streamed, and must accept the id that it gave the call in the next turn. Owns
how a call is cut out of a template's prompt; that prompts are rendered alike is for `templates` to compare.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from compare_text.conversations import SPECIAL_TOKENS
from compare_text.dictated import dictate
from compare_text.serving import Gateway, serving

NAME, ARGUMENTS, ARGUMENTS_TEXT = "get_weather", {"city": "Paris"}, '{"city": "Paris"}'
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": NAME,
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Its name"}},
                "required": ["city"],
            },
        },
    }
]
QUESTION, RESULT, REPLY = "Weather in Paris?", "It is raining.", "Take an umbrella."
#: What Mistral's templates accept, and no model writes by chance.
CALL_ID = "abcdef123"
#: Where a template writes the id into the call. A model's own id is kept, and the gateway's is to be tested.
_WRITTEN_ID = re.compile(rf',? ?"id": "{CALL_ID}"|\[CALL_ID\]{CALL_ID}')
#: A tag that begins before the place where two prompts differ, and ends behind it.
_OPEN_TAG = re.compile(r"<[^<>]*$")

CALLED, FORMAT_UNKNOWN = "call, result and answer", "format of calls not known"
_SAYS_UNKNOWN = "does not know how this model writes tool calls"
#: Templates whose models call in a format that the gateway does not know, which it says.
UNKNOWN = frozenset(
    {
        "Apertus-8B-Instruct",
        "Cohere2MoE",
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        "GigaChat3-10B-A1.8B",
        "GigaChat3.1-10B-A1.8B",
        "Kimi-K3",
        "MiniMax-M3",
        "NVIDIA-Nemotron-Nano-v2",
        "meetkai-functionary-medium-v3.1",
        "meetkai-functionary-medium-v3.2",
        "muse-glimmer",
        "openbmb-MiniCPM5-1B",
        "tencent-Hy3",
        "tool_chat_template_apertus",
        "tool_chat_template_granite_20b_fc",
        "tool_chat_template_muse_glimmer",
        "upstage-Solar-Open-100B",
    }
)
_PYTHONIC = f'[{NAME}(city="Paris")]'
#: Templates that write a call's arguments as Python shows a value; what their models write instead.
WRITTEN = {
    "tool_chat_template_llama3.2_pythonic": _PYTHONIC,
    "tool_chat_template_toolace": _PYTHONIC,
    "tool_chat_template_phi4_mini": f'functools[{{"name": "{NAME}", "arguments": {ARGUMENTS_TEXT}}}]',
}


@dataclass(frozen=True)
class Failure:
    """What went wrong with one template."""

    template: str
    what: str


@dataclass(frozen=True)
class Result:
    """How many templates ended how, and what failed."""

    counts: Counter[str]
    failures: list[Failure]


def compare(templates: Mapping[str, str]) -> Result:
    """The conversation with every template that shows tools, calls and results; `templates` by file name."""
    calls = {}
    for path, template in templates.items():
        call = written_call(template)
        if call is not None:
            calls[path] = WRITTEN.get(_name(path), call)
    result = Result(Counter({"no tools in the template": len(templates) - len(calls)}), [])
    models = {f"model-{number}": path for number, path in enumerate(calls)}
    with serving({model: templates[path] for model, path in models.items()}) as gateway:
        for model, path in models.items():
            outcome = _converse(gateway, model, calls[path])
            expected = FORMAT_UNKNOWN if _name(path) in UNKNOWN else CALLED
            result.counts[outcome if outcome == expected else "failed"] += 1
            if outcome != expected:
                result.failures.append(Failure(path, f"{outcome}; the call is {calls[path]!r}"))
    return result


def _name(path: str) -> str:
    """A template's name, without the folder and the package."""
    return re.split("[ /]", path)[-1].removesuffix(".jinja")


def written_call(template: str) -> str | None:
    """What a model writes to call the tool, as the template shows it; none if it shows no tools, calls or
    results."""
    for arguments in (ARGUMENTS, ARGUMENTS_TEXT):
        question = {"role": "user", "content": QUESTION}
        function = {"name": NAME, "arguments": arguments}
        called = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": CALL_ID, "type": "function", "function": function}],
        }
        result = {"role": "tool", "tool_call_id": CALL_ID, "name": NAME, "content": RESULT}
        try:
            without = _render(template, [question], start=True, tools=None)
            asked = _render(template, [question], start=True)
            answered = _render(template, [question, called], start=False)
            continued = _render(template, [question, called, result], start=True)
        except Exception:  # whatever a template raises
            continue
        pairs = enumerate(zip(asked, answered, strict=False))
        begin = next((place for place, (one, other) in pairs if one != other), min(len(asked), len(answered)))
        if begin < len(asked) and (tag := _OPEN_TAG.search(answered[:begin])):
            begin = tag.start()
        call = _WRITTEN_ID.sub("", answered[begin:])
        if asked == without or NAME not in call or RESULT not in continued:
            return None
        is_thinking = asked.rstrip().endswith("<think>")
        return f"</think>{call}" if is_thinking and "</think>" not in call else call
    return None


def _converse(gateway: Gateway, model: str, call: str) -> str:
    question = {"role": "user", "content": f"{QUESTION} {dictate(call)}"}
    asked: dict[str, Any] = {"model": model, "messages": [question], "tools": TOOLS, "max_tokens": 1000}
    whole, streamed = gateway.chat(asked), gateway.chat({**asked, "stream": True})
    for answer in (whole, streamed):
        if _SAYS_UNKNOWN in answer.error:
            return FORMAT_UNKNOWN
        if answer.error:
            return f"the question is refused: {answer.error}"
        if answer.named_calls != [(NAME, ARGUMENTS)] or answer.finish_reason != "tool_calls":
            return f"read as {answer.named_calls}, text {answer.content!r}, end `{answer.finish_reason}`"
    for answer in (whole, streamed):
        [made] = answer.calls
        result = {"role": "tool", "tool_call_id": made["id"], "content": f"{RESULT} {dictate(REPLY)}"}
        reply = gateway.chat({**asked, "messages": [question, answer.message(), result]})
        if reply.error:
            return f"the result of the call `{made['id']}` is refused: {reply.error}"
        if REPLY not in reply.content + reply.reasoning:
            return f"the result does not reach the model, which answers {reply.content!r}"
    return CALLED


def _render(
    template: str, messages: list[dict[str, Any]], start: bool, tools: list[Any] | None = TOOLS
) -> str:
    rendered, _ = render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=template,
        add_generation_prompt=start,
        **SPECIAL_TOKENS,
    )
    return str(rendered[0])
