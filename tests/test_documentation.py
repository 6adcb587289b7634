"""The pages of the repository: their links lead somewhere, and the code that they name exists."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
#: A link from a name to the file that has it: [`make_plan`](../python/inflight/build/plan.py).
NAME_LINK = re.compile(r"\[`([^`\]]+)`\]\(([^()\s#]+\.(?:rs|py|proto))\)")
PATH = re.compile(r"`((?:crates|docs|examples|proto|python|tests|tools)/[\w./-]*)`")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def tracked(*patterns: str) -> list[Path]:
    """Tracked and new files that match; deleted ones are left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


PAGES = tracked("*.md")
#: The changelog also names paths of earlier revisions.
CURRENT_PAGES = [page for page in PAGES if page.name != "CHANGELOG.md"]


@cache
def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        number = 0
        while (unique := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(unique)
    return found


def test_there_are_pages() -> None:
    assert ROOT / "README.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(ROOT) or not target.exists():
            broken.append(f"{link}: no such file")
        elif fragment and (target.suffix != ".md" or fragment not in anchors(target)):
            broken.append(f"{link}: no such heading")
    assert not broken


@pytest.mark.parametrize("page", CURRENT_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_paths_that_a_page_names_exist(page: Path) -> None:
    named = PATH.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_names_that_a_page_links_are_in_their_files(page: Path) -> None:
    missing = []
    for name, link in NAME_LINK.findall(page.read_text(encoding="utf-8")):
        code = (page.parent / link).read_text(encoding="utf-8")
        missing += [
            f"{link}: {part}" for part in re.findall(r"\w+", name) if not re.search(rf"\b{part}\b", code)
        ]
    assert missing == []


#: Written by the tests of two crates, heads included.
GENERATED = {"fields.md", "messages-fields.md"}


@pytest.mark.parametrize(
    "page",
    [page for page in CURRENT_PAGES if page.name not in GENERATED],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_prose_wraps_at_110_characters(page: Path) -> None:
    prose = FENCE.sub(lambda block: "\n" * block[0].count("\n"), page.read_text(encoding="utf-8"))
    # Rows of tables and what cannot be broken, such as an address, may be longer.
    long = [
        f"line {number}: {line}"
        for number, line in enumerate(prose.splitlines(), 1)
        if len(line) > 110 and not re.match(r"\s*(\||!\[|<!--)|\S+$", line)
    ]
    assert long == []


def test_the_table_of_crates_is_that_of_their_manifests() -> None:
    listed: dict[str, set[str]] = {}
    page = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
    for row in page.split("| crate | depends on |\n|---|---|\n")[1].split("\n\n")[0].splitlines():
        crates, needed = (re.findall(r"`(\w+)`", cell) for cell in row.strip("| ").split(" | "))
        listed |= {crate: set(needed) for crate in crates}
    found = {}
    for manifest in tracked("crates/*/Cargo.toml"):
        table = manifest.read_text(encoding="utf-8").split("[dependencies]\n")[1].split("\n[")[0]
        names = re.findall(r"^inflight-([\w-]+)", table, re.MULTILINE)
        found[manifest.parent.name] = {name.replace("-", "_") for name in names}
    assert found == listed
