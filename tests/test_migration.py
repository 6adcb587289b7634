"""docs/MIGRATION.md: its table is made of the tests that are marked with `migrates`; `UPDATE_SNAPSHOTS=1`
rewrites it.

The marks are read from the sources, so that the page does not depend on what this machine can run.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "MIGRATION.md"
BEGIN = "<!-- made by tests/test_migration.py: begin -->\n"
END = "<!-- end -->\n"
#: In the order of the page.
GUIDES = {
    "tensorrtllm_backend": "From Triton's TensorRT-LLM backend",
    "Triton": "From Triton Inference Server",
    "openai_trtllm": "From openai_trtllm",
}


def marks() -> Iterator[tuple[str, str, str, Path, int, str]]:
    """Guide, command, ours, and the test: file, line, name."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.migrates":
                    guide, command, ours = (ast.literal_eval(argument) for argument in decorator.args)
                    yield guide, command, ours, path.relative_to(ROOT), node.lineno, node.name


def _shown(text: str) -> str:
    """A command as code; a sentence has its own marks of code in it."""
    cell = text.replace("|", "\\|")
    return cell if "`" in cell else f"`{cell}`"


def table() -> str:
    """A section for each guide."""
    found = list(marks())
    assert {guide for guide, *_ in found} <= GUIDES.keys()
    lines = []
    for guide, title in GUIDES.items():
        rows = [row for row in found if row[0] == guide]
        if not rows:
            continue
        lines += [f"### {title}", "", "| there | here | proved by |", "|---|---|---|"]
        for _, command, ours, path, _, name in rows:
            lines.append(f"| {_shown(command)} | {_shown(ours)} | [`{name}`](../{path}) |")
        lines.append("")
    return "\n".join(lines)


def test_the_page_shows_what_tests_prove() -> None:
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    tail = rest.partition(END)[2]
    made = f"{head}{BEGIN}{table()}{END}{tail}"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        PAGE.write_text(made, encoding="utf-8")
    command = "UPDATE_SNAPSHOTS=1 pytest tests/test_migration.py"
    assert PAGE.read_text(encoding="utf-8") == made, f"run `{command}` and review the difference"
