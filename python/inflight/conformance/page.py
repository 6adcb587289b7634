"""What came of the checks, as a page in Markdown and as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from inflight.conformance.check import Result

WORDS = {"passed": "yes", "absent": "absent, and said so", "failed": "**no**"}


def counts(results: Sequence[Result]) -> str:
    """How many passed, are absent and failed, in words."""
    found = Counter(result.state for result in results)
    return ", ".join(f"{found[state]} {state}" for state in ("passed", "absent", "failed"))


def markdown(results: Sequence[Result]) -> str:
    """A table for each topic. `reason` is given for what did not pass."""
    lines = []
    for topic, of_topic in groupby(results, key=lambda result: result.topic):
        lines += [f"## {topic}", "", "| what | |", "|---|---|"]
        for result in of_topic:
            reason = f": {_cell(result.reason)}" if result.reason else ""
            lines.append(f"| {_cell(result.name)} | {WORDS[result.state]}{reason} |")
        lines.append("")
    return "\n".join(lines)


def as_json(results: Sequence[Result]) -> list[dict[str, str]]:
    """One object for each check."""
    return [
        {
            "topic": result.topic,
            "check": result.name,
            "state": result.state,
            "reason": result.reason,
        }
        for result in results
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
