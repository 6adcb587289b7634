"""Renders chat templates with transformers and with the gateway's engine, and compares the prompts.

Owns how the two are asked; `crates/text/examples/render.rs` is the other end of the second one.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from compare_text.conversations import CONVERSATIONS, SPECIAL_TOKENS

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Difference:
    """One conversation that the two engines render differently."""

    template: str
    conversation: str
    expected: str
    got: str

    @property
    def reason(self) -> str | None:
        """Why the two differ, for the kinds that are known and wanted."""
        if html.unescape(self.expected) == html.unescape(self.got):
            return "Jinja escapes text that is added to a value marked `safe` as HTML; the gateway does not"
        return next((why for error, why in LENIENT.items() if self.expected == error), None)


#: By what transformers raises and the gateway renders.
LENIENT = {
    "TypeError: 'NoneType' object is not iterable": "the template needs tools and there are none, "
    "which is an error in Jinja and an empty list in the gateway",
    "TypeError: Object of type generator is not JSON serializable": "the template writes a lazy list as "
    "JSON, which is an error in Jinja and a list in the gateway",
}


@dataclass(frozen=True)
class Result:
    """Counts of `same`, `both refuse`, `different, named` and `different`, and what differs."""

    counts: Counter[str]
    differences: list[Difference]


def compare(templates: dict[str, str]) -> Result:
    """Renders every conversation with every template, by both engines."""
    jobs = [(name, conversation) for name in templates for conversation in CONVERSATIONS]
    ours = _ours([_job(templates[name], CONVERSATIONS[conversation]) for name, conversation in jobs])
    result = Result(Counter(), [])
    for (name, conversation), (got, got_failed) in zip(jobs, ours, strict=True):
        expected, failed = _expected(_job(templates[name], CONVERSATIONS[conversation]))
        if failed and got_failed:
            result.counts["both refuse"] += 1
        elif (_timeless(expected), failed) == (_timeless(got), got_failed):
            result.counts["same"] += 1
        else:
            difference = Difference(name, conversation, expected, got)
            result.counts["different, named" if difference.reason else "different"] += 1
            result.differences.append(difference)
    return result


def _timeless(text: str) -> str:
    """The text without times of the day: the engines render one after the other."""
    return re.sub(r"\b\d\d:\d\d:\d\d\b", "TIME", text)


def _job(template: str, conversation: dict[str, Any]) -> dict[str, Any]:
    return {
        "template": template,
        "special_tokens": SPECIAL_TOKENS,
        "add_generation_prompt": True,
        "tools": None,
        "extra": {},
        **conversation,
    }


def _ours(jobs: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """Text and whether it is an error's, by the gateway's engine."""
    command = ["cargo", "run", "--quiet", "--locked", "--package", "inflight-text", "--example", "render"]
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    done = subprocess.run(command, cwd=ROOT, input=lines, stdout=subprocess.PIPE, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [(answer.get("text", answer.get("error")), "error" in answer) for answer in answers]


def _expected(job: dict[str, Any]) -> tuple[str, bool]:
    """Text and whether it is an error's, by transformers, with tool calls' arguments parsed as vLLM does."""
    try:
        rendered, _ = render_jinja_template(
            conversations=[[_parsed(message) for message in job["messages"]]],
            tools=job["tools"],
            chat_template=job["template"],
            add_generation_prompt=job["add_generation_prompt"],
            **job["special_tokens"],
            **job["extra"],
        )
    except Exception as error:  # whatever a template raises
        return f"{type(error).__name__}: {error}", True
    return rendered[0], False


def _parsed(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": calls}
