"""docs/STATUS.md stays readable: a row says what, how far, and where the evidence is, and nothing more."""

from __future__ import annotations

import re

import pytest

from test_documentation import ROOT, anchors

PAGE = (ROOT / "docs" / "STATUS.md").read_text(encoding="utf-8")
LEVELS = ("✔", "◐", "✘")
LONGEST_CELL = 80
TABLES = re.findall(r"^\| part \| level \| evidence \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
ROWS = [[cell.strip() for cell in row.split("|")[1:-1]] for table in TABLES for row in table.splitlines()]


def test_the_page_begins_with_five_facts_and_the_levels() -> None:
    top = PAGE.partition("## ")[0]
    assert len(re.findall(r"^- \*\*", top, re.MULTILINE)) == 5
    assert "TensorRT-LLM" in top
    assert re.findall(r"^\| (\S) \|", top, re.MULTILINE) == list(LEVELS)


def test_every_table_is_one_of_parts() -> None:
    assert len(TABLES) == 5
    # The other one is the legend.
    assert len(re.findall(r"^\|-", PAGE, re.MULTILINE)) == len(TABLES) + 1
    assert len({part for part, *_ in ROWS}) == len(ROWS) > 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_has_a_level_and_one_link_that_leads_to_its_part(row: list[str]) -> None:
    part, level, evidence = row
    assert all(len(cell) <= LONGEST_CELL for cell in row)
    assert level in LEVELS
    link = re.fullmatch(r"\[\w+\]\((status/\w+\.md)#([\w-]+)\)", evidence)
    assert link is not None, evidence
    assert link[2] in anchors(ROOT / "docs" / link[1])
    assert link[2] == re.sub(r"[^\w\- ]", "", part.lower()).replace(" ", "-")


def test_every_section_of_evidence_has_a_row_or_is_about_several() -> None:
    linked = {evidence.partition("#")[2].rstrip(")") for _, _, evidence in ROWS}
    several = {
        "tensorrt-llm",
        "a-worker-in-tritons-place",
        "triton-model-repositories",
        "the-gateway-in-front-of-triton",
    }
    for page in sorted((ROOT / "docs" / "status").glob("*.md")):
        sections = set(re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE))
        slugs = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in sections}
        assert slugs <= linked | several, page.name


def test_the_tests_that_cover_the_endpoint_picker_protocol_exist() -> None:
    page = (ROOT / "docs" / "status" / "gateway.md").read_text(encoding="utf-8")
    section = page.partition("### What the endpoint-picker protocol requires")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[2])}
    files = [ROOT / "tests" / "e2e" / "test_proxy_picking.py"]
    files += (ROOT / "crates" / "ext_proc" / "src").rglob("*.rs")
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert len(named) > 10
    assert [name for name in sorted(named) if not re.search(rf"\b(def|fn) {name}\b", text)] == []
