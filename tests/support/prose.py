"""What the repository says to people: prose of pages, and text in Python and Rust code, each with its line.

Knows how to find text, not what is right with it. Python is parsed; Rust is read by a small lexer that knows
comments and literals, because a pattern would take a quotation mark in a comment for a string.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
#: One comment or literal of Rust; of two that begin at one place the first wins.
RUST_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*)
    | (?P<block>/\*.*?\*/)
    | b?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)
    | b?"(?P<text>(?:[^"\\]|\\.)*)"
    | b?'(?:[^'\\\n]|\\.[^']*)'
    """,
    re.VERBOSE | re.DOTALL,
)
#: A string that continues on the next line, as `\` at the end of a line says.
CONTINUED = re.compile(r"\\\n\s*")
RUST_TESTS = re.compile(r"^#\[cfg\(test\)\]\n(?:#\[.*\]\n)*mod \w+ \{.*?^\}", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Text:
    """A piece of text and the line on which it begins."""

    line: int
    words: str


def blank(matched: re.Match[str]) -> str:
    """As many lines as the match had, so that line numbers stay."""
    return "\n" * matched[0].count("\n")


def one_line(text: str) -> str:
    """`text` with single spaces, so that a phrase is found across line ends."""
    return re.sub(r"\s+", " ", text).strip()


def of_page(path: Path) -> Iterator[Text]:
    """The paragraphs and rows of a Markdown page; blocks of code are left out."""
    page = FENCE.sub(blank, path.read_text(encoding="utf-8"))
    begin, lines = 0, list[str]()
    for number, line in enumerate([*page.splitlines(), ""], 1):
        is_new = not line.strip() or re.match(r"\s*([|#>*-]|\d+\.)(\s|$)", line)
        if is_new and lines:
            yield Text(begin, one_line(" ".join(lines)))
            lines = []
        if line.strip():
            begin, lines = (begin, [*lines, line]) if lines else (number, [line])


def of_python(path: Path, *, with_comments: bool = False) -> Iterator[Text]:
    """String literals, docstrings among them; what a format string inserts is written `…`."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    inserted = {
        id(part)
        for whole in ast.walk(tree)
        if isinstance(whole, ast.JoinedStr)
        for part in ast.walk(whole)
        if part is not whole
    }
    for node in ast.walk(tree):
        if id(node) in inserted:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Text(node.lineno, one_line(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
            yield Text(node.lineno, one_line("".join(parts)))
    if with_comments:
        yield from comments(source, "#")


def of_rust(path: Path, *, with_comments: bool = False) -> Iterator[Text]:
    """String literals outside tests; with comments, blocks of whole-line comments too."""
    source = RUST_TESTS.sub(blank, path.read_text(encoding="utf-8"))
    for token in RUST_TOKEN.finditer(source):
        words = token["text"] if token["text"] is not None else token["raw"]
        if words:
            yield Text(source.count("\n", 0, token.start()) + 1, one_line(CONTINUED.sub("", words)))
    if with_comments:
        yield from comments(source, "//")


def comments(source: str, mark: str) -> Iterator[Text]:
    """Comments on lines of their own, those on adjacent lines as one text."""
    begin, lines = 0, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], 1):
        found = re.match(rf"\s*{mark}[/!:#]*(.*)", line)
        if found:
            begin, lines = (begin, [*lines, found[1]]) if lines else (number, [found[1]])
        elif lines:
            yield Text(begin, one_line(" ".join(lines)))
            lines = []
