"""Sends the outputs of vLLM's tests of its parsers through the gateway, whole and streamed.

Owns what must be equal: names and arguments of calls, reasoning, and content apart from white space at its
ends. Of an output whose test expects nothing that can be read, the arguments of calls must be JSON, and the
calls the same whole and streamed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from compare_text.dictated import dictate
from compare_text.serving import Answer, Gateway, serving
from compare_text.vllm_cases import Case, read

#: How a stream ends when a call turns out malformed after a part of it was sent. An answer in one piece has
#: its text.
_MALFORMED = "tool call is malformed"

_IS_TEXT = "a malformed call is text here; vLLM makes a call of what there is"
_BARE = "Gemma 4's calls begin with `call:`; vLLM reads those without it, and those without arguments"
_WRAPPED = "a lone parameter `arguments` or `input` is passed on; vLLM takes it for all parameters"
_OWN_LINE = "a bare JSON call begins a line here; vLLM finds it behind text"
_MORE = "the test sends more than the output that is read"
_LAST_BRACE = "a call that lacks only its last brace is a call here; vLLM makes text of it"
#: By the name of the case.
KNOWN = {
    "deepseekv31: test_extract_tool_calls_with_multiple_tools": "text behind calls is kept; vLLM drops it",
    "deepseekv32: test_arguments_wrapper_repaired": _WRAPPED,
    "deepseekv32: test_input_wrapper_repaired": _WRAPPED,
    "deepseekv4: test_extract_tool_calls_arguments_wrapper": _WRAPPED,
    "deepseekv32: test_delimiter_preserved_fast_detokenization": _MORE,
    "gemma4: test_incomplete_tool_call": _IS_TEXT,
    "gemma4: test_malformed_no_brace_bounded": _IS_TEXT,
    "gemma4: test_malformed_then_well_formed": _IS_TEXT,
    "gemma4: test_bare_opener_non_streaming": _BARE,
    "gemma4: test_bare_malformed_then_well_formed": _BARE,
    "gemma4: test_three_mixed_calls": _BARE,
    "hermes: test_hermes_parser_non_streaming_tool_call_invalid_json": _LAST_BRACE,
    "kimi_k2: test_invalid_json_still_extracted": _IS_TEXT,
    "llama3_json: test_extract_tool_calls_simple": _OWN_LINE,
    "llama3_json: test_extract_tool_calls_multiple_json_with_surrounding_text": _OWN_LINE,
}
_CHANNEL = "Gemma 4 writes the channel's name, `thought`, as its template does; vLLM takes any channel"


@dataclass(frozen=True)
class Failure:
    """A case whose answer differs."""

    name: str
    what: str


@dataclass
class Result:
    """Of each parser, how many cases agree, differ for a known reason, and exist; and what else differs."""

    right: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    all: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    unread: int = 0


def compare(files: Mapping[str, bytes]) -> Result:
    """Sends the cases of the tests among `files`, by path."""
    cases, unread = read(files)
    result = Result(unread=unread)
    templates = {_model(case): _template(case) for case in cases}
    options = sorted({option for case in cases for option in _options(case)})
    with serving(templates, *options) as gateway:
        for case in cases:
            answers = [_ask(gateway, case, streamed) for streamed in case.is_streamed]
            result.all[case.parser] += 1
            problem = next(filter(None, map(partial(_problem, case), case.is_streamed, answers)), None)
            if problem is None and len({json.dumps(one.named_calls) for one in answers if not one.error}) > 1:
                problem = f"whole {answers[0].named_calls}, streamed {answers[1].named_calls}"
            if problem is None:
                result.right[case.parser] += 1
            elif reason := _reason(case):
                result.named[case.parser] += 1
                result.reasons[reason] += 1
            else:
                result.failures.append(Failure(case.name, f"{problem}\n  output {case.output!r}"))
    return result


def _model(case: Case) -> str:
    """The model that answers it: one for each parser, and one whose prompt begins the reasoning."""
    return "-".join((*_parsers(case), "open" if _begins_within(case) else "closed"))


def _parsers(case: Case) -> tuple[str, str]:
    """Of calls and of reasoning."""
    if not case.is_reasoning:
        # vLLM's parser of xLAM's calls looks behind the reasoning by itself.
        return case.parser, "think" if case.parser == "xlam" else "none"
    return "qwen3_coder" if case.names else "none", case.parser


def _begins_within(case: Case) -> bool:
    """Whether the output continues reasoning that the prompt began."""
    begun = re.search(r"<think>|Here(?: i|')s my thought|<\|channel>", case.output)
    ended = re.search(r"</think>|<channel\|>", case.output)
    return case.is_reasoning and begun is None and bool(case.reasoning or ended)


def _template(case: Case) -> str:
    text = "{% for message in messages %}{{ message.content }}\n{% endfor %}{{ tools }}"
    if not _begins_within(case):
        return text
    return text + ("<|channel>thought\n" if case.parser == "gemma4" else "<think>\n")


def _options(case: Case) -> list[str]:
    tools, reasoning = _parsers(case)
    return [f"--tool-parser={_model(case)}={tools}", f"--reasoning-parser={_model(case)}={reasoning}"]


def _ask(gateway: Gateway, case: Case, streamed: bool) -> Answer:
    body: dict[str, Any] = {
        "model": _model(case),
        "messages": [{"role": "user", "content": dictate(case.output)}],
        "max_tokens": 5000,
        "stream": streamed,
    }
    if case.names or not case.is_reasoning:
        declared = {tool["function"]["name"] for tool in case.tools}
        # A name that is not a tool's is not read as a call.
        names = [name for name, _ in case.calls or ()] + (case.names or [])
        names += re.findall(r"[\"'](?:name|tool_name)[\"']:\s*[\"']([\w.-]+)", case.output)
        names += re.findall(r"(?:function|invoke name|call)[=:]\"?([\w.-]+)", case.output)
        names += re.findall(r"([A-Za-z_][\w]*)\(", case.output)
        names += re.findall(r"(?:<tool_call>|<｜tool▁sep｜>|<\|tool_call>:|functions\.)(\w+)", case.output)
        names += re.findall(r"<｜tool▁call▁begin｜>(\w+)<｜tool▁sep｜>", case.output)
        others = [name for name in dict.fromkeys(names) if name not in declared]
        body["tools"] = case.tools + [
            {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
            for name in others[:100]
        ]
        if not body["tools"]:
            del body["tools"]
    return gateway.chat(body)


def _reason(case: Case) -> str | None:
    """Why a case differs, if that is known and wanted."""
    if case.is_reasoning and case.parser == "gemma4" and "<|channel>thought" not in case.output:
        return _CHANNEL
    return KNOWN.get(case.name)


def _problem(case: Case, streamed: bool, answer: Answer) -> str | None:
    """What is wrong with an answer."""
    if (
        streamed
        and _MALFORMED in answer.error
        and not (case.calls or case.names or case.count or case.asserted.names)
    ):
        return None
    if answer.error:
        return f"an error: {answer.error}"
    for name, arguments in answer.named_calls:
        if not isinstance(arguments, dict):
            return f"the arguments of `{name}` are {arguments!r}"
    if case.calls is not None and answer.named_calls != case.calls:
        return f"calls {answer.named_calls}, expected {case.calls}"
    if case.names is not None and [name for name, _ in answer.named_calls] != case.names:
        return f"calls {answer.named_calls}, expected {case.names}"
    if case.count is not None and len(answer.calls) != case.count:
        return f"calls {answer.named_calls}, expected {case.count}"
    for place, (name, arguments) in enumerate(answer.named_calls):
        if case.asserted.names.get(place, name) != name:
            return f"call {place} of `{name}`, expected `{case.asserted.names[place]}`"
        wanted = case.asserted.arguments.get(place, {})
        if {**arguments, **wanted} != arguments:
            return f"call {place} with {arguments}, expected {wanted}"
    if case.reasoning is not None and answer.reasoning.strip() != case.reasoning.strip():
        return f"reasoning {answer.reasoning!r}, expected {case.reasoning!r}"
    if case.content is not None and answer.content.strip() != case.content.strip():
        return f"content {answer.content!r}, expected {case.content!r}"
    return None
