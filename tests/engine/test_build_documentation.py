"""The tables of docs/reference/build-options.md match the code; `UPDATE_SNAPSHOTS=1` rewrites them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from inflight.build.families import ENGINES, supported
from inflight.build.options import OPTIONS
from inflight.model.runtimes import PYTORCH, REFERENCE, RUNTIMES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "build-options.md"


def options_table() -> str:
    lines = []
    for group in dict.fromkeys(option.group for option in OPTIONS):
        lines += ["", f"### {group}", "", "| option | default | for | |", "|---|---|---|---|"]
        for option in OPTIONS:
            if option.group != group:
                continue
            default = "" if option.default is None or option.default is False else f"`{option.default}`"
            runtimes = "all" if option.runtimes == RUNTIMES else ", ".join(option.runtimes)
            choices = option.choices
            listed = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
            lines.append(f"| `{option.flag}` | {default} | {runtimes} | {option.meaning}{listed} |")
    return "\n".join([*lines[1:], ""])


def architectures_table() -> str:
    ways = {
        "model_class": "`tensorrt_llm.models.{}`",
        "llm": "`tensorrt_llm._tensorrt_engine.LLM`",
        "script": "example script, `--model_type {}`",
    }
    every = sorted({name for runtime in RUNTIMES for name in supported(runtime)})
    lines = ["| architecture | tensorrt, converted by | pytorch | reference |", "|---|---|---|---|"]
    for name in every:
        family = ENGINES.get(name)
        engine = ways[family.converter].format(family.name) if family else ""
        others = ["yes" if name in supported(runtime) else "" for runtime in (PYTORCH, REFERENCE)]
        lines.append(f"| `{name}` | {engine} | {others[0]} | {others[1]} |")
    return "\n".join([*lines, ""])


@pytest.mark.parametrize(
    ("name", "table"), [("options", options_table), ("architectures", architectures_table)]
)
def test_the_page_has_the_tables_of_the_code(name: str, table: Callable[[], str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    block = re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- end of {name} -->)", re.DOTALL)
    found = block.search(page)
    assert found is not None
    if os.environ.get("UPDATE_SNAPSHOTS"):
        page = block.sub(lambda match: match[1] + table() + match[3], page)
        PAGE.write_text(page, encoding="utf-8")
        found = block.search(page)
        assert found is not None
    assert found[2] == table(), "run `UPDATE_SNAPSHOTS=1 pytest tests/engine` and review the difference"
